"""Places for a run that can be spoiled: a small disk, a folder that becomes read-only, a Ray with little memory."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.chaos_job import ROOT, Failed, claim
from scripts.processes import Family, until

DISK_MIB = 160
LEFT_MIB = 6
"""A full disk has so much room: for the lines of a step's metrics and trees, and not for a checkpoint of 13 MiB."""
STORE_BYTES = 80_000_000
"""Object store of the small Ray, about the least that it accepts."""
TITLES = ("ray::RolloutActor", "ray::LearnerRank", "ray::SchedulerProcess", "VLLM::")
BUSY_TRIES = 50


def _mount(*arguments: str) -> None:
    """Runs a command of mount or umount, again while the place is in use. Raises Failed."""
    for _ in range(BUSY_TRIES):
        done = subprocess.run(arguments, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if "busy" not in done.stderr:
            break
        time.sleep(0.1)
    raise Failed(f"{' '.join(arguments[:3])} failed, which needs root on Linux: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own of `DISK_MIB`, mounted at `folder`. Raises Failed without the right to mount."""
    folder.mkdir(parents=True)
    _mount("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Inside the block the disk has room for `LEFT_MIB` more."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        free = shutil.disk_usage(disk).free
        os.posix_fallocate(file.fileno(), 0, free - LEFT_MIB * 2**20)
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Inside the block nothing can be written into the folder, by nobody."""
    _mount("mount", "--bind", str(folder), str(folder))
    try:
        _mount("mount", "-o", "remount,ro,bind", str(folder))
        yield
    finally:
        _mount("umount", str(folder))


class SmallRay:
    """A Ray of its own on this machine, with `STORE_BYTES` for objects. Use as a context manager."""

    def __init__(self, *, has_dashboard: bool = False) -> None:
        """`has_dashboard`: jobs can be submitted."""
        self._has_dashboard = has_dashboard

    def __enter__(self) -> "SmallRay":
        self._folder = tempfile.mkdtemp(prefix="chaos-ray-", dir="/tmp")  # sockets in it: the path must be short
        port, *others = _free_ports(5)
        self.dashboard = f"http://127.0.0.1:{others[0]}"
        """Where jobs are submitted."""
        names = ("dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
        token = Path(self._folder, "token")
        token.write_text(secrets.token_hex(32), encoding="ascii")
        authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self.environment = {"RAY_ADDRESS": f"127.0.0.1:{port}"} | authentication
        """With which a job joins it."""
        with Path(self._folder, "head.txt").open("w", encoding="utf-8") as log:
            self._head = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}",
                    *(f"--{name}={number}" for name, number in zip(names, others, strict=True)),
                    f"--include-dashboard={str(self._has_dashboard).lower()}", "--num-cpus=8",
                    f"--object-store-memory={STORE_BYTES}", f"--temp-dir={self._folder}", "--disable-usage-stats",
                ],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | authentication,
            )  # fmt: skip
        self.family = Family(self._head.pid).__enter__()
        awaited = (port, others[0], others[2]) if self._has_dashboard else (port,)
        claim(until(lambda: all(map(_listens, awaited)), 400), "the small Ray did not start")
        return self

    def __exit__(self, *error: object) -> None:
        left = [process for process in self.family.alive() if process.pid != self._head.pid]
        self.family.__exit__()
        self._head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._head.wait(20)
        for process in left:
            with contextlib.suppress(Exception):
                process.kill()
        self._head.kill()
        self._head.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def check_empty(self, seconds: float = 90.0) -> None:
        """Raises Failed if the ended run has left an actor or an engine here."""
        until(lambda: not self.family.alive(*TITLES), seconds)
        left = self.family.alive(*TITLES)
        claim(not left, f"{len(left)} processes of the run are still in the cluster")

    @contextlib.contextmanager
    def full_store(self) -> Iterator[str]:
        """Inside the block another job holds all of the object store; gives Ray's own words about that."""
        with subprocess.Popen(
            [sys.executable, "-m", "scripts.chaos_store"],
            cwd=ROOT,
            env=os.environ | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                said = holder.stdout.readline().strip()
                claim(said.startswith("full: "), f"the object store was not filled: {said or 'the job ended'}")
                yield said
            finally:
                holder.stdin.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
