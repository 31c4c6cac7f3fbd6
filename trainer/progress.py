"""What a person sees while a run goes: a live panel on a terminal, one line per step anywhere else.

Owns the wording of those lines and the estimate of the time left. Nothing here decides anything about the run. Two
threads may report: the loop its phases, and whoever collects ahead of it what goes on `beside` them.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console

from trainer.progress_panel import Panel

PLAIN_EVERY_S = 15.0
"""During one phase, plain lines come at most this often."""
WINDOW = 10
"""Steps over which the time left is estimated."""


class Progress:
    """The display of one run; used as a context manager, or with `start` and `close`.

    Order of calls: `start`, then per step any number of `phase` / `advance` / `note`, then `step`; `close` at the end.
    `beside` and `note` may come from another thread at any time.
    """

    def __init__(
        self, stream: TextIO | None = None, *, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._live = self._stream.isatty() if live is None else live
        self._clock = clock
        self._panel: Panel | None = None
        self._total = self._done = 0
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._last_step_at = self._phase_since = self._last_line_at = clock()
        self._phase = ""
        self._lock = threading.Lock()
        """One writer at a time, and lines whole; nobody waits for anything while holding it."""
        self._eval: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, total_steps: int, *, done: int = 0, title: str = "") -> None:
        """Begins; `done` is the step a resumed run goes on from."""
        self._total, self._done = total_steps, done
        self._last_step_at = self._clock()
        if self._live:
            self._panel = Panel(
                Console(file=self._stream, force_terminal=True), title=title, total=total_steps, done=done
            )
            self._panel.start()

    def phase(self, name: str, *, total: int | None = None) -> None:
        """Names what is going on now, e.g. `phase("collect", total=64)` for 64 leaves."""
        self._phase, self._phase_since = name, self._clock()
        self._last_line_at = self._phase_since
        if self._panel:
            self._panel.phase(name, 0, total)

    def advance(self, done: int, total: int) -> None:
        """How far the phase is, in absolute numbers, e.g. leaves done of leaves expected. Cheap; call it often."""
        if self._panel:
            self._panel.phase(self._phase, done, total)
        else:
            self._now_and_then(f"{self._phase} {done:,}/{total:,}")

    def beside(self, name: str, done: int, total: int) -> None:
        """How far another thread is while the phase goes on, e.g. `beside("collect 7", 34, 48)` while step 6 learns."""
        if self._panel:
            self._panel.beside(name, done, total)
        else:
            meanwhile = "" if self._phase == "collect" else f", {self._phase} {self._done + 1}"
            self._now_and_then(f"{name} {done:,}/{total:,}{meanwhile}")

    def _now_and_then(self, text: str) -> None:
        now = self._clock()
        with self._lock:
            is_due = now - self._last_line_at >= PLAIN_EVERY_S
            if is_due:
                self._last_line_at = now
        if is_due:
            self._line(f"  {text}  {duration(now - self._phase_since)}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a finished step (names as in `metrics.jsonl`; missing ones are left out)."""
        now = self._clock()
        self._seconds.append(now - self._last_step_at)
        self._last_step_at, self._done = now, step
        self._eval = metrics.get("eval/success", self._eval)
        known = dict(metrics) if self._eval is None else {**metrics, "eval/success": self._eval}
        numbers = step_numbers(known, self.seconds_left())
        if self._panel:
            self._panel.step(step, numbers)
        else:
            self._line("  ".join([f"step {step}/{self._total}", *numbers]))

    def note(self, text: str) -> None:
        """One line that stays, e.g. a warning or where the report is."""
        if self._panel:
            self._panel.note(text)
        else:
            self._line(text)

    def close(self) -> None:
        """Leaves the last state on the screen and gives the terminal back. May be called twice."""
        if self._panel:
            self._panel.stop()
            self._panel = None

    def seconds_left(self) -> float | None:
        """Steps left times the mean of the last steps; None before the first step."""
        if not self._seconds:
            return None
        return max(self._total - self._done, 0) * sum(self._seconds) / len(self._seconds)

    def _line(self, text: str) -> None:
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()


def step_numbers(metrics: Mapping[str, float], left: float | None) -> list[str]:
    """E.g. `["success 0.54", "reward 0.51", "tokens/s 2,310", "collect 6.1s learn 4.2s push 0.1s", "left 3m10s"]`."""
    parts = [*headline(metrics), phase_times(metrics)]
    if left is not None:
        parts.append(f"left {duration(left)}")
    return [part for part in parts if part]


def headline(metrics: Mapping[str, float]) -> list[str]:
    """Success in training and evaluation, reward, tasks without signal if any, tokens per second, as far as known."""
    parts: list[str] = []
    for label, name in (("success", "rollout/success"), ("eval", "eval/success")):
        if name in metrics:
            parts.append(f"{label} {metrics[name]:.2f}")
    reward = metrics.get("rollout/reward", metrics.get("reward/mean"))
    if reward is not None:
        parts.append(f"reward {reward:.2f}")
    if dead := metrics.get("reward/dead_groups"):
        parts.append(f"no signal {dead:.0%}")
    if "rollout/tokens_per_s" in metrics:
        parts.append(f"tokens/s {metrics['rollout/tokens_per_s']:,.0f}")
    return parts


def phase_times(metrics: Mapping[str, float]) -> str:
    """E.g. `collect 6.1s learn 4.2s push 0.1s`; an evaluation is named only when there was one."""
    names = ("collect", "learn", "push", "eval")
    seconds = {name: metrics.get(f"time/{name}_s") for name in names}
    return " ".join(f"{name} {value:.1f}s" for name, value in seconds.items() if value)


def duration(seconds: float) -> str:
    """E.g. `8s`, `3m10s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
