"""A server of another broker, in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

READY_S_MAX = 10.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    is_ready: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    ready_s_max: float = READY_S_MAX,
) -> Iterator[None]:
    """A server, from when it is ready on. It is killed: what it has stored is thrown away."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        until = time.monotonic() + ready_s_max
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
