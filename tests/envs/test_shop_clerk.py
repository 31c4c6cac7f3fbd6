"""The clerk and its demonstrations: an expert is always right, habits show, both forms are those of the worlds."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from envs.decisions.contracts import compact
from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.rewards import Judge
from envs.decisions.typed_env import TypedDecisionEnv
from envs.shop.clerk import EXPERT, Clerk, Habits
from envs.shop.demonstrator import END, Player, main, play_all, read_declaration
from envs.shop.world import ShopWorld, wrong_statements
from envs.tasks import load_tasks
from envs.types import EndReason

DECLARATION = Path("conf/decision/shop.yaml")


@pytest.fixture(scope="module")
def declared():
    return read_declaration(DECLARATION)


def a_player(folder, habits=EXPERT):
    return Player(read_declaration(DECLARATION), ShopWorld(str(folder / "shop.sqlite")), habits)


def all_tickets(folder):
    return load_tasks(folder / "train.jsonl") + load_tasks(folder / "heldout.jsonl")


async def typed_run(env, task):
    """What an oracle that writes the expected values gets, and every step's record."""
    state, records = env.reset(task), []
    while True:
        state, result = await env.answer(state, compact(task.meta["expected"][env.ask(state).node]), ())
        records.append(result.record)
        if result.end is not None:
            return result, records


async def flat_run(env, task):
    state, result = env.reset(task), None
    for value in task.meta["expected"].values():
        state, result = await env.step(state, f"<output>{compact(value)}</output>", turns_left=0)
    return result


def test_an_oracle_scores_1_on_every_ticket_typed_and_flat(shop_data, declared):
    world = ShopWorld(str(shop_data / "shop.sqlite"))
    typed, flat = TypedDecisionEnv(declared, world, Judge(declared)), FlatDecisionEnv(declared, world)
    for task in all_tickets(shop_data):
        result, records = asyncio.run(typed_run(typed, task))
        outcome = asyncio.run(flat_run(flat, task))
        assert (result.end, result.score, result.reward) == (EndReason.ANSWERED, 1.0, 1.0)
        assert (outcome.end, outcome.score, outcome.reward) == (EndReason.ANSWERED, 1.0, 1.0)
        assert [record.node for record in records] == list(task.meta["expected"])
        for record in records:
            assert record.reward.automatic == 1.0
            assert record.reward.penalty in (None, 0.0)
        for final in (result, outcome):
            values = json.loads(final.result)
            assert json.loads(compact(values)) == values
            assert wrong_statements(values, task) == 0


def test_an_expert_is_right_in_both_forms_with_and_without_a_gate(shop_data):
    tasks = all_tickets(shop_data)
    for gated in (0.0, 1.0):
        records, lines = asyncio.run(play_all(a_player(shop_data), tasks, 0, gated))
        assert lines[0] == f"success of the clerk on {len(tasks)} tickets: typed 1.000, flat 1.000"
        assert lines[1] == "wrong statements per answer: 0.000"
        skipped = sum(3 - len(task.meta["needs"]) for task in tasks) if gated else 0
        assert len(records) == 5 * len(tasks) - skipped


def test_demonstrations_are_what_the_environments_ask_and_the_same_for_a_seed(shop_data):
    task = load_tasks(shop_data / "train.jsonl")[0]
    player = a_player(shop_data)
    records, score = asyncio.run(player.typed(task, "luck", gated=False))
    flat, flat_score, _ = asyncio.run(player.flat(task, "luck"))
    assert score == flat_score == 1.0
    assert asyncio.run(player.flat(task, "luck"))[0] == flat
    assert [record["task_id"].rpartition("/")[2] for record in records] == list(task.meta["expected"])
    assert all(record["segments"][0]["text"].endswith("}" + END) for record in records)
    asked = [f"<input> {record['messages'][0]['content']} </input>" for record in records]
    observed = [piece["text"] for piece in flat["segments"] if not piece["train"]]
    assert [flat["messages"][0]["content"], *observed] == asked
    assert [piece["text"] for piece in flat["segments"] if piece["train"]] == [
        f"<output>{record['segments'][0]['text'].removesuffix(END)}</output>" for record in records
    ]


def written(habits, node, given, intent, times=400):
    clerk = Clerk(habits, random.Random(0))
    return Counter(compact(clerk.write(node, given, intent)) for _ in range(times))


FOUND = {"status": "delivered", "date": "2026-01-02", "amount": "39.90", "days": "88", "limit": "30"}
ASKED = {"intent": "refund", "order": "5821"}


@pytest.mark.parametrize(
    ("habit", "node", "given", "intent", "wrong"),
    [
        ("guess", "intent", {}, {"intent": "unclear", "order": ""}, '"where"'),
        ("confuse", "intent", {}, {"intent": "damaged", "order": "5821"}, '"refund"'),
        ("generous", "policy", {**ASKED, "retrieval": FOUND}, {}, '"approve"'),
        ("hopeful", "response", {"intent": "where", "retrieval": {**FOUND, "status": "shipped"}}, {}, '"delivered"'),
        ("guess", "response", {"intent": "where", "retrieval": {"status": "unknown"}}, {}, '"shipped"'),
    ],
)
def test_each_habit_is_wrong_more_often_than_right_where_it_applies(habit, node, given, intent, wrong):
    right = written(EXPERT, node, given, intent)
    assert len(right) == 1
    assert wrong not in next(iter(right))
    seen = written(replace(EXPERT, **{habit: getattr(Habits(), habit)}), node, given, intent)
    share = sum(count for text, count in seen.items() if wrong in text) / seen.total()
    assert share == pytest.approx(getattr(Habits(), habit), abs=3 * (0.25 / 400) ** 0.5)
    assert share > 0.5


def test_slips_change_every_node_now_and_then():
    slipping = replace(EXPERT, slip=0.2)
    for node, given in (
        ("intent", {}),
        ("retrieval", ASKED),
        ("policy", {**ASKED, "retrieval": {**FOUND, "days": "3"}}),
        ("response", {"intent": "where", "retrieval": FOUND}),
    ):
        assert len(written(slipping, node, given, ASKED)) > 1


def test_command_writes_demonstrations(shop_data, tmp_path, capsys):
    out = tmp_path / "demos.jsonl"
    files = ["--tasks", str(shop_data / "heldout.jsonl"), "--database", str(shop_data / "shop.sqlite")]
    assert main([*files, "--out", str(out), "--gated", "0"]) == 0
    told = capsys.readouterr().out
    assert "success of the clerk on 44 tickets: typed 0." in told
    assert "220 demonstrations" in told
    assert len(out.read_text().splitlines()) == 220
    assert main([*files, "--out", str(out), "--declaration", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml cannot be read" in capsys.readouterr().err
