"""Task order, metrics of a collection, totals of a run, pass@k: numbers that can be checked on paper."""

import json
from dataclasses import replace

import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.types import Ledger, Node, TaskGroup, Tree
from trainer.evaluate import pass_at_k, pass_metrics
from trainer.metrics import collection_metrics, eval_metrics, mean_score
from trainer.task_order import tasks_of_step
from trainer.totals import Totals


def task(name: str, hops: int = 1) -> Task:
    return Task(id=name, prompt=(Message(role="user", content=name),), truth=("x",), meta={"hops": hops})


def leaf(parent: int, score: float, *, end: EndReason = EndReason.ANSWERED) -> Node:
    return Node(
        parent=parent, token_ids=(1, 2), logprobs=(0.0, 0.0), versions=(0, 0), end=end, reward=score, score=score
    )


def tree(name: str, *nodes: Node) -> Tree:
    return Tree(task_id=name, index=0, nodes=[Node(parent=-1, observation_ids=(9,)), *nodes])


def test_each_pass_uses_every_task_once_in_a_new_order():
    tasks = [task(str(i)) for i in range(10)]
    steps = [[t.id for t in tasks_of_step(tasks, step, 5, seed=3)] for step in (1, 2, 3, 4)]
    assert sorted(steps[0] + steps[1]) == sorted(steps[2] + steps[3]) == sorted(t.id for t in tasks)
    assert steps[0] + steps[1] != steps[2] + steps[3]
    assert steps[2] == [t.id for t in tasks_of_step(tasks, 3, 5, seed=3)]
    assert steps[0] != [t.id for t in tasks_of_step(tasks, 1, 5, seed=4)]


def test_collection_metrics_count_leaves_tokens_and_ends():
    forest = [
        TaskGroup(task=task("a"), trees=(tree("a", leaf(0, 1.0), leaf(0, 0.0, end=EndReason.TURN_LIMIT)),)),
        TaskGroup(task=task("b", 2), trees=(tree("b", leaf(0, 0.5)),)),
    ]
    ledger = Ledger(sampled_tokens=6, prefill_tokens_computed=1, prefill_tokens_cached=3, leaves=3)
    metrics = collection_metrics(forest, ledger, seconds=2.0)
    assert metrics["rollout/success"] == pytest.approx(0.5)
    assert metrics["rollout/tokens_per_s"] == 3.0
    assert metrics["rollout/cached_prefill_share"] == 0.75
    assert metrics["rollout/end_answered_share"] == pytest.approx(2 / 3)
    assert (metrics["tree/trees"], metrics["tree/leaves"], metrics["tree/nodes"], metrics["tree/depth"]) == (2, 3, 5, 1)
    assert metrics["ledger/sampled_tokens"] == 6.0
    found = eval_metrics(forest)
    assert (found["eval/n"], found["eval/hops1_success"], found["eval/hops2_success"]) == (3.0, 0.5, 0.5)


def test_each_source_has_its_success_and_the_same_weight_in_their_mean():
    failed = Node(parent=0, token_ids=(1,), logprobs=(0.0,), versions=(0,), end=EndReason.ENV_ERROR)
    plan = [
        ("one", leaf(0, 1.0)),
        ("two", leaf(0, 1.0)),
        ("two", leaf(0, 0.0)),
        ("two", leaf(0, 0.0)),
        ("gone", failed),
    ]
    forest = [
        TaskGroup(task=replace(task(str(place)), meta={"source": source}), trees=(tree(str(place), node),))
        for place, (source, node) in enumerate(plan)
    ]
    assert eval_metrics(forest) == pytest.approx(
        {
            "eval/success": 0.5,
            "eval/n": 4,
            "eval/one_success": 1.0,
            "eval/one_n": 1,
            "eval/two_success": 1 / 3,
            "eval/two_n": 3,
            "eval/gone_success": 0.0,
            "eval/gone_n": 0,
            "eval/mean_of_sources": 2 / 3,
        }
    )


def test_environment_errors_have_no_score():
    failed = Node(parent=0, token_ids=(1,), logprobs=(0.0,), versions=(0,), end=EndReason.ENV_ERROR)
    assert mean_score([TaskGroup(task=task("a"), trees=(tree("a", failed, leaf(0, 1.0)),))]) == (1.0, 1)


def test_totals_survive_a_checkpoint_and_add_up():
    totals = Totals()
    totals.advance(Ledger(sampled_tokens=5, leaves=2), {"rollout/staleness_max": 1.0, "rollout/stale_leaves": 2.0})
    totals.spend({"time/learn_s": 1.5, "rollout/success": 0.1})
    totals.see_parity({"push/max_abs_logprob_diff": 0.003})
    totals.before = {"eval/success": 0.25, "eval/n": 100.0}
    again = Totals.from_json(json.loads(json.dumps(totals.to_json())))
    assert again == totals
    again.advance(Ledger(sampled_tokens=7), {"rollout/staleness_max": 0.0, "rollout/stale_leaves": 1.0})
    again.after = {"eval/success": 0.5, "eval/n": 100.0}
    summary = again.summary(seed=1, versions={}, model="m")
    assert (summary["steps"], summary["weights_version"]) == (2, 2)
    assert summary["ledger"]["sampled_tokens"] == 12
    assert summary["staleness"] == {"max": 1.0, "dropped_leaves": 3.0}
    assert summary["eval"]["before"] == {"success": 0.25, "n": 100.0}
    assert again.last_words() == "held-out success 0.250 → 0.500 after 2 steps"


@pytest.mark.parametrize(("right", "k", "chance"), [(1, 1, 0.25), (1, 2, 0.5), (0, 4, 0.0), (4, 1, 1.0), (2, 3, 1.0)])
def test_pass_at_k_of_four_samples(right, k, chance):
    assert pass_at_k(4, right, k) == pytest.approx(chance)


def test_pass_metrics_average_over_tasks():
    chains = tuple(tree("a", leaf(0, score)) for score in (1.0, 0.0, 0.0, 0.0))
    forest = [TaskGroup(task=task("a"), trees=chains), TaskGroup(task=task("b"), trees=chains)]
    assert pass_metrics(forest, 4) == {"pass@1": 0.25, "pass@2": 0.5, "pass@4": 1.0}
