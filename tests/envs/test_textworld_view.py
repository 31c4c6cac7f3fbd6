"""What an agent sees, from facts drawn by hand; TextWorld is not needed here."""

import random

from envs.textworld_view import view

NAMES = {
    "r_0": "kitchen",
    "r_1": "hall",
    "r_2": "attic",
    "d_0": "blue door",
    "c_0": "red box",
    "c_1": "chest",
    "s_0": "table",
    "k_0": "red key",
    "o_0": "coin",
    "o_1": "cup",
    "o_2": "hat",
    "f_0": "pear",
}
FACTS = [
    ("at", ("P", "r_0")),
    ("at", ("c_0", "r_0")),
    ("at", ("c_1", "r_0")),
    ("at", ("s_0", "r_0")),
    ("at", ("o_2", "r_0")),
    ("locked", ("c_0",)),
    ("open", ("c_1",)),
    ("closed", ("d_0",)),
    ("in", ("o_0", "c_0")),
    ("in", ("o_1", "c_1")),
    ("on", ("f_0", "s_0")),
    ("in", ("k_0", "I")),
    ("match", ("k_0", "c_0")),
    ("link", ("r_0", "d_0", "r_1")),
    ("link", ("r_1", "d_0", "r_0")),
    ("north_of", ("r_1", "r_0")),
    ("south_of", ("r_0", "r_1")),
    ("east_of", ("r_2", "r_0")),
    ("west_of", ("r_0", "r_2")),
]
TEXT = (
    "kitchen. red box: locked. chest: cup. table: pear. floor: hat. north: closed blue door. east: attic. "
    "you hold: red key."
)


def test_everything_around_is_said_and_nothing_hidden():
    assert view(FACTS, NAMES) == TEXT


def test_the_order_of_facts_makes_no_difference():
    shuffled = list(FACTS)
    random.Random(1).shuffle(shuffled)
    assert view(shuffled, NAMES) == TEXT


def test_opening_shows_what_is_behind():
    opened = [fact for fact in FACTS if fact not in (("locked", ("c_0",)), ("closed", ("d_0",)), ("in", ("k_0", "I")))]
    opened += [("open", ("c_0",)), ("open", ("d_0",))]
    text = view(opened, NAMES)
    assert "red box: coin. " in text
    assert "north: hall. " in text
    assert text.endswith("you hold: nothing.")
