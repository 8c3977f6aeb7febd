"""Real brokers of a cluster on a thread of this process, over a real etcd, and what an operator asks of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from penstock.client.cluster_requests import ClusterReport, ElectLeaders, PartitionReport, SurveyCluster
from penstock.client.requests import CreateTopic, Request
from penstock.cluster.node import Node
from penstock.net.connecting import transport_to
from penstock.server.config import Address, Config
from penstock.server.server import Ready, Server
from stalling import loop_watched

R = TypeVar("R")
T = TypeVar("T")

WITHIN_S = 30.0
_numbers = count()


class Running:
    """A server, and where it is."""

    def __init__(self, server: Server, task: asyncio.Task[None], where: Ready) -> None:
        self.server = server
        self.task = task
        self.where = where

    @property
    def native(self) -> str:
        return str(self.where.native)


class LocalCluster:
    """Used from the thread of the test; the nodes live on another one."""

    def __init__(self, directory: Path, etcd: str) -> None:
        self._directory = directory
        self._etcd = etcd
        # Several in one etcd do not know of each other.
        self.name = f"test-{next(_numbers)}"
        self.nodes: dict[str, Running] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(WITHIN_S):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    # --- nodes -------------------------------------------------------------------------------------------

    def start(self, *names: str, **settings: Any) -> None:
        async def start() -> None:
            await asyncio.gather(*[self._start(name, dict(settings)) for name in names])

        self.run(start())

    async def _start(self, name: str, settings: dict[str, Any]) -> None:
        config = Config(
            data=settings.pop("data", str(self._directory / name)),
            native=settings.pop("native", Address("127.0.0.1", 0)),
            http=settings.pop("http", None),
            grpc=settings.pop("grpc", None),
            cluster=settings.pop("etcd", self._etcd),
            cluster_name=self.name,
            node_id=name,
            **settings,
        )
        server, ready = Server(config), asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(server.run(ready.set_result))
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task
        self.nodes[name] = Running(server, task, ready.result())

    def start_alone(self, data: Path) -> None:
        """A broker in no cluster, until it ends."""
        self.run(Server(Config(data=str(data), native=Address("127.0.0.1", 0), http=None, grpc=None)).run())

    def stop(self, name: str) -> None:
        """As by SIGTERM."""

        async def stop() -> None:
            running = self.nodes.pop(name)
            running.server.stop()
            await running.task

        self.run(stop())

    def close(self) -> None:
        for name in list(self.nodes):
            self.stop(name)
        self.run(self._settled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _settled(self) -> None:
        """Connections that were being made or let go of have a turn to end: their sockets are nobody's otherwise."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=WITHIN_S / 2)
        for _ in range(3):
            await asyncio.sleep(0)

    # --- what is asked of them ---------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return "penstock://" + ",".join(running.native for running in self.nodes.values())

    @property
    def _home(self) -> str:
        """Always the same node as long as it runs: what one has told, another may not have heard of yet."""
        return "penstock://" + next(iter(self.nodes.values())).native

    def call(self, request: Request[R]) -> R:
        return self.run(self._call(request))

    async def _call(self, request: Request[R]) -> R:
        transport = await transport_to(self._home)
        try:
            return await transport.call(request)
        finally:
            await transport.close()

    def create(self, topic: str, partitions: int, **settings: Any) -> None:
        self.call(CreateTopic(topic, partitions, settings))
        # Whichever node is asked next knows of it.
        for running in list(self.nodes.values()):
            self.until(lambda report: is_led(report, topic), "penstock://" + running.native)

    def lead_without_all(self, topic: str, leader: str, follower: str) -> None:
        """Of its first partition: the only one that has everything is gone, and an operator has another lead it."""
        self.stop(leader)
        self.start(follower)
        self.until(lambda report: any(node.id == follower and node.is_alive for node in report.nodes))
        self.call(ElectLeaders(topic, 0, follower, is_unclean=True))
        self.until(lambda report: found(report, topic, 0).leader == follower)

    def report(self) -> ClusterReport:
        return self.call(SurveyCluster())

    def partition(self, topic: str, number: int) -> PartitionReport:
        return found(self.report(), topic, number)

    def until(self, holds: Callable[[ClusterReport], bool], address: str = "") -> ClusterReport:
        """As soon as it does. Whatever a cluster becomes shows in etcd, or in how far its logs go."""

        async def wait() -> ClusterReport:
            transport = await transport_to(address or self._home)
            try:
                while not holds(report := await transport.call(SurveyCluster())):
                    await asyncio.sleep(0)
                return report
            finally:
                await transport.close()

        return self.run(wait())


def is_led(report: ClusterReport, topic: str) -> bool:
    """And all others, too."""
    of_topic = [each for each in report.partitions if each.topic == topic]
    return bool(of_topic) and all(each.leader and each.end_offset > 0 for each in report.partitions)


def found(report: ClusterReport, topic: str, number: int) -> PartitionReport:
    (partition,) = [each for each in report.partitions if (each.topic, each.number) == (topic, number)]
    return partition


def node_of(cluster: LocalCluster, name: str) -> Node:
    """Behind the doors."""
    return cluster.nodes[name].server._doors[0].feeding.changed.__self__  # type: ignore[attr-defined,no-any-return]


@contextmanager
def local_cluster(directory: Path, etcd: str, *names: str, **settings: Any) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory, etcd)
    try:
        cluster.start(*names, **settings)
        with loop_watched():
            yield cluster
    finally:
        cluster.close()
