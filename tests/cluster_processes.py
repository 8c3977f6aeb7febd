"""Real processes of a cluster: etcd and some brokers, each on a host of its own if there is a network of such.

Everything they say goes to files. They can be killed, stopped, held and started again, and all of them are gone in the
end.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from penstock.cluster.etcd.process import find_etcd, free_port

PENSTOCK = Path(sys.executable).with_name("penstock")
# A single member has nobody to wait for before it leads.
_QUICK = ("--heartbeat-interval=20", "--election-timeout=200")
_PATIENCE_S = 120.0
_LAST_WORDS = 500
# Debian's package faketime.
_FAKETIME = "**/faketime/libfaketime.so.1"
_given: set[int] = set()


class Hosts(Protocol):
    """Where the processes are. `chaos.network` has one in which they can be cut off from each other."""

    def address(self, host: str) -> str: ...

    def inside(self, host: str) -> list[str]: ...


class OneHost:
    """All of them on this machine, as they are."""

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def inside(self, host: str) -> list[str]:
        return []


def find_faketime() -> Path | None:
    """The library that gives a process a wall clock of its own."""
    return next(Path("/usr/lib").glob(_FAKETIME), None)


class Process:
    """One that can be started again. What it says is in `log`, from the first start on."""

    def __init__(self, name: str, command: Sequence[str], log: Path, ready: str) -> None:
        """`ready` is a pattern that it says when it is."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment: dict[str, str] = {}
        self._ready_line = re.compile(ready)
        self.is_ready = threading.Event()
        self.process: subprocess.Popen[str] | None = None
        # Whether it is to run, as far as we know: one that is not there all the same has ended by itself.
        self.is_wanted = False
        # Exit codes of those that did.
        self.deaths: list[int] = []

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def start(self) -> None:
        """Does not wait: see `wait_ready`."""
        assert not self.is_alive, f"{self.name} is running"
        self.is_ready.clear()
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self._environment},
        )
        self.is_wanted = True
        self._listening = threading.Thread(target=self._listen, args=[self.process], daemon=True)
        self._listening.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with self.log.open("a") as log, process.stdout as said:
            log.write(f"--- started, pid {process.pid}, {time.time():.3f}\n")
            for line in said:
                log.write(line)
                log.flush()
                if self._ready_line.search(line):
                    self.is_ready.set()
            log.write(f"--- ended with {process.wait()}, {time.time():.3f}\n")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.is_ready.wait(0.05):
            if not self.is_alive or time.monotonic() > deadline:
                self._listening.join(1)
                what = f"ended with {self.process and self.process.poll()}" if not self.is_alive else "is not ready"
                raise AssertionError(f"{self.name} {what}:\n{self.log.read_text()[-3_000:]}")

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def hold(self) -> None:
        """It keeps its connections, and does nothing any more."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def died(self) -> int | None:
        """Its exit code, if it has ended by itself since it was last started; told once."""
        if not self.is_wanted or self.process is None or self.process.poll() is None:
            return None
        self.is_wanted = False
        self.deaths.append(self.process.returncode)
        return self.process.returncode

    def says(self, *words: str) -> bool:
        """Whether one of these is among the last that it said."""
        self._listening.join(60)
        end = self.log.read_text()[-_LAST_WORDS:]
        return any(word in end for word in words)

    def _end(self, how: signal.Signals) -> int:
        self.is_wanted = False
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(how)
            # One that is held would not hear of it otherwise.
            self.process.send_signal(signal.SIGCONT)
        try:
            code = self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} did not end:\n{self.log.read_text()[-3_000:]}") from None
        self._listening.join(5)
        return code


class Etcd(Process):
    def __init__(self, directory: Path, hosts: Hosts, host: str = "etcd") -> None:
        at = hosts.address(host)
        self._place = at, _free_port(hosts, 2379)
        client = "http://{}:{}".format(*self._place)
        peer = f"http://{at}:{_free_port(hosts, 2380)}"
        self.address = client
        command = [*hosts.inside(host), find_etcd(), "--name", "local", "--data-dir", str(directory / "etcd"), *_QUICK]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"local={peer}"]
        super().__init__(host, command, directory / "etcd.log", "ready to serve client requests")
        self._data, self._backup = directory / "etcd", directory / "etcd.backup"

    def back_up(self) -> None:
        """While it is not running."""
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        """While it is not running."""
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)

    @property
    def port(self) -> int:
        return self._place[1]

    def wait_ready(self) -> None:
        super().wait_ready()
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_healthy():
            assert time.monotonic() < deadline, "etcd is not healthy"

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(*self._place, timeout=2)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read(1_000)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Node(Process):
    """A broker. `data` is its directory."""

    def __init__(
        self,
        name: str,
        directory: Path,
        hosts: Hosts,
        etcd: str,
        session_ttl: str,
        has_http: bool = False,
        program: Sequence[str] = (str(PENSTOCK),),
    ) -> None:
        at = hosts.address(name)
        self.http = f"{at}:{_free_port(hosts, 7480)}" if has_http else "none"
        self.port = _free_port(hosts, 7420)
        self.data = directory / name
        self._clock = directory / f"{name}.clock"
        self.address = f"{at}:{self.port}"
        command = [*hosts.inside(name), *program, "serve", "--cluster", etcd, "--node-id", name]
        command += ["--data", str(self.data), "--native", self.address, "--http", self.http, "--grpc", "none"]
        command += ["--session-ttl", session_ttl, "--log-level", "debug", "--insecure"]
        super().__init__(name, command, directory / f"{name}.log", r" ready .*native=")

    def use_clock(self) -> None:
        """Give the process a wall clock of its own from its next start on; see `step_clock`."""
        library = find_faketime()
        assert library is not None
        self._clock.write_text("+0s\n")
        self._environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            # The library reads the file again after this many seconds.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def has_clock(self) -> bool:
        """Whether the process runs and has a wall clock of its own."""
        with suppress(FileNotFoundError):  # Another fault has just killed it.
            return str(find_faketime()) in Path(f"/proc/{self.pid}/maps").read_text()
        return False

    def step_clock(self, offset_s: float) -> None:
        """Set the wall clock to this much ahead of, or behind, the machine's."""
        self._clock.write_text(f"{offset_s:+.3f}s\n")

    def wipe(self) -> None:
        """Another, empty disk in its place."""
        assert not self.is_alive
        for each in self.data.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()


