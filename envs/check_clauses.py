"""The clauses of the environment contract, each a function that plays and returns what it found wrong.

A clause never trusts an earlier one: a broken environment shall be told each of its faults, and by the line that names
it. Faults that spread are told more than once, e.g. a state changed in place also breaks the branch from its middle.
"""

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from envs.check_trial import Played, Trial, wrapped
from envs.contract import faults
from envs.types import EndReason, Env, StepResult

MAX_STATE_BYTES = 1_000_000
MAX_BLOCK_S = 0.25
"""Mean time of a step that holds up everything else in the process."""
QUICK_TRIES = 3
"""Such steps are seen so often before they are held against an environment: a busy machine stops any process."""
BRANCHES = 4
"""Branches that step at once."""
JUNK = (
    "",
    " ",
    "\x00",
    "\ud800 a lone surrogate \udfff",
    "<think>",
    "</act></search></answer>",
    "<act></act><search></search><answer></answer>",
    "<html><body onload='x()'>&amp;<|im_end|></body></html>",
    "<act> ../../etc/passwd </act>",
    "<search> \ud83d </search>",
    "<think> a </think>" * 200,
    "{}[]()%s%n\\'\"`$(x)",
)
"""Texts that no agent should write and some will; the stop strings with other things inside are added."""
HUGE = 100_000
"""Characters of the longest junk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one clause came to."""

    name: str
    faults: tuple[str, ...]
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the clause holds."""
        return not self.faults

    def line(self) -> str:
        """E.g. `"ok     states pickle: 113 bytes, 0.01 ms"` or `"WRONG  states pickle: …"`."""
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        said = f"{self.faults[0]}{more}" if self.faults else self.note
        return f"{'ok   ' if self.ok else 'WRONG'}  {self.name}{': ' if said else ''}{said}"


Judge: TypeAlias = Callable[[Trial], Awaitable[tuple[list[str], str]]]
"""Plays one trial; returns its faults and a note about what was measured."""


async def run_clause(clause: tuple[str, Judge], trials: Sequence[Trial]) -> Finding:
    """One clause over all trials. Whatever an environment raises is a fault."""
    name, judge = clause
    found: list[str] = []
    note = ""
    for trial in trials:
        try:
            problems, note = await judge(trial)
        except Exception as error:  # whatever the environment raises
            problems = [
                f"{type(error).__name__}: {error}; an environment's failure is a result with EndReason.ENV_ERROR"
            ]
        found += [f"task {trial.task.id!r}: {problem}" for problem in problems]
    return Finding(name=name, faults=tuple(found), note=note)


async def has_its_parts(trial: Trial) -> tuple[list[str], str]:
    """`stop` is a tuple of texts; `step` can be awaited."""
    stop = trial.env.stop
    problems = []
    if not isinstance(stop, tuple) or not stop or not all(isinstance(text, str) and text for text in stop):
        problems.append(f"stop must be a tuple of texts that are not empty, e.g. ('</answer>',), not {stop!r}")
    if not asyncio.iscoroutinefunction(trial.env.step):
        problems.append("step must be an async function: write `async def step(self, state, action, *, turns_left)`")
    return problems, f"stop {stop}"


async def plays(trial: Trial) -> tuple[list[str], str]:
    """The given steps work."""
    played = await trial.play()
    problems = [
        f"step {item.turn + 1} ({trial.actions[item.turn]!r}) ended with ENV_ERROR: {item.result.note or 'no note'}"
        for item in played
        if item.result.end is EndReason.ENV_ERROR
    ]
    last = played[-1].result if played else None
    said = (
        f"{len(played)} steps, then {last.end}, score {last.score}, reward {last.reward}" if last else "no steps given"
    )
    return problems, f"e.g. {said}"


async def resets_are_equal(trial: Trial) -> tuple[list[str], str]:
    """Two resets make equal states."""
    one, other = trial.env.reset(trial.task), trial.env.reset(trial.task)
    if _equal(one, other):
        return [], ""
    first, second = await trial.play(one), await trial.play(other)
    if _results(first) != _results(second):
        return ["two resets go on differently: seed whatever is random with task.id"], ""
    return [], "states differ, but go on equally"


async def state_is_a_value(trial: Trial) -> tuple[list[str], str]:
    """Stepping leaves the state as it was."""
    state = trial.env.reset(trial.task)
    for turn, action in enumerate(trial.actions[: trial.max_turns]):
        kept = pickle.dumps(state)
        following, result = await trial.env.step(state, action, turns_left=trial.left(turn))
        if pickle.dumps(state) != kept and not _equal(pickle.loads(kept), state):  # noqa: S301 (made here)
            return [f"step {turn + 1} changed the state passed in: make a new one, e.g. dataclasses.replace"], ""
        if result.end is not None:
            break
        state = following
    return [], ""


async def is_deterministic(trial: Trial) -> tuple[list[str], str]:
    """The same state and action give the same result, at every state of the way."""
    problems = []
    states = await trial.states()
    for turn, state in states:
        for action in trial.actions[turn : turn + 1]:
            kept = pickle.dumps(state)
            _, one = await trial.env.step(state, action, turns_left=trial.left(turn))
            _, other = await trial.env.step(pickle.loads(kept), action, turns_left=trial.left(turn))  # noqa: S301
            if one != other:
                problems.append(
                    f"step {turn + 1} gave {_short(one)} and then {_short(other)}: draw nothing that is not seeded by "
                    "the state"
                )
    return problems, f"{len(states)} states"


async def states_pickle(trial: Trial) -> tuple[list[str], str]:
    """States pickle, are small, and go on equally after unpickling."""
    problems, sizes, seconds = [], [0], [0.0]
    for turn, state in await trial.states():
        started = time.perf_counter()
        try:
            kept = pickle.dumps(state)
            copy = pickle.loads(kept)  # noqa: S301 (made here)
        except Exception as error:  # whatever pickling some object raises
            problem = f"the state before step {turn + 1} does not pickle ({error}): keep plain values, reopen the rest"
            return [problem], ""
        seconds.append(time.perf_counter() - started)
        sizes.append(len(kept))
        if _results(await trial.play(copy, turn)) != _results(await trial.play(pickle.loads(kept), turn)):  # noqa: S301
            problems.append(f"two copies of the state before step {turn + 1} go on differently")
        elif _results(await trial.play(copy, turn)) != _results(await trial.play(state, turn)):
            problems.append(f"a pickled state before step {turn + 1} goes on differently from the original")
    if max(sizes) > MAX_STATE_BYTES:
        problems.append(
            f"a state has {max(sizes):,} bytes and travels with each branch: keep what it takes to rebuild it"
        )
    return problems, f"at most {max(sizes):,} bytes, {1000 * max(seconds):.2f} ms both ways"


async def branches_equal_replays(trial: Trial) -> tuple[list[str], str]:
    """What follows from a middle state is what follows when everything is played again."""
    played = await trial.play()
    problems = []
    for item in played[1:]:
        branch = await trial.play(item.before, item.turn)
        replay = [step for step in await trial.play() if step.turn >= item.turn]
        if _results(branch) != _results(replay):
            problems.append(
                f"a branch from before step {item.turn + 1} differs from playing all again: keep everything in the "
                "state, nothing in the environment"
            )
    return problems, f"{max(len(played) - 1, 0)} middle states" if len(played) > 1 else "none: no given step goes on"


async def last_turn_ends(trial: Trial) -> tuple[list[str], str]:
    """With turns_left=-1 every step ends the trajectory, and no tool runs."""
    problems = []
    for turn, state in await trial.states():
        for action in (*trial.actions[turn : turn + 1], "", "x"):
            _, result = await trial.env.step(state, action, turns_left=-1)
            if isinstance(result, StepResult) and result.end is None:
                problems.append(
                    f"{action[:40]!r} with turns_left=-1 did not end the trajectory: return an end, e.g. "
                    "EndReason.TURN_LIMIT with the score so far"
                )
            elif isinstance(result, StepResult) and result.tool_calls:
                problems.append(f"{action[:40]!r} with turns_left=-1 ran a tool: that turn is for the answer only")
    return problems, ""


async def rewards_are_in_place(trial: Trial) -> tuple[list[str], str]:
    """Reward and score stand exactly where a trajectory ends, and are numbers one can learn from."""
    problems: list[str] = []
    for item in await trial.play():
        problems += faults(item.result, trial.left(item.turn))
    for turn, state in await trial.states():
        for action in (*trial.actions[turn : turn + 1], "x"):
            _, result = await trial.env.step(state, action, turns_left=-1)
            problems += [problem for problem in faults(result, -1) if "turns_left" not in problem]
    return problems, ""


async def junk_never_raises(trial: Trial) -> tuple[list[str], str]:
    """Any text gives a result."""
    state, problems = trial.env.reset(trial.task), []
    texts = [*JUNK, *_junk_between_stops(trial.env), "a" * HUGE, "<" * HUGE]
    for text in texts:
        for left in (trial.left(0), -1):
            try:
                _, result = await trial.env.step(state, text, turns_left=left)
            except Exception as error:  # whatever the environment raises
                problems.append(
                    f"{text[:40]!r} ({len(text)} characters) raised {type(error).__name__}: {str(error)[:80]}; return "
                    "EndReason.INVALID_ACTION instead"
                )
                continue
            observation = getattr(result, "observation", "")
            if isinstance(observation, str) and any(stop in observation for stop in trial.env.stop):
                problems.append(f"{text[:40]!r} put a stop string into the observation: neutralise what you quote")
    return problems, f"{len(texts)} texts"


async def branches_do_not_meet(trial: Trial) -> tuple[list[str], str]:
    """Branches that step at the same time get what they get alone."""
    states = await trial.states()
    turn, state = states[len(states) // 2]
    kept = pickle.dumps(state)
    orders = [trial.actions[turn:], trial.actions[turn:][::-1], ("x", *trial.actions[turn:]), trial.actions[:turn]]
    alone = [await _follow(trial, pickle.loads(kept), order, turn) for order in orders[:BRANCHES]]  # noqa: S301
    state = pickle.loads(kept)  # noqa: S301 (made here)
    together = await asyncio.gather(*(_follow(trial, state, order, turn) for order in orders[:BRANCHES]))
    wrong = [number for number, (one, other) in enumerate(zip(alone, together, strict=True), start=1) if one != other]
    text = "branches of one state that step at the same time got other results than alone: share nothing between them"
    return [text] if wrong else [], f"{len(orders)} branches"


async def is_quick(trial: Trial) -> tuple[list[str], str]:
    """How long a reset and a step take, and whether a step holds up others. On a busy machine it may only seem so."""
    await trial.play()  # whatever is loaded once
    for _ in range(QUICK_TRIES):
        note, blocked_s = await _timed(trial)
        if blocked_s <= MAX_BLOCK_S:
            return [], note
    return [f"a step holds up the process for {blocked_s:.2f} s: await what is slow, or use asyncio.to_thread"], note


async def _timed(trial: Trial) -> tuple[str, float]:
    """What the given steps took, in words, and for how many seconds per step nothing else could run."""
    started = time.perf_counter()
    trial.env.reset(trial.task)
    reset_s = time.perf_counter() - started
    heart = _Heart()
    watching = asyncio.create_task(heart.beat())
    await asyncio.sleep(0)
    started = time.perf_counter()
    played = await trial.play()
    step_s = (time.perf_counter() - started - reset_s) / max(len(played), 1)
    watching.cancel()
    note = f"reset {1000 * reset_s:.1f} ms, step {1000 * max(step_s, 0.0):.1f} ms"
    return note, max(heart.longest, heart.gap()) / max(len(played), 1)


CLAUSES: tuple[tuple[str, Judge], ...] = (
    ("has stop, reset and an async step", has_its_parts),
    ("the given steps work", plays),
    ("resets are equal", resets_are_equal),
    ("stepping leaves the state as it was", state_is_a_value),
    ("the same state and action give the same result", is_deterministic),
    ("states pickle and go on equally", states_pickle),
    ("a branch from the middle equals a replay", branches_equal_replays),
    ("turns_left=-1 ends the trajectory", last_turn_ends),
    ("reward and score stand where they must", rewards_are_in_place),
    ("junk never raises", junk_never_raises),
    ("branches at the same time don't meet", branches_do_not_meet),
    ("steps are quick", is_quick),
)
"""Name and judge, in the order in which they are said."""


class _Heart:
    """Notes the longest time for which nothing else could run."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.perf_counter()

    def gap(self) -> float:
        return time.perf_counter() - self._last

    async def beat(self) -> None:
        while True:
            self._last = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, self.gap())


async def _follow(trial: Trial, state: Any, actions: Sequence[str], first: int) -> list[StepResult]:
    results: list[StepResult] = []
    for turn, action in enumerate(actions, start=first):
        state, result = await trial.env.step(state, action, turns_left=trial.left(turn))
        results.append(result)
        if result.end is not None:
            break
    return results


def _results(played: Sequence[Played]) -> list[tuple[int, StepResult]]:
    return [(item.turn, item.result) for item in played]


def _equal(one: Any, other: Any) -> bool:
    """By `==`, or because they pickle to the same bytes (objects without an `==` of their own)."""
    return bool(one == other) or pickle.dumps(one) == pickle.dumps(other)


def _junk_between_stops(env: Env[Any]) -> Iterator[str]:
    for stop in env.stop:
        for inside in ("", "\ud800", "<script>alert(1)</script>", "x" * 5000, stop):
            yield wrapped(inside, [stop])


def _short(result: StepResult) -> str:
    text = f"observation {result.observation!r}" if result.end is None else f"{result.end}, reward {result.reward}"
    return text if len(text) <= 80 else f"{text[:77]}..."
