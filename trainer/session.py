"""Everything a run holds open: reservation, learner, rollout fleet, weight pusher, run folder, W&B, display.

`Session` starts the slow parts side by side and stops all of them, whatever happened. `trainer/loop.py` is the story.
"""

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray

from envs.decisions.settings import DecisionSettings, NodeSettings
from envs.masking import log_masked
from envs.settings import EnvSettings, LocalRetrieverSettings, SearchEnvSettings, TextWorldEnvSettings
from envs.tasks import chosen_tasks, load_tasks
from envs.types import Task
from rollout_workers.actor import ActorSettings
from rollout_workers.adapters import adapters_of
from rollout_workers.collection import CollectionSpec
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.fleet import Fleet, FleetSettings
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import Harvest
from rollout_workers.scheduler import Progress as CollectionProgress
from rollout_workers.types import Forest, Ledger, Sampling
from rollout_workers.weight_names import TRANSFER_BACKENDS
from trainer import checkpoint, placement
from trainer.checkpoint_resume import resumption
from trainer.checkpoint_state import RunState, model_id, settings_of, tokenizer_id
from trainer.checkpoint_writer import Saver
from trainer.codec import run_codec
from trainer.collecting import StepHarvest, collect_step
from trainer.config import ModelConfig, RunConfig
from trainer.decisions.control import policy_of
from trainer.failures import check_failures
from trainer.forest_file import Advantages, ForestKind
from trainer.forests import Ahead, Check, ForestSource, InTurn
from trainer.learner import LearnerGroup
from trainer.object_store import StoreWatch
from trainer.progress import Progress
from trainer.prompts import check_enough, check_prompts, skip_note
from trainer.push import WeightPusher
from trainer.run_folder import RunFolder
from trainer.stopping import Stopped, StopRequest
from trainer.task_order import tasks_of_step
from trainer.totals import Totals
from trainer.tracking import Tracker


