"""Tickets with truth: a customer's message, what every decision node should write, and the facts behind it.

Customers are split before tickets are written, so training and held-out tickets share no customer and no order.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from envs.shop.catalogue import STREETS
from envs.shop.database import Listed, Order, ShopDatabase
from envs.shop.messages import message
from envs.shop.rules import NEEDS, QUERIES, Value, answer, query, ruling
from envs.shop.world import lookup
from envs.types import Json, Message, Task

FAMILIES = {"where": 6, "refund": 5, "cancel": 3, "address": 2, "damaged": 2, "thanks": 2, "unclear": 2}
"""Family -> its share of the tickets, of 22."""
STATUSES = {
    "where": ("processing", "shipped", "shipped", "recent", "cancelled"),
    "refund": ("recent", "delivered"),
    "cancel": ("processing", "shipped"),
    "address": ("processing", "shipped"),
    "damaged": ("recent", "delivered"),
}
"""Family -> pools of the orders that its tickets are about, drawn with these frequencies."""
RECENT = 30
"""Orders delivered within so many days are a pool of their own, so that about half of the returns are in time."""
HELDOUT_EVERY = 4
"""Every fourth customer writes held-out tickets only."""


def tickets(shop: ShopDatabase, *, split: str, count: int, seed: int) -> list[Task]:
    """`count` tickets of a split (`train` or `heldout`), each about an order of its own.

    Raises ValueError when the split has not enough orders.
    """
    rng = random.Random(f"tickets/{split}/{seed}")
    pools = _pools(shop, split, rng)
    families = [family for family, share in FAMILIES.items() for _ in range(share)]
    made = []
    for number in range(count):
        family = families[number % len(families)]
        listed, order = _draw(pools, family, rng)
        made.append(_ticket(shop, f"shop/{split}/{seed}/{number}", split, family, listed, order, rng))
    rng.shuffle(made)
    return made


def _pools(shop: ShopDatabase, split: str, rng: random.Random) -> dict[str, list[tuple[Listed, Order]]]:
    """The split's orders by status, those delivered lately apart, in random order."""
    pools: dict[str, list[tuple[Listed, Order]]] = {}
    for listed in shop.orders():
        if (listed.customer % HELDOUT_EVERY == 0) == (split == "heldout"):
            order = shop.order(listed.id, listed.customer)
            assert order is not None
            recent = order.days and int(order.days) <= RECENT
            pools.setdefault("recent" if recent else order.status, []).append((listed, order))
    for pool in pools.values():
        rng.shuffle(pool)
    return pools


def _draw(pools: dict[str, list[tuple[Listed, Order]]], family: str, rng: random.Random) -> tuple[Listed, Order]:
    """Takes an order that fits the family out of its pool."""
    fitting = STATUSES.get(family) or tuple(pools)
    pool = pools.get(rng.choice(fitting)) or next((pools[name] for name in fitting if pools.get(name)), None)
    if not pool:
        raise ValueError(f"the database has too few orders for tickets of the family {family}: make more orders")
    return pool.pop()


def _ticket(
    shop: ShopDatabase, identifier: str, split: str, family: str, listed: Listed, order: Order, rng: random.Random
) -> Task:
    street = f"{rng.choice(STREETS)} {rng.randint(1, 120)}"
    words = {"order": listed.id, "product": listed.product, "city": listed.city, "street": street}
    text = message(family, rng, name=listed.name.partition(" ")[0], **words)
    expected = expected_values(shop, family, listed.id, listed.customer)
    response = expected["response"]
    meta: dict[str, Json] = {
        "family": family,
        "source": family,  # so that evaluations tell the success of each family
        "split": split,
        "customer": listed.customer,
        "order": listed.id if _has_order(family) else "",
        "expected": dict(expected),
        "needs": list(NEEDS[family]),
        "facts": facts(family, order, expected),
    }
    truth = " ".join(str(response[name]) for name in ("decision", "status", "date", "amount") if response[name])
    return Task(id=identifier, prompt=(Message(role="user", content=text),), truth=(truth,), meta=meta)


def expected_values(shop: ShopDatabase, family: str, order: str, customer: int) -> dict[str, Value]:
    """What each node should write (without what its action finds), every node running."""
    intent: Value = {"intent": family, "order": order if _has_order(family) else ""}
    retrieval = query(intent)
    seen: Value = {**intent, "retrieval": {**retrieval, **lookup(shop, retrieval, customer)}}
    policy = ruling(seen)
    response = answer({**seen, "policy": policy})
    return {"intent": intent, "retrieval": retrieval, "policy": policy, "response": response}


def facts(family: str, order: Order, expected: Mapping[str, Value]) -> Value:
    """What an answer to the ticket may state; nothing where the customer named no order."""
    if not _has_order(family):
        return {}
    coming = order.expected if QUERIES[family][0] == "tracking" else order.shipped
    decision = str(expected["policy"]["decision"])
    stated: Value = {"status": order.status, "date": order.delivered or coming or "", "amount": order.amount}
    return stated | ({} if decision == "none" else {"eligible": decision != "deny"})


def counts(made: Sequence[Task]) -> dict[str, int]:
    """Tickets per family and expected decision, e.g. `{"cancel/approve": 12, ...}`."""
    return dict(sorted(Counter(_names(made)).items()))


def _names(made: Sequence[Task]) -> Iterator[str]:
    for task in made:
        yield f"{task.meta['family']}/{task.truth[0].split()[0]}"


def _has_order(family: str) -> bool:
    return QUERIES[family][0] != "none"
