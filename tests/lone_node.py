"""A node that is a cluster by itself, over an etcd in memory: with a real broker, and a disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from etcd_support import run
from penstock.broker.broker import Broker as Queue
from penstock.client.placement import NodeInfo
from penstock.clock import SystemClock
from penstock.cluster.catalog import ClusterCatalog
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.core.election import Copy, first
from penstock.cluster.core.record import PartitionRecord, encode
from penstock.cluster.etcd.session import BootTime
from penstock.cluster.etcd.store import Put
from penstock.cluster.node import Node
from penstock.cluster.tombstones import tombstone
from penstock.errors import PenstockError
from penstock.testing import FakeEtcd, ManualTime, MemoryFiles


class _Passing(BootTime):
    """Time as it passes, for an etcd that otherwise would have it told."""

    def on_move(self, listener: Callable[[], None]) -> None:
        pass


class LoneNode:
    """`node` is there from `open` on; `broken` has what ended it; `has_queue` says whether its broker was opened."""

    node: Node

    def __init__(self) -> None:
        self.etcd = FakeEtcd(cast(ManualTime, _Passing()))
        self.broken: asyncio.Queue[PenstockError] = asyncio.Queue()
        self.has_queue = False
        self._executor = ThreadPoolExecutor(2)
        self._files = MemoryFiles()

    async def open(self, **options: Any) -> None:
        """Also again, after `close`: with the disk that it had."""
        files, clock = self._files, SystemClock()
        files.lock()

        async def open_queue(catalog: ClusterCatalog) -> Queue:
            self.has_queue = True
            consumers = partial(ClusterConsumers, catalog=catalog)
            return await Queue.open(files, clock=clock, executor=self._executor, catalog=catalog, consumers=consumers)

        try:
            self.node = await Node.open(
                "a", self.etcd.store(), files, open_queue, clock=clock, broke=self.broken.put_nowait, **options
            )
        except BaseException:
            files.close()
            raise
        self.node.controller.ask_for_copies = self._own_copies

    async def _own_copies(self, ids: tuple[str, ...]) -> dict[str, dict[str, Copy]]:
        """There is no other node, and so no connection to one."""
        sites = {identity: hosted.replica.site for identity, hosted in self.node.hosted.items() if identity in ids}
        return {identity: {"a": Copy(site.last_epoch, site.ends)} for identity, site in sites.items()}

    async def join(self) -> None:
        await self.node.join(NodeInfo("a", "127.0.0.1:1", "", "", "", ""))

    async def close(self) -> None:
        await self.node.close()
        await self.node.queue.close()
        self._files.close()

    @property
    def copies(self) -> list[str]:
        """The ids of the partitions that are on its disk."""
        return self.node.queue.directories.names()

    def put(self, identity: str, record: PartitionRecord | None = None) -> PartitionRecord:
        """A partition of no topic, which the node leads."""
        record = record or first("t", 0, ("a",), 1, self.node.members.live)
        self.etcd.commit({}, [Put(self.node.keys.partition(identity), encode(record))], [])
        return record

    def delete(self, identity: str) -> None:
        """As a topic's partitions are."""
        self.etcd.commit({}, [tombstone(self.node.keys, "t", [identity], SystemClock().now_us())], [])
        self.forget(identity)

    def forget(self, identity: str) -> None:
        """The record is gone, and nobody has deleted it."""
        self.etcd.commit({}, [], [self.node.keys.partition(identity)])

    async def until(self, holds: Callable[[], bool]) -> None:
        """As soon as it does: what is waited for is done by threads, and seen by the loop."""
        while not holds():
            await asyncio.sleep(0)


def on_node(work: Callable[[LoneNode], Awaitable[None]]) -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        await lone.join()
        try:
            await work(lone)
        finally:
            await lone.close()

    run(main)
