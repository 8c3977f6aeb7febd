"""Other brokers, to be measured beside ours: each as one who knows it would use it from Python.

    redis   Redis Streams: redis-server, with redis-py and hiredis
    nats    NATS JetStream: nats-server, with nats-py

Each is started for one turn, on a free port and in an empty directory, and is gone when the turn is over.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

READY_S_MAX = 10.0


class Turn(NamedTuple):
    """Seconds for each message: to publish it, to consume it with an ack of its own, or with one ack for many."""

    publish_s: float
    ack_each_s: float
    ack_many_s: float


class Peer(Protocol):
    name: str
    # On disk before it is told, as ours: what may be compared.
    is_durable: bool
    # Enough for a second or so.
    messages: int

    def missing(self) -> str | None:
        """What must be installed for it, if something must."""

    def described(self) -> str:
        """Versions, settings, and how it is used."""

    def turn(self, path: Path, values: Sequence[bytes]) -> Turn:
        """Publishes all of them, then consumes them twice; its server has its data in `path`."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str | Path], is_ready: Callable[[], bool]) -> Iterator[None]:
    """A server, from when it is ready on. It is killed: what it has stored is thrown away."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY_S_MAX
        while not is_ready():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{Path(command[0]).name} did not start")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
