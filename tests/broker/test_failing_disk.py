"""A disk that fails under what nobody waits for, or waits for no more: nobody builds on what is not there."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from broker_files import PathFiles, hold_deliveries, hold_messages, run_inline, turns
from broker_support import group_on
from penstock.broker.broker import Broker
from penstock.errors import DiskFull, Fatal, PenstockError, SyncFailed
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.testing import Fault, MemoryDisk, MemoryFiles


def test_an_acknowledgement_behind_a_row_that_was_not_written_is_not_told_and_the_log_can_be_read() -> None:
    """The loop does not know yet that the row ahead of it failed, and hands in the next one."""
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []
    faults: list[Fault] = []
    second: list[asyncio.Future[Committed]] = []
    brokers: list[Broker] = []

    def before_each(kind: str, path: str) -> Fault | None:
        if not faults or kind not in ("write", "write_at") or "/deliveries/" not in path:
            return None
        groups = brokers[0].topic("t").partition(0).groups
        (lease,) = groups.state("g").leases
        second.append(groups._write([groups.state("g").ack(lease, BitMap64([1]))]))
        return faults.pop()

    async def before(broker: Broker) -> None:
        brokers.append(broker)
        topic = await broker.create_topic("t", 1)
        for _ in range(2):
            await topic.publish(Message(b"x"))
        group = await group_on(broker, "g", "t")
        await group.start()
        # Nobody waits for the row of the lease; it goes with that of the acknowledgement.
        (handed,) = await group.lease("c", 2)
        executor = hold_deliveries(broker, topic.partition(0))
        first = asyncio.create_task(group.ack(handed.receipt._replace(offsets=BitMap64([0]))))
        await turns()
        faults.append(Fault(DiskFull("no space left")))
        executor.go_on()
        for answer in (first, second[0]):
            with pytest.raises(DiskFull):
                await answer
        killed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        (handed,) = await broker.group("g", "t").lease("c", 2)
        assert list(handed.receipt.offsets) == [0, 1]

    run_inline(before, PathFiles(MemoryFiles(disk), before_each))
    run_inline(after, MemoryFiles(killed[0]))


@pytest.mark.parametrize(
    ("error", "kind", "stops"),
    [(SyncFailed("input/output error"), "sync", True), (DiskFull("no space left"), "write", False)],
)
def test_the_broker_stops_after_a_failed_sync_of_messages_that_nobody_waits_for_any_more(
    error: PenstockError, kind: str, stops: bool
) -> None:
    faults: list[Fault] = []

    def before_each(operation: str, path: str) -> Fault | None:
        return faults.pop() if faults and operation == kind and "/messages/" in path else None

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        executor = hold_messages(broker, topic.partition(0))
        publishing = asyncio.create_task(topic.publish(Message(b"x")))
        await turns()
        publishing.cancel()
        await turns()
        faults.append(Fault(error))
        executor.go_on()
        await turns()
        assert not faults
        if stops:
            with pytest.raises(Fatal, match="input/output error"):
                await broker.tick()
        else:
            await broker.tick()
            await topic.publish(Message(b"y"))

    run_inline(work, PathFiles(MemoryFiles(), before_each))
