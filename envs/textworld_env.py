"""The text adventure environment: the agent gives commands until the game is won or its moves are used up.

A state is the commands so far and a checksum of what there was to see. Restoring it is to play them again, from the
nearest position that is still in memory, and to compare: TextWorld's own position is 500 times as large.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zlib import crc32

from envs.actions import COMMAND, neutralise, parse_action
from envs.rewards import Outcome, RewardError, RewardFn
from envs.textworld_game import Position, load, textworld
from envs.types import EndReason, StepResult, Task

NOTHING_HAPPENS = "nothing happens."
"""Stands before the view when the command is not possible."""
KEPT_POSITIONS = 512
"""Positions kept ready, about 100 kB each: a branch that goes on elsewhere replays its commands, 2 to 5 ms each."""
LONGEST_COMMAND = 100
"""Characters of a command; longer ones are none of the game's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameState:
    """Where a trajectory is: a value of some 300 bytes. The position itself follows from the commands."""

    task_id: str
    truths: tuple[str, ...]
    game: str
    """File name in the folder of games, e.g. `"train-0007.json"`."""
    commands: tuple[str, ...] = ()
    """Those that changed something, from the start."""
    seen: int
    """Checksum of all that there was to see on the way; a replay must come to the same."""
    steps: int = 0
    """Commands given, those that did nothing included."""
    format_ok: bool = True
    """False once a step broke the format."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A position, and the checksum of what there was to see on the way to it."""

    position: Position
    seen: int