class Cluster:
    """Made by `cluster`; everything runs."""

    def __init__(self, etcd: Etcd, nodes: dict[str, Node], spares: Sequence[Node] = ()) -> None:
        """`spares` are not started: they can join, and leave again."""
        self.etcd = etcd
        self.nodes = nodes
        self.spares = {node.name: node for node in spares}

    @property
    def address(self) -> str:
        return "penstock://" + ",".join(node.address for node in self.nodes.values())

    @property
    def processes(self) -> list[Process]:
        return [self.etcd, *self.nodes.values(), *self.spares.values()]

    def process(self, name: str) -> Process:
        return self.etcd if name == self.etcd.name else self.nodes[name]

    def join(self, name: str) -> Node:
        """A spare becomes one of the nodes. The caller starts it."""
        node = self.nodes[name] = self.spares.pop(name)
        return node

    def leave(self, name: str) -> None:
        """A node that has ended becomes a spare again, with an empty disk."""
        node = self.spares[name] = self.nodes.pop(name)
        node.wipe()

    def start(self) -> None:
        self.etcd.start()
        self.etcd.wait_ready()
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_ready()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


@contextmanager
def cluster(
    directory: Path,
    names: Sequence[str] = ("a", "b", "c"),
    *,
    hosts: Hosts | None = None,
    session_ttl: str = "3s",
    has_http: bool = False,
    has_clocks: bool = False,
    spares: Sequence[str] = (),
) -> Iterator[Cluster]:
    """`has_clocks`: the wall clock of each node can be stepped. `spares` are names of nodes that may join later."""
    where = hosts or OneHost()
    etcd = Etcd(directory, where)
    nodes = {name: Node(name, directory, where, etcd.address, session_ttl, has_http) for name in (*names, *spares)}
    if has_clocks:
        for node in nodes.values():
            node.use_clock()
    made = Cluster(etcd, {name: nodes[name] for name in names}, [nodes[name] for name in spares])
    try:
        made.start()
        yield made
    finally:
        made.kill()


def _free_port(hosts: Hosts, usual: int) -> int:
    """On a host of its own the usual one. None is given twice: they are listened on later."""
    if not isinstance(hosts, OneHost):
        return usual
    while (port := free_port()) in _given:
        pass
    _given.add(port)
    return port
