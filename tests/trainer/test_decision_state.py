"""A typed policy from step to step: statistics, KL meters, live changes, late labels, checkpoints, and overlap."""

import json
import threading
from pathlib import Path

import pytest
from test_decision_packing import packs_of
from typed_forests import DONE, FAN, decision, group, step, task_of, tree, typed_config

from envs.decisions.settings import DecisionSettings, FeedbackSettings
from envs.types import Task
from rollout_workers.scheduler import Harvest
from rollout_workers.types import Forest, Ledger, TaskGroup
from trainer.checkpoint_state import RunState
from trainer.collecting import StepHarvest, collect_step
from trainer.config import LossConfig
from trainer.decisions.control import TypedPolicy, policy_of
from trainer.decisions.state import DecisionState
from trainer.decisions.statistics import Running
from trainer.forests import Ahead
from trainer.totals import Totals

DECIDED = decision(FAN)
TASKS = [task_of(str(i)) for i in range(12)]


def policy(tmp_path: Path, decided: DecisionSettings = DECIDED, notes: list[str] | None = None) -> TypedPolicy:
    made = policy_of(typed_config(decided), tmp_path, [].append if notes is None else notes.append, str)
    assert isinstance(made, TypedPolicy)
    return made


def grown(task: Task, low: float, high: float) -> TaskGroup:
    return group(
        tree(step(0, "intent", low, end=DONE), name=task.id),
        tree(step(0, "intent", high, end=DONE), index=1, name=task.id),
        name=task.id,
    )


def harvest(made: TypedPolicy, *rewards: float) -> StepHarvest:
    """One task with two trees of these rewards, collected for this policy."""
    config = typed_config(DECIDED, tasks_per_step=1)

    def collect(phase: str, tasks: list[Task], before: Ledger) -> Harvest:
        return Harvest(forest=[grown(task, *rewards) for task in tasks], ledger=Ledger(), failures=())

    return collect_step(config, 1, TASKS, collect, made.creditor())


def test_statistics_go_from_forest_to_forest_and_are_the_loops_when_it_has_trained(tmp_path: Path) -> None:
    made = policy(tmp_path)
    first, second = harvest(made, 0.0, 2.0), harvest(made, 4.0, 6.0)
    assert made.state.statistics == {}, "nothing is trained yet"
    assert second.statistics["intent"] == Running().with_batch([0.0, 2.0]).with_batch([4.0, 6.0])
    assert second.credit[0][0].values[1] == pytest.approx(-1 / 5**0.5), "mean 3, std sqrt(5), less the mean of both"
    assert second.stats["decision/intent/reward"] == 5.0
    made.advance(first, {})
    assert made.state.statistics["intent"].mean == 1.0
    made.advance(second, {})
    assert made.state.statistics["intent"].mean == 3.0


def test_a_creditor_that_is_called_again_starts_from_the_same_statistics(tmp_path: Path) -> None:
    """Further collections of a step are credited together with what it has, not after it."""
    made = policy(tmp_path)
    credit = made.creditor()
    forest: Forest = [grown(TASKS[0], 0.0, 2.0)]
    credit(forest)
    assert credit([*forest, grown(TASKS[1], 4.0, 6.0)]).statistics["intent"].count == 4


@pytest.mark.parametrize(("rule", "trained"), [("keep", 2), ("drop", 1), ("resample", 2)])
def test_dead_groups_are_judged_by_typed_advantages(tmp_path: Path, rule: str, trained: int) -> None:
    """All outcome rewards are equal; the first task's steps differ in their own rewards, the second task's do not."""
    made = policy(tmp_path)
    config = typed_config(DECIDED, tasks_per_step=2, advantage={"dead_groups": rule, "resample_rounds": 3})
    calls: list[int] = []

    def collect(phase: str, tasks: list[Task], before: Ledger) -> Harvest:
        calls.append(len(tasks))
        live = 1 if len(calls) == 1 else len(tasks)
        forest = [grown(task, 0.5, 1.0 if i < live else 0.5) for i, task in enumerate(tasks)]
        return Harvest(forest=forest, ledger=Ledger(), failures=())

    found = collect_step(config, 1, TASKS, collect, made.creditor())
    assert len(found.trained) == trained
    assert calls == ([2, 1] if rule == "resample" else [2])
    assert found.stats["reward/dead_groups"] == 0.5
    assert found.statistics["intent"].count == 2 * sum(calls)


