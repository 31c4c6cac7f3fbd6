"""The training loop, as a table of contents: collect with credit → pack → learn → push → log.

Version v of the weights learns the forest of step v + 1, which makes version v + 1, and every engine has that version
before anything else happens. Forests are collected in turn with that, or by a thread that is up to `max_staleness`
versions ahead; the story is the same (`trainer/forests.py`). The driver runs this; it waits for a forest (collect), for
the learner ranks (learn) and for both sides (push), each with a time limit of its own.
"""

import time

from trainer.collecting import StepHarvest
from trainer.config import RunConfig
from trainer.endings import finish, leave
from trainer.forests import ForestSource
from trainer.guards import check_guards
from trainer.metrics import collection_metrics, eval_metrics
from trainer.packing import pack_forest
from trainer.push import probe_contexts
from trainer.session import Session, chain_rules
from trainer.stopping import StopRequest
from trainer.totals import Totals
from trainer.tracking import system_metrics


def run(config: RunConfig, stop: StopRequest) -> int:
    """One training run, from start or checkpoint to report; returns the exit code. Raises Stopped when asked to end."""
    started = time.perf_counter()
    with Session(config, stop) as session:
        loop = Loop(session, started)
        stop.heed()
        try:
            loop.train()
            finish(loop)
        except Exception as error:  # whatever ends the run early, what it has learned is worth keeping
            leave(loop, error)
            raise
    return 0


class Loop:
    """The state between steps is `totals`, `session.policy` and what the learner holds; a checkpoint has it all."""

    def __init__(self, session: Session, started: float) -> None:
        self.session = session
        self.config = session.config
        self.totals = Totals()
        self.latest: dict[str, float] = {}  # metrics of the newest step
        self.is_between_steps = True  # learner and bookkeeping agree on what the newest step is
        self.started, self.replaced = started, 0  # what runs before this one have taken counts as well

    def train(self) -> None:
        """All steps, with evaluation before and after, and checkpoints between."""
        session = self.session
        session.pusher.use_probes([session.codec.prompt(task) for task in session.eval_tasks or session.train_tasks])
        self.restore()
        totals = self.totals
        session.progress.start(self.config.steps, done=totals.step, title=self.config.name)
        start = {"data/skipped_prompts": float(session.skipped_prompts)} if totals.before is None else {}
        start |= session.learner.shares
        self.push(start)
        if totals.before is None:
            totals.before = self.evaluate(start)
        self.record(start)
        with session.forests(totals.step + 1) as forests:
            while totals.step < self.config.steps:
                self.step(totals.step + 1, forests)
        if totals.after is None or totals.after["eval/step"] != totals.step:
            end: dict[str, float] = {}
            totals.after = self.evaluate(end)
            self.record(end)

    def step(self, step: int, forests: ForestSource) -> None:
        """One optimizer phase."""
        config, session, totals = self.config, self.session, self.totals
        metrics = session.policy.look(step)
        session.stop.check()
        with session.timed("collect", metrics):
            found = forests.next(step)
        metrics |= collection_metrics(found.forest, found.ledger, found.seconds, config.rollout.actors) | found.stats
        with session.timed("learn", metrics):
            lesson, plan = session.policy.lesson(found), session.policy.plan()
            packed = pack_forest(*lesson, config.loss, config.learner, session.hidden_size, totals.version, plan)
        try:
            with session.learner.turn:  # until the push is done no replaced actor may get weights
                self.is_between_steps = False
                with session.timed("learn", metrics):
                    metrics |= packed.stats | session.learner.train(packed.mini_batches)
                totals.advance(found.ledger, found.stats)
                metrics |= session.policy.advance(found, metrics)
                self.latest, self.is_between_steps = {}, True
                session.pusher.use_probes(probe_contexts(found.forest, config.push.probe_prompts))
                self.push(metrics)
            forests.pushed(totals.version)
            if config.evaluation.every and step % config.evaluation.every == 0:
                with forests.hold():
                    totals.after = self.evaluate(metrics)
        finally:  # what was learned is on record, also if the push or the evaluation ends the run
            if self.is_between_steps:
                self.log(found, metrics)
        check_guards(config.guards, step, metrics)
        if config.checkpoint.every and step % config.checkpoint.every == 0:
            self.save()

    def push(self, metrics: dict[str, float]) -> None:
        """Every engine gets the learner's weights; the run stops if they do not agree afterwards."""
        with self.session.timed("push", metrics):
            metrics |= self.session.pusher.push(self.totals.version)
        self.totals.see_parity(metrics)

    def evaluate(self, metrics: dict[str, float]) -> dict[str, float]:
        """Greedy chains on the held-out tasks; adds `eval/*` to `metrics` and returns them."""
        session, step = self.session, self.totals.step
        with session.timed("eval", metrics):
            harvest = session.collect(f"eval-{step}", session.eval_tasks, chain_rules(), 0.0)
        result = {**eval_metrics(harvest.forest), "eval/step": float(step)}
        metrics |= result
        session.keep("eval", step, harvest.forest, self.config.evaluation.sample_trees)
        session.progress.note(f"held-out success {result['eval/success']:.3f} on {result['eval/n']:.0f} tasks")
        return result

    def record(self, metrics: dict[str, float]) -> None:
        """Into the totals, metrics.jsonl and W&B."""
        session, totals = self.session, self.totals
        totals.spend(metrics)
        totals.seconds["total"] = time.perf_counter() - self.started
        totals.restarts = self.replaced + session.fleet.restarts
        metrics |= {"rollout/actors_replaced": float(totals.restarts), "system/resumes": float(totals.resumes)}
        metrics |= {**system_metrics(), **session.store.metrics(), **session.tracker.metrics(), **session.saver.news()}
        self.latest |= metrics
        session.folder.append_metrics(totals.step, metrics)
        session.tracker.log(totals.step, metrics)

    def log(self, found: StepHarvest, metrics: dict[str, float]) -> None:
        """A finished step: its metrics, the display, what its tasks cost, and some of its trees."""
        session, step, log = self.session, self.totals.step, self.config.logger
        self.record(metrics)
        session.progress.step(step, metrics)
        trees = log.sample_trees if step % log.forest_every == 0 else 0
        session.keep("step", step, found.forest, trees, found.credit)

    def restore(self) -> None:
        """Continues from the checkpoint that `resume` names; no request is served before its weights are pushed."""
        if (state := self.session.resume()) is not None:
            self.totals, self.latest, self.replaced = state.totals, dict(state.metrics), state.totals.restarts
            self.totals.resumes += 1
            self.started -= state.totals.seconds.get("total", 0.0)

    def save(self) -> None:
        """A checkpoint of this step, written while the run goes on; older ones beyond `checkpoint.keep` go."""
        self.session.saver.save(self.totals.step, self.session.state(self.totals, self.latest).to_json())
