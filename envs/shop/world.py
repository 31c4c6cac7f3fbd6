"""The shop as the world of a decision policy: requests, the lookup, and the judgement of answers."""

import re
from collections.abc import Mapping
from pathlib import Path

from envs.decisions.types import Values
from envs.shop.database import ShopDatabase
from envs.types import Json, Task

FINDS = ("tracking", "purchase", "none")
"""What a query may ask about an order."""
ANSWER = "response"
"""The node whose value is the answer to the customer."""
FACTS = ("status", "date", "amount")
"""Fields of the answer that state something about the order."""
ELIGIBLE: Mapping[str, bool] = {"approve": True, "replace": True, "deny": False}
"""Decisions that state whether the customer has a right to it."""
DATE, AMOUNT = re.compile(r"\d{4}-\d{2}-\d{2}"), re.compile(r"(?<![\d.-])\d+\.\d{2}(?![\d-])")
"""Statements within the answer's text."""


class ShopWorld:
    """Customer service over a database that `python -m envs.shop.prepare` made."""

    def __init__(self, database: str = "data/shop/shop.sqlite") -> None:
        """Raises ValueError when there is no such file."""
        self._shop = ShopDatabase(Path(database))

    def request(self, task: Task) -> dict[str, Json]:
        """What the customer wrote, e.g. `{"message": "Hi, where is order 5821?"}`."""
        return {"message": task.prompt[-1].content}

    async def act(self, action: str, output: Json, task: Task) -> dict[str, Json]:
        """Runs `lookup`, the only action, for the customer who wrote the ticket. Raises ValueError for another one."""
        if action != "lookup":
            raise ValueError(f"the shop has no action {action!r}; accepted: lookup")
        return lookup(self._shop, output, customer_of(task))

    def score(self, values: Values, task: Task) -> float:
        """1.0 when decision and facts of the answer are the expected ones, else 0.0; its text is not compared."""
        given, expected = _answer(values), _answer(_expected(task))
        return float(all(given.get(name) == expected[name] for name in ("decision", *FACTS)))


def lookup(shop: ShopDatabase, output: Json, customer: int) -> dict[str, Json]:
    """What the database says to a structured query; `{"status": "unknown"}` for an order that is not the customer's.

    `find` chooses between fixed statements, and `order` and `rule` reach them as parameters: no text becomes SQL.
    `{"find": "purchase", "rule": "refund", "order": "5821"}` gives status, date, amount, days and limit; `tracking`
    status and date only; `none` nothing. The date is that of delivery, else (`tracking`) the expected one or
    (`purchase`) that of shipping. Raises ValueError for what is no query.
    """
    asked = output if isinstance(output, dict) else {}
    find, rule, number = (asked.get(name) for name in ("find", "rule", "order"))
    if find not in FINDS or not isinstance(rule, str) or not isinstance(number, str):
        raise ValueError(f"not a query: {output!r}; expected find (one of {', '.join(FINDS)}), rule and order as texts")
    if find == "none":
        return {}
    order = shop.order(number, customer)
    if order is None:
        return {"status": "unknown"}
    coming = order.expected if find == "tracking" else order.shipped
    found: dict[str, Json] = {"status": order.status, "date": order.delivered or coming or ""}
    if find == "purchase":
        found |= {"amount": order.amount, "days": order.days}
    limit = shop.limit(rule, order.category)
    return found | ({"limit": limit} if limit else {})


def customer_of(task: Task) -> int:
    """Number of the customer who wrote the ticket. Raises ValueError for a task that is no ticket."""
    customer = task.meta.get("customer")
    if not isinstance(customer, int):
        raise ValueError(f"task {task.id} is no ticket of the shop: meta.customer must be a customer's number")
    return customer


def wrong_statements(values: Values, task: Task) -> int:
    """How many statements of the answer contradict the database (the benchmark's hallucinations); 0 without an answer.

    Counted are status, date and amount where they are given, a decision that grants or denies a right, and every date
    and amount within the text. Right are the values of `meta["facts"]`: where an order has no date yet, or a ticket no
    order, any date is wrong. E.g. status right, date one day off, `approve` outside the window: 2.
    """
    given, facts = _answer(values), _facts(task)
    wrong = sum(bool(given.get(name)) and given[name] not in _all_of(facts, name) for name in FACTS)
    stated = ELIGIBLE.get(str(given.get("decision")))
    wrong += stated is not None and stated != facts.get("eligible")
    text = str(given.get("text", ""))
    wrong += sum(found not in _all_of(facts, "date") for found in DATE.findall(text))
    return wrong + sum(found not in _all_of(facts, "amount") for found in AMOUNT.findall(text))


def _answer(values: Values) -> Mapping[str, Json]:
    value = values.get(ANSWER)
    return value if isinstance(value, dict) else {}


def _expected(task: Task) -> Mapping[str, Json]:
    expected = task.meta.get("expected")
    assert isinstance(expected, dict), f"ticket {task.id} has no expected values"
    return expected


def _facts(task: Task) -> Mapping[str, Json]:
    facts = task.meta.get("facts")
    return facts if isinstance(facts, dict) else {}


def _all_of(facts: Mapping[str, Json], name: str) -> tuple[Json, ...]:
    """The right values of a fact: one, or none where there is nothing to state."""
    return (facts[name],) if facts.get(name) else ()
