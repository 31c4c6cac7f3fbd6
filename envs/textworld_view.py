"""What an agent sees of a text adventure: one short text made of the facts around the player.

`"kitchen. red box: locked. table: coin. floor: nothing. north: closed blue door. east: hall. you hold: red key."`
Games of TextWorld's `.json` form have no texts of their own; these say all there is to see, in few words.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Fact: TypeAlias = tuple[str, tuple[str, ...]]
"""Name and entities, e.g. `("in", ("k_0", "c_1"))`: the key k_0 is in the container c_1."""
PLAYER, INVENTORY = "P", "I"
DIRECTIONS = ("north", "east", "south", "west")
STATES = ("open", "closed", "locked")


def view(facts: Iterable[Fact], names: Mapping[str, str]) -> str:
    """The room, what stands in it and holds what, the floor, the exits, and what the player holds.

    `names` maps an entity to its name, e.g. `{"k_0": "red key"}`. Equal facts give equal texts, whatever their order.
    """
    by_name: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, arguments in sorted(facts):
        by_name[name].append(arguments)
    here = next(place for who, place in by_name["at"] if who == PLAYER)
    states = {arguments[0]: state for state in STATES for arguments in by_name[state]}
    standing = [thing for thing, place in by_name["at"] if place == here and thing != PLAYER]
    parts = [names[here]]
    loose = []
    for thing in standing:
        if thing[0] == "c":
            inside = _listed([item for item, place in by_name["in"] if place == thing], names)
            parts.append(f"{names[thing]}: {inside if states[thing] == 'open' else states[thing]}")
        elif thing[0] == "s":
            parts.append(f"{names[thing]}: {_listed([item for item, place in by_name['on'] if place == thing], names)}")
        else:
            loose.append(thing)
    if loose:
        parts.append(f"floor: {_listed(loose, names)}")
    parts += _exits(here, by_name, states, names)
    held = [item for item, place in by_name["in"] if place == INVENTORY]
    return f"{'. '.join(parts)}. you hold: {_listed(held, names)}."


def _exits(
    here: str, facts: Mapping[str, Sequence[tuple[str, ...]]], states: Mapping[str, str], names: Mapping[str, str]
) -> list[str]:
    """E.g. `["north: closed blue door", "east: hall"]`; an open door is left out, since one walks through."""
    doors = {there: door for room, door, there in facts["link"] if room == here}
    found = []
    for direction in DIRECTIONS:
        for there, room in facts[f"{direction}_of"]:
            if room == here:
                door = doors.get(there)
                shut = door is not None and states[door] != "open"
                found.append(f"{direction}: {f'{states[door]} {names[door]}' if door and shut else names[there]}")
    return found


def _listed(things: Sequence[str], names: Mapping[str, str]) -> str:
    return ", ".join(names[thing] for thing in things) or "nothing"
