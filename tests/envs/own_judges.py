"""Reward functions that test settings name by their dotted path."""

import math


def no_promise(view):
    return -10.0 if "promise" in view.output["text"] else 0.0


def is_short(view):
    return float(len(view.output["text"]) < 20)


def half(view):
    return 0.5


def likes_request(view):
    return 0.25 if view.input == {"message": "hi"} and view.values["draft"] == view.output else 0.0


def bonus(view):
    return 1.0


def not_a_number(view):
    return math.nan


def words(view):
    return "many"


def breaks(view):
    raise KeyError("text")


async def later(view):
    return 1.0


def takes_two(view, other):
    return 1.0


number = 3
