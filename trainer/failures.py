"""How many branches of a collection may fail before what is left of it means nothing."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from rollout_workers.types import Ledger

logger = logging.getLogger(__name__)


def check_failures(
    phase: str, ledger: Ledger, failures: Sequence[str], max_error_share: float, before: Ledger | None = None
) -> None:
    """Warns of branches of a collection that ended in an environment error, with the first of their sentences.

    `failures` are sentences such as `"train-3/ulm/0/1: the search took longer than ..."`. Raises RuntimeError when the
    share of failed branches is above `max_error_share`. `before` is what earlier collections of the same step cost; its
    branches count in that share, since a further collection may be too small for one failed branch to mean anything.
    """
    if not ledger.branches_failed:
        return
    so_far = replace(ledger)
    so_far.add(before or Ledger())
    share = so_far.branches_failed / so_far.branches
    phase = phase.partition("-resample-")[0]  # the step that the share is of: train-3-resample-1 belongs to train-3
    example = f", e.g. {failures[0]}" if failures else ""
    if share > max_error_share:
        raise RuntimeError(
            f"{share:.0%} of the branches of {phase} ended in an environment error, more than "
            f"env.max_error_share={max_error_share:g}{example}"
        )
    logger.warning("%.1f%% of the branches of %s failed%s", 100 * share, phase, example)
