"""Real engines killed in the middle of a forest, and in the middle of a push. One Ray and one learner for all tests."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from local_ray import local_ray
from real_runs import ROOT, Watch, until

from scripts.processes import command_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = [
    "experiment=quickstart", "cluster=local", "rollout.actors=2", "tree.roots=4", "tree.nodes_per_round=3",
    "tree.rounds=2", "scheduler.poll_s=0.1", "learner.threads=1", "loss.kl_coef=0", "push.timeout_s=60",
]  # fmt: skip
LEAVES = 7  # 1 + 3 · 1 · 2 per tree
HALF = 25  # of 51 parameters
ENGINE = ("VLLM::", "ray::RolloutActor")


@dataclass(kw_only=True)
class World:
    """The parts of a session that a forest and a push need."""

    config: Any
    tasks: Any
    fleet: Any
    learner: Any
    pusher: Any
    watch: Watch
    version: int = 0

    def push(self) -> dict[str, float]:
        self.version += 1
        return self.pusher.push(self.version)

    def collect(self, phase: str, on_progress: Callable[[Any], None] = lambda progress: None) -> Any:
        from trainer.session import collection_spec, tree_rules

        spec = collection_spec(self.config, phase, self.tasks, tree_rules(self.config), 1.0)
        return self.fleet.collect(spec, on_progress, rejoin=self.pusher.rejoin)

    def actor(self, name: str) -> psutil.Process:
        return psutil.Process(self.fleet.places()[name].pid)

    def newest(self) -> list[str]:
        return sorted(self.fleet.places(), key=lambda name: int(name.rpartition("-")[2]))


def held_rank() -> Any:
    """A learner rank that stands still in the middle of a push once it is told to."""
    from trainer.learner import LearnerRank

    class HeldRank(LearnerRank):
        hold: Path | None = None

        def hold_next(self, folder: Path) -> None:
            """The next push makes the file `half` in the folder when it has read half of the parameters, and goes on
            when the file `go` is there.
            """
            self.hold = folder

        def connect_push(self, *arguments: Any) -> str | None:
            read = type(self._engine).full_parameters

            def held(engine: Any) -> Iterator[Any]:
                for place, parameter in enumerate(read(engine)):
                    if place == HALF and self.hold is not None:
                        folder, self.hold = self.hold, None
                        (folder / "half").touch()
                        while not (folder / "go").exists():
                            time.sleep(0.05)
                    yield parameter

            self._engine.full_parameters = lambda: held(self._engine)
            return super().connect_push(*arguments)

    return HeldRank


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """All of it ends with the tests, also where a part of it did not start."""
    from envs.tasks import load_tasks
    from rollout_workers.actor import TokenizerCodec
    from rollout_workers.fleet import Fleet
    from trainer import placement
    from trainer.compose import compose
    from trainer.learner import LearnerGroup
    from trainer.push import WeightPusher
    from trainer.session import fleet_settings, load_tokenizer, located

    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).chdir(ROOT)
        watch = stack.enter_context(Watch())
        stack.callback(until, lambda: not watch.alive(*ENGINE), 120)
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        stack.enter_context(local_ray(num_cpus=8, runtime_env={"env_vars": paths}))
        config = located(compose(SETTINGS))
        tasks = load_tasks(config.env.train_tasks, instruction=config.env.instruction)[:8]
        reserved = placement.reserve(config)
        stack.callback(placement.release, reserved)
        fleet = Fleet(fleet_settings(config), reserved.rollout, reserved.first_rollout_bundle)
        stack.callback(fleet.shutdown)
        options = {"num_cpus": 1, "runtime_env": {"env_vars": {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}}}
        learner = LearnerGroup(config, [ray.remote(held_rank()).options(**options).remote()])
        stack.callback(learner.shutdown)
        learner.begin(total_updates=10)
        fleet.wait_ready()
        pusher = WeightPusher(config, learner, fleet)
        codec = TokenizerCodec(load_tokenizer(config.model))
        pusher.use_probes([codec.prompt(task) for task in tasks])
        made = World(config=config, tasks=tasks, fleet=fleet, learner=learner, pusher=pusher, watch=watch)
        made.push()
        train(made)
        made.push()
        yield made


def train(world: World) -> None:
    """One phase, after which the weights are others than those that an engine loads at its start."""
    from trainer.advantages import advantages
    from trainer.packing import pack_forest

    forest = world.collect("train-1").forest
    rule = world.config.advantage
    credit = [advantages(group, rule.kind, rule.singleton) for group in forest]
    packed = pack_forest(forest, credit, world.config.loss, world.config.learner, 192, version=1)
    assert world.learner.train(packed.mini_batches)["learner/grad_norm"] > 0


def once_in_flight(kill: Callable[[], None]) -> Callable[[Any], None]:
    """Calls `kill` at the first look at which some leaves are there and others are not."""
    done: list[bool] = []

    def look(progress: Any) -> None:
        if not done and 0 < progress.leaves < progress.leaves_total * 0.8:
            done.append(True)
            kill()

    return look


def nodes(forest: Any) -> list[Any]:
    return [node for group in forest for tree in group.trees for node in tree.nodes]


def slots(forest: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Parent and sampled ids of every node. Seeds are those of phase, task, tree and slot, whoever runs the branch."""
    return [(node.parent, node.token_ids) for node in nodes(forest)]


