"""One training run on several Ray nodes of this machine, each with a loopback address of its own; nodes are lost.

The nodes share the file system, as real ones must share the folders of data, models and runs.
"""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_runs import Run, Watch, is_logged, summary_of, until
from search_server import search

from scripts.processes import command_of
from trainer.forest_file import read_forest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PLACE = re.compile(r"(learner|rollout)-(\d+) runs on node (\w{8}) \((127\.0\.0\.\d)\), pid (\d+)")
OURS = ("VLLM::", "ray::RolloutActor", "ray::LearnerRank", "ray::SchedulerProcess")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    with Watch() as watching:
        yield watching


@pytest.fixture(scope="module")
def cluster(watch: Watch) -> Iterator[Any]:
    """A head without CPUs, for driver and scheduler. Tests add the nodes that they need."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node("127.0.0.2")})
    yield made
    made.shutdown()


def node(address: str) -> dict[str, Any]:
    return {"node_ip_address": address, "include_dashboard": False}


def places(output: str) -> dict[str, str]:
    """Address per actor, e.g. `{"learner-0": "127.0.0.3"}`; each must have a process and a node of its own."""
    found = PLACE.findall(output)
    assert len({pid for *_, pid in found}) == len(found), output
    return {f"{kind}-{number}": address for kind, number, _, address, _ in found}


def test_ranks_on_one_node_actors_on_two_and_one_of_them_lost_in_mid_collection(
    cluster: Any, watch: Watch, tmp_path: Path
) -> None:
    nodes = {address: cluster.add_node(num_cpus=4, **node(address)) for address in ("127.0.0.3", "127.0.0.4")}
    settings = ["learner.ranks=2", "rollout.actors=2", "cluster.strategy=SPREAD", "cluster.learner=same_node"]
    shape = ["steps=3", "tree.roots=4", "tree.nodes_per_round=3", "tree.rounds=2"]
    here = {"RAY_ADDRESS": cluster.address}
    patience = ["env.max_tool_seconds=200", "env.retriever.timeout_s=190"]
    is_lost = threading.Event()

    def wait() -> None:
        """After the first step no search is answered before the actor is lost."""
        until(lambda: is_lost.is_set() or not is_logged(tmp_path / "nodes", 1), 150)

    with (
        search(wait) as found,
        Run(tmp_path, "nodes", *settings, *shape, *found, *patience, cluster="any", environment=here) as run,
    ):
        run.wait_for_step(1)
        where = places(run.output)
        assert where["learner-0"] == where["learner-1"]
        assert {where["rollout-0"], where["rollout-1"]} == nodes.keys()
        lost = next(address for address in nodes if address != where["learner-0"])
        (actor,) = [psutil.Process(int(pid)) for *_, address, pid in PLACE.findall(run.output) if address == lost]
        cluster.remove_node(nodes.pop(lost), allow_graceful=False)
        until(lambda: not command_of(actor), 120)
        is_lost.set()
        output = run.finish()
    assert re.search(r": [1-9]\d* branches queued again", output), output
    summary = summary_of(run.folder)
    assert summary["rollout_actors_replaced"] == 1
    assert (summary["steps"], summary["ledger"]["leaves"]) == (3, 3 * 4 * 4 * 7)
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02
    trees = [record.tree for record in read_forest(run.folder / "forest" / "step-000002.jsonl")]
    assert all(sum(node.is_leaf for node in tree.nodes) == 7 for tree in trees), "each leaf once"
    until(lambda: not watch.alive(*OURS), 120)
    for remaining in nodes.values():
        cluster.remove_node(remaining)


def test_two_ranks_on_two_nodes_take_a_step_together(cluster: Any, watch: Watch, tmp_path: Path) -> None:
    addresses = ("127.0.0.7", "127.0.0.8", "127.0.0.9")
    nodes = [cluster.add_node(num_cpus=1, **node(address)) for address in addresses]
    settings = ["steps=1", "learner.ranks=2", "learner.zero_stage=2", "cluster.strategy=STRICT_SPREAD"]
    with Run(tmp_path, "apart", *settings, cluster="any", environment={"RAY_ADDRESS": cluster.address}) as run:
        where = places(run.finish())
    assert {where["learner-0"], where["learner-1"], where["rollout-0"]} == set(addresses)
    summary = summary_of(run.folder)
    assert (summary["steps"], summary["weights_version"]) == (1, 1)
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02, "each rank's share arrived in the weights that were pushed"
    until(lambda: not watch.alive(*OURS), 120)
    for each in nodes:
        cluster.remove_node(each)


def test_a_lost_learner_node_ends_the_run_with_one_sentence(cluster: Any, watch: Watch, tmp_path: Path) -> None:
    nodes = {address: cluster.add_node(num_cpus=1, **node(address)) for address in ("127.0.0.5", "127.0.0.6")}
    here = {"RAY_ADDRESS": cluster.address}
    with Run(tmp_path, "lost", "steps=50", "cluster.strategy=STRICT_SPREAD", cluster="any", environment=here) as run:
        run.wait_for_step(1)
        where = places(run.output)
        assert where["learner-0"] != where["rollout-0"]
        cluster.remove_node(nodes.pop(where["learner-0"]), allow_graceful=False)
        output = run.finish(returncode=1)
    sentences = [line for line in output.splitlines() if line.startswith("The run stopped")]
    assert len(sentences) == 1
    assert re.match(rf"The run stopped: learner rank 0 \(node .*{where['learner-0']}.*\) died while ", sentences[0])
    assert "Traceback (most" not in output
    until(lambda: not watch.alive(*OURS), 120)
