"""The token ledger on paper: blocks of the prefix cache, the engine's own counters, and its time."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from echo_world import CharCodec, CountingEnv, Wanderer, task

from rollout_workers.audit import Audit
from rollout_workers.branch import BranchRunner, block_bound
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.engine_counts import EngineCounts, StatReader
from rollout_workers.fleet import warn_of_mismatch
from rollout_workers.growth import TreeRules
from rollout_workers.timed_policy import TimedPolicy
from rollout_workers.types import Completion, Ledger, Sampling, WorkItem
from trainer.metrics import collection_metrics, prefill_metrics

BLOCK = 4


class BlockCache(Wanderer):
    """Caches as vLLM does: whole blocks of what ran through the model, and never the last token of a prompt.

    No two steps have the same ids, or a step would find more than what its own branch had before.
    """

    def __init__(self) -> None:
        super().__init__(ends=0.2)
        self.blocks: set[tuple[int, ...]] = set()

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
        prompt, found = tuple(prompt_ids), 0
        while found + BLOCK < len(prompt) and prompt[: found + BLOCK] in self.blocks:
            found += BLOCK
        said = await super().generate(prompt, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens)
        said = replace(said, token_ids=(seed, *said.token_ids[1:]))
        ran = prompt + said.token_ids[:-1]
        self.blocks |= {ran[:end] for end in range(BLOCK, len(ran) + 1, BLOCK)}
        return replace(said, cached_tokens=found)


@pytest.mark.parametrize(
    ("known", "size", "bound"),
    [(81, 32, 17), (80, 32, 16), (97, 32, 1), (96, 32, 32), (65, 32, 1), (64, 32, 32), (1, 32, 1), (0, 32, 0)],
)
def test_what_whole_blocks_do_not_hold_is_computed_again(known: int, size: int, bound: int) -> None:
    assert block_bound(known, size) == bound


@pytest.mark.parametrize("roots", [1, 3])
async def test_with_a_cache_that_forgets_nothing_computed_is_unique_plus_block_bound(roots: int) -> None:
    rules = TreeRules(roots=roots, nodes_per_round=3, branches_per_node=2, rounds=2)
    tasks = tuple(task(name) for name in ("a question?", "another, longer question?"))
    spec = CollectionSpec(phase="p", tasks=tasks, rules=rules, sampling=Sampling(), seed=1)
    runner = BranchRunner(CountingEnv(), BlockCache(), CharCodec(), 1.0, block_size=BLOCK)
    collection = Collection(spec)
    while not collection.is_complete:
        for item in collection.assign("a", 100, now=0.0):
            collection.complete(await runner.run(item))
    ledger = collection.ledger
    assert ledger.prefill_tokens_computed == ledger.prefill_tokens_unique + ledger.prefill_tokens_block_bound
    assert ledger.prefill_tokens_cached > ledger.prefill_tokens_computed
    assert ledger.requests == len(runner._policy.requests)


async def test_what_stealing_cost_is_what_the_thiefs_cache_did_not_have() -> None:
    """Two actors with a cache each: what a thief computes is new, or lost with a block, or lost as it was stolen."""
    rules = TreeRules(roots=2, nodes_per_round=3, branches_per_node=2, rounds=2)
    tasks = (task("a question?"),)
    collection = Collection(
        CollectionSpec(phase="p", tasks=tasks, rules=rules, sampling=Sampling(), seed=1, steal_after=1.0)
    )
    runners = {name: BranchRunner(CountingEnv(), BlockCache(), CharCodec(), 1.0, block_size=BLOCK) for name in "ab"}
    while not collection.is_complete:
        for name, runner in runners.items():
            for item in collection.assign(name, 2, now=0.0, actors=2):
                result = await runner.run(item)
                assert collection.complete(result)
                if item.stolen:
                    cost = result.ledger
                    new = sum(len(made.node.observation_ids) for made in result.nodes)
                    lost = cost.prefill_tokens_block_bound + cost.prefill_tokens_stolen
                    assert (name, cost.prefill_tokens_computed) == ("b", new + lost)
                else:
                    assert (name, result.ledger.prefill_tokens_stolen) == ("a", 0)
    assert collection.ledger.branches_stolen > 0
    assert collection.ledger.prefill_tokens_stolen > 0


async def test_a_stolen_branch_loses_its_context_beyond_the_block_bound() -> None:
    """A context of 13 in blocks of 4: its holder would have 12 of them; nothing is lost by the second step."""
    context = tuple(map(ord, "a question?a;"))
    work = WorkItem(
        id="p/q/0/1", task=task("a question?"), tree=0, parent=1, slot=1, context_ids=context, state=None,
        turns_used=1, seed=0, stolen=True, sampling=Sampling(),
    )  # fmt: skip
    for seed in range(4):
        runner = BranchRunner(CountingEnv(), BlockCache(), CharCodec(), 1.0, block_size=BLOCK)
        result = await runner.run(replace(work, seed=seed))
        assert result.ledger.prefill_tokens_stolen == 12, len(result.nodes)
        again = await runner.run(replace(work, seed=9))
        assert again.ledger.prefill_tokens_stolen == 0, "the thief has it by now"


async def test_every_request_of_one_branch_is_booked_with_its_block_bound() -> None:
    """Prompt of 11; steps "a;" and "c!;", observation "<1>": requests of 11 and 16 tokens, the second knows 13."""
    branch = await _two_steps(BlockCache())
    assert (branch.prefill_tokens_computed, branch.prefill_tokens_cached) == (11 + 4, 12)
    assert branch.prefill_tokens_block_bound == 0 + 1


async def _two_steps(policy: BlockCache) -> Ledger:
    rules = TreeRules(roots=1, nodes_per_round=0, rounds=0)
    spec = CollectionSpec(phase="p", tasks=(task("a question?"),), rules=rules, sampling=Sampling(), seed=0)
    for seed in range(100):
        collection = Collection(replace(spec, seed=seed))
        policy.blocks.clear()
        item = collection.assign("a", 1, now=0.0)[0]
        result = await BranchRunner(CountingEnv(), policy, CharCodec(), 1.0, block_size=BLOCK).run(item)
        if len(result.nodes) == 2:
            return result.ledger
    raise AssertionError("no branch of two steps in 100")


def test_overheads_are_ratios_to_what_is_new() -> None:
    metrics = prefill_metrics(
        Ledger(
            prefill_tokens_computed=900,
            prefill_tokens_cached=300,
            prefill_tokens_unique=600,
            prefill_tokens_block_bound=330,
            engine_mismatch=2,
        )
    )
    assert metrics == pytest.approx(
        {
            "rollout/cached_prefill_share": 0.25,
            "rollout/prefill_overhead": 1.5,
            "rollout/prefill_block_bound": 1.55,
            "rollout/ledger_mismatch": 2.0,
        }
    )
    assert collection_metrics([], Ledger(engine_busy_s=6.0), seconds=4.0, actors=2)["rollout/engine_busy_share"] == 0.75


def engine_step(
    sampled: int, drawn: int, computed: int = 0, cached: int = 0, again: int = 0, preempted: int = 0
) -> StatReader:
    """What vLLM tells after one step: `drawn` requests ran, `sampled` of their tokens were delivered."""
    reader = StatReader()
    reader.record(
        SimpleNamespace(
            prefix_cache_stats=SimpleNamespace(queries=computed + cached, hits=cached),
            iteration_details=SimpleNamespace(
                num_ctx_requests=1,
                num_ctx_tokens=computed,
                num_generation_requests=drawn - 1,
                num_generation_tokens=drawn - 1 + again,
            ),
        ),
        SimpleNamespace(
            num_generation_tokens=sampled,
            prompt_token_stats=SimpleNamespace(computed=computed, cached_tokens=cached),
            num_preempted_reqs=preempted,
        ),
    )
    return reader


def test_the_audit_agrees_when_books_and_engine_do_and_tells_what_only_the_engine_knows() -> None:
    counts = EngineCounts(sampled=1, drawn=1)
    audit = Audit(lambda: counts)
    audit.book(Ledger(sampled_tokens=5, prefill_tokens_computed=20, prefill_tokens_cached=32))
    sample = Completion(
        token_ids=(1, 2), logprobs=(0.0, 0.0), versions=(0, 0), text="ab", finished="stop",
        prompt_tokens=9, cached_tokens=0,
    )  # fmt: skip
    audit.book_probe(sample)
    assert audit.mismatch == 7 + 2 * 29 + 32 + 32, "the engine has told nothing yet"
    counts = engine_step(sampled=8, drawn=11, computed=29, cached=32, again=6).counts
    assert audit.mismatch == 6, "nothing was preempted, so nothing should have run again"
    counts = engine_step(sampled=8, drawn=11, computed=29, cached=32, again=6, preempted=1).counts
    assert audit.mismatch == 0
    first, second = audit.take(0), audit.take(3)
    assert (first.surplus_tokens, first.recomputed_tokens, first.engine_mismatch) == (3, 6, 0)
    assert second == Ledger(engine_mismatch=3), "told once"
    held = counts
    counts = replace(held, prefill_computed=20)
    assert audit.mismatch == 9 - 3, (
        "what ran again after a preemption hides no prompt token that was booked and not computed"
    )
    counts = held
    audit.book(Ledger(sampled_tokens=3))
    assert audit.mismatch == 0, "a difference of 3, which is told already"
    audit.book(Ledger(sampled_tokens=2))
    assert audit.mismatch == 2


def test_a_mismatch_is_told_with_the_actors_name(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_mismatch("rollout-0", Ledger(surplus_tokens=9))
    assert not caplog.records
    warn_of_mismatch("rollout-1", Ledger(engine_mismatch=5))
    assert "rollout actor rollout-1 counted 5 tokens otherwise than its engine did" in caplog.text


async def test_answers_share_the_seconds_in_which_the_engine_has_requests() -> None:
    now = 0.0
    gates: dict[int, asyncio.Event] = {}

    class Held(Wanderer):
        async def generate(self, prompt_ids, *, sampling, seed, stop, max_tokens, ask=None):
            await gates.setdefault(seed, asyncio.Event()).wait()
            return await super().generate(prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens)

    policy = TimedPolicy(Held(), timeout_s=60, clock=lambda: now)

    async def begin(seed: int) -> asyncio.Task[Completion]:
        ask = policy.generate((1,), sampling=Sampling(), seed=seed, stop=(), max_tokens=8)
        running = asyncio.create_task(ask)
        await asyncio.sleep(0)
        return running

    now = 10.0
    one = await begin(1)
    now = 11.0
    two = await begin(2)
    now = 13.0
    gates[1].set()
    first = await one
    now = 14.0
    gates[2].set()
    second = await two
    now = 20.0
    three = await begin(3)
    now = 23.0
    gates[3].set()
    third = await three
    assert (first.engine_s, second.engine_s, third.engine_s) == (1.0 + 2.0 / 2, 2.0 / 2 + 1.0, 3.0)
    assert policy.running == 0


async def test_a_branch_books_what_its_answers_took_of_the_engine() -> None:
    ticks = itertools.count()
    policy = TimedPolicy(Wanderer(ends=0.2), timeout_s=60, clock=lambda: float(next(ticks)))
    rules = TreeRules(roots=1, nodes_per_round=2, rounds=2)
    collection = Collection(
        CollectionSpec(phase="p", tasks=(task("a question?"),), rules=rules, sampling=Sampling(), seed=1)
    )
    runner = BranchRunner(CountingEnv(), policy, CharCodec(), 1.0, block_size=BLOCK)
    while not collection.is_complete:
        for item in collection.assign("a", 1, now=0.0):
            collection.complete(await runner.run(item))
    (group,) = collection.forest()
    assert group.ledger.engine_busy_s == group.ledger.requests > 5, "a second each, one after the other"


async def test_the_time_of_a_step_does_not_run_while_a_push_has_it_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    now, go = 0.0, asyncio.Event()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    class Held(Wanderer):
        async def generate(self, prompt_ids, *, sampling, seed, stop, max_tokens, ask=None):
            await go.wait()
            return await super().generate(prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens)

    policy = TimedPolicy(Held(), timeout_s=10.0)

    async def pass_s(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(5):
            await asyncio.sleep(0)

    async def ask(seed: int) -> asyncio.Task[Completion]:
        request = asyncio.create_task(policy.generate((1,), sampling=Sampling(), seed=seed, stop=(), max_tokens=8))
        await pass_s(0.0)
        return request

    before = await ask(1)
    await pass_s(9.0)
    policy.freeze()
    within = await ask(2)
    await pass_s(20.0)
    policy.freeze()
    policy.thaw()
    await pass_s(0.5)
    assert not before.done()
    assert not within.done()
    go.set()
    await asyncio.gather(before, within)
    go.clear()
    late = await ask(3)
    await pass_s(9.0)
    policy.freeze()
    await pass_s(20.0)
    policy.thaw()
    await pass_s(0.5)
    assert not late.done()
    await pass_s(1.0)
    with pytest.raises(RuntimeError, match=r"turn_timeout_s=10"):
        await late


async def test_an_engine_that_does_not_answer_is_an_error_that_names_the_limit() -> None:
    class Silent(Wanderer):
        async def generate(self, prompt_ids, *, sampling, seed, stop, max_tokens, ask=None):
            await asyncio.Event().wait()

    policy = TimedPolicy(Silent(), timeout_s=0.01)
    with pytest.raises(RuntimeError, match=r"turn_timeout_s=0\.01"):
        await policy.generate((1,), sampling=Sampling(), seed=1, stop=(), max_tokens=8)
    assert policy.running == 0
