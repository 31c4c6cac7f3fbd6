"""Everything a run holds open: reservation, learner, rollout fleet, weight pusher, run folder, W&B, display.

`Session` starts the slow parts side by side and stops all of them, whatever happened. `trainer/loop.py` is the story.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import ray

from envs.tasks import chosen_tasks, load_tasks
from envs.types import Task
from rollout_workers.actor import ActorSettings, TokenizerCodec
from rollout_workers.collection import CollectionSpec
from rollout_workers.engine import EngineSettings
from rollout_workers.fleet import Fleet, FleetSettings
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import Harvest
from rollout_workers.scheduler import Progress as CollectionProgress
from rollout_workers.types import Ledger, Sampling
from rollout_workers.weight_names import TRANSFER_BACKENDS
from trainer import placement
from trainer.config import LimitsConfig, ModelConfig, RunConfig
from trainer.config.sentences import ConfigError
from trainer.failures import check_failures
from trainer.learner import LearnerGroup
from trainer.progress import Progress
from trainer.push import WeightPusher
from trainer.run_folder import RunFolder
from trainer.tracking import Tracker


class Session:
    """The open resources of one run. Use as a context manager."""

    def __init__(self, config: RunConfig) -> None:
        """Opens the run folder and the tasks; nothing is started yet.

        Raises ConfigError (one sentence) for a prompt that is too long.
        """
        self.as_set = config
        """The configuration as the user wrote it."""
        self.config = config = located(config)
        self.train_tasks = load_tasks(config.env.train_tasks, instruction=config.env.instruction)
        held_out = load_tasks(config.env.eval_tasks, instruction=config.env.instruction)
        self.eval_tasks = chosen_tasks(held_out, config.evaluation.tasks)
        self._tokenizer = load_tokenizer(config.model)
        self.hidden_size = hidden_size(config.model)
        """Width of the model, which says what attention costs."""
        self.codec = TokenizerCodec(self._tokenizer)
        check_prompts(self.codec, [*self.train_tasks, *self.eval_tasks], config.limits)
        self.folder = RunFolder(Path(config.runs_dir) / config.name)
        settings = self.as_set.model_dump(mode="json")
        self.folder.write_config(settings)
        self.progress = Progress(sys.stdout)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
        log = config.logger
        self.tracker = Tracker(self.folder, settings, mode=log.mode, project=log.project, entity=log.entity)
        self._failed = True

    def __enter__(self) -> Self:
        """Starts learner and rollout actors side by side and waits for both."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._finish)
            self.progress.note(f"run folder {self.folder.path}; starting rollout actors and learner (about a minute)")
            group = placement.reserve(self.config)
            stack.callback(placement.release, group)
            self.fleet = Fleet(fleet_settings(self.config), group, first_bundle=self.config.learner.ranks)
            stack.callback(self.fleet.shutdown)
            self.learner = LearnerGroup.start(self.config, self.config.optimizer_steps, group)
            stack.callback(self.learner.shutdown)
            self.fleet.wait_ready()
            self.pusher = WeightPusher(self.config, self.learner, self.fleet)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Stops everything that was started."""
        self._failed = error[0] is not None
        self._stack.close()

    def _finish(self) -> None:
        self.tracker.finish(failed=self._failed)
        self.progress.close()

    def collect(
        self,
        phase: str,
        tasks: Sequence[Task],
        rules: TreeRules,
        temperature: float,
        version: int,
        before: Ledger | None = None,
    ) -> Harvest:
        """Grows one forest under weights `version`; a replaced actor gets those weights before it joins.

        Raises RuntimeError when more branches than `env.max_error_share` ended in an environment error, those of
        `before` included: what earlier collections of the same step cost.
        """
        self.progress.phase(phase.partition("-")[0], total=len(tasks) * rules.roots * rules.leaves_per_tree)
        spec = collection_spec(self.config, phase, tasks, rules, temperature)
        harvest = self.fleet.collect(spec, self._show, rejoin=lambda: self.pusher.push(version))
        check_failures(phase, harvest.ledger, harvest.failures, self.config.env.max_error_share, before)
        return harvest

    def _show(self, progress: CollectionProgress) -> None:
        self.progress.advance(progress.leaves, progress.leaves_total)

    @contextlib.contextmanager
    def timed(self, phase: str, into: dict[str, float]) -> Iterator[None]:
        """Adds the wall time of the block to `into["time/<phase>_s"]` and names the phase on the display."""
        started = time.perf_counter()
        self.progress.phase(phase)
        yield
        into[f"time/{phase}_s"] = into.get(f"time/{phase}_s", 0.0) + time.perf_counter() - started

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text, special tokens kept; for logs and reports only."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def check_prompts(codec: TokenizerCodec, tasks: Sequence[Task], limits: LimitsConfig) -> None:
    """Raises ConfigError naming the first task whose prompt is too long: prompts are never cut."""
    for task in tasks:
        if (length := len(codec.prompt(task))) > limits.max_prompt_tokens:
            raise ConfigError(
                [
                    f"The prompt of task {task.id!r} has {length} tokens, more than limits.max_prompt_tokens="
                    f"{limits.max_prompt_tokens}; prompts are never cut: raise the limit or leave the task out."
                ]
            )


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
    """The `tree` section as the scheduler takes it."""
    tree = config.tree
    return TreeRules(
        roots=tree.roots,
        nodes_per_round=tree.nodes_per_round,
        branches_per_node=tree.branches_per_node,
        rounds=tree.rounds,
        picking=tree.picking,
    )


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
        ),
        seed=config.seed,
        steal_after=scheduler.steal_after,
        lease_timeout_s=scheduler.lease_timeout_s,
        max_attempts=scheduler.max_attempts,
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
        transfer_backend=TRANSFER_BACKENDS[config.push_backend],
    )
    actor = ActorSettings(
        engine=engine,
        env=config.env,
        env_timeout_s=config.env.max_tool_seconds + 5.0,
        turn_timeout_s=rollout.turn_timeout_s,
    )
    return FleetSettings(
        actor=actor,
        actors=rollout.actors,
        gpus_per_actor=rollout.tensor_parallel if rollout.device == "cuda" else 0,
        start_timeout_s=rollout.start_timeout_s,
        collect_timeout_s=config.scheduler.collect_timeout_s,
        watchdog_s=config.scheduler.watchdog_s,
        poll_s=config.scheduler.poll_s,
        max_restarts=rollout.max_restarts,
    )


def located(config: RunConfig) -> RunConfig:
    """The configuration with the model and the corpus where every process finds them (see `shared_path`)."""
    model = config.model.model_copy(update={"path": shared_path(config.model.path)})
    env, retriever = config.env, config.env.retriever
    if retriever.kind == "local":
        local = retriever.model_copy(update={"corpus": Path(shared_path(str(retriever.corpus)))})
        env = env.model_copy(update={"retriever": local})
    return config.model_copy(update={"model": model, "env": env})


def shared_path(path: str) -> str:
    """A path that works in every process: made absolute, unless the job ships its working directory with it.

    With a shipped working directory each node has a copy and starts its workers there, so relative paths are right.
    Hub ids such as `org/name`, which are no folder here, stay as they are.
    """
    ships_folder = bool(ray.get_runtime_context().runtime_env.get("working_dir"))
    return path if ships_folder or not Path(path).exists() else str(Path(path).resolve())
