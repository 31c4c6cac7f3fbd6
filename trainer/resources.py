"""What a run reserves on the cluster, and whether the cluster has it. Pure functions over numbers; no Ray here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainer.config import RunConfig

Bundle: TypeAlias = dict[str, float]
"""Resources that must lie on one node, e.g. `{"GPU": 2.0}`."""
Resource: TypeAlias = Literal["CPU", "GPU"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One placement group."""

    bundles: tuple[Bundle, ...]
    strategy: str
    """Ray's word, e.g. `"SPREAD"`."""
    key: str
    """The setting that chose the strategy, e.g. `"cluster.strategy=SPREAD"`."""


def learner_bundle(config: RunConfig) -> Bundle:
    """One per learner rank: a CPU or a GPU."""
    return {_resource(config.learner.device): 1.0}


def rollout_bundle(config: RunConfig) -> Bundle:
    """One per rollout actor: a CPU, or tensor_parallel GPUs of one node."""
    if config.rollout.device == "cpu":
        return {"CPU": 1.0}
    return {"GPU": float(config.rollout.tensor_parallel)}


def required_bundles(config: RunConfig) -> list[Bundle]:
    """The placement group of the run: first `learner.ranks` bundles, then `rollout.actors` bundles."""
    return [learner_bundle(config)] * config.learner.ranks + [rollout_bundle(config)] * config.rollout.actors


def groups(config: RunConfig, *, learner: bool = True) -> list[Group]:
    """The placement groups of the run: one, or the ranks' own one first under `cluster.learner: same_node`."""
    strategy, bundles, ranks = config.cluster.strategy, tuple(required_bundles(config)), config.learner.ranks
    key = f"cluster.strategy={strategy}"
    if not learner:
        return [Group(bundles=bundles[ranks:], strategy=strategy, key=key)]
    if config.cluster.learner == "any":
        return [Group(bundles=bundles, strategy=strategy, key=key)]
    return [
        Group(bundles=bundles[:ranks], strategy="STRICT_PACK", key="cluster.learner=same_node"),
        Group(bundles=bundles[ranks:], strategy=strategy, key=key),
    ]


def check_cluster(
    config: RunConfig, cluster_resources: Mapping[str, float], nodes: Sequence[Mapping[str, float]]
) -> list[str]:
    """One sentence per resource that the cluster cannot give.

    `cluster_resources` are totals as of `ray.cluster_resources()`, e.g. `{"CPU": 8.0}`; `nodes` are the same per live
    node. What other jobs hold now is not counted: that is what `cluster.wait_s` is for.
    """
    kinds: tuple[Resource, ...] = ("CPU", "GPU")
    found = [s for kind in kinds for s in _shortages(config, kind, cluster_resources.get(kind, 0), nodes)]
    return found or [sentence for group in groups(config) for sentence in _misfits(group, nodes)]


def needed(config: RunConfig, kind: Resource) -> int:
    """Units of one resource over all bundles, e.g. 1001 CPUs for one rank and 1000 actors."""
    return int(sum(bundle.get(kind, 0) for bundle in required_bundles(config)))


def _shortages(config: RunConfig, kind: Resource, has: float, nodes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    needs = needed(config, kind)
    if needs > has:
        amount, remedy = f"{has:g}" if has else "none", _remedy(config, kind, has)
        yield f"The run needs {needs} {kind}s ({_users(config, kind)}) and the cluster has {amount}: {remedy}."
    elif not _fits(config, kind, nodes):
        largest = max((node.get(kind, 0) for node in nodes), default=0)
        yield (
            f"The run's {needs} {kind}s ({_users(config, kind)}) do not fit on {len(nodes)} nodes with at most "
            f"{largest:g} {kind}s each, since an engine stays on one node: "
            "lower rollout.tensor_parallel or rollout.actors."
        )


def _misfits(group: Group, nodes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """What the strict strategies ask of nodes, group by group: necessary, and enough where a run has the cluster."""
    if group.strategy == "STRICT_PACK":
        whole = {kind: sum(bundle.get(kind, 0) for bundle in group.bundles) for kind in ("CPU", "GPU")}
        if not any(_holds(node, whole) for node in nodes):
            wanted = " and ".join(f"{units:g} {kind}s" for kind, units in whole.items() if units)
            yield f"{group.key} needs one node with {wanted}, and no node of the cluster has that many."
    elif group.strategy == "STRICT_SPREAD":
        able = [node for node in nodes if any(_holds(node, bundle) for bundle in group.bundles)]
        if len(able) < len(group.bundles):
            yield (
                f"{group.key} needs {len(group.bundles)} nodes, one for each learner rank and rollout actor that it "
                f"places, and the cluster has {len(able)} that could take one."
            )


def _holds(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(kind, 0) >= units for kind, units in bundle.items())


def _users(config: RunConfig, kind: Resource) -> str:
    said = []
    if kind in learner_bundle(config):
        said.append(f"learner.ranks={config.learner.ranks}")
    if kind in rollout_bundle(config):
        each = f" with rollout.tensor_parallel={config.rollout.tensor_parallel}" if kind == "GPU" else ""
        said.append(f"rollout.actors={config.rollout.actors}{each}")
    return " and ".join(said)


def _remedy(config: RunConfig, kind: Resource, has: float) -> str:
    """The largest number of actors that fits beside the learner; without room for one, fewer ranks or more nodes."""
    if kind == "GPU" and not has:
        return "add GPU nodes, or choose learner=cpu and rollout=cpu"
    left = has - config.learner.ranks * learner_bundle(config).get(kind, 0)
    each = rollout_bundle(config).get(kind, 0)
    if each and left >= each:
        return f"lower rollout.actors to at most {int(left // each)}, or add nodes"
    keys = "learner.ranks" if kind == "CPU" else "learner.ranks or rollout.tensor_parallel"
    return f"lower {keys}, or add nodes"


def _fits(config: RunConfig, kind: Resource, nodes: Sequence[Mapping[str, float]]) -> bool:
    """First fit, largest bundles first: exact here, since bundles have at most two sizes and one of them is 1."""
    free = [node.get(kind, 0) for node in nodes]
    for size in sorted((bundle.get(kind, 0) for bundle in required_bundles(config)), reverse=True):
        place = next((index for index, room in enumerate(free) if room >= size), None)
        if place is None:
            return False
        free[place] -= size
    return True


def _resource(device: str) -> Resource:
    return "GPU" if device == "cuda" else "CPU"
