"""The training loop, as a table of contents: collect with credit → pack → learn → push → log.

Synchronous: version v of the weights collects the forest of step v + 1, the learner makes version v + 1 from it, and
every engine has that version before the next branch starts. The driver runs this; it waits for the scheduler (collect),
for the learner ranks (learn) and for both sides (push), each with a time limit of its own.
"""

import time

from trainer import checkpoint
from trainer.collecting import StepHarvest, collect_step
from trainer.config import RunConfig
from trainer.metrics import collection_metrics, eval_metrics
from trainer.packing import pack_forest
from trainer.push import probe_contexts
from trainer.report import write_report
from trainer.run_folder import library_versions
from trainer.session import Session, chain_rules, tree_rules
from trainer.totals import Totals
from trainer.tracking import system_metrics


def run(config: RunConfig) -> int:
    """One training run, from start or checkpoint to report; returns the exit code."""
    started = time.perf_counter()
    with Session(config) as session:
        loop = Loop(session)
        loop.train()
        loop.finish(time.perf_counter() - started)
    return 0


class Loop:
    """The state between steps is `totals` and what the learner holds; a checkpoint has both."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.config = session.config
        self.totals = Totals()

    def train(self) -> None:
        """All steps, with evaluation before and after, and checkpoints between."""
        self.restore()
        session, totals = self.session, self.totals
        session.progress.start(self.config.steps, done=totals.step, title=self.config.name)
        session.pusher.use_probes([session.codec.prompt(task) for task in session.eval_tasks])
        start: dict[str, float] = {}
        self.push(start)
        if totals.before is None:
            totals.before = self.evaluate(start)
        self.record(start)
        while totals.step < self.config.steps:
            self.step(totals.step + 1)
        if totals.after is None or totals.after["eval/step"] != totals.step:
            end: dict[str, float] = {}
            totals.after = self.evaluate(end)
            self.record(end)

    def step(self, step: int) -> None:
        """One optimizer phase."""
        config, session = self.config, self.session
        metrics: dict[str, float] = {}
        rules, temperature, version = tree_rules(config), config.rollout.temperature, self.totals.version
        with session.timed("collect", metrics):
            found = collect_step(
                config,
                step,
                session.train_tasks,
                lambda phase, tasks, before: session.collect(phase, tasks, rules, temperature, version, before),
            )
        metrics |= collection_metrics(found.forest, found.ledger, metrics["time/collect_s"]) | found.stats
        with session.timed("learn", metrics):
            packed = pack_forest(*found.for_learner, config.loss, config.learner, session.hidden_size)
            metrics |= packed.stats | session.learner.train(packed.mini_batches)
        self.totals.advance(found.ledger)
        session.pusher.use_probes(probe_contexts(found.forest, config.push.probe_prompts))
        self.push(metrics)
        if config.evaluation.every and step % config.evaluation.every == 0:
            self.totals.after = self.evaluate(metrics)
        self.log(found, metrics)
        if config.checkpoint.every and step % config.checkpoint.every == 0:
            self.save()

    def push(self, metrics: dict[str, float]) -> None:
        """Every engine gets the learner's weights; the run stops if they do not agree afterwards."""
        with self.session.timed("push", metrics):
            metrics |= self.session.pusher.push(self.totals.version)
        self.session.fleet.begin_work()
        self.totals.see_parity(metrics)

    def evaluate(self, metrics: dict[str, float]) -> dict[str, float]:
        """Greedy chains on the held-out tasks; adds `eval/*` to `metrics` and returns them."""
        session, step = self.session, self.totals.step
        with session.timed("eval", metrics):
            harvest = session.collect(f"eval-{step}", session.eval_tasks, chain_rules(), 0.0, self.totals.version)
        result = {**eval_metrics(harvest.forest), "eval/step": float(step)}
        metrics |= result
        limit = self.config.evaluation.sample_trees
        session.tracker.log_trees(
            step, session.folder.write_forest("eval", step, harvest.forest, session.decode, limit=limit)
        )
        session.progress.note(f"held-out success {result['eval/success']:.3f} on {result['eval/n']:.0f} tasks")
        return result

    def record(self, metrics: dict[str, float]) -> None:
        """Into the totals, metrics.jsonl and W&B."""
        self.totals.spend(metrics)
        self.totals.restarts = self.session.fleet.restarts
        metrics |= {"rollout/actors_replaced": float(self.totals.restarts), **system_metrics()}
        self.session.folder.append_metrics(self.totals.step, metrics)
        self.session.tracker.log(self.totals.step, metrics)

    def log(self, found: StepHarvest, metrics: dict[str, float]) -> None:
        """A finished step: its metrics, the display, and some of its trees."""
        session, folder, step, log = self.session, self.session.folder, self.totals.step, self.config.logger
        self.record(metrics)
        session.progress.step(step, metrics)
        if log.sample_trees and step % log.forest_every == 0:
            kept = folder.write_forest("step", step, found.forest, session.decode, found.credit, log.sample_trees)
            session.tracker.log_trees(step, kept)

    def restore(self) -> None:
        """Continues from the checkpoint that `resume` names; no request is served before its weights are pushed."""
        found = checkpoint.find(self.config.resume, self.session.folder.checkpoints)
        if found is None:
            return
        self.session.learner.load(found.resolve())
        self.totals = Totals.from_json(checkpoint.driver_state(found))
        self.session.progress.note(f"resumed from {found} after step {self.totals.step}")

    def save(self) -> None:
        """A checkpoint of this step; older ones beyond `checkpoint.keep` go."""
        path = checkpoint.folder(self.session.folder.checkpoints, self.totals.step)
        self.session.learner.save(path.resolve())
        checkpoint.finish(path, self.totals.to_json())
        checkpoint.prune(self.session.folder.checkpoints, self.config.checkpoint.keep)

    def finish(self, seconds: float) -> None:
        """Last checkpoint, Hugging Face export, summary and report."""
        session, folder = self.session, self.session.folder
        self.save()
        session.learner.export(folder.export.resolve())
        self.totals.seconds["total"] = seconds
        model, seed = session.as_set.model.path, self.config.seed
        summary = self.totals.summary(seed=seed, versions=library_versions(), model=model)
        folder.write_summary(summary)
        session.tracker.summary(summary)
        report = write_report(folder.path)
        session.progress.note(f"{self.totals.last_words()}; report {report}; policy {folder.export}")
