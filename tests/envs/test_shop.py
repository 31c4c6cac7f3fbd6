"""The shop: the same for a seed, truth as the database has it, statements counted, and no text that becomes SQL."""

import asyncio
import pickle
import re
import sqlite3
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from envs.decisions.rewards import StepView
from envs.shop.database import ShopDatabase
from envs.shop.judgement import no_invention, no_promise, right_fields
from envs.shop.prepare import FILES, main, prepare
from envs.shop.rules import NODES, answer, query, ruling
from envs.shop.tickets import HELDOUT_EVERY, tickets
from envs.shop.world import ShopWorld, lookup, wrong_statements
from envs.tasks import load_tasks

DECLARATION = yaml.safe_load(Path("conf/decision/shop.yaml").read_text())
OUTPUTS = {node["name"]: Draft202012Validator(node["output_schema"]) for node in DECLARATION["nodes"]}


def all_tickets(folder):
    return load_tasks(folder / "train.jsonl") + load_tasks(folder / "heldout.jsonl")


def rows(folder, table):
    with sqlite3.connect(folder / "shop.sqlite") as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


def answered(task, **changes):
    """The expected values of a ticket, with the answer's fields changed."""
    expected = task.meta["expected"]
    return {**expected, "response": {**expected["response"], **changes}}


def of_family(folder, family, decision):
    return next(
        task
        for task in all_tickets(folder)
        if task.meta["family"] == family and task.meta["expected"]["response"]["decision"] == decision
    )