class Session:
    """The open resources of one run. Use as a context manager."""

    def __init__(self, config: RunConfig, stop: StopRequest | None = None) -> None:
        """Opens the run folder and the tasks; nothing is started yet. `stop` ends a collection.

        Raises ConfigError (one sentence) for a prompt that is too long, and for a checkpoint that cannot be used.
        """
        self.as_set = config
        """The configuration as the user wrote it."""
        self.config = config = located(config)
        self.stop = stop or StopRequest()
        train = load_tasks(config.env.train_tasks, instruction=config.env.instruction)
        held_out = load_tasks(config.env.eval_tasks, instruction=config.env.instruction)
        held_out = chosen_tasks(held_out, config.evaluation.tasks)
        self._tokenizer = load_tokenizer(config.model)
        self.hidden_size = hidden_size(config.model)
        """Width of the model, which says what attention costs."""
        self.codec = run_codec(config, self._tokenizer)
        self.train_tasks = check_prompts(self.codec, train, config.limits)
        self.eval_tasks = check_prompts(self.codec, held_out, config.limits)
        self.tasks_read = len(train) + len(held_out)
        self.skipped_prompts = self.tasks_read - len(self.train_tasks) - len(self.eval_tasks)
        """Tasks left out because their prompt is too long."""
        check_enough(self.train_tasks, len(train) - len(self.train_tasks), config.tasks_per_step)
        self.resumed = resumption(self.as_set)
        """The checkpoint to go on from; None to start anew."""
        self.model_id, self.tokenizer_id = model_id(config.model.path), tokenizer_id(config.model.path)
        self.folder = RunFolder(Path(config.runs_dir) / config.name)
        settings = self.as_set.model_dump(mode="json")
        self.folder.write_config(settings)
        self.progress = Progress(sys.stdout)
        self.policy = policy_of(config, self.folder.path, self.progress.note, self.decode)
        """What differs between flat and typed policies."""
        log_masked(sys.stderr)
        log = config.logger
        run_id = self.resumed.run_id(config.name) if self.resumed else None
        self.tracker = Tracker(
            self.folder,
            settings,
            mode=log.mode,
            project=log.project,
            entity=log.entity,
            run_id=run_id,
            timeout_s=log.timeout_s,
        )
        self.store = StoreWatch()
        self._failed = True

    def __enter__(self) -> Self:
        """Starts learner and rollout actors side by side and waits for both."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._finish)
            for note in self.resumed.notes if self.resumed else ():
                self.progress.note(note)
            if self.skipped_prompts:
                self.progress.note(skip_note(self.skipped_prompts, self.tasks_read, self.config.limits))
            if left := checkpoint.leave_behind(self.folder.checkpoints, self.resumed.path if self.resumed else None):
                names = ", ".join(path.name for path in left)
                self.progress.note(f"this run does not go on from {names}: moved to checkpoints/{checkpoint.ABANDONED}")
            self.progress.note(f"run folder {self.folder.path}; starting rollout actors and learner (about a minute)")
            reserved = placement.reserve(self.config)
            stack.callback(placement.release, reserved)
            self.fleet = Fleet(fleet_settings(self.config), reserved.rollout, reserved.first_rollout_bundle)
            stack.callback(self.fleet.shutdown)
            self.learner = LearnerGroup.start(self.config, self.config.optimizer_steps, reserved.learner)
            stack.callback(self.learner.shutdown)
            self.saver = Saver(self.learner, self.folder.checkpoints, self.config.checkpoint)
            stack.callback(self.saver.wait)
            self.fleet.wait_ready()
            self._say_places()
            self.pusher = WeightPusher(self.config, self.learner, self.fleet)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Stops everything that was started."""
        self._failed = error[0] not in (None, Stopped)
        self._stack.close()

    def _say_places(self) -> None:
        ranks = {f"learner-{index}": place for index, place in enumerate(self.learner.places)}
        for name, place in (ranks | self.fleet.places()).items():
            self.progress.note(f"{name} runs on {place}")

    def _finish(self) -> None:
        self.tracker.finish(failed=self._failed)
        self.progress.close()

    def collect(
        self,
        phase: str,
        tasks: Sequence[Task],
        rules: TreeRules,
        temperature: float,
        before: Ledger | None = None,
        check: Check | None = None,
    ) -> Harvest:
        """Grows one forest under the weights last pushed; a replaced actor gets those weights before it joins.

        `check` comes from a collecting thread beside the loop: it is called at every look, and may end the collection.
        Raises RuntimeError when more branches than `env.max_error_share` ended in an environment error, those of
        `before` included: what earlier collections of the same step cost.
        """
        kind, number = phase.split("-")[:2]
        if check is None:
            self.progress.phase(kind, total=len(tasks) * rules.roots * rules.leaves_per_tree)

        def look(progress: CollectionProgress) -> None:
            self.stop.check()
            self.learner.check()
            if check is None:
                self.progress.advance(progress.leaves, progress.leaves_total)
                return
            check()
            self.progress.beside(f"collect {number}", progress.leaves, progress.leaves_total)

        spec = collection_spec(self.config, phase, tasks, rules, temperature)
        harvest = self.fleet.collect(spec, look, rejoin=self.pusher.rejoin)
        check_failures(phase, harvest.ledger, harvest.failures, self.config.env.max_error_share, before)
        return harvest

    def forest(self, step: int, check: Check | None = None) -> StepHarvest:
        """Everything that training step `step` learns from, with its credit; `check` as in `collect`."""
        config, rules = self.config, tree_rules(self.config)

        def collect(phase: str, tasks: Sequence[Task], before: Ledger) -> Harvest:
            return self.collect(phase, tasks, rules, config.rollout.temperature, before, check)

        return collect_step(config, step, self.train_tasks, collect, self.policy.creditor())

    def forests(self, first: int) -> ForestSource:
        """Forest `first` and those after it; version `first` - 1 of the weights must have been pushed."""
        config = self.config
        if config.max_staleness == 0:
            return InTurn(self.forest)
        close_s = config.scheduler.poll_s + config.scheduler.answer_timeout_s  # it looks at every answer
        return Ahead(self.forest, first=first, last=config.steps, max_staleness=config.max_staleness, close_s=close_s)

    def state(self, totals: Totals, metrics: Mapping[str, float]) -> RunState:
        """What a checkpoint keeps after the step whose `metrics` these are."""
        return RunState(
            totals=totals,
            name=self.config.name,
            config=settings_of(self.as_set),
            model=self.model_id,
            tokenizer=self.tokenizer_id,
            metrics={name: float(value) for name, value in metrics.items() if math.isfinite(value)},
            next_tasks=self._task_ids(totals.step + 1),
            probes=self.pusher.probes,
            decision=self.policy.to_json(),
            wandb_run_id=self.tracker.run_id,
        )

    def resume(self) -> RunState | None:
        """Gives the learner the weights of the checkpoint, and tells what else it has; None without one."""
        if self.resumed is None:
            return None
        state = self.resumed.state
        self.learner.load(self.resumed.path.resolve())
        self.saver.go_on_from(self.resumed.path)
        self.pusher.use_probes(state.probes)
        self.policy.restore(state.decision, state.totals.step)
        step = state.totals.step + 1
        if state.next_tasks != self._task_ids(step):
            self.progress.note(f"other tasks than those of the checkpoint's run are drawn from step {step} on")
        return state

    def _task_ids(self, step: int) -> list[str]:
        config = self.config
        return [task.id for task in tasks_of_step(self.train_tasks, step, config.tasks_per_step, config.seed)]

    @contextlib.contextmanager
    def timed(self, phase: str, into: dict[str, float]) -> Iterator[None]:
        """Adds the wall time of the block to `into["time/<phase>_s"]` and names the phase on the display."""
        started = time.perf_counter()
        self.progress.phase(phase)
        yield
        into[f"time/{phase}_s"] = into.get(f"time/{phase}_s", 0.0) + time.perf_counter() - started

    def keep(
        self,
        kind: ForestKind,
        step: int,
        forest: Forest,
        limit: int,
        credit: Advantages | None = None,
    ) -> None:
        """What each task of a forest cost into the run folder, and at least `limit` trees there and to W&B."""
        self.folder.write_ledgers(kind, step, forest)
        if limit:
            kept = self.folder.write_forest(kind, step, forest, self.decode, credit, limit)
            self.tracker.log_trees(step, kept)

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text, special tokens kept; for logs and reports only."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def load_tokenizer(model: ModelConfig) -> Any:
    """The model's tokenizer (transformers is imported here, since it takes seconds)."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)


def hidden_size(model: ModelConfig) -> int:
    """Width of the model's hidden states, from its configuration; no weights are read."""
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    return int(found.get_text_config().hidden_size)


