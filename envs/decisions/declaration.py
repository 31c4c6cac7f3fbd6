"""What can be wrong with a declaration, one sentence per fault, each naming the node.

First the shape (names, parents, order, reads) and what each node holds; where the shape is right, what concerns the
whole; where all of that is right, what nodes give each other. Everything here is found before a run begins.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from envs.decisions import schemas
from envs.decisions.guided import unguided
from envs.decisions.tree import Declared

if TYPE_CHECKING:
    from envs.decisions.settings import DecisionSettings, NodeSettings

TAKEN = ("feedback", "gate", "live")
"""Groups of metrics `decision/<group>/...` beside those of nodes."""


def declaration_problems(settings: "DecisionSettings") -> Iterator[str]:
    """One sentence per fault; none for a declaration that can run."""
    from envs.decisions.rewards import reward_problems  # which imports the settings, and those this module

    nodes = settings.nodes
    shape = [*_name_problems(nodes), *_root_problems(nodes), *_parent_problems(nodes), *_read_problems(nodes)]
    inside = [problem for node in nodes for problem in _schema_problems(node)]
    inside += [f"{problem}." for problem in reward_problems(settings)]
    yield from shape
    yield from inside
    if shape:
        return
    declared = Declared(settings)
    yield from _whole_problems(declared)
    if not inside:
        for name in declared.order:
            yield from _input_problems(declared, name)


def _name_problems(nodes: Sequence["NodeSettings"]) -> Iterator[str]:
    first: dict[str, NodeSettings] = {}
    for node in nodes:
        if node.name in TAKEN:
            yield f"decision.nodes: node {node.name!r} has the name of a group of metrics; give it another one."
        earlier = first.setdefault(node.name, node)
        if earlier is node:
            continue
        parents = " and ".join(repr(parent) for parent in (earlier.parent, node.parent))
        if earlier.parent == node.parent:
            yield f"decision.nodes: node {node.name!r} is declared twice; give one of them another name."
        else:
            yield (
                f"decision.nodes: node {node.name!r} has two parents, {parents}; a node has one parent, and can read "
                "other nodes."
            )


def _root_problems(nodes: Sequence["NodeSettings"]) -> Iterator[str]:
    roots = [node.name for node in nodes if node.parent is None]
    if not roots:
        yield "decision.nodes: there is no root; exactly one node has parent: null."
    for name in roots[1:]:
        yield f"decision.nodes: node {name!r} is a second root beside {roots[0]!r}; give it a parent."


def _parent_problems(nodes: Sequence["NodeSettings"]) -> Iterator[str]:
    parents = {node.name: node.parent for node in nodes}
    place = {node.name: number for number, node in reversed(list(enumerate(nodes)))}
    told: set[str] = set()
    for number, node in enumerate(nodes):
        parent = node.parent
        if parent is None:
            continue
        if parent not in parents:
            yield (
                f"decision.nodes: node {node.name!r} is an orphan: its parent {parent!r} is not declared; declared are "
                f"{_listed(parents)}."
            )
        elif cycle := _cycle(node.name, parents):
            if not told & set(cycle):
                told |= set(cycle)
                way = " -> ".join(map(repr, [*cycle, cycle[0]]))
                yield f"decision.nodes: the parents of node {node.name!r} form a cycle, {way}."
        elif place[parent] > number:
            yield (
                f"decision.nodes: node {node.name!r} is declared before its parent {parent!r}; nodes run in the order "
                "of their declaration."
            )


def _cycle(name: str, parents: dict[str, str | None]) -> list[str]:
    """The nodes of the cycle that `name` is part of, itself first; empty if it is part of none."""
    way: list[str] = []
    current: str | None = name
    while current is not None and current not in way:
        way.append(current)
        current = parents.get(current)
    return way if current == name else []


def _read_problems(nodes: Sequence["NodeSettings"]) -> Iterator[str]:
    names = [node.name for node in nodes]
    for number, node in enumerate(nodes):
        for read in node.reads:
            if read == node.name:
                yield f"decision.nodes: node {node.name!r} reads itself; it can read nodes that run before it."
            elif read not in names:
                yield (
                    f"decision.nodes: node {node.name!r} reads {read!r}, which is not declared; declared are "
                    f"{_listed(names)}."
                )
            elif names.index(read) > number:
                yield (
                    f"decision.nodes: node {node.name!r} reads {read!r}, which runs later; declare {read!r} before it."
                )


def _schema_problems(node: "NodeSettings") -> Iterator[str]:
    where = f"decision.nodes: node {node.name!r}"
    for key, schema in (("input_schema", node.input_schema), ("output_schema", node.output_schema)):
        if fault := schemas.schema_fault(schema):
            yield f"{where}: {key} is not valid JSON Schema (Draft 2020-12): {fault}."
    if schemas.schema_fault(node.output_schema):
        return
    if node.output_schema.get("type") != "object":
        yield f"{where}: output_schema must have type: object, since values are merged."
    else:
        yield from (f"{where}: {fault}." for fault in unguided(node.output_schema, "output_schema"))


def _whole_problems(declared: Declared) -> Iterator[str]:
    settings, levels = declared.settings, declared.settings.levels
    if not any(map(declared.is_trained, declared.order)) and settings.policy == "typed":
        yield "decision.nodes: no node is trained: each has no adapter or a frozen one, and decision.backbone=frozen."
    if levels.automatic + levels.human + levels.rules == 0:
        yield "decision.levels are all 0: at least one level must count."
    uses_gate = settings.gate.path is not None or settings.gate.record_odds
    if uses_gate and not declared.children(declared.root):
        yield f"decision.gate chooses among the children of node {declared.root!r}, which has none."
    for name in settings.feedback.focus:
        if name not in declared.order:
            known = _listed(declared.order)
            yield f"decision.feedback.focus names {name!r}, which is not declared; declared are {known}."


def _input_problems(declared: Declared, name: str) -> Iterator[str]:
    """Properties that a node's input must have and that nobody gives, as far as schemas tell."""
    node, parent = declared.node(name), declared.parent(name)
    if parent is None:
        return
    above = declared.node(parent)
    known = schemas.properties(above.output_schema)
    for read in node.reads:
        if known is not None and read in known:
            yield (
                f"decision.nodes: node {name!r} reads {read!r}, and the output of its parent {parent!r} has a property "
                "of that name, which the read would hide."
            )
        may_be_skipped = declared.settings.gate.path is not None and _may_be_skipped(declared, name, read)
        if may_be_skipped and not schemas.property_accepts(node.input_schema, read, None):
            yield (
                f"decision.nodes: node {name!r} reads {read!r}, which the gate may skip; its input_schema must "
                f"accept null for {read!r}."
            )
    if known is None or above.act is not None:  # what an action finds is known to the world only
        return
    for wanted in _required(node.input_schema):
        if wanted not in known and wanted not in node.reads:
            yield (
                f"decision.nodes: node {name!r}: input_schema requires {wanted!r}, which neither the output of its "
                f"parent {parent!r} nor its reads give."
            )


def _may_be_skipped(declared: Declared, name: str, read: str) -> bool:
    """Whether a gate may skip `read` and run `name`: nodes of one branch below the root run or rest together."""
    return read != declared.root and declared.branch(read) != declared.branch(name)


def _required(schema: dict[str, Any]) -> list[str]:
    found = schema.get("required", ())
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _listed(names: Any) -> str:
    return ", ".join(names)
