"""A world of a few lines for rollout tests: the agent says letters, the world counts them. Ids are character codes."""

import random
from collections.abc import Sequence

from envs.types import EndReason, Message, StepResult, Task
from rollout_workers.branch import BranchRunner
from rollout_workers.collection import Collection, CollectionSpec
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
        return self.chat(task.prompt)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        return self.encode(messages[-1].content)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Script:
    """Says the given actions in turn; remembers every context it was asked to continue."""

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions = list(actions)
        self.contexts: list[str] = []

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: object = None,
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


class Wanderer:
    """Says "a;" or "b;", or ends with "c!;" (at `ends` of all steps), as the seed has it; records what it was asked.

    The ids are no code of the text, as with a real tokenizer, where text does not give the ids back: each letter's is
    its character code or, one time in two, 1000 more.
    """

    def __init__(self, ends: float = 0.3) -> None:
        self.ends = ends
        self.requests: list[tuple[tuple[int, ...], tuple[str, ...]]] = []

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: object = None,
    ) -> Completion:
        self.requests.append((tuple(prompt_ids), tuple(stop)))
        rng = random.Random(seed)
        text = "c!;" if rng.random() < self.ends else rng.choice(("a;", "b;"))
        ids = tuple(ord(letter) + rng.choice((0, 1000)) for letter in text)
        return Completion(
            token_ids=ids, logprobs=tuple(-rng.random() for _ in ids), versions=(0,) * len(ids), text=text,
            finished="stop", prompt_tokens=len(prompt_ids), cached_tokens=0,
        )  # fmt: skip


async def grow(spec: CollectionSpec, policy: object, env: object = None) -> Collection:
    """A whole collection by one actor, branches in the order they are handed out."""
    runner = BranchRunner(env or CountingEnv(), policy, CharCodec(), env_timeout_s=1.0)
    collection = Collection(spec)
    while not collection.is_complete:
        for item in collection.assign("a", 1000, now=0.0):
            collection.complete(await runner.run(item))
    return collection