def test_the_kl_meter_is_an_exponential_mean(tmp_path: Path) -> None:
    """0.2 at first; then 0.9*0.2 + 0.1*0.7 = 0.25. Without a KL term a node that was not trained did not move."""
    loss = LossConfig(kl_coef=0.0)
    decided = decision(FAN, {"lookup": {"kl_coef": 0.1}})
    state = DecisionState().after_step(
        decided, loss, {}, {"decision/lookup/kl": 0.2, "decision/intent/kl": 0.2, "learner/loss": 1.0}
    )
    assert state.kl == {"lookup": 0.2, "intent": 0.2}
    state = state.after_step(decided, loss, {}, {"decision/lookup/kl": 0.7})
    assert state.kl == pytest.approx({"lookup": 0.25, "intent": 0.18})
    state = state.after_step(decided, loss, {}, {"decision/lookup/kl": float("nan")})
    assert state.kl["lookup"] == pytest.approx(0.25), "neither does what is no number"


def test_a_node_that_moved_away_gets_less_and_its_sibling_more(tmp_path: Path) -> None:
    made = policy(tmp_path)
    before = made.plan()
    assert before.factors["lookup"] == before.factors["shipping"] == pytest.approx(0.782)
    told = made.advance(harvest(made, 0.0, 1.0), {"decision/lookup/kl": 0.5})
    assert told["decision/lookup/share"] == 0.5, "in force while it was trained"
    after = made.plan()
    assert after.shares["lookup"] == pytest.approx(1 / 3)
    assert after.factors["shipping"] == pytest.approx(0.782 * 4 / 3)
    assert told["decision/lookup/kl_mean"] == 0.5
    assert told["decision/intent/factor"] == pytest.approx(0.92)


def test_live_changes_reach_credit_and_plan_and_are_told(tmp_path: Path) -> None:
    notes: list[str] = []
    made = policy(tmp_path, notes=notes)
    (tmp_path / "live.yaml").write_text(
        "lookup.rewards.weight: 3\nlookup.coefficients.entropy_coef: 0.35\ndecay_root: 1.0\nlevels.rules: 0.0\n"
    )
    metrics = made.look(1)
    assert metrics["decision/live/lookup.rewards.weight"] == 3.0
    assert metrics["decision/live/lookup.rewards.weight/before"] == 1.0
    assert metrics["decision/live/lookup.coefficients.entropy_coef/before"] == 0.0, "that of the loss section"
    assert notes[0] == "changed: lookup.rewards.weight 1 → 3"
    assert len(notes) == 4
    plan = made.plan()
    assert plan.shares["lookup"] == 0.75
    assert plan.factors["intent"] == 1.0
    assert plan.coefficients[1].entropy_coef == 0.35
    assert made.look(2) == {}
    (tmp_path / "live.yaml").write_text("lookup.rewards.weight: -3\n")
    assert made.look(3) == {}
    assert "must be a number of at least 0. Nothing of the file is taken over." in notes[-1]
    made.look(4)
    assert len(notes) == 5


def test_live_coefficients_travel_with_the_packs(tmp_path: Path) -> None:
    made = policy(tmp_path)
    (tmp_path / "live.yaml").write_text("intent.coefficients.kl_coef: 0.5\n")
    made.look(1)
    (pack,) = packs_of([grown(TASKS[0], 0.0, 1.0)], [[{1: 1.0}, {1: -1.0}]], made.settings, layout="packed")
    assert pack.coefficients[0].kl_coef == 0.5