def tree_rules(config: RunConfig) -> TreeRules:
    """The `tree` section as the scheduler takes it: each key has a field of the same name."""
    return TreeRules(**config.tree.model_dump())


def chain_rules(samples: int = 1) -> TreeRules:
    """`samples` independent chains per task, for evaluation."""
    return TreeRules(roots=samples, nodes_per_round=0, rounds=0)


def collection_spec(
    config: RunConfig, phase: str, tasks: Sequence[Task], rules: TreeRules, temperature: float
) -> CollectionSpec:
    """What the scheduler needs to grow one forest of this run."""
    limits, scheduler = config.limits, config.scheduler
    return CollectionSpec(
        phase=phase,
        tasks=tuple(tasks),
        rules=rules,
        sampling=Sampling(
            temperature=temperature,
            max_turn_tokens=limits.max_turn_tokens,
            max_context_tokens=limits.max_context_tokens,
            max_observation_tokens=limits.max_observation_tokens,
            max_prompt_tokens=limits.max_prompt_tokens,
            max_turns=limits.max_turns,
            entropy_topk=config.rollout.entropy_topk if rules.picking == "entropy" else 0,
        ),
        seed=config.seed,
        steal_after=scheduler.steal_after,
        lease_timeout_s=scheduler.lease_timeout_s,
        max_attempts=scheduler.max_attempts,
        typed=config.typed is not None,
    )


