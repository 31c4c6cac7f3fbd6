"""Groups without signal: kept, left out, or replaced, with a fake collection whose rewards depend on the task's id."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.scheduler import Harvest
from rollout_workers.types import Ledger, Node, TaskGroup, Tree
from trainer.collecting import StepHarvest, collect_step, replacements
from trainer.config import LossConfig, RunConfig
from trainer.leaf_weights import leaf_weights
from trainer.packing import pack_forest
from trainer.task_order import tasks_of_step

TASKS = [Task(id=str(i), prompt=(Message(role="user", content="?"),), truth=("x",)) for i in range(12)]
PER_STEP = 4


def settings(dead_groups: str, rounds: int = 3, seed: int = 0, **loss: float) -> RunConfig:
    sections = {
        "name": "r",
        "seed": seed,
        "tasks_per_step": PER_STEP,
        "model": {"path": "m"},
        "env": {
            "name": "search",
            "train_tasks": "a.jsonl",
            "eval_tasks": "b.jsonl",
            "retriever": {"kind": "local", "corpus": "c.jsonl"},
        },
        "advantage": {"dead_groups": dead_groups, "resample_rounds": rounds},
        "loss": loss,
    }
    return RunConfig.model_validate_json(json.dumps(sections), strict=True)


def grown(task: Task, live: bool) -> TaskGroup:
    """One tree with two leaves of two tokens each: rewards 1 and 0 if `live`, else twice 0.8."""
    ends = [
        Node(parent=0, token_ids=(5, 6), logprobs=(-1.0,) * 2, versions=(0, 0), end=EndReason.ANSWERED, reward=reward)
        for reward in ((1.0, 0.0) if live else (0.8, 0.8))
    ]
    tree = Tree(task_id=task.id, index=0, nodes=[Node(parent=-1, observation_ids=(1,)), *ends])
    return TaskGroup(task=task, trees=(tree,))


class FakeFleet:
    """Collects at once; a task is live if `is_live` says so. Ten sampled tokens per task."""

    def __init__(self, is_live: Callable[[Task], bool]) -> None:
        self.is_live = is_live
        self.calls: list[tuple[str, list[str]]] = []
        self.paid: list[int] = []

    def collect(self, phase: str, tasks: Sequence[Task], before: Ledger) -> Harvest:
        self.calls.append((phase, [task.id for task in tasks]))
        self.paid.append(before.sampled_tokens)
        forest = [grown(task, self.is_live(task)) for task in tasks]
        ledger = Ledger(sampled_tokens=10 * len(tasks), leaves=2 * len(tasks), trees=len(tasks))
        return Harvest(forest=forest, ledger=ledger, failures=())


def first_tasks(config: RunConfig, step: int = 1) -> list[str]:
    return [task.id for task in tasks_of_step(TASKS, step, PER_STEP, config.seed)]


def trained_ids(found: StepHarvest) -> list[str]:
    return [group.task.id for group in found.for_learner[0]]


def counts(found: StepHarvest) -> dict[str, float]:
    names = ("dead_groups", "dropped_groups", "resampled_groups", "resample_rounds")
    return {name: found.stats[f"reward/{name}"] for name in names}


def half_live(config: RunConfig) -> FakeFleet:
    """The first two tasks of step 1 are dead, everything else is live."""
    dead = first_tasks(config)[:2]
    return FakeFleet(lambda task: task.id not in dead)


def test_keep_trains_everything() -> None:
    config = settings("keep")
    fleet = half_live(config)
    found = collect_step(config, 1, TASKS, fleet.collect)
    assert fleet.calls == [("train-1", first_tasks(config))]
    assert trained_ids(found) == first_tasks(config)
    assert counts(found) == {"dead_groups": 0.5, "dropped_groups": 0, "resampled_groups": 0, "resample_rounds": 0}


def test_drop_leaves_dead_groups_out() -> None:
    config = settings("drop")
    found = collect_step(config, 1, TASKS, half_live(config).collect)
    assert trained_ids(found) == first_tasks(config)[2:]
    assert [group.task.id for group in found.forest] == first_tasks(config)
    assert found.ledger.sampled_tokens == 40, "tokens of dropped groups were paid for"
    assert counts(found) == {"dead_groups": 0.5, "dropped_groups": 2, "resampled_groups": 0, "resample_rounds": 0}


def test_dropped_groups_are_in_no_denominator() -> None:
    """seq_mean: with all 4 tasks a leaf of 2 tokens has 1/(4*2*2), with the 2 live ones 1/(2*2*2)."""
    kept = collect_step(settings("keep"), 1, TASKS, half_live(settings("keep")).collect)
    left = collect_step(settings("drop"), 1, TASKS, half_live(settings("drop")).collect)
    assert leaf_weights(*kept.for_learner, LossConfig())[2][0] == pytest.approx({1: 1 / 16, 2: 1 / 16})
    assert leaf_weights(*left.for_learner, LossConfig())[0][0] == pytest.approx({1: 1 / 8, 2: 1 / 8})


def test_dropped_groups_are_in_no_kl_term() -> None:
    """With a KL term dead groups are laid out too; left out they add no token, and the weights add up to 1 again."""
    for rule, tokens in (("keep", 4 * 5), ("drop", 2 * 5)):
        config = settings(rule, kl_coef=0.1)
        found = collect_step(config, 1, TASKS, half_live(config).collect)
        packs = pack_forest(*found.for_learner, config.loss, config.learner, 64).mini_batches[0][0]
        assert sum(pack.tokens for pack in packs) == tokens
        assert sum(float(pack.weight.sum()) for pack in packs) == pytest.approx(1.0)


def test_resample_replaces_dead_groups() -> None:
    config = settings("resample")
    fleet = half_live(config)
    found = collect_step(config, 1, TASKS, fleet.collect)
    assert [phase for phase, _ in fleet.calls] == ["train-1", "train-1-resample-1"]
    further = fleet.calls[1][1]
    assert len(further) == 2
    assert not set(further) & set(first_tasks(config))
    assert trained_ids(found) == first_tasks(config)[2:] + further
    assert fleet.paid == [0, 40], "the share of failed branches is that of the step"
    assert (found.ledger.sampled_tokens, found.ledger.leaves) == (60, 12)
    assert len(found.credit) == len(found.forest) == 6
    assert counts(found) == {"dead_groups": 0.5, "dropped_groups": 2, "resampled_groups": 2, "resample_rounds": 1}


def test_resampling_is_fixed_by_seed_step_and_round() -> None:
    def draws(seed: int, step: int) -> list[list[str]]:
        fleet = FakeFleet(lambda task: False)
        collect_step(settings("resample", rounds=2, seed=seed), step, TASKS, fleet.collect)
        return [tasks for _, tasks in fleet.calls]

    def further(used: set[str], seed: int, step: int, number: int) -> list[str]:
        return [task.id for task in replacements(TASKS, used, 4, seed=seed, step=step, number=number)]

    for seed, step in ((0, 1), (0, 2), (1, 1)):
        first, second, third = draws(seed, step)
        assert second == further({*first}, seed, step, 1)
        assert third == further({*first, *second}, seed, step, 2)
    others = [further({"0", "1"}, *which) for which in ((0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2))]
    assert len(set(map(tuple, others))) == 4
    assert len({task for round_ in draws(0, 1) for task in round_}) == 12, "no task twice in a step"


def test_what_is_dead_after_the_last_round_is_left_out() -> None:
    config = settings("resample", rounds=2)
    alive = first_tasks(config)[0]
    fleet = FakeFleet(lambda task: task.id == alive)
    found = collect_step(config, 1, TASKS, fleet.collect)
    assert [len(tasks) for _, tasks in fleet.calls] == [4, 3, 3]
    assert trained_ids(found) == [alive]
    assert counts(found) == {"dead_groups": 0.75, "dropped_groups": 9, "resampled_groups": 6, "resample_rounds": 2}


def test_resampling_ends_with_the_tasks() -> None:
    fleet = FakeFleet(lambda task: False)
    found = collect_step(settings("resample", rounds=9), 1, TASKS[:6], fleet.collect)
    assert [len(tasks) for _, tasks in fleet.calls] == [4, 2]
    assert counts(found) == {"dead_groups": 1.0, "dropped_groups": 6, "resampled_groups": 2, "resample_rounds": 1}


def test_no_further_collection_without_need() -> None:
    fleet = FakeFleet(lambda task: True)
    collect_step(settings("resample"), 1, TASKS, fleet.collect)
    assert len(fleet.calls) == 1


def test_a_step_without_a_live_group_has_no_packs() -> None:
    config = settings("drop", kl_coef=0.1)
    found = collect_step(config, 1, TASKS, FakeFleet(lambda task: False).collect)
    packed = pack_forest(*found.for_learner, config.loss, config.learner, 64)
    assert packed.mini_batches == [[[]]]
    assert packed.stats["tree/packs"] == 0


@pytest.mark.parametrize(("dead_groups", "groups", "further", "trained"), [("keep", 3, 0, 3), ("resample", 5, 2, 4)])
def test_what_is_too_old_is_cut_before_anything_is_decided(
    dead_groups: str, groups: int, further: int, trained: int
) -> None:
    """Step 6 trains version 5, which takes version 4 with max_staleness 1; one task has a leaf of (4, 3) tokens, one
    both of its leaves: a group is left with one leaf and so dead, another is gone. `resample` replaces both.
    """
    config = settings(dead_groups, rounds=1).model_copy(update={"max_staleness": 1})
    fleet = FakeFleet(lambda task: True)
    half, gone = first_tasks(config, 6)[:2]

    def collect(phase: str, tasks: Sequence[Task], before: Ledger) -> Harvest:
        found = fleet.collect(phase, tasks, before)
        return replace(found, forest=[aged(group) for group in found.forest])

    def aged(group: TaskGroup) -> TaskGroup:
        old = {half: ((4, 3), (4, 5)), gone: ((3, 3), (2, 5))}.get(group.task.id, ((4, 4), (5, 5)))
        root, *ends = group.trees[0].nodes
        nodes = [root, *(replace(node, versions=seen) for node, seen in zip(ends, old, strict=True))]
        return replace(group, trees=(replace(group.trees[0], nodes=nodes),))

    found = collect_step(config, 6, TASKS, collect)
    assert gone not in {group.task.id for group in found.forest}
    assert (found.stats["rollout/stale_leaves"], found.stats["rollout/stale_groups"]) == (3, 1)
    assert (found.stats["rollout/staleness_max"], found.stats["reward/dead_groups"]) == (1, pytest.approx(1 / 3))
    assert found.ledger.discarded_tokens == 6
    assert (len(found.forest), len(found.trained)) == (groups, trained)
    assert counts(found)["resampled_groups"] == further


def test_replacements() -> None:
    place = {"seed": 7, "step": 1, "number": 1}
    found = replacements(TASKS, {"0", "1"}, 5, **place)
    assert found == replacements(TASKS, {"1", "0"}, 5, **place)
    assert len({task.id for task in found} - {"0", "1"}) == 5
    assert replacements(TASKS, {task.id for task in TASKS}, 5, **place) == ()