@pytest.mark.parametrize("part", ["actor", "engine core"])
def test_a_forest_is_complete_when_an_actor_is_killed_while_it_grows(
    world: World, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = world.newest()[0]
    victim = world.actor(name)
    orphans = victim.children(recursive=True)
    if part == "engine core":
        victim = next(child for child in orphans if child.cmdline()[0].startswith("VLLM::EngineCore"))
    undisturbed = world.collect("train-2")
    with caplog.at_level(logging.WARNING):
        harvest = world.collect("train-2", once_in_flight(victim.kill))
    leaves = [sum(node.is_leaf for node in tree.nodes) for group in harvest.forest for tree in group.trees]
    assert leaves == [LEAVES] * 4 * 8
    assert slots(harvest.forest) == slots(undisturbed.forest), "the same branches, each once"
    assert undisturbed.ledger.branches_requeued == 0
    said = [record.getMessage() for record in caplog.records if " died (" in record.getMessage()]
    assert len(said) == 1
    match = re.match(rf"rollout actor {name} died \(.+\): (\d+) branches queued again, rollout-\d+ starts", said[0])
    assert match is not None, said[0]
    assert harvest.ledger.branches_requeued == int(match[1]) > 0
    assert {version for node in nodes(harvest.forest) for version in node.versions} == {world.version}
    until(lambda: len(world.fleet.places()) == 2, 300)
    assert world.pusher.rejoin()
    check_parity(world, world.newest()[-1])
    until(lambda: not any(process.is_running() for process in orphans), 120)


def check_parity(world: World, name: str) -> None:
    """The actor samples with the learner's weights, which are not those it loaded at its start."""
    member = next(member for member in world.fleet._members if member.name == name)
    prompts = world.pusher._probes
    samples = ray.get(member.handle.probe.remote(prompts, 16, 0, 1.0), timeout=300)
    sequences = [([*prompt, *s.token_ids], len(s.token_ids)) for prompt, s in zip(prompts, samples, strict=True)]
    scored = world.learner.logprobs(sequences)
    worst = max(
        abs(ours - theirs)
        for sample, learner in zip(samples, scored, strict=True)
        for theirs, ours in zip(sample.logprobs, learner, strict=True)
    )
    assert worst < 0.001
    assert {version for sample in samples for version in sample.versions} == {world.version}


def test_a_push_whose_engine_is_killed_in_mid_broadcast_is_repeated_on_new_actors(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.newest()
    victim = world.actor(before[0])
    old = [process for name in before for process in world.actor(name).children(recursive=True)]
    engine = victim.children(recursive=True)
    ray.get(world.learner._ranks[0].hold_next.remote(tmp_path))

    def kill_in_mid_broadcast() -> None:
        until(lambda: (tmp_path / "half").exists(), 60)
        for child in engine:
            child.kill()
        until(lambda: not any(map(command_of, engine)), 60)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill_in_mid_broadcast, daemon=True)
    killer.start()
    with caplog.at_level(logging.WARNING):
        metrics = world.push()
    killer.join(60)
    assert (tmp_path / "go").exists(), "it was killed in mid-broadcast"
    assert f"pushing weights version {world.version} failed (the weight push failed: " in caplog.text
    assert (metrics["push/version"], metrics["push/actors"]) == (float(world.version), 2.0)
    assert metrics["push/max_abs_logprob_diff"] < 0.001
    assert not set(before) & set(world.newest()), "an engine that may hold half of the weights serves no more"
    harvest = world.collect("train-6")
    assert {version for node in nodes(harvest.forest) for version in node.versions} == {world.version}
    until(lambda: not any(process.is_running() for process in old), 120)
