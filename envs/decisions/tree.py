"""The tree of declared nodes: who is whose parent, in which order they run, how deep each lies.

`Declared` is for declarations without fault: `envs.decisions.declaration` tells the faults, and settings that were
validated have none.
"""

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs.decisions.settings import DecisionSettings, NodeSettings


class Declared:
    """Questions about the nodes of a decision policy. The index of a node in `order` is its number everywhere else."""

    def __init__(self, settings: "DecisionSettings") -> None:
        self.settings = settings
        self._nodes = {node.name: node for node in settings.nodes}
        assert len(self._nodes) == len(settings.nodes), "names of nodes are unique in a declaration without fault"

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in the order in which nodes run, which is that of their declaration; parents before children."""
        return tuple(self._nodes)

    @cached_property
    def root(self) -> str:
        """Name of the node without a parent."""
        return next(name for name, node in self._nodes.items() if node.parent is None)

    def node(self, name: str) -> "NodeSettings":
        """What is declared of a node."""
        return self._nodes[name]

    def parent(self, name: str) -> str | None:
        """Name of its parent; None for the root."""
        return self._nodes[name].parent

    def children(self, name: str) -> tuple[str, ...]:
        """Names of its children, in the order in which they run."""
        return tuple(child for child, node in self._nodes.items() if node.parent == name)

    def depth(self, name: str) -> int:
        """Levels above a node: 0 for the root."""
        parent = self.parent(name)
        return 0 if parent is None else 1 + self.depth(parent)

    def branch(self, name: str) -> str | None:
        """The child of the root that a node is or lies below; None for the root."""
        parent = self.parent(name)
        return None if parent is None else name if parent == self.root else self.branch(parent)

    def is_trained(self, name: str) -> bool:
        """Whether what the node says changes any weights: an adapter that is not frozen, or the backbone."""
        adapter = self._nodes[name].adapter
        return self.settings.backbone == "trained" or (adapter is not None and not adapter.freeze)

    def needs(self, name: str) -> tuple[str, ...]:
        """The nodes of whose values its input is made: its parent, then what it reads."""
        parent = self.parent(name)
        return tuple(dict.fromkeys([*([] if parent is None else [parent]), *self._nodes[name].reads]))
