"""A cluster on this machine: a real etcd, and brokers that are processes of their own, each with a directory.

All of them share the processors and the disk of one machine: what three machines would do at once is done here one
after the other. Nodes come and go on other ports each time; clients learn of that from those that are there.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import penstock
from harness import Run, say
from penstock.client.placement import DescribeCluster, FindPlacement, Placed
from penstock.client.requests import Request
from penstock.clock import SystemClock
from penstock.cluster.etcd.process import EtcdProcess
from penstock.net.address import place_of
from penstock.net.connecting import transport_to
from penstock.net.remote import RemoteTransport
from serving import PENSTOCK, Running, cpu_s

R = TypeVar("R")
NODES = ("a", "b", "c")
PATIENCE_S = 120.0
_LOOK_S = 0.01
_READY = re.compile(r" ready .*native=127\.0\.0\.1:(\d+)")


class Node(Running):
    """Not running before `start`. It says what it says to a file: nobody would read so much from a pipe."""

    def __init__(self, name: str, path: Path, etcd: str, session_ttl_s: int) -> None:
        self.name = name
        self.data = path / name
        self.log = path / f"{name}.log"
        self.port = 0
        self._command = [str(PENSTOCK), "serve", "--cluster", etcd, "--node-id", name, "--data", str(self.data)]
        self._command += ["--native", "127.0.0.1:0", "--http", "none", "--grpc", "none"]
        self._command += ["--session-ttl", f"{session_ttl_s}s"]
        self._began = 0

    @property
    def is_alive(self) -> bool:
        return hasattr(self, "_process") and self._process.poll() is None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def data_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())

    def start(self) -> None:
        with self.log.open("a") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=log, text=True)

    def wait_ready(self) -> None:
        until(lambda: self.find_port() or not self.is_alive, f"node {self.name} is ready")
        if not self.is_alive:
            raise RuntimeError(f"node {self.name} ended with {self._process.poll()}: {self.said()[-2_000:]}")

    def find_port(self) -> int:
        found = _READY.search(self.said())
        self.port = int(found[1]) if found else 0
        return self.port

    def said(self) -> str:
        """Since it was last started."""
        with self.log.open() as log:
            log.seek(self._began)
            return log.read()

    def kill(self) -> None:
        if self.is_alive:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """In order: what it leads is led by others first."""
        if self.is_alive:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


class Cluster:
    def __init__(self, etcd: EtcdProcess, nodes: dict[str, Node]) -> None:
        self.etcd = etcd
        self.nodes = nodes

    @property
    def address(self) -> str:
        """Of those that are alive now."""
        return "penstock://" + ",".join(node.address for node in self.nodes.values() if node.is_alive)

    @property
    def etcd_cpu_s(self) -> float:
        return cpu_s(self.etcd.pid)

    def call(self, request: Request[R]) -> R:
        return asyncio.run(ask(self.address, request))

    def knows_all(self, node: Node) -> bool:
        return len(asyncio.run(ask(node.address, DescribeCluster(), is_alone=True)).nodes) == len(self.nodes)

    def placed(self, *topics: str) -> list[Placed]:
        return [each for topic in self.call(FindPlacement(topics)).topics for each in topic.partitions]

    def led_by(self, topic: str) -> dict[int, str]:
        return {each.number: each.leader for each in self.placed(topic)}

    def create(self, topic: str, partitions: int) -> None:
        """With a replica on every node, all of them in sync when this returns."""
        with penstock.connect(self.address) as q:
            q.create_topic(topic, partitions=partitions, replicas=len(self.nodes))
        self.wait_in_sync(topic)

    def wait_in_sync(self, *topics: str) -> None:
        """All replicas that are alive are, and somebody leads each partition."""

        def is_there() -> bool:
            alive = {node.name for node in self.nodes.values() if node.is_alive}
            placed = self.placed(*topics)
            return bool(placed) and all(
                each.leader in alive and set(each.in_sync) == set(each.replicas) & alive for each in placed
            )

        until(is_there, f"the replicas of {', '.join(topics)} are in sync", look_s=0.1)


async def ask(address: str, request: Request[R], *, is_alone: bool = False) -> R:
    """Whoever leads what it is about; or that node itself, if it is asked alone."""
    transport = await (RemoteTransport.to(place_of(address), SystemClock()) if is_alone else transport_to(address))
    try:
        return await transport.call(request)
    finally:
        await transport.close()


def until(is_so: Callable[[], Any], what: str, look_s: float = _LOOK_S) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(look_s)


def has_etcd() -> bool:
    if shutil.which("etcd") is None:
        say("a cluster: skipped, it needs etcd")
        return False
    return True


@contextmanager
def cluster(run: Run, *, session_ttl_s: int = 6) -> Iterator[Cluster]:
    with run.folder() as path:
        etcd = EtcdProcess(path / "etcd")
        etcd.start()
        nodes = {name: Node(name, path, etcd.address, session_ttl_s) for name in NODES}
        try:
            for node in nodes.values():
                node.start()
            for node in nodes.values():
                node.wait_ready()
            made = Cluster(etcd, nodes)
            until(lambda: all(made.knows_all(node) for node in nodes.values()), "the nodes know each other")
            yield made
        finally:
            for node in nodes.values():
                node.kill()
            etcd.kill()
