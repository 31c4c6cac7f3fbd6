"""What bytes cost at least: a copy in memory, and a loopback socket to another process. Nothing of the project here."""

import multiprocessing
import socket
import time
from multiprocessing.connection import Connection
from typing import Self

import torch

CHUNK = 1 << 20


def copy_seconds(size: int) -> float:
    """Seconds of a copy of `size` bytes between two buffers whose pages are there already."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    started = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - started


class Socket:
    """A process at the other end of a loopback socket. Use as a context manager."""

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=_receive, args=(there,))
        self._process.start()
        port: int = here.recv()
        self._sizes = here
        self._connection = socket.create_connection(("127.0.0.1", port))
        return self

    def __exit__(self, *error: object) -> None:
        self._sizes.send(0)
        self._connection.close()
        self._process.join()

    def seconds(self, size: int) -> float:
        """Until the other process has all of `size` bytes in a buffer whose pages are there already."""
        source = memoryview(bytearray(b"\1") * size)
        self._sizes.send(size)
        self._sizes.recv()
        started = time.perf_counter()
        self._connection.sendall(source)
        self._sizes.recv()
        return time.perf_counter() - started


def _receive(sizes: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sizes.send(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        while size := sizes.recv():
            target = memoryview(bytearray(b"\1") * size)
            sizes.send("ready")
            got = 0
            while got < size:
                got += connection.recv_into(target[got : got + CHUNK])
            sizes.send("done")
