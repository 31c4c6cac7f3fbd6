"""A world whose reward is decided at one turn of a path, the same for all agents that get there.

The agent walks through doors, one a turn, and says what each is made of. At one turn there are two gems instead,
and it must take the one that the prompt asks for. A door asks for nothing but a word that stands there, so whoever can
walk at all does it almost surely: it costs tokens and decides nothing. What is decided, is decided at the gems.

    bring me the opal. you can open the glass door.
    <act> open the glass door and go on </act><obs> you can open the iron door. </obs>
    <act> open the iron door and go on </act><obs> you can take the ruby or the opal. </obs>
    <act> take the opal and go on </act>

`scripts.bench.corridor_tasks` makes the tasks; `env.path=scripts.bench.corridor.make_env` plays them.
"""

from dataclasses import dataclass, replace

from envs.actions import COMMAND, parse_action
from envs.types import EndReason, StepResult, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A path and how far the agent is: a value of some 200 bytes."""

    doors: tuple[str, ...]
    """What each door is made of, e.g. `("glass", "iron")`."""
    gems: tuple[str, str]
    """In the order in which they are shown."""
    choice: int
    """The turn of the gems, from 1; the doors take the other turns."""
    wanted: str
    taken: str = ""
    """Empty before the gems."""
    turn: int = 1
    """The next one; beyond `turns` the path is walked."""

    @property
    def turns(self) -> int:
        """One per door, and one at the gems."""
        return len(self.doors) + 1

    @property
    def door(self) -> str:
        """The door of this turn, which is not that of the gems."""
        return self.doors[self.turn - 1 - (self.turn > self.choice)]

    @property
    def view(self) -> str:
        """What there is to see, e.g. `"you can open the glass door."`."""
        first, second = self.gems
        seen = f"take the {first} or the {second}" if self.turn == self.choice else f"open the {self.door} door"
        return f"you can {seen}."

    @property
    def commands(self) -> dict[str, str]:
        """Those that are possible now, and the gem that each takes, if any."""
        if self.turn == self.choice:
            return {f"take the {gem} and go on": gem for gem in self.gems}
        return {f"open the {self.door} door and go on": self.taken}

    def after(self, command: str) -> "Walk":
        """The next turn, after one of `commands`."""
        return replace(self, turn=self.turn + 1, taken=self.commands[command])


class Corridor:
    """Steps are `<act> open the glass door and go on </act>` (see `envs.actions.COMMAND`).

    - A command that is not possible ends with INVALID_ACTION. What was taken shows in nothing before the end.
    - The whole path walked ends with ANSWERED; where `limits.max_turns` is shorter, with TURN_LIMIT and nothing earned.
    - Reward and score are 1 for the gem that was asked for, and else 0.
    """

    stop: tuple[str, ...] = COMMAND.stop

    def reset(self, task: Task) -> Walk:
        """The first turn of the path in `task.meta`. Raises ValueError when there is none."""
        match task.meta:
            case {"doors": [*doors], "gems": [str(first), str(second)], "choice": int(choice)} if 1 <= choice <= len(
                doors
            ) + 1 and task.truth[0] in (first, second):
                names = tuple(str(door) for door in doors)
                return Walk(doors=names, gems=(first, second), choice=choice, wanted=task.truth[0])
        raise ValueError(
            f"task {task.id!r}: meta needs doors (a list of words), gems (two words, the truth one of them) and choice "
            "(a turn of the path, from 1)"
        )

    async def step(self, state: Walk, action: str, *, turns_left: int) -> tuple[Walk, StepResult]:
        """See `envs.types.Env`."""
        command = parse_action(action, COMMAND).content
        if turns_left < 0:
            return state, _ended(EndReason.TURN_LIMIT)
        if command not in state.commands:
            return state, _ended(EndReason.INVALID_ACTION)
        state = state.after(command)
        if state.turn > state.turns:
            return state, _ended(EndReason.ANSWERED, float(state.taken == state.wanted))
        if turns_left == 0:
            return state, _ended(EndReason.TURN_LIMIT)
        return state, StepResult(observation=f"<obs> {state.view} </obs>")


make_env = Corridor


def _ended(end: EndReason, score: float = 0.0) -> StepResult:
    return StepResult(end=end, reward=score, score=score)
