"""A run that is asked to end: SIGTERM, which clusters send before they take a machine away.

The first one lets the run come to a point where learner and bookkeeping agree, which is at most the end of a learning
phase and its push away; then it ends as by an error, and a checkpoint is written. A second one ends it at once.
"""

from types import FrameType

ENDED = 0
"""Exit code after a SIGTERM that cost nothing: a checkpoint was written, or nothing had been trained."""
TERMINATED = 143
"""Exit code after a second SIGTERM, which left no time for a checkpoint."""


class Stopped(Exception):
    """The run ends since it was asked to."""


class StopRequest:
    """What SIGTERM leaves behind. `on_sigterm` runs in the main thread; `check` may be called by any."""

    def __init__(self) -> None:
        self._is_asked = self._is_heeded = False
        self.exit_code: int | None = None
        """Set when a SIGTERM raises KeyboardInterrupt; None: a KeyboardInterrupt is from Ctrl-C."""

    def on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        """The signal's handler. Raises KeyboardInterrupt where nobody calls `check`, and at the second signal."""
        is_first, self._is_asked = not self._is_asked, True
        if is_first and self._is_heeded:
            return
        self.exit_code = TERMINATED if self._is_heeded else ENDED
        raise KeyboardInterrupt  # Ray's waits let no other exception through

    @property
    def words(self) -> str:
        """What a KeyboardInterrupt was."""
        if self.exit_code is None:
            return "Interrupted."
        return f"Stopped by SIGTERM {'before training began' if self.exit_code == ENDED else 'without a checkpoint'}."

    def heed(self) -> None:
        """From now on `check` is called again and again, and what it raises leads to a checkpoint."""
        self._is_heeded = True

    def check(self) -> None:
        """Raises Stopped once the run was asked to end. Call it where learner and bookkeeping agree."""
        if self._is_asked:
            raise Stopped("Stopped by SIGTERM")
