"""The processes of a run: everything that a process has started, what each is for, and which of them still live."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Self

import psutil  # type: ignore[import-untyped]

ROLES = (
    ("ray::RolloutActor", "rollout actor"),
    ("ray::LearnerRank", "learner"),
    ("ray::SchedulerProcess", "scheduler"),
    ("VLLM::EngineCore", "engine core"),
    ("VLLM::", "engine worker"),
    ("ray::IDLE", "idle worker"),
)
"""How command lines begin, which Ray and vLLM rewrite, and what that process is."""
PARTS = (("gcs_server", "gcs"), ("raylet/raylet", "raylet"), ("wandb-core", "wandb"))
"""What the first word of a command line ends with."""


def role(command: str) -> str:
    """What a process is for, by its command line; `"other"` for Ray's small helpers and what is not known.

    E.g. `"ray::RolloutActor.work"` is a `"rollout actor"`.
    """
    for begin, name in ROLES:
        if command.startswith(begin):
            return name
    first = command.partition(" ")[0]
    return next((name for end, name in PARTS if first.endswith(end)), "other")


class Family:
    """Every process that `pid` has started, directly or not, also those that have lost their parent.

    Use as a context manager; a thread looks every `look_s` seconds.
    """

    def __init__(self, pid: int | None = None, look_s: float = 0.5) -> None:
        """Of this process without a `pid`."""
        self._root = psutil.Process(pid)
        self._look_s = look_s
        self._seen: set[psutil.Process] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(self._look_s):
            with contextlib.suppress(psutil.Error):
                self._seen.update(self._root.children(recursive=True))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def alive(self, *titles: str) -> list[psutil.Process]:
        """Those that still run and whose command line begins with one of `titles`; all that run without titles."""
        named = [(process, command_of(process)) for process in list(self._seen)]
        return [process for process, command in named if command and (not titles or command.startswith(titles))]

    def outlive(self, seconds: float) -> list[psutil.Process]:
        """Those that still run after so many seconds; returns earlier when there are none."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing for a process that has ended."""
    with contextlib.suppress(psutil.Error):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline())
    return ""


def until(condition: Callable[[], object], seconds: float, look_s: float = 0.05) -> bool:
    """Waits until `condition` holds; False if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True
