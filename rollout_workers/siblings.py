"""Which branches of a round begin with an action that a sibling has already.

Siblings are children of one parent with the same action text, spaces at both ends aside. Everything goes by slot, so
the outcome does not depend on which branch came back first.
"""

from collections.abc import Sequence
from typing import TypeAlias

from rollout_workers.types import BranchResult, WorkItem

Branch: TypeAlias = tuple[WorkItem, BranchResult]


def first_action(result: BranchResult) -> str:
    """The text by which a branch is compared with its siblings."""
    return result.nodes[0].action.strip()


def by_slot(branches: Sequence[Branch]) -> list[Branch]:
    """The branches in the order in which they were handed out."""
    return sorted(branches, key=lambda branch: branch[0].slot)


def split(branches: Sequence[Branch], taken: dict[int, set[str]]) -> tuple[list[Branch], list[Branch]]:
    """(branches with an action of their own, branches whose action a sibling has already), each in slot order.

    `taken` holds the action texts that each parent's children have, and gets those of the first kind added; of
    several equal branches the first slot is new.
    """
    new: list[Branch] = []
    equal: list[Branch] = []
    for item, result in by_slot(branches):
        seen = taken.setdefault(item.parent, set())
        text = first_action(result)
        (equal if text in seen else new).append((item, result))
        seen.add(text)
    return new, equal
