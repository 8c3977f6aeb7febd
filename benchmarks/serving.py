"""A broker in a process of its own (`penstock serve`), on free ports of this machine and in an empty directory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import harness
from harness import Run

PENSTOCK = Path(sys.executable).with_name("penstock")
PARTITIONS = 6
DOORS = ("native", "http", "grpc")


def cpu_s(process: int) -> float:
    """Of all its threads, so far: what it has cost, however busy the machine is with other things."""
    # The clock of a process, as clock_getcpuclockid(3) makes its number.
    return time.clock_gettime((~process << 3) | 2)


class Running:
    """A process, and what it has cost so far."""

    _process: subprocess.Popen[str]

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    @property
    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)


class Broker(Running):
    """Ready when this returns; `ready_s` is how long that took. `ports` are those of its doors."""

    def __init__(self, path: Path, doors: tuple[str, ...], *arguments: str) -> None:
        where = {door: "127.0.0.1:0" if door in doors else "none" for door in DOORS}
        command: list[str | Path] = [PENSTOCK, "serve", "--data", path / "data"]
        for door, address in where.items():
            command += [f"--{door}", address]
        command += arguments
        started = time.perf_counter()
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        told = ""
        while "native=" not in told:
            told = self._process.stderr.readline()
            if not told:
                raise RuntimeError(f"the broker ended with {self._process.wait()} before it was ready")
        self.ready_s = time.perf_counter() - started
        # A pipe that is full would stop the broker at its next log line.
        self._reading = Thread(target=deque, args=(self._process.stderr, 0), daemon=True)
        self._reading.start()
        self.ports = {door: int(port) for door, port in re.findall(r"(\w+)=127\.0\.0\.1:(\d+)", told)}

    @property
    def address(self) -> str:
        return f"penstock://127.0.0.1:{self.ports['native']}"

    def stop(self) -> None:
        assert self._process.stderr is not None
        self._process.send_signal(signal.SIGTERM)
        self._reading.join()
        self._process.stderr.close()
        self._process.wait()

    def kill(self) -> None:
        """As kill -9 does: what is not on disk by now never will be."""
        assert self._process.stderr is not None
        self._process.kill()
        self._process.wait()
        self._reading.join()
        self._process.stderr.close()


@contextmanager
def broker(run: Run, doors: tuple[str, ...] = ("native",), *arguments: str) -> Iterator[Broker]:
    with run.folder() as path:
        running = Broker(path, doors, *arguments)
        try:
            yield running
        finally:
            running.stop()


def values(count: int) -> list[bytes]:
    """Of 100 B, the same for everybody who is measured; a thousand different ones."""
    some = harness.values(min(count, 1_000))
    return (some * -(-count // len(some)))[:count]
