"""What one tree may cost and has cost: the budget that ends its growth.

The counts are of the tree itself, so they depend neither on timing nor on what a prefix cache held.
"""

from dataclasses import dataclass

from rollout_workers.types import BranchResult


@dataclass(slots=True, kw_only=True)
class Budget:
    """A tree's share of its task's budget; None is without limit."""

    max_tokens: int | None
    max_tool_calls: int | None
    prompt_tokens: int = 0
    tokens: int = 0
    """Sampled tokens and observations of all branches, each once; what was sampled again is in it, prompts are not."""
    tool_calls: int = 0
    branches: int = 0
    """Branches that became part of the tree."""

    def spend(self, result: BranchResult) -> None:
        """Counts a branch that came back, whether it is kept or sampled again."""
        nodes = [new.node for new in result.nodes]
        self.tokens += sum(len(node.token_ids) + len(node.observation_ids) for node in nodes)
        self.tokens += result.ledger.discarded_tokens
        self.tool_calls += sum(node.tool_calls for node in nodes)

    def affordable(self, wanted: int) -> int:
        """How many of `wanted` more branches the rest of the budget pays for at the mean cost of those so far.

        With a share of 100 tokens, a prompt of 10 and 2 branches of 30 in all, 60 are left, enough for 4 at 15 each.
        """
        assert self.branches, "a tree has its first chain before it asks for more"
        limits = [wanted]
        if self.max_tokens is not None:
            limits.append(self._pays_for(self.max_tokens - self.prompt_tokens - self.tokens, self.tokens, wanted))
        if self.max_tool_calls is not None:
            limits.append(self._pays_for(self.max_tool_calls - self.tool_calls, self.tool_calls, wanted))
        return min(limits)

    def _pays_for(self, left: int, spent: int, wanted: int) -> int:
        if left <= 0:
            return 0
        return left * self.branches // spent if spent else wanted