def fleet_settings(config: RunConfig) -> FleetSettings:
    """The rollout side of the configuration as plain values."""
    rollout = config.rollout
    engine = EngineSettings(
        model=config.model.path,
        dtype=config.model.dtype,
        device=rollout.device,
        max_context_tokens=config.limits.max_context_tokens,
        max_branches=rollout.max_branches,
        block_size=rollout.block_size,
        kv_cache_gib=rollout.kv_cache_gib,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        tensor_parallel=rollout.tensor_parallel,
        enforce_eager=rollout.enforce_eager,
        trust_remote_code=config.model.trust_remote_code,
        threads=rollout.threads,
        seed=config.seed,
        keep_turns=rollout.keep_turns,
        transfer_backend=TRANSFER_BACKENDS[config.push_backend],
        adapters=adapters_of(config.typed),
    )
    actor = ActorSettings(
        engine=engine,
        env=config.env,
        decision=config.decision,
        env_timeout_s=config.env.max_tool_seconds + 5.0,
        turn_timeout_s=rollout.turn_timeout_s,
    )
    return FleetSettings(
        actor=actor,
        actors=rollout.actors,
        gpus_per_actor=rollout.tensor_parallel if rollout.device == "cuda" else 0,
        start_timeout_s=rollout.start_timeout_s,
        stop_timeout_s=rollout.stop_timeout_s,
        answer_timeout_s=config.scheduler.answer_timeout_s,
        collect_timeout_s=config.scheduler.collect_timeout_s,
        watchdog_s=config.scheduler.watchdog_s,
        watchdog_abort_s=config.scheduler.watchdog_abort_s,
        poll_s=config.scheduler.poll_s,
        max_restarts=rollout.max_restarts,
    )


def located(config: RunConfig) -> RunConfig:
    """The configuration with the model and the world's files where every process finds them (see `shared_path`)."""
    model = config.model.model_copy(update={"path": shared_path(config.model.path)})
    decision = located_decision(config.decision)
    return config.model_copy(update={"model": model, "env": located_env(config.env), "decision": decision})


def located_env(env: EnvSettings) -> EnvSettings:
    """The `env` section with the corpus or the games where every process finds them; nothing else reads files."""
    if isinstance(env, SearchEnvSettings) and isinstance(env.retriever, LocalRetrieverSettings):
        local = env.retriever.model_copy(update={"corpus": Path(shared_path(str(env.retriever.corpus)))})
        return env.model_copy(update={"retriever": local})
    if isinstance(env, TextWorldEnvSettings):
        return env.model_copy(update={"games": Path(shared_path(str(env.games)))})
    return env


def located_decision(decision: DecisionSettings | None) -> DecisionSettings | None:
    """The `decision` section with gate, encoders and option files where every process finds them."""
    if decision is None:
        return None
    options = {
        key: shared_path(value) if isinstance(value, str) and "/" in value else value
        for key, value in decision.options.items()
    }
    path = decision.gate.path
    gate = decision.gate.model_copy(update={"path": None if path is None else Path(shared_path(str(path)))})
    nodes = tuple(map(_located_node, decision.nodes))
    return decision.model_copy(update={"options": options, "gate": gate, "nodes": nodes})


def _located_node(node: NodeSettings) -> NodeSettings:
    if (folder := node.rewards.similarity_model) is None:
        return node
    rewards = node.rewards.model_copy(update={"similarity_model": Path(shared_path(str(folder)))})
    return node.model_copy(update={"rewards": rewards})


def shared_path(path: str) -> str:
    """A path that works in every process: made absolute, unless the job ships its working directory with it.

    With a shipped working directory each node has a copy and starts its workers there, so relative paths are right.
    Hub ids such as `org/name`, which are no folder here, stay as they are.
    """
    ships_folder = bool(ray.get_runtime_context().runtime_env.get("working_dir"))
    return path if ships_folder or not Path(path).exists() else str(Path(path).resolve())
