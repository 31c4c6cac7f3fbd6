"""Two small worlds beside the shop, for declarations to copy: `conf/decision/travel.yaml` and `orders.yaml`.

Both take the last message of a task's prompt as the request, and what each node should say from
`task.meta["expected"]`. The score is the share of the expected fields that are right, over all nodes of the task.
"""

from collections.abc import Mapping, Sequence

from envs.decisions.types import Values
from envs.types import Json, Task


class TravelWorld:
    """A timetable: its one action, `timetable`, finds the flights to a city in a part of the day."""

    def __init__(self, flights: Sequence[Mapping[str, str]]) -> None:
        """`flights`: objects with number, city, day and part, e.g. `{"number": "E12", "city": "Berlin", ...}`."""
        self._flights = [dict(flight) for flight in flights]

    def request(self, task: Task) -> dict[str, Json]:
        """E.g. `{"message": "To Berlin on Friday morning, please."}`."""
        return {"message": task.prompt[-1].content}

    async def act(self, action: str, output: Json, task: Task) -> dict[str, Json]:
        """Flights that fit city, day and part; an empty text of the request fits all. Raises ValueError otherwise."""
        if action != "timetable" or not isinstance(output, dict):
            raise ValueError(f"the timetable has no action {action!r}; accepted: timetable")
        wanted = {key: output.get(key) for key in ("city", "day", "part")}
        fitting = [
            flight["number"]
            for flight in self._flights
            if all(value in ("", None, flight[key]) for key, value in wanted.items())
        ]
        return {"flights": list[Json](fitting)}

    def score(self, values: Values, task: Task) -> float:
        """Share of the expected fields that are right."""
        return share_right(values, task)


class OrdersWorld:
    """Orders by number: its one action, `find_order`, gives what is known of one."""

    def __init__(self, orders: Mapping[str, Mapping[str, Json]]) -> None:
        """`orders`: by number, e.g. `{"A17": {"status": "sent", "days": 2}}`."""
        self._orders = {number: dict(order) for number, order in orders.items()}

    def request(self, task: Task) -> dict[str, Json]:
        """E.g. `{"message": "Where is A17, and may I give it back?"}`."""
        return {"message": task.prompt[-1].content}

    async def act(self, action: str, output: Json, task: Task) -> dict[str, Json]:
        """The order of this number; `{"status": "unknown"}` if there is none. Raises ValueError otherwise."""
        if action != "find_order" or not isinstance(output, dict):
            raise ValueError(f"the orders have no action {action!r}; accepted: find_order")
        return dict(self._orders.get(str(output.get("order")), {"status": "unknown", "days": 0}))

    def score(self, values: Values, task: Task) -> float:
        """Share of the expected fields that are right."""
        return share_right(values, task)


def share_right(values: Values, task: Task) -> float:
    """Of all fields in `task.meta["expected"]`, the share that the values have: 3 of 4 fields give 0.75."""
    expected = task.meta.get("expected")
    if not isinstance(expected, dict):
        raise ValueError(f"task {task.id!r} has no meta.expected, an object with the right output of each node")
    right = [
        isinstance(values.get(node), dict) and values[node].get(name) == wanted  # type: ignore[union-attr]
        for node, fields in expected.items()
        if isinstance(fields, dict)
        for name, wanted in fields.items()
    ]
    return sum(right) / len(right) if right else 0.0
