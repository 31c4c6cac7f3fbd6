"""How many branches of a collection may fail before what is left of it means nothing."""

import logging
from collections.abc import Sequence

from rollout_workers.types import Ledger

logger = logging.getLogger(__name__)


def check_failures(phase: str, ledger: Ledger, failures: Sequence[str], max_error_share: float) -> None:
    """Warns of branches that ended in an environment error, with the first of their sentences.

    `failures` are sentences such as `"train-3/ulm/0/1: the search took longer than ..."`. Raises RuntimeError when the
    share of failed branches is above `max_error_share`.
    """
    if not ledger.branches_failed:
        return
    share = ledger.branches_failed / ledger.branches
    example = f", e.g. {failures[0]}" if failures else ""
    if share > max_error_share:
        raise RuntimeError(
            f"{share:.0%} of the branches of {phase} ended in an environment error, more than "
            f"env.max_error_share={max_error_share:g}{example}"
        )
    logger.warning("%.1f%% of the branches of %s failed%s", 100 * share, phase, example)
