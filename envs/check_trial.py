"""One task played for the sake of checking its environment (see `envs.check`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.types import Env, StepResult, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One task and what is done in it."""

    env: Env[Any]
    task: Task
    actions: tuple[str, ...]
    """Agent steps, in order."""
    max_turns: int

    @classmethod
    def of(cls, env: Env[Any], task: Task, actions: Sequence[str], max_turns: int) -> "Trial":
        """Steps from `actions`, else from `meta.expert`, else the accepted answer in each of the step's tags."""
        given = list(actions) or _texts(task.meta.get("expert"))
        stop = [text for text in env.stop if isinstance(text, str)] if isinstance(env.stop, tuple | list) else []
        if given:
            steps = [step if any(text in step for text in stop) else wrapped(step, stop[:1]) for step in given]
        else:
            steps = [wrapped(task.truth[0], [text]) for text in stop]
        return cls(env=env, task=task, actions=tuple(steps), max_turns=max_turns)

    def left(self, turn: int) -> int:
        """`turns_left` of step number `turn`, from 0."""
        return max(self.max_turns - turn - 1, 0)

    async def play(self, start: Any = None, first: int = 0) -> list["Played"]:
        """Plays from a state before step `first` (None: from a reset) to the end of the trajectory or the steps."""
        state = self.env.reset(self.task) if start is None else start
        played: list[Played] = []
        for turn, action in list(enumerate(self.actions))[first : self.max_turns]:
            following, result = await self.env.step(state, action, turns_left=self.left(turn))
            played.append(Played(turn=turn, before=state, after=following, result=result))
            if result.end is not None:
                break
            state = following
        return played

    async def states(self) -> list[tuple[int, Any]]:
        """(number of the next step, state) along the way, each from a play of its own, none of them an end."""
        going = [played for played in await self.play() if played.result.end is None]
        found: list[tuple[int, Any]] = [(0, self.env.reset(self.task))]
        for played in going:
            fresh = await self.play()
            found.append((played.turn + 1, fresh[min(played.turn, len(fresh) - 1)].after))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One step that was made."""

    turn: int
    before: Any
    after: Any
    result: StepResult


def wrapped(text: str, stop: Sequence[str]) -> str:
    """`("Ulm", ["</search>"])` gives `"<search> Ulm </search>"`; a stop string that is no tag just follows."""
    if not stop:
        return text
    opening = stop[0].replace("</", "<", 1) if stop[0].startswith("</") else ""
    return f"{opening} {text} {stop[0]}".strip()


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
