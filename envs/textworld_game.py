"""One text adventure that can be played from any of its positions; with `textworld_maker` the only user of TextWorld.

TextWorld is an optional extra (`pip install espalier-rl[textworld]`): it is MIT-licensed, but needs jericho, which is
under the GPL, version 2 or later. Positions are values as far as callers can tell: `after` leaves them as they are.
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.textworld_view import Fact, view


def textworld() -> ModuleType:
    """The package. Raises ValueError with the command that installs it."""
    try:
        import textworld as found  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(
            f"env.name=textworld needs the package textworld ({error}): pip install 'espalier-rl[textworld]'"
        ) from None
    module: ModuleType = found
    return module


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a game is. Two positions after the same commands are equal in everything that can be asked here."""

    progression: Any
    """A `textworld.generator.game.GameProgression`; never changed once it is here."""
    names: dict[str, str]
    """Entity → name, e.g. `{"k_0": "red key"}`."""
    points_total: int

    @cached_property
    def commands(self) -> dict[str, Any]:
        """Command → action, for all that is possible now, e.g. `"open red box"`."""
        return {_command(action, self.names): action for action in self.progression.valid_actions}

    @cached_property
    def view(self) -> str:
        """What there is to see (see `envs.textworld_view`)."""
        facts: list[Fact] = [
            (fact.name, tuple(argument.name for argument in fact.arguments)) for fact in self.progression.state.facts
        ]
        return view(facts, self.names)

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""
        return bool(self.progression.completed)

    @property
    def lost(self) -> bool:
        """Whether the goal can't be reached any more, e.g. because something was eaten."""
        return bool(self.progression.failed)

    @property
    def points(self) -> int:
        """Points so far: one for each milestone passed, all of them once the game is won."""
        return self.points_total if self.won else int(self.progression.score)

    @property
    def expert(self) -> tuple[str, ...]:
        """Commands that win from here; empty when the game is over."""
        return tuple(_command(action, self.names) for action in self.progression.winning_policy or ())

    def after(self, command: str) -> "Position":
        """The position that a possible command leads to; the same one when it changes nothing (e.g. `look`)."""
        action = self.commands[command]
        if action.preconditions == action.postconditions:
            return self
        progression = _copied(self.progression)
        progression.update(action)
        return Position(progression=progression, names=self.names, points_total=self.points_total)


def load(path: Path) -> Position:
    """The position before the first command. Raises ValueError naming a file that is missing or holds no game."""
    try:
        game = textworld().Game.load(str(path))
    except OSError as error:
        raise ValueError(f"game {path} cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"game {path} is not a TextWorld game in JSON: {error!r}") from None
    return opening(game)


def opening(game: Any) -> Position:
    """The position before the first command of a `textworld.Game`."""
    from textworld.generator.game import GameProgression  # type: ignore[import-untyped]

    return Position(
        progression=GameProgression(game),
        names={identifier: info.name for identifier, info in game.infos.items()},
        points_total=sum(quest.reward for quest in game.quests),
    )


def _command(action: Any, names: dict[str, str]) -> str:
    return str(action.format_command({variable.name: names[variable.name] for variable in action.variables}))


def _copied(progression: Any) -> Any:
    """TextWorld's own copy would look for all possible actions again, which costs as much as a step."""
    made = copy.copy(progression)
    made.state = progression.state.copy()
    made.quest_progressions = [quest.copy() for quest in progression.quest_progressions]
    return made
