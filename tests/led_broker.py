"""A broker as it is in a cluster: its partitions come and go, and what is written there counts when others have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from broker_files import Inline
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog, Contents
from penstock.broker.partition import DELIVERIES, MESSAGES, Partition
from penstock.environment import random_id
from penstock.errors import PenstockError
from penstock.storage.log import Log
from penstock.testing import ManualClock, MemoryFiles

Logs = tuple[Log, Log]


class SharedCatalog(Catalog):
    """Of several brokers. Nothing can be changed while there is a `failure`."""

    failure: PenstockError | None = None
    clock: ManualClock

    @classmethod
    def new(cls) -> SharedCatalog:
        clock = ManualClock()
        catalog = cls(MemoryFiles(), Contents(), clock, random_id)
        catalog.clock = clock
        return catalog

    def _save(self, contents: Contents) -> None:
        if self.failure is not None:
            raise self.failure.again()
        super()._save(contents)


class Leading:
    """A broker, and the partitions that it leads. `away`: those of which others have nothing more from now on."""

    def __init__(self, broker: Broker, catalog: SharedCatalog) -> None:
        self.broker = broker
        self.catalog = catalog
        self.away: set[Partition] = set()
        self._led: dict[tuple[str, int], tuple[Logs, Partition]] = {}

    async def create(self, name: str, partitions: int) -> list[Partition]:
        """Of each partition, led here."""
        topic = await self.broker.create_topic(name, partitions)
        logs = [self.broker.directories.logs(identity) for identity in topic.record.partitions]
        return [await self.lead(name, number, each) for number, each in enumerate(logs)]

    async def lead(self, name: str, number: int, logs: Logs) -> Partition:
        topics, topic = self.broker.replicated, self.broker.topic(name)
        for log in logs:
            log.hold_back(log.synced_offset, anew=True)
        led: list[Partition] = []

        def wrote(log: int) -> None:
            if led and led[0] not in self.away:
                led[0].committed(log, logs[log].synced_offset)

        led.append(await topics.lead(topic, logs, wrote))
        self._led[name, number] = logs, led[0]
        topics.show(topic, number, led[0])
        return led[0]

    def lose(self, name: str, number: int) -> Logs:
        """To whoever leads it next, over the same logs."""
        logs, partition = self._led.pop((name, number))
        self.broker.replicated.hide(self.broker.topic(name), number)
        partition.resign()
        return logs

    def come_back(self, partition: Partition) -> None:
        """Others have everything again."""
        self.away.discard(partition)
        partition.committed(MESSAGES, partition.messages.synced_offset)
        partition.committed(DELIVERIES, partition.deliveries.synced_offset)


@asynccontextmanager
async def leading(catalog: SharedCatalog) -> AsyncIterator[Leading]:
    """All on one thread, as `run_inline` does."""
    broker = await Broker.open(
        MemoryFiles(), clock=ManualClock(), executor=Inline(), lone_writes=False, catalog=catalog
    )
    led = Leading(broker, catalog)
    try:
        yield led
    finally:
        for name, number in list(led._led):
            led.lose(name, number)
        await broker.close()


def run_led(work: Callable[[Leading], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), leading(SharedCatalog.new()) as led:
            await work(led)

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)


__all__ = ["Leading", "SharedCatalog", "leading", "run_led", "until"]