def test_late_labels_are_trained_beside_the_forest_and_heard_again_after_a_crash(tmp_path: Path) -> None:
    """Both steps are queued. The first one's raw reward 0 becomes 0.3/0.9 with label 1: normal (1/3 - 0.5)/0.5 after
    -1, so it is trained again with 2/3.
    """
    decided = decision(FAN, feedback=FeedbackSettings(enabled=True))
    made = policy(tmp_path, decided)
    assert made.look(1)["decision/feedback/labelled"] == 0
    first = harvest(made, 0.0, 1.0)
    assert made.lesson(first) == first.for_learner
    assert made.advance(first, {})["decision/feedback/queued"] == 2
    id = f"train-1/{first.forest[0].task.id}/0/1"
    (tmp_path / "feedback" / "labels.jsonl").write_text(json.dumps({"id": id, "label": 1.0}) + "\n")
    checkpoint = state_of(made)
    assert made.look(2)["decision/feedback/late"] == 1
    assert state_of(made) == checkpoint, "what is not trained yet is not in a checkpoint"
    second = harvest(made, 0.0, 1.0)
    forest, credit = made.lesson(second)
    assert len(forest) == 2
    (late,) = [per_tree for per_tree in credit if len(per_tree) == 1]
    assert late[0].values == {1: pytest.approx(2 / 3)}
    made.advance(second, {})
    assert made.look(3)["decision/feedback/late"] == 0
    again = policy(tmp_path, decided)
    again.restore(checkpoint, 1)
    assert again.look(2)["decision/feedback/late"] == 1


def state_of(made: TypedPolicy) -> dict[str, object]:
    run = RunState(totals=Totals(step=3), name="r", config={}, model="m", decision=made.to_json())
    return RunState.from_json(json.loads(json.dumps(run.to_json()))).decision


def test_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    made = policy(tmp_path)
    (tmp_path / "live.yaml").write_text("lookup.rewards.weight: 3\n")
    made.look(1)
    made.advance(harvest(made, 0.0, 1.0), {"decision/lookup/kl": 0.5})
    ahead = harvest(made, 9.0, 9.0)
    again = policy(tmp_path / "elsewhere")
    again.restore(state_of(made), 3)
    assert again.state == made.state
    assert again.settings == made.settings
    assert again.plan() == made.plan()
    repeated = harvest(again, 9.0, 9.0)
    assert repeated.statistics == ahead.statistics, "a forest that was ahead is collected, and counted, again"


def test_checkpoints_from_before_typed_policies_load(tmp_path: Path) -> None:
    old = RunState(totals=Totals(step=3), name="r", config={}, model="m").to_json()
    del old["decision"]
    made = policy(tmp_path)
    made.restore(RunState.from_json(old).decision, 3)
    assert made.state == DecisionState()


def test_a_live_change_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    notes: list[str] = []
    made = policy(tmp_path, notes=notes)
    made.restore(DecisionState(live={"gone.rewards.weight": 2.0, "decay": 0.5}).to_json(), 3)
    assert made.settings.decay == 0.5
    assert notes == [next(note for note in notes if "a live change of the checkpoint is left out: gone." in note)]


def test_flat_policies_carry_nothing(tmp_path: Path) -> None:
    flat = policy_of(typed_config(decision(FAN, policy="flat")), tmp_path, [].append, str)
    (tmp_path / "live.yaml").write_text("decay: 0.5\n")
    assert flat.look(1) == flat.to_json() == {}
    assert flat.plan() is None


def test_a_thread_that_collects_ahead_gives_the_same_statistics_as_collecting_in_turn(tmp_path: Path) -> None:
    """Two forests ahead, while the loop plans, advances and takes over live changes."""
    steps = 8
    rewards = [(0.1 * i, 1.0 - 0.05 * i * i) for i in range(steps + 1)]
    in_turn, beside = policy(tmp_path), policy(tmp_path)
    expected = []
    for i in range(1, steps + 1):
        found = harvest(in_turn, *rewards[i])
        in_turn.advance(found, {"decision/intent/kl": 0.01 * i})
        expected.append((found.credit, in_turn.state))

    threads = set()

    def collect(step: int, check: object) -> StepHarvest:
        threads.add(threading.get_ident())
        return harvest(beside, *rewards[step])

    seen = []
    with Ahead(collect, first=1, last=steps, max_staleness=2, close_s=5.0) as source:
        for i in range(1, steps + 1):
            beside.look(i)
            found = source.next(i)
            beside.plan()
            beside.advance(found, {"decision/intent/kl": 0.01 * i})
            seen.append((found.credit, beside.state))
            source.pushed(i)
    assert seen == expected
    assert threads.isdisjoint({threading.get_ident()})
