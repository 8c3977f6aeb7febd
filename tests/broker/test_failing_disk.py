"""A disk that fails under what nobody waits for, or waits for no more: nobody builds on what is not there."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from broker_files import PathFiles, hold_deliveries, hold_messages, run_inline, turns
from broker_support import group_on
from penstock.broker.broker import Broker
from penstock.broker.group import Group
from penstock.errors import DiskFull, Fatal, NotCommitted, PenstockError, SyncFailed
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.testing import Fault, ManualClock, MemoryDisk, MemoryFiles


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
            with pytest.raises(NotCommitted):
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


class Full:
    """A disk that has no room for deliveries while it is full."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.is_full = False

    @property
    def files(self) -> PathFiles:
        return PathFiles(MemoryFiles(self.disk), self._before)

    def _before(self, kind: str, path: str) -> Fault | None:
        is_hit = self.is_full and kind in ("write", "write_at", "create") and "/deliveries/" in path
        return Fault(DiskFull("no space left")) if is_hit else None


async def leased(broker: Broker) -> Group:
    """With three messages in flight."""
    topic = await broker.create_topic("t", 1)
    for value in (b"0", b"1", b"2"):
        await topic.publish(Message(value))
    group = await group_on(broker, "g", "t")
    await group.start()
    return group


def test_acks_go_on_by_themselves_once_a_full_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.journal.ROOM_S", 0.001)
    full = Full()

    async def before(broker: Broker) -> None:
        group = await leased(broker)
        (handed,) = await group.lease("c", 2)
        receipts = [handed.receipt._replace(offsets=BitMap64([offset])) for offset in (0, 1)]
        full.is_full = True
        with pytest.raises(NotCommitted):
            await group.ack(receipts[0])
        for refused in (group.ack(receipts[1]), group.ack(receipts[0], again=True), group.lease("c", 1)):
            with pytest.raises(DiskFull):
                await refused
        # What happens by itself does not end the broker.
        await broker.tick()
        await broker.maintain()
        # Messages have a log of their own.
        await broker.topic("t").publish(Message(b"3"))

        full.is_full = False
        while broker.topic("t").partition(0).groups.lacks_room:
            await asyncio.sleep(0)
        await group.ack(receipts[0], again=True)
        await group.ack(receipts[1])
        (handed,) = await group.lease("c", 9)
        assert list(handed.receipt.offsets) == [2, 3]

    async def after(broker: Broker) -> None:
        assert broker.group("g", "t").lag() == [2]

    run_inline(before, full.files)
    run_inline(after, full.files)


def test_a_broker_whose_disk_is_full_ends_and_the_next_one_goes_on_from_what_was_written() -> None:
    full = Full()

    async def before(broker: Broker) -> None:
        group = await leased(broker)
        (handed,) = await group.lease("c", 2)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        full.is_full = True
        with pytest.raises(NotCommitted):
            await group.ack(handed.receipt._replace(offsets=BitMap64([1])))

    async def after(broker: Broker) -> None:
        full.is_full = False
        assert broker.group("g", "t").lag() == [2]

    run_inline(before, full.files)
    run_inline(after, full.files)


def test_deleting_a_group_waits_for_room_and_its_successor_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.journal.ROOM_S", 0.001)
    monkeypatch.setattr("penstock.broker.groups.ROOM_S", 0.001)
    full = Full()

    async def work(broker: Broker) -> None:
        group = await leased(broker)
        (handed,) = await group.lease("c", 3)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        full.is_full = True
        with pytest.raises(NotCommitted):
            await group.ack(handed.receipt._replace(offsets=BitMap64([1])))
        deleting = asyncio.ensure_future(broker.delete_group("g"))
        await turns()
        assert not deleting.done()
        full.is_full = False
        await deleting
        group = await group_on(broker, "g", "t")
        await group.start()
        (handed,) = await group.lease("c", 3)
        assert list(handed.receipt.offsets) == [0, 1, 2]

    run_inline(work, full.files)


def test_a_partition_that_takes_no_more_keeps_no_other_from_its_tick() -> None:
    full = Full()

    async def work(broker: Broker) -> None:
        group = await leased(broker)
        (handed,) = await group.lease("c", 1)
        later = await broker.create_topic("u", 1)
        clock = later.partition(0).groups._clock
        assert isinstance(clock, ManualClock)
        await later.publish(Message(b"later", deliver_at=clock.now_us() + 1_000_000))
        full.is_full = True
        with pytest.raises(NotCommitted):
            await group.ack(handed.receipt)
        full.is_full = False
        assert broker.topic("t").partition(0).groups.lacks_room, "it is not tried again yet"
        clock.advance_us(2_000_000)
        await broker.tick()
        assert not later.partition(0).groups.delays.pending

    run_inline(work, full.files)