class TextWorldEnv:
    """Steps are `<think>…</think><act>open red box</act>`, the thought may be left out (see `envs.actions`).

    - A command gives `<obs> kitchen. red box: nothing. … you hold: red key. </obs>`, what there is to see then; before
      it, "nothing happens." for one that is not possible now, and "2 of 3 points." when points were made.
    - A game won or lost ends with ANSWERED. After the last allowed command the trajectory ends with TURN_LIMIT: an
      answer-only turn would have nothing to say. In such a turn (turns_left=-1) no command runs.
    - A step without a complete action ends with INVALID_ACTION and counts as format wrong.
    - The score is the share of the points made, or, with `score="won"`, 1 for a game won and else 0.
    - A replay that shows something else than the first time (a game that was changed) ends with ENV_ERROR and a note.

    Commands run where they are called: they take about 2 ms, less than a thread would cost.
    """

    stop: tuple[str, ...] = COMMAND.stop

    def __init__(
        self,
        games: Path,
        *,
        score: Literal["progress", "won"] = "progress",
        reward: RewardFn,
        kept_positions: int = KEPT_POSITIONS,
    ) -> None:
        """Raises ValueError when TextWorld is not installed or `games` is no folder."""
        textworld()
        if not games.is_dir():
            raise ValueError(f"env.games={games} is not a folder; make one with `python -m envs.textworld_games`")
        self._games = games
        self._score = score
        self._reward = reward
        self._kept_positions = kept_positions
        self._places: OrderedDict[tuple[str, tuple[str, ...]], _Place] = OrderedDict()

    def reset(self, task: Task) -> GameState:
        """The start of the game that `task.meta["game"]` names. Raises ValueError when there is none."""
        game = task.meta.get("game")
        if not isinstance(game, str) or Path(game).name != game:
            raise ValueError(f"task {task.id!r}: meta.game must be the name of a file in env.games, not {game!r}")
        state = GameState(task_id=task.id, truths=task.truth, game=game, seen=0)
        return replace(state, seen=self._place(game, ()).seen)

    async def step(self, state: GameState, action: str, *, turns_left: int) -> tuple[GameState, StepResult]:
        """See `envs.types.Env`. Never raises for any action text."""
        assert turns_left >= -1
        parsed = parse_action(action, COMMAND)
        state = replace(state, format_ok=state.format_ok and parsed.well_formed)
        try:
            place = self._place(state.game, state.commands)
        except (KeyError, ValueError) as error:  # a command that was possible, or a file that was there
            return state, StepResult(end=EndReason.ENV_ERROR, note=f"game {state.game} can't be replayed: {error}")
        if place.seen != state.seen:
            note = f"game {state.game} is not deterministic: played again, {list(state.commands)} shows something else"
            return state, StepResult(end=EndReason.ENV_ERROR, note=note)
        before = place.position
        if parsed.kind is None:
            return state, self._end(replace(state, format_ok=False), before, EndReason.INVALID_ACTION)
        if turns_left < 0:
            return state, self._end(state, before, EndReason.TURN_LIMIT)
        state, position, known = self._act(state, before, plain_command(parsed.content))
        if position.won or position.lost:
            return state, replace(self._end(state, position, EndReason.ANSWERED), tool_calls=1)
        if turns_left == 0:
            return state, replace(self._end(state, position, EndReason.TURN_LIMIT), tool_calls=1)
        observation = observed(position, known=known, gained=position.points > before.points)
        return state, StepResult(observation=observation, tool_calls=1)

    def position(self, state: GameState) -> Position:
        """The game at `state`, for demonstrations and tests. Raises ValueError or KeyError when its file changed."""
        return self._place(state.game, state.commands).position

    def _act(self, state: GameState, before: Position, command: str) -> tuple[GameState, Position, bool]:
        """(state, position, whether the command was possible) after one command."""
        state = replace(state, steps=state.steps + 1)
        if command not in before.commands:
            return state, before, False
        position = before.after(command)
        if position is before:
            return state, before, True
        place = _shown(position, state.seen)
        state = replace(state, commands=(*state.commands, command), seen=place.seen)
        self._keep(state.game, state.commands, place)
        return state, position, True

    def _place(self, game: str, commands: tuple[str, ...]) -> _Place:
        """From those kept, or replayed from the last kept one before it."""
        found = self._places.get((game, commands))
        if found is None and commands:
            last = self._place(game, commands[:-1])
            found = _shown(last.position.after(commands[-1]), last.seen)
        elif found is None:
            found = _shown(load(self._games / game), 0)
        self._keep(game, commands, found)
        return found

    def _keep(self, game: str, commands: tuple[str, ...], place: _Place) -> None:
        self._places[game, commands] = place
        self._places.move_to_end((game, commands))
        while len(self._places) > self._kept_positions:
            self._places.popitem(last=False)

    def _end(self, state: GameState, position: Position, end: EndReason) -> StepResult:
        share = position.points / position.points_total
        score = share if self._score == "progress" else float(position.won)
        how = "won" if position.won else "lost" if position.lost else "unfinished"
        outcome = Outcome(
            task_id=state.task_id,
            truths=state.truths,
            answer=None if end is EndReason.INVALID_ACTION else how,
            score=score,
            format_ok=state.format_ok,
            end=end,
            tool_calls=state.steps,
        )
        try:
            return StepResult(end=end, score=score, reward=self._reward(outcome))
        except RewardError as error:
            return StepResult(end=EndReason.ENV_ERROR, note=str(error))


def plain_command(text: str) -> str:
    """Lower case, single spaces, no full stop: `" Open  the box. "` gives `"open the box"`."""
    return " ".join(text[: LONGEST_COMMAND + 1].lower().split()).rstrip(".!")


def observed(position: Position, *, known: bool = True, gained: bool = False) -> str:
    """E.g. `"<obs> 1 of 3 points. hall. box: coin. west: study. you hold: nothing. </obs>"`."""
    parts = [] if known else [NOTHING_HAPPENS]
    if gained:
        parts.append(f"{position.points} of {position.points_total} points.")
    return f"<obs> {neutralise(' '.join([*parts, position.view]))} </obs>"


def _shown(position: Position, seen: int) -> _Place:
    return _Place(position, crc32(position.view.encode(), seen))
