"""How the loop treats a flat and a typed policy alike: `Policy`, made by `policy_of`.

Who changes what. The loop's thread alone holds the state of the last finished step, looks at the live file, plans
packing and advances the state. Whoever collects forests (the loop itself, or with `max_staleness` a thread ahead of it)
alone holds the statistics of the last collected forest. Forests are collected and trained in the same order, so the
chain of statistics is the same either way: the forest brings its own along, and the loop takes them over when it has
trained it. A checkpoint therefore knows nothing of forests that were ahead, which are collected again after a resume.
All that the two threads share are values that never change, replaced by one assignment: the settings, which are read
once each time a forest is given credit. A live change of levels so reaches the forests whose credit is not yet given;
coefficients, weights and decay are read when a forest is packed, and reach the very next learning phase.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from envs.decisions.settings import DecisionSettings
from envs.decisions.tree import Declared
from envs.types import Json
from rollout_workers.types import Forest
from trainer.advantages import TreeAdvantages
from trainer.collecting import Creditor, Given, StepHarvest, flat_credit
from trainer.config import RunConfig
from trainer.decisions.coefficients import all_coefficients
from trainer.decisions.credit import typed_credit
from trainer.decisions.feedback import Decode, Feedback, chosen_steps
from trainer.decisions.gate_savings import GateSavings
from trainer.decisions.late import LateStep, label_shares, with_late
from trainer.decisions.live import LiveFile
from trainer.decisions.live_settings import Change
from trainer.decisions.packing import TypedPlan
from trainer.decisions.routing import factors, routing_shares
from trainer.decisions.state import DecisionState, settings_now

Note: TypeAlias = Callable[[str], None]
"""Says one line to the user."""
Lesson: TypeAlias = tuple[Forest, list[list[TreeAdvantages]]]
"""What the learner gets: groups, and their credit parallel to them."""


class Policy(Protocol):
    """What differs between flat and typed policies, from the loop's point of view."""

    def look(self, step: int) -> dict[str, float]:
        """Before each step: takes over live changes and labels that have come, and tells them."""
        ...

    def creditor(self) -> Creditor:
        """Gives the forest of one step its credit; for the collecting thread."""
        ...

    def lesson(self, found: StepHarvest) -> Lesson:
        """What the learner gets of a forest, and beside it."""
        ...

    def plan(self) -> TypedPlan | None:
        """How nodes are trained in the next learning phase; None: there are none."""
        ...

    def advance(self, found: StepHarvest, metrics: Mapping[str, float]) -> dict[str, float]:
        """After each learning phase, with its metrics; returns more of them."""
        ...

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Goes on from a checkpoint of that step, before any forest is collected."""
        ...

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint."""
        ...


def policy_of(config: RunConfig, folder: Path, note: Note, decode: Decode) -> Policy:
    """The policy of a run; `folder` is its run folder, `decode` turns token ids into text for people who label."""
    return FlatPolicy(config) if config.typed is None else TypedPolicy(config, config.typed, folder, note, decode)


