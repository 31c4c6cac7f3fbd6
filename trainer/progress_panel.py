"""The live panel of a terminal, drawn with rich; `trainer/progress.py` decides what it says."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


class Panel:
    """Bars for the steps, the phase that runs and what goes on beside it, over one row of numbers. Notes scroll by
    above it.

    Another thread may call any method: each one sets whole values that the next drawing reads.
    """

    def __init__(self, console: Console, *, title: str, total: int, done: int) -> None:
        self._title, self._total, self._done = title, total, done
        self._phase: tuple[str, int, int | None] = ("starting", 0, None)
        self._beside: tuple[str, int, int] | None = None
        self._numbers: Sequence[str] = ()
        # 4 redraws a second: smooth enough, and nothing next to the work they report on.
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._draw, transient=False)

    def start(self) -> None:
        """Takes over the lower lines of the terminal."""
        self._live.start()

    def stop(self) -> None:
        """Leaves the last drawing where it is."""
        if self._done >= self._total:
            self._phase, self._beside = ("done", 1, 1), None
        self._live.stop()

    def phase(self, name: str, done: int, total: int | None) -> None:
        """What runs now, and how far it is."""
        self._phase = (name, done, total)

    def beside(self, name: str, done: int, total: int) -> None:
        """What another thread does meanwhile, and how far it is."""
        self._beside = (name, done, total)

    def step(self, step: int, numbers: Sequence[str]) -> None:
        """The words about the last finished step, e.g. `["success 0.54", "left 3m10s"]`."""
        self._done, self._numbers = step, numbers

    def note(self, text: str) -> None:
        """Prints above the panel."""
        self._live.console.print(Text(text))

    def _draw(self) -> Frame:
        name, done, total = self._phase
        bars = Table.grid(padding=(0, 2))
        bars.add_row("step", ProgressBar(self._total, self._done, width=40), f"{self._done}/{self._total}")
        count = f"{done:,}/{total:,}" if total and name != "done" else ""
        bars.add_row(name, ProgressBar(total or 1, done, width=40), count)
        if self._beside:
            other, reached, of = self._beside
            bars.add_row(other, ProgressBar(of or 1, reached, width=40), f"{reached:,}/{of:,}")
        # Wide gaps rather than rules, so that a narrow terminal wraps instead of breaking a frame.
        words = "   ".join(self._numbers) or "waiting for the first step"
        numbers = Text(words, "bold" if self._numbers else "dim")
        return Frame(Group(bars, numbers), title=Text(self._title) if self._title else None, title_align="left")
