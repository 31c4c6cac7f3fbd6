"""The same nodes asked by one policy in one growing context: free text, no schema, no reward but that of the outcome.

The baseline of a typed policy. A step is `<output>{"intent":"refund"}</output>`, a thought before it is allowed; what
a node is asked, the first one in the prompt and the others by what the environment answers, is its instruction and
input between `<input>` tags: by them a model that knows typed nodes too can tell that this is the flat policy.
"""

from envs.actions import StepFormat, parse_action
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import DecisionWorld
from envs.decisions.walk import Course, Walk
from envs.types import EndReason, Message, StepResult, Task

OUTPUT = StepFormat(kinds=("output",), marks=("input",), thought_required=False)


class FlatDecisionEnv:
    """An `Env`. The reward is the world's score; an answer that is not valid ends the trajectory with 0, whatever
    `contracts` says: free text may always be wrong.
    """

    stop: tuple[str, ...] = OUTPUT.stop

    def __init__(self, settings: DecisionSettings, world: DecisionWorld) -> None:
        self._course = Course(settings, world)

    def reset(self, task: Task) -> Walk:
        """Before the root."""
        return Walk(task=task)

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The prompt: what the root is asked."""
        return (Message(role="user", content=self._asked(self.reset(task), self._course.declared.root)),)

    async def step(self, state: Walk, action: str, *, turns_left: int) -> tuple[Walk, StepResult]:
        """See `envs.types.Env`. In the answer-only turn only a last node without an action of its own may answer."""
        if turns_left < 0 and not self._may_answer(state):
            return state, self._ended(state, EndReason.TURN_LIMIT)
        taken = await self._course.take(state, parse_action(action, OUTPUT).content)
        calls = int(taken.found is not None)
        if taken.fault:
            return taken.after, self._ended(taken.after, EndReason.INVALID_ACTION, calls)
        following = self._course.current(taken.after)
        if following is None:
            return taken.after, self._ended(taken.after, EndReason.ANSWERED, calls)
        return taken.after, StepResult(observation=self._asked(taken.after, following), tool_calls=calls)

    def _may_answer(self, state: Walk) -> bool:
        name, last = self._course.current(state), self._course.declared.order[-1]
        return name == last and self._course.declared.node(last).act is None

    def _ended(self, state: Walk, end: EndReason, calls: int = 0) -> StepResult:
        score = self._course.score(state) if end is EndReason.ANSWERED else 0.0
        return StepResult(end=end, reward=score, score=score, tool_calls=calls, result=self._course.result(state))

    def _asked(self, state: Walk, name: str) -> str:
        return f"<input> {self._course.contracts[name].text(self._course.input(state, name))} </input>"