class FlatPolicy:
    """A policy without typed nodes: nothing is carried between steps."""

    def __init__(self, config: RunConfig) -> None:
        self._advantage = config.advantage

    def look(self, step: int) -> dict[str, float]:
        """Nothing may change."""
        return {}

    def creditor(self) -> Creditor:
        """Advantages from the rewards of leaves."""
        return flat_credit(self._advantage)

    def lesson(self, found: StepHarvest) -> Lesson:
        """The forest's trained groups."""
        return found.for_learner

    def plan(self) -> None:
        """Steps are all alike."""

    def advance(self, found: StepHarvest, metrics: Mapping[str, float]) -> dict[str, float]:
        """Nothing to carry."""
        return {}

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Nothing was kept."""

    def to_json(self) -> dict[str, Json]:
        """Nothing is kept."""
        return {}


class TypedPolicy:
    """A typed decision policy."""

    def __init__(self, config: RunConfig, decision: DecisionSettings, folder: Path, note: Note, decode: Decode) -> None:
        self._configured = self.settings = decision
        """`settings`: as they are now, live changes included."""
        self._loss = config.loss
        self._seed, self._note, self._decode = config.seed, note, decode
        self._file = LiveFile(folder)
        self.state = DecisionState()
        """After the last finished step."""
        self._plan = self.plan()
        self._feedback = Feedback(folder / "feedback", config.seed) if decision.feedback.enabled else None
        self._heard = self._feedback.state.to_json() if self._feedback else {}
        """State of the feedback after the last finished step."""
        self._savings = GateSavings()
        """Costs of every node's steps, of which the gate saves some."""
        self._late: tuple[LateStep, ...] = ()
        self._step = 1
        self._collected = self.state.statistics
        """After the last forest that was given credit; the collecting thread's own."""

    def look(self, step: int) -> dict[str, float]:
        """Live changes and labels; a live file that cannot be taken over gives one warning."""
        self._step, metrics = step, self._look_at_file()
        if self._feedback is None:
            return metrics
        heard = self._feedback.hear(self.settings, step)
        self._late = heard.late
        for sentence in heard.notes:
            self._note(f"warning: {sentence}")
        return metrics | heard.metrics

    def _look_at_file(self) -> dict[str, float]:
        """`decision/live/...` of what has changed."""
        seen = self._file.look(self.settings)
        if seen.warning:
            self._note(f"warning: {seen.warning}")
        metrics: dict[str, float] = {}
        for change in seen.changes:
            self._note(f"changed: {change}")
            metrics |= self._change_metrics(change)
        self.settings, self.state = seen.settings, self.state.with_changes(seen.changes)
        return metrics

    def _change_metrics(self, change: Change) -> dict[str, float]:
        """`decision/live/<key>` and `.../before`; a null coefficient is shown as the value of the `loss` section."""
        default = float(getattr(self._loss, change.key.rpartition(".")[2], 0.0))
        old, new = (default if value is None else value for value in (change.old, change.new))
        return {f"decision/live/{change.key}": new, f"decision/live/{change.key}/before": old}

    def creditor(self) -> Creditor:
        """Credit by the statistics of all forests before; what it gives is not in them when it is called again."""
        before = self._collected

        def credit(forest: Forest) -> Given:
            found = typed_credit(forest, self.settings, before)
            self._collected = found.statistics
            return Given(advantages=found.advantages, stats=found.metrics, statistics=found.statistics)

        return credit

    def lesson(self, found: StepHarvest) -> Lesson:
        """The forest's trained groups, and the earlier steps whose labels came late."""
        return with_late(*found.for_learner, self._late)

    def plan(self) -> TypedPlan:
        """Factors, shares and coefficients of the next learning phase."""
        routed = routing_shares(self.settings, self.state.kl)
        self._plan = TypedPlan(
            coefficients=all_coefficients(self.settings, self._loss),
            factors=factors(self.settings, routed),
            shares=routed,
            has_adapter=tuple(node.adapter is not None for node in self.settings.nodes),
        )
        return self._plan

    def advance(self, found: StepHarvest, metrics: Mapping[str, float]) -> dict[str, float]:
        """Takes over the forest's statistics and the phase's KL, and queues steps for labels.

        Tells the shares and factors that were in force, and what the gate saved.
        """
        assert found.statistics is not None, "forests of a typed policy bring their statistics along"
        self.state = self.state.after_step(self.settings, self._loss, found.statistics, metrics)
        told = {f"decision/{name}/share": share for name, share in self._plan.shares.items()}
        told |= {f"decision/{name}/factor": factor for name, factor in self._plan.factors.items()}
        told |= {f"decision/{name}/kl_mean": kl for name, kl in self.state.kl.items()}
        self._savings = self._savings.after(found.forest, found.ledger)
        steps = {node.name: metrics.get(f"decision/{node.name}/steps", 0.0) for node in self.settings.nodes}
        told |= {f"decision/{name}/label_share": share for name, share in label_shares(self._late, steps).items()}
        return told | self._savings.metrics(found.forest, Declared(self.settings)) | self._queue(found)

    def _queue(self, found: StepHarvest) -> dict[str, float]:
        """Queues steps of a trained forest for labels; the labels heard before it are trained now."""
        if self._feedback is None or found.statistics is None:
            return {}
        chosen = chosen_steps(
            *found.for_learner,
            found.statistics,
            self.settings,
            step=self._step,
            seed=self._seed,
            decode=self._decode,
        )
        metrics = self._feedback.queue(chosen)
        self._late, self._heard = (), self._feedback.state.to_json()
        return metrics

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Goes on from a checkpoint's state; live changes that no longer fit the configuration are told."""
        self.state = DecisionState.from_json(saved)
        self._collected = self.state.statistics
        self.settings, left_out = settings_now(self._configured, self.state)
        for sentence in left_out:
            self._note(f"warning: {sentence}")
        self._savings = GateSavings.from_json(saved.get("gate", {}))
        if self._feedback is not None and "feedback" in saved:
            self._feedback.restore(saved["feedback"], step)
            self._heard = self._feedback.state.to_json()

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint; labels heard but not yet trained will be heard again."""
        kept = self.state.to_json() | {"gate": self._savings.to_json()}
        return kept | ({"feedback": self._heard} if self._feedback else {})
