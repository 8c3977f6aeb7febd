"""Rows that nobody waits for: how long they are held back, and with what they are written."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from broker_support import group_on, run
from penstock.broker import deliveries
from penstock.broker.broker import Broker
from penstock.broker.events import Acknowledged, Assigned, pack, unpack
from penstock.broker.offsets import remove_all
from penstock.message import Message
from penstock.storage.log import Log

TOPICS = ["a", "b", "c"]
NEVER_S = 1e6


def log_of(broker: Broker, topic: str) -> Log:
    return broker.topic(topic).partitions[0].groups.log


def told_by(log: Log, offset: int) -> list[str]:
    """The names of what happened, row by row."""
    return [type(event).__name__ for event, _ in deliveries.events_of(log, offset)]


async def written(log: Log, end: int) -> None:
    while log.synced_offset < end:
        await asyncio.sleep(0)


def test_who_has_a_partition_is_written_with_the_next_row_and_not_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "ASSIGNED_HELD_BACK_S", NEVER_S)

    async def work(broker: Broker) -> None:
        for name in TOPICS:
            await broker.create_topic(name, 1)
            await broker.topic(name).publish(Message(b"1"))
        await broker.create_group("g")
        for name in TOPICS:
            await (await group_on(broker, "g", name)).start()
        logs = {name: log_of(broker, name) for name in TOPICS}
        before = {name: log.end_offset for name, log in logs.items()}

        await broker.join("g", "ann", TOPICS)
        (given,) = await broker.poll("g", "ann", ["b"])
        await broker.group("g", "b").ack(given.handed.receipt)
        assert told_by(logs["b"], before["b"]) == ["Assigned", "Leased", "Acknowledged"]
        # All of it in two rows, which are one write.
        assert logs["b"].end_offset == before["b"] + 2
        assert [logs[name].end_offset for name in ("a", "c")] == [before["a"], before["c"]]

        # Whoever asks for what happened does not miss it.
        await broker.topic("a").partitions[0].groups.flushed()
        assert told_by(logs["a"], before["a"]) == ["Assigned"]

    run(work)


def test_who_has_a_partition_is_written_in_time_if_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "ASSIGNED_HELD_BACK_S", 0)

    async def work(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        await (await group_on(broker, "g", "a")).start()
        log = log_of(broker, "a")
        before = log.end_offset
        await broker.join("g", "ann", ["a"])
        await written(log, before + 1)
        assert told_by(log, before) == ["Assigned"]

    run(work)


def test_what_may_wait_for_long_is_written_with_what_may_not() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        await (await group_on(broker, "g", "a")).start()
        ledger, log = broker.topic("a").partitions[0].groups._ledger, log_of(broker, "a")
        before = log.end_offset
        ledger.note([Assigned("g", "ann", 1, "joined", True)], 1, NEVER_S)
        ledger.note([Assigned("g", "bob", 2, "joined", True)], 1, 0)
        await written(log, before + 1)
        assert told_by(log, before) == ["Assigned", "Assigned"]

    run(work)


def test_what_may_wait_is_not_written_because_something_before_it_could_not() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        await (await group_on(broker, "g", "a")).start()
        ledger, log = broker.topic("a").partitions[0].groups._ledger, log_of(broker, "a")
        before = log.end_offset
        ledger.note([Assigned("g", "ann", 1, "joined", True)], 1, 0)
        ledger.flush()
        ledger.note([Assigned("g", "bob", 2, "joined", True)], 1, NEVER_S)
        # The timer of the first one looks, finds the second one, and leaves it.
        while ledger._looks_at < asyncio.get_running_loop().time() + NEVER_S / 2:
            await asyncio.sleep(0)
        await ledger.journal.settled()
        assert log.end_offset == before + 1
        await ledger.flushed()
        assert log.end_offset == before + 2

    run(work)


def test_a_set_with_a_hole_is_written_as_runs() -> None:
    offsets = BitMap64(range(70_000, 71_000)) - BitMap64([70_500])
    packed = pack(offsets)
    assert len(packed) < 64
    assert unpack(packed) == offsets == BitMap64(range(70_000, 71_000)) - BitMap64([70_500])
    assert pack(BitMap64()) == b""


@pytest.mark.parametrize("gone", [[], [5], [5, 6, 7], [0, 9], [1, 3, 5, 7], list(range(10)), [20, 21], [9, 10, 11]])
def test_removing_a_set_from_another_is_their_difference(gone: list[int]) -> None:
    offsets = BitMap64(range(10))
    remove_all(offsets, BitMap64(gone))
    assert sorted(offsets) == [offset for offset in range(10) if offset not in gone]


def test_an_acknowledgement_of_all_but_one_takes_few_bytes_in_the_log() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        group = await group_on(broker, "g", "a")
        await asyncio.gather(*[topic.publish(Message(b"x")) for _ in range(1_000)])
        handed = [one for _ in range(10) for one in await group.lease("c", 1_000)]
        log = log_of(broker, "a")
        for receipt, _ in handed:
            last = BitMap64([receipt.offsets.max()])
            if len(receipt.offsets) > 2:
                middle = BitMap64([receipt.offsets[len(receipt.offsets) // 2]])
                await group.nack(receipt._replace(offsets=middle), delay_us=0)
                last |= middle
            rest = receipt.offsets - last
            before = log.end_offset
            await group.ack(receipt._replace(offsets=rest))
            found = [event for event, _ in deliveries.events_of(log, before) if isinstance(event, Acknowledged)]
            assert [unpack(event.offsets) for event in found] == [rest]
            assert all(len(event.offsets) < 64 for event in found)

    run(work)
