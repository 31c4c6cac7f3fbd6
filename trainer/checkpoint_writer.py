"""Writes checkpoints beside the loop.

Concurrency: `save` is called by the loop. It waits for the checkpoint before, if that is still being written, then for
the ranks to copy their state in memory, and starts a thread. The thread waits for the ranks' files, writes the run's
state and the manifest, gives the folder its name and removes old ones. Nobody waits for it for longer than
`checkpoint.timeout_s` from its start: a disk that hangs is given up like one that is full, and the thread, should it
ever go on, publishes nothing. A failed write costs a warning and that checkpoint; the one before it is kept.
"""

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from envs.types import Json
from trainer import checkpoint, checkpoint_manifest
from trainer.checkpoint_manifest import FileSum
from trainer.config import CheckpointConfig

logger = logging.getLogger(__name__)


class Sharer(Protocol):
    """What writes the learner's share: `trainer.learner.LearnerGroup`."""

    def begin_save(self, path: Path) -> None:
        """Copies the state, and begins to write it into a folder."""
        ...

    def wait_saved(self, path: Path, limit_s: float) -> dict[str, FileSum]:
        """The files, once they are on the disk. Raises RuntimeError."""
        ...


class CheckpointError(RuntimeError):
    """The newest checkpoint could not be written."""


class Saver:
    """The checkpoints of one run, one at a time."""

    def __init__(self, learner: Sharer, checkpoints: Path, settings: CheckpointConfig) -> None:
        """Removes what an interrupted run left half-written in `checkpoints`."""
        self._learner = learner
        self._checkpoints = checkpoints
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._saved: tuple[int, Mapping[str, Json]] | None = None
        self._step = 0
        """What the thread writes."""
        self._begun = 0.0
        self._news: dict[str, float] = {}
        self._lock = threading.Lock()
        self.failed = 0
        """Checkpoints that could not be written."""
        self._failure: str | None = None
        checkpoint.drop_parts(checkpoints)

    def go_on_from(self, path: Path) -> None:
        """Tells that the learner is what the checkpoint `path` holds, so that it need not be written again."""
        if path.parent.resolve() == self._checkpoints.resolve():
            self._saved = (checkpoint.step_of(path), {})

    def save(self, step: int, state: Mapping[str, Json]) -> None:
        """A checkpoint of the learner as it is now, with `state`; with `checkpoint.background` it is written later.

        Of a step that this run has saved already only the state is replaced, and nothing if that is the same.
        """
        self._begun = time.perf_counter()
        self._join()
        self._failure = None
        if self._saved is not None and self._saved[0] == step:
            self._restate(step, state)
        else:
            self._begin(step, state)
        self._tell({"checkpoint/wait_s": time.perf_counter() - self._begun})

    def wait(self) -> dict[str, float]:
        """Returns the news when nothing is being written any more; raises nothing."""
        self._join()
        return self.news()

    def check(self) -> None:
        """Waits, and raises CheckpointError if the newest checkpoint could not be written."""
        self._join()
        if self._failure is not None:
            raise CheckpointError(f"the last checkpoint could not be written: {self._failure}")

    def news(self) -> dict[str, float]:
        """`checkpoint/*` metrics since they were asked for last.

        `wait_s` is what the loop waited for, `seconds` the time until the folder had its name, `bytes` its size,
        `failed` how many could not be written so far.
        """
        with self._lock:
            news, self._news = self._news, {}
        return news | {"checkpoint/failed": float(self.failed)} if news else {}

    def _begin(self, step: int, state: Mapping[str, Json]) -> None:
        try:
            part = checkpoint.part_of(checkpoint.folder(self._checkpoints, step))
        except OSError as error:
            self._fail(step, error)
            return
        self._learner.begin_save(part.resolve())
        self._step, self._started = step, time.monotonic()
        self._thread = threading.Thread(
            target=self._write, args=(part, step, state), name=f"checkpoint-{step}", daemon=True
        )
        self._thread.start()
        if not self._settings.background:
            self._join()

    def _join(self) -> None:
        if (thread := self._thread) is None:
            return
        limit = self._settings.timeout_s
        thread.join(max(self._started + limit - time.monotonic(), 0.0))
        self._thread = None
        if thread.is_alive():
            self._fail(self._step, TimeoutError(f"it took longer than checkpoint.timeout_s={limit:g} s"))

    @property
    def _is_given_up(self) -> bool:
        """In the writing thread: whether the loop waits for it no more."""
        return self._thread is not threading.current_thread()

    def _write(self, part: Path, step: int, state: Mapping[str, Json]) -> None:
        try:
            files = self._learner.wait_saved(part.resolve(), self._settings.timeout_s)
            manifest = checkpoint_manifest.seal(part, step, state, files)
            if self._is_given_up:
                return
            checkpoint.publish(part)
        except (OSError, RuntimeError, ValueError) as error:
            if not self._is_given_up:
                shutil.rmtree(part, ignore_errors=True)
                self._fail(step, error)
            return
        self._saved = (step, state)
        total = sum(file.bytes for file in manifest.files.values())
        self._tell({"checkpoint/seconds": time.perf_counter() - self._begun, "checkpoint/bytes": float(total)})
        try:
            checkpoint.prune(self._checkpoints, self._settings)
        except OSError as error:
            logger.warning("old checkpoints in %s could not be removed: %s", self._checkpoints, error)

    def _restate(self, step: int, state: Mapping[str, Json]) -> None:
        assert self._saved is not None
        if self._saved[1] == state:
            return
        path = checkpoint.folder(self._checkpoints, step)
        try:
            manifest = checkpoint_manifest.read(path)
            files = {name: total for name, total in manifest.files.items() if name != manifest.run}
            checkpoint_manifest.seal(path, step, state, files)
            self._saved = (step, state)
        except (OSError, ValueError) as error:
            self._fail(step, error)

    def _tell(self, news: Mapping[str, float]) -> None:
        with self._lock:
            self._news.update(news)

    def _fail(self, step: int, error: Exception) -> None:
        said = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        self.failed += 1
        self._failure = f"step {step}: {said}"
        self._tell({"checkpoint/failed": float(self.failed)})
        logger.warning("the checkpoint of step %d could not be written: %s; %d failed so far", step, said, self.failed)
