"""A world of a few lines for rollout tests: the agent says letters, the world counts them. Ids are character codes."""

from collections.abc import Sequence

from envs.types import EndReason, Message, StepResult, Task
from rollout_workers.types import Completion, Sampling


def task(name: str) -> Task:
    return Task(id=name, prompt=(Message(role="user", content=name),), truth=("x",))


class CountingEnv:
    """State is the number of steps taken. "!" ends with reward 1, "boom" raises; anything else is echoed."""

    stop = (";",)

    def reset(self, task: Task) -> int:
        return 0

    async def step(self, state: int, action: str, *, turns_left: int) -> tuple[int, StepResult]:
        if "boom" in action:
            raise RuntimeError("the world broke")
        if "!" in action:
            return state + 1, StepResult(end=EndReason.ANSWERED, reward=1.0, score=1.0)
        if turns_left < 0 or not action:
            return state + 1, StepResult(end=EndReason.TURN_LIMIT, reward=0.0, score=0.0)
        return state + 1, StepResult(observation=f"<{state + 1}>", tool_calls=1)


class CharCodec:
    def prompt(self, task: Task) -> list[int]:
        return self.encode(task.prompt[-1].content)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Script:
    """Says the given actions in turn; remembers every context it was asked to continue."""

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions = list(actions)
        self.contexts: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int
    ) -> Completion:
        self.contexts.append("".join(map(chr, prompt_ids)))
        text = self.actions.pop(0)[:max_tokens]
        ids = tuple(ord(letter) for letter in text)
        return Completion(
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(3,) * len(ids),
            text=text,
            finished="stop" if text.endswith(tuple(stop)) else "length",
            prompt_tokens=len(prompt_ids),
            cached_tokens=0,
        )