def test_the_same_seed_gives_the_same_rows_and_tickets(shop_data, tmp_path):
    prepare(tmp_path / "again", customers=120, orders=400, train=66, heldout=44, seed=3)
    prepare(tmp_path / "other", customers=120, orders=400, train=66, heldout=44, seed=4)
    for table in ("customers", "orders", "order_lines", "shipments", "policies"):
        assert rows(tmp_path / "again", table) == rows(shop_data, table)
    for name in FILES[1:]:
        assert (tmp_path / "again" / name).read_bytes() == (shop_data / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (shop_data / name).read_bytes()


def test_the_default_shop_has_a_few_thousand_rows_and_a_few_hundred_tickets(tmp_path, capsys):
    assert main(["--out", str(tmp_path)]) == 0
    assert "6523 rows, 440 training and 154 held-out tickets" in capsys.readouterr().out
    assert main(["--out", str(tmp_path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    texts = [task.prompt[0].content for task in all_tickets(tmp_path)]
    assert len(set(texts)) > 0.9 * len(texts)


def test_training_and_heldout_share_no_customer_and_no_order(shop_data):
    sides = [load_tasks(shop_data / name) for name in FILES[1:]]
    customers, orders = ([{task.meta[key] for task in side} - {""} for side in sides] for key in ("customer", "order"))
    assert not customers[0] & customers[1]
    assert not orders[0] & orders[1]
    assert all(customer % HELDOUT_EVERY == 0 for customer in customers[1])


def test_truth_agrees_with_the_database(shop_data):
    orders = {row["id"]: row for row in rows(shop_data, "orders")}
    shipments = {row["order_id"]: row for row in rows(shop_data, "shipments")}
    days = {(row["topic"], row["category"]): row["days"] for row in rows(shop_data, "policies")}
    lines = rows(shop_data, "order_lines")
    for task in all_tickets(shop_data):
        response, family, number = task.meta["expected"]["response"], task.meta["family"], task.meta["order"]
        if family in ("thanks", "unclear"):
            assert (number, response["status"], response["date"], response["amount"]) == ("", "", "", "")
            assert response["decision"] == {"thanks": "close", "unclear": "clarify"}[family]
            continue
        order, shipment = orders[number], shipments.get(number)
        assert number in task.prompt[0].content
        assert order["customer_id"] == task.meta["customer"]
        assert response["status"] == order["status"]
        cents = sum(line["quantity"] * line["cents"] for line in lines if line["order_id"] == number)
        if family in ("cancel", "address"):
            right = "approve" if order["status"] == "processing" else "deny"
        elif family == "where":
            right = "inform"
        else:
            limit = days["refund", order["category"]] if family == "refund" else days["damage", "any"]
            in_time = (date(2026, 3, 31) - date.fromisoformat(shipment["delivered"])).days <= limit
            right = {"refund": "approve", "damaged": "replace"}[family] if in_time else "deny"
        assert response["decision"] == right
        pays = right == "approve" and family in ("refund", "cancel")
        assert response["amount"] == (f"{cents / 100:.2f}" if pays else "")
        if order["status"] == "delivered":
            assert response["date"] == shipment["delivered"]
        elif order["status"] == "shipped":
            assert response["date"] == shipment["expected" if family in ("where", "address") else "shipped"]
        else:
            assert response["date"] == ""


def test_every_expected_value_is_what_its_node_may_write_and_scores_1(shop_data):
    world = ShopWorld(str(shop_data / "shop.sqlite"))
    for task in all_tickets(shop_data):
        expected = task.meta["expected"]
        assert tuple(expected) == NODES
        for name, value in expected.items():
            OUTPUTS[name].validate(value)
        assert world.score(expected, task) == 1.0
        assert wrong_statements(expected, task) == 0


def test_needs_are_the_nodes_without_which_the_answer_changes(shop_data):
    world = ShopWorld(str(shop_data / "shop.sqlite"))
    needed = set()
    for task in all_tickets(shop_data):
        expected, needs = task.meta["expected"], task.meta["needs"]
        found = asyncio.run(world.act("lookup", expected["retrieval"], task))
        parts = {"retrieval": {**expected["retrieval"], **found}, "policy": expected["policy"]}
        needed.add(tuple(needs))
        for name in parts:
            left = {part: None if part == name else value for part, value in parts.items()}
            changes = answer({**expected["intent"], **left}) != expected["response"]
            assert changes == (name in needs), (task.id, name)
    assert needed == {("response",), ("retrieval", "response"), ("retrieval", "policy", "response")}


def test_a_wrong_date_is_a_wrong_statement_and_scores_0(shop_data):
    task = of_family(shop_data, "refund", "approve")
    world = ShopWorld(str(shop_data / "shop.sqlite"))
    values = answered(task, date="2020-01-02")
    assert wrong_statements(values, task) == 1
    assert world.score(values, task) == 0.0
    assert wrong_statements({}, task) == 0  # no answer states nothing
    assert world.score({}, task) == 0.0


def test_statements_are_status_date_amount_eligibility_and_those_within_the_text(shop_data):
    task = of_family(shop_data, "refund", "deny")
    assert wrong_statements(answered(task, decision="approve"), task) == 1
    assert wrong_statements(answered(task, decision="approve", status="shipped", amount="1.00"), task) == 3
    right = task.meta["facts"]["amount"]
    assert wrong_statements(answered(task, text=f"You paid {right}, not 1.23, on 2020-01-02."), task) == 2
    assert wrong_statements(answered(task, decision="clarify", status="", date=""), task) == 0  # less, but not wrong
    unclear = of_family(shop_data, "unclear", "clarify")
    assert wrong_statements(answered(unclear, decision="deny", status="shipped", date="2026-03-01"), unclear) == 3


HOSTILE = (
    "1234; DROP TABLE orders",
    "' OR '1'='1",
    "1234' UNION SELECT name, email, 0, 0, 0, 0 FROM customers --",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_model_never_runs_as_sql(shop_data, text):
    world, task = ShopWorld(str(shop_data / "shop.sqlite")), of_family(shop_data, "refund", "approve")
    for field in ("order", "rule"):
        asked = {**task.meta["expected"]["retrieval"], field: text}
        assert not OUTPUTS["retrieval"].is_valid(asked)
        found = asyncio.run(world.act("lookup", asked, task))
        assert found.get("limit") is None
        assert found == {"status": "unknown"} if field == "order" else found["status"] == "delivered"
    with pytest.raises(ValueError, match="not a query"):
        asyncio.run(world.act("lookup", {**task.meta["expected"]["retrieval"], "find": text}, task))
    assert len(rows(shop_data, "orders")) == 400


@pytest.mark.parametrize(
    "output", [None, "SELECT 1", ["tracking"], {}, {"find": "tracking", "rule": "none", "order": 1}]
)
def test_only_structured_queries_are_taken(shop_data, output):
    world, task = ShopWorld(str(shop_data / "shop.sqlite")), of_family(shop_data, "refund", "approve")
    with pytest.raises(ValueError, match=r"not a query: .*; expected find \(one of tracking, purchase, none\)"):
        asyncio.run(world.act("lookup", output, task))
    with pytest.raises(ValueError, match="the shop has no action 'sql'; accepted: lookup"):
        asyncio.run(world.act("sql", output, task))


def test_the_database_is_opened_for_reading_only_and_only_for_the_customer(shop_data):
    shop = pickle.loads(pickle.dumps(ShopDatabase(shop_data / "shop.sqlite")))
    first = shop.orders()[0]
    assert shop.order(first.id, first.customer) is not None
    assert shop.order(first.id, first.customer + 1) is None
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        shop._open().execute("DELETE FROM orders")


def test_without_a_database_the_command_that_makes_it_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"does not exist; make it with: python -m envs\.shop\.prepare"):
        ShopWorld(str(tmp_path / "shop.sqlite"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--train", "0"], "--train 0 --heldout 154: both must be at least 1"),
        (["--orders", "9001"], "accepted are 1 <= customers <= orders <= 9000"),
        (["--orders", "600", "--train", "590"], "too few orders for tickets of the family"),
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path, capsys, arguments, sentence):
    assert main(["--out", str(tmp_path / "shop"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_tickets_of_one_split_are_about_different_orders(shop_data):
    made = tickets(ShopDatabase(shop_data / "shop.sqlite"), split="train", count=66, seed=3)
    orders = [task.meta["order"] for task in made if task.meta["order"]]
    assert len(orders) == len(set(orders)) == 54  # 4 of 22 families name none
    assert all(re.fullmatch("[0-9]{4}", order) for order in orders)


RETURN = {"intent": "refund", "order": "5821"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"status": "delivered", "days": "14", "limit": "14"}, ("approve", "in_time")),
        ({"status": "delivered", "days": "15", "limit": "14"}, ("deny", "too_late")),
        ({"status": "shipped", "days": "", "limit": "14"}, ("deny", "not_delivered")),
        ({"status": "processing", "limit": "processing"}, ("approve", "not_shipped")),
        ({"status": "delivered", "limit": "processing"}, ("deny", "shipped")),
        ({"status": "delivered", "days": "3"}, ("none", "no_rule")),
        ({"status": "unknown"}, ("none", "no_rule")),
    ],
)
def test_rulings(found, expected):
    assert tuple(ruling({**RETURN, "retrieval": found}).values()) == expected


def test_a_damaged_article_is_replaced_and_a_skipped_lookup_rules_nothing():
    found = {"status": "delivered", "days": "3", "limit": "60"}
    assert ruling({"intent": "damaged", "order": "5821", "retrieval": found})["decision"] == "replace"
    assert ruling({**RETURN, "retrieval": None})["decision"] == "none"
    assert query(RETURN) == {"find": "purchase", "rule": "refund", "order": "5821"}


def test_only_the_customers_own_order_is_found(shop_data):
    shop = ShopDatabase(shop_data / "shop.sqlite")
    first = shop.orders()[0]
    asked = {"find": "tracking", "rule": "none", "order": first.id}
    assert lookup(shop, asked, first.customer + 1) == {"status": "unknown"}
    assert lookup(shop, {**asked, "find": "none"}, first.customer) == {}
    assert set(lookup(shop, asked, first.customer)) == {"status", "date"}
    full = lookup(shop, {"find": "purchase", "rule": "cancel", "order": first.id}, first.customer)
    assert list(full) == ["status", "date", "amount", "days", "limit"]


def a_view(task, output, *, policy="deny", seen="2026-03-01"):
    given = {"intent": "refund", "retrieval": {"date": seen}, "policy": {"decision": policy}}
    reference = task.meta["expected"]["response"]
    return StepView(node="response", input=given, output=output, task=task, values={}, reference=reference)


def test_rewards_and_rules_of_the_answer(shop_data):
    task = of_family(shop_data, "refund", "deny")
    reference = task.meta["expected"]["response"]
    assert right_fields(a_view(task, reference)) == 1.0
    assert right_fields(a_view(task, {**reference, "text": "", "amount": "1.00"})) == pytest.approx(3 / 4)
    assert right_fields(replace(a_view(task, reference), reference=None)) == 0.0
    assert no_invention(a_view(task, {"date": "2026-03-01", "amount": "", "text": "It came on 2026-03-01."})) == 0.0
    assert no_invention(a_view(task, {"date": "2026-03-02", "amount": ""})) == -10.0
    assert no_invention(a_view(task, {"date": "", "amount": "", "text": "You get 5.00."})) == -10.0
    assert no_promise(a_view(task, {"decision": "approve"})) == -10.0
    assert no_promise(a_view(task, {"decision": "approve"}, policy="approve")) == 0.0
    assert no_promise(a_view(task, {"decision": "deny"})) == 0.0
