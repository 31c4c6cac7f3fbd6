"""Makes text adventures: a few rooms, a chain of steps that wins, milestones on the way, and a small vocabulary.

TextWorld draws the map and the quest; the names come from the short lists here, so that a tiny model needs few words. A
key has the colour of what it opens. The goal tells only the last step of the chain; the rest is to be found out.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envs.textworld_game import Position, opening, textworld

ROOMS = ("kitchen", "hall", "bedroom", "garden", "attic", "cellar", "study", "library", "shed", "pantry")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey", "pink", "gold", "silver", "purple")
NOUNS = {
    "c": ("box", "chest", "drawer", "safe", "locker", "basket", "crate", "trunk"),
    "s": ("table", "shelf", "desk", "bench", "stool", "counter"),
    "o": ("coin", "book", "lamp", "cup", "hat", "bell", "rope", "ring", "pen", "doll"),
    "f": ("apple", "cake", "pear", "bread", "egg", "plum"),
}
"""TextWorld's types: containers, supporters, objects, food."""
LAST_STEPS = ("take", "take/c", "take/s", "put", "insert")
"""Rules that may end a quest: a goal about a thing, not about a door that must be closed."""
POINTS = 3
ATTEMPTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """What a game is like."""

    steps: int
    """Commands that an expert needs, e.g. `8`."""
    rooms: int = 3
    things: int = 8
    """Containers, supporters, objects and keys, those of the quest included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeGame:
    """A game, and what its task says."""

    game: Any
    """A `textworld.Game`, to be saved with its `save(path)`."""
    goal: str
    """E.g. `"put coin on shelf"`."""
    start: Position
    expert: tuple[str, ...]
    """Commands that win."""


def make_game(seed: str, difficulty: Difficulty, attempts: int = ATTEMPTS) -> MadeGame:
    """Makes the game of a seed, e.g. `"train/0/7"`; the same seed always gives the same game.

    Raises ValueError when no game of that difficulty was found, e.g. with more rooms than names.
    """
    rng = random.Random(seed)
    for _ in range(attempts):
        made = _attempt(rng, difficulty)
        if made is not None:
            return made
    raise ValueError(
        f"no game with {difficulty} was found in {attempts} attempts; give it fewer steps, rooms or things"
    )


def other_names(rng: random.Random) -> Callable[[str], str]:
    """A function that gives the things in a text each other's names, e.g. every red box becomes a blue chest.

    Within each list of names only, so that the text tells of another game of the same kind, won by the same steps.
    """
    made: dict[str, str] = {}
    for names in (ROOMS, COLOURS, *NOUNS.values()):
        made |= dict(zip(names, rng.sample(names, len(names)), strict=True))
    known = re.compile(rf"\b({'|'.join(made)})\b")
    return lambda text: known.sub(lambda match: made[match[0]], text)


def _attempt(rng: random.Random, difficulty: Difficulty) -> MadeGame | None:
    """None when what was drawn can't be used: no such quest, too few names, or points that come too early."""
    game = _drawn(rng, difficulty)
    if game is None or not _named(game, rng):
        return None
    start = opening(game)
    chain = start.expert
    if len(chain) != difficulty.steps or start.points or start.won:
        return None
    position = start
    for command in chain:
        if position.points == POINTS or command not in position.commands:
            return None
        position = position.after(command)
    if not position.won or int(position.progression.score) != POINTS:
        return None
    return MadeGame(game=game, goal=chain[-1], start=start, expert=chain)


def _drawn(rng: random.Random, difficulty: Difficulty) -> Any:
    """Map, quest and distractors, without names."""
    from numpy.random import RandomState
    from textworld.generator import make_quest, make_world  # type: ignore[import-untyped]
    from textworld.generator.chaining import QuestGenerationError  # type: ignore[import-untyped]
    from textworld.generator.game import Game  # type: ignore[import-untyped]

    options = textworld().GameOptions()
    options.nb_rooms, options.quest_length = difficulty.rooms, difficulty.steps
    seeds = {name: rng.randrange(2**31) for name in ("map", "objects", "quest")}
    world = make_world(difficulty.rooms, rngs={name: RandomState(seed) for name, seed in seeds.items()})
    chaining = options.chaining
    rules = chaining.kb.rules  # the rules of options.kb are the same, but would be parsed again for every game
    chaining.rules_per_depth = [[rules[name] for name in LAST_STEPS]]
    chaining.backward, chaining.create_variables = True, True
    chaining.rng, chaining.restricted_types = RandomState(seeds["quest"]), {"r", "d"}
    try:
        (quest,) = make_quest(world, options)
    except QuestGenerationError:
        return None
    missing = difficulty.things - sum(entity.type not in ("r", "d", "I", "P") for entity in world.entities)
    if missing > 0:
        world.populate(missing, rng=RandomState(seeds["objects"]))
    return Game(world, None, [*_milestones(quest.win_events[0].actions), quest])


def _milestones(chain: Sequence[Any]) -> list[Any]:
    """Optional quests, each worth a point, at about equal distances along the chain; walking is no milestone."""
    from textworld.generator.game import Event, Quest

    found = []
    for part in range(1, POINTS):
        at = round(part * len(chain) / POINTS)
        done = next((action for action in reversed(chain[:at]) if not action.name.startswith("go/")), chain[at - 1])
        found.append(Quest(win_events=[Event(conditions=done.postconditions)], reward=1, optional=True))
    return found


def _named(game: Any, rng: random.Random) -> bool:
    """Names every entity; False when a list of names is too short."""
    opens = {fact.arguments[0].name: fact.arguments[1].name for fact in game.world.facts if fact.name == "match"}
    pools = {kind: rng.sample(nouns, len(nouns)) for kind, nouns in (NOUNS | {"r": ROOMS}).items()}
    colours = rng.sample(COLOURS, len(COLOURS))
    infos = game.infos
    needed = [name for name, info in infos.items() if info.type == "d" or (info.type == "c" and name in opens.values())]
    unmatched = [name for name, info in infos.items() if info.type == "k" and name not in opens]
    if len(needed) + len(unmatched) > len(colours):
        return False
    colour = {name: colours.pop() for name in [*needed, *unmatched]}
    colour |= {key: colour[target] for key, target in opens.items()}
    for name, info in infos.items():
        if info.type in ("P", "I"):
            continue
        pool = pools.get(info.type)
        if pool is not None and not pool:
            return False
        noun = pool.pop() if pool else {"d": "door", "k": "key"}[info.type]
        info.name = f"{colour[name]} {noun}" if name in colour else noun
    return True
