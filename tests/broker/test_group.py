"""Groups, through the broker: leases, answers, and what of them survives."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from pyroaring import BitMap64

from broker_support import broker_on, group_on, run
from penstock.batch import Batch
from penstock.broker import ledger
from penstock.broker.broker import Broker
from penstock.broker.events import Unparked
from penstock.broker.group import Group, Handed, Receipt
from penstock.broker.settings import DAY_US, GroupSettings, TopicSettings
from penstock.errors import (
    DiskFull,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    LeaseNotFound,
    LogCorrupt,
    NotCommitted,
    NotLeased,
    Overloaded,
    PartitionNotFound,
)
from penstock.message import Message
from penstock.server.metrics import rendered
from penstock.server.metrics_broker import of_broker
from penstock.storage.compaction import compact
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation

WRITES = ("write", "write_at")
SETTINGS = GroupSettings(
    visibility_us=1000,
    max_retries=2,
    backoff_initial_us=100,
    backoff_factor=2,
    backoff_max_us=1000,
    backoff_jitter=0,
)


def values_of(handed: list[Handed]) -> list[bytes | None]:
    values: list[bytes | None] = []
    for receipt, frames in handed:
        for frame in frames:
            batch = frame.batch()
            rows = zip(frame.offsets(batch).tolist(), batch.values(), strict=True)
            values += [value for offset, value in rows if offset in receipt.offsets]
    return values


def clock_of(broker: Broker) -> ManualClock:
    clock = broker._clock
    assert isinstance(clock, ManualClock)
    return clock


async def filled(broker: Broker, count: int = 10, partitions: int = 1) -> Group:
    topic = await broker.create_topic("t", partitions)
    await topic.publish_batch(
        Batch.from_columns([b"%d" % i for i in range(count)], keys=[b"k%d" % i for i in range(count)], now_us=1)
    )
    return await group_on(broker, "g", "t", SETTINGS)


def test_messages_are_leased_acknowledged_and_do_not_come_again() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker)
        handed = await group.lease("c", 6)
        assert values_of(handed) == [b"%d" % i for i in range(6)]
        assert group.lag() == [10]
        await group.ack(handed[0].receipt)
        assert group.lag() == [4]
        assert values_of(await group.lease("c", 100)) == [b"6", b"7", b"8", b"9"]
        assert await group.lease("c", 100) == []

    run(work)


def test_every_partition_is_leased_from() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 60, partitions=4)
        seen: list[bytes | None] = []
        while handed := await group.lease("c", 7):
            seen += values_of(handed)
            for receipt, _ in handed:
                await group.ack(receipt)
        assert sorted(seen, key=lambda v: int(v or b"0")) == [b"%d" % i for i in range(60)]
        assert group.lag() == [0, 0, 0, 0]

    run(work)


def test_consumers_that_ask_by_turns_get_to_all_their_partitions() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 400, partitions=4)
        mine = {"ann": [0, 1], "bob": [2, 3]}
        seen = set()
        for _ in range(4):
            for name, partitions in mine.items():
                for handed in await group.lease(name, 5, partitions=partitions):
                    seen.add(handed.receipt.partition)
        assert seen == {0, 1, 2, 3}

    run(work)


def test_groups_do_not_influence_one_another() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker)
        other = await group_on(broker, "other", "t", SETTINGS)
        (handed,) = await group.lease("c", 10)
        await group.ack(handed.receipt)
        assert len(values_of(await other.lease("c", 10))) == 10
        with pytest.raises(LeaseNotFound):
            await other.ack(handed.receipt)

    run(work)


def test_a_message_whose_lease_expired_comes_again_with_its_attempt() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 1)
        (first,) = await group.lease("c", 1)
        clock_of(broker).advance_us(999)
        assert await group.lease("c", 1) == []
        clock_of(broker).advance_us(1)
        (second,) = await group.lease("c", 1)
        assert group.attempt(second.receipt, 0) == 2
        with pytest.raises(LeaseNotFound):
            await group.ack(first.receipt)
        await group.ack(second.receipt)

    run(work)


def test_a_nacked_message_waits_and_others_flow() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 3)
        (handed,) = await group.lease("c", 1)
        await group.nack(handed.receipt, reason="not now", delay_us=5_000)
        assert values_of(await group.lease("c", 10)) == [b"1", b"2"]
        clock_of(broker).advance_us(4_999)
        assert b"0" not in values_of(await group.lease("c", 10))
        clock_of(broker).advance_us(1)
        assert b"0" in values_of(await group.lease("c", 10))

    run(work)


def test_reject_release_and_extend_do_what_they_say() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 3)
        (handed,) = await group.lease("c", 3)
        partition, lease, _ = handed.receipt
        await group.reject(Receipt(partition, lease, BitMap64([0])), "bad")
        await group.release(Receipt(partition, lease, BitMap64([1])))
        await group.extend(Receipt(partition, lease, BitMap64([2])), 50_000)
        clock_of(broker).advance_us(10_000)
        (again,) = await group.lease("c", 3)
        assert values_of([again]) == [b"1"]
        assert group.attempt(again.receipt, 1) == 1
        await group.ack(Receipt(partition, lease, BitMap64([2])))
        assert group.lag() == [1]

    run(work)


def test_only_who_still_holds_a_message_can_extend_its_lease() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 2)
        (handed,) = await group.lease("c", 2)
        first, second = (handed.receipt._replace(offsets=BitMap64([offset])) for offset in (0, 1))
        await group.ack(first)
        for wrong in (first, handed.receipt):
            with pytest.raises(NotLeased):
                await group.extend(wrong, 50_000)
        await group.extend(second, 2_000)
        # Without offsets, all that is left is meant.
        await group.extend(second._replace(offsets=BitMap64()), 50_000)
        clock_of(broker).advance_us(10_000)
        assert await group.lease("c", 2) == []
        await group.ack(second)
        for receipt in (first, second, handed.receipt, second._replace(offsets=BitMap64())):
            with pytest.raises(LeaseNotFound):
                await group.extend(receipt)

    run(work)


def test_in_flight_is_bounded() -> None:
    async def work(broker: Broker) -> None:
        await filled(broker, 10)
        group = await group_on(broker, "bounded", "t", GroupSettings(max_in_flight=4))
        (handed,) = await group.lease("c", 10)
        assert len(handed.receipt.offsets) == 4
        assert await group.lease("c", 10) == []
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        assert values_of(await group.lease("c", 10)) == [b"4"]

    run(work)


def test_a_lease_is_bounded_by_bytes_but_holds_a_frame_at_least() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for i in range(5):
            await topic.publish(Message(b"%d" % i * 100_000))
        group = await group_on(broker, "g", "t", SETTINGS)
        assert [len(values_of(await group.lease("c", 10, bytes_max=n))) for n in (1, 250_000, 1 << 20)] == [1, 2, 2]

    run(work)


def test_seek_moves_the_group_and_lets_its_leases_go() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 5)
        (handed,) = await group.lease("c", 5)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0, 1])))
        await group.seek("earliest")
        with pytest.raises(LeaseNotFound):
            await group.ack(handed.receipt._replace(offsets=BitMap64([2])))
        assert len(values_of(await group.lease("c", 10))) == 5
        await group.seek("latest")
        assert group.lag() == [0]
        await group.seek(time_us=clock_of(broker).now_us())
        assert group.lag() == [5]
        with pytest.raises(InvalidInput):
            await group.seek("yesterday")  # type: ignore[arg-type]

    run(work)


def test_a_group_that_starts_at_the_latest_gets_what_comes_then() -> None:
    async def work(broker: Broker) -> None:
        await filled(broker, 5)
        group = await group_on(broker, "late", "t", GroupSettings(start="latest"))
        assert group.lag() == [0]
        assert await group.lease("c", 10) == []
        await broker.topic("t").publish(Message(b"new"))
        assert values_of(await group.lease("c", 10)) == [b"new"]

    run(work)


def test_messages_that_retention_or_compaction_removed_are_not_waited_for() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        log = topic.partitions[0].messages
        keys = [b"a", b"b", b"a", b"c", b"a"]
        await topic.publish_batch(Batch.from_columns([b"%d" % i for i in range(5)], keys=keys, now_us=1))
        log.roll()
        compact(log, now_us=1, tombstone_age_us=1)
        group = await group_on(broker, "g", "t", SETTINGS)
        (handed,) = await group.lease("c", 10)
        assert values_of([handed]) == [b"1", b"3", b"4"]
        assert list(handed.receipt.offsets) == [1, 3, 4]
        await group.ack(handed.receipt)
        assert group.lag() == [0]
        await topic.publish(Message(b"5"))
        await topic.publish(Message(b"6"))
        other = await group_on(broker, "other", "t", SETTINGS)
        await other.seek("earliest")
        log.delete_prefix(6)
        assert values_of(await other.lease("c", 10)) == [b"6"]
        assert other.lag() == [1]

    run(work)


def test_acknowledgements_leases_and_waits_survive_a_kill() -> None:
    disk = MemoryDisk()
    kept: list[Receipt] = []
    killed: list[MemoryDisk] = []

    async def first(broker: Broker) -> None:
        group = await filled(broker, 10)
        (handed,) = await group.lease("c", 6)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0, 2])))
        await group.nack(handed.receipt._replace(offsets=BitMap64([1])), delay_us=700)
        kept.append(handed.receipt._replace(offsets=BitMap64([3, 4, 5])))
        killed.append(disk.after_kill())

    async def second(broker: Broker) -> None:
        group = await group_on(broker, "g", "t", SETTINGS)
        assert group.lag() == [8]
        await group.ack(kept[0]._replace(offsets=BitMap64([3])))
        assert values_of(await group.lease("c", 10)) == [b"6", b"7", b"8", b"9"]
        clock_of(broker).advance_us(700)
        assert values_of(await group.lease("c", 10)) == [b"1"]
        clock_of(broker).advance_us(10_000)
        await group.lease("c", 10)
        clock_of(broker).advance_us(10_000)
        assert {b"4", b"5"} <= set(values_of(await group.lease("c", 10)))

    run(first, MemoryFiles(disk))
    run(second, MemoryFiles(killed[0]))


def test_an_id_of_a_lease_that_a_crash_forgot_is_never_somebody_elses() -> None:
    disk = MemoryDisk()

    async def ids() -> int:
        async with broker_on(MemoryFiles(disk.after_kill())) as broker:
            (handed,) = await (await group_on(broker, "g", "t", SETTINGS)).lease("c", 1)
            return handed.receipt.lease

    async def main() -> None:
        async with broker_on(MemoryFiles(disk)) as broker:
            await filled(broker, 3)
        assert await ids() != await ids()

    asyncio.run(main())


def test_wrong_answers_are_refused_and_change_nothing() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker, 5)
        (handed,) = await group.lease("c", 3)
        receipt = handed.receipt
        await group.ack(receipt._replace(offsets=BitMap64([0])))
        for error, wrong in (
            (NotLeased, receipt._replace(offsets=BitMap64([0]))),
            (NotLeased, receipt._replace(offsets=BitMap64([4]))),
            (NotLeased, receipt._replace(offsets=BitMap64())),
            (LeaseNotFound, receipt._replace(lease=receipt.lease + 1)),
            (LeaseNotFound, receipt._replace(lease=-1)),
            (PartitionNotFound, receipt._replace(partition=9)),
        ):
            for answer in (group.ack, group.nack, group.release, lambda r: group.reject(r, "no")):
                with pytest.raises(error):
                    await answer(wrong)
        for delay in (-1, 1.5, "5s"):
            with pytest.raises(InvalidInput):
                await group.nack(receipt._replace(offsets=BitMap64([1])), delay_us=delay)  # type: ignore[arg-type]
        for count in (0, -1, 10_001, 2.5):
            with pytest.raises(InvalidInput):
                await group.lease("c", count)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await group.extend(receipt, 0)
        for name in ("", "../x", "__own"):
            with pytest.raises(InvalidName):
                broker.group(name, "t")
            with pytest.raises(InvalidName):
                await group.lease(name, 1)
        with pytest.raises(InvalidSetting):
            GroupSettings(visibility_us=0)
        with pytest.raises(InvalidSetting):
            GroupSettings(start="middle")  # type: ignore[arg-type]
        assert group.lag() == [4]
        await group.ack(receipt._replace(offsets=BitMap64([1, 2])))

    run(work)


def test_an_acknowledgement_that_can_not_be_written_is_not_called_one() -> None:
    disk = MemoryDisk()
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if state["full"] and operation.kind in WRITES else None

    async def first(broker: Broker) -> None:
        group = await filled(broker, 3)
        (handed,) = await group.lease("c", 3)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        state["full"] = True
        with pytest.raises(NotCommitted):
            await group.ack(handed.receipt._replace(offsets=BitMap64([1])))
        for action in (lambda: group.ack(handed.receipt), lambda: group.lease("c", 1)):
            with pytest.raises(DiskFull):
                await action()

    async def second(broker: Broker) -> None:
        state["full"] = False
        group = await group_on(broker, "g", "t", SETTINGS)
        assert group.lag() == [2], "what was answered for is done, what was not is not"

    run(first, FaultyFiles(MemoryFiles(disk), before))
    run(second, MemoryFiles(disk))


def test_an_event_that_is_refused_for_overload_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is only in memory, and its acknowledgement on disk, would make a log that no start can read."""
    disk = MemoryDisk()

    async def first(broker: Broker) -> None:
        group = await filled(broker, 5)
        (handed,) = await group.lease("c", 2)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        journal = broker.topic("t").partitions[0].groups._ledger.journal
        with monkeypatch.context() as patch:

            def refuse(item: object) -> None:
                raise Overloaded("too much is waiting")

            patch.setattr(journal, "write", refuse)
            patch.setattr(journal, "post", refuse)
            with pytest.raises(Overloaded):
                await group.ack(handed.receipt._replace(offsets=BitMap64([1])))
            # A lease need not be written at once; but not any number of them may wait.
            patch.setattr(ledger, "HELD_BACK_MAX", 0)
            with pytest.raises(Overloaded):
                await group.extend(handed.receipt._replace(offsets=BitMap64([1])))
            patch.setattr(broker.topic("t").partitions[0].groups._ledger, "_held_back", [([Unparked("g", ())], 1)])
            with pytest.raises(Overloaded):
                await group.lease("c", 2)
        assert group.lag() == [4]
        await group.ack(handed.receipt._replace(offsets=BitMap64([1])))
        assert values_of(await group.lease("c", 2)) == [b"2", b"3"]

    async def second(broker: Broker) -> None:
        assert (await group_on(broker, "g", "t", SETTINGS)).lag() == [3]

    run(first, MemoryFiles(disk))
    run(second, MemoryFiles(disk))


def test_giving_up_waiting_does_not_hide_that_an_event_was_not_written() -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if state["full"] and operation.kind in WRITES else None

    async def work(broker: Broker) -> None:
        group = await filled(broker, 3)
        (handed,) = await group.lease("c", 3)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0])))
        state["full"] = True
        impatient = asyncio.ensure_future(group.ack(handed.receipt._replace(offsets=BitMap64([1]))))
        waiting = asyncio.ensure_future(group.ack(handed.receipt._replace(offsets=BitMap64([2]))))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(NotCommitted):
            await waiting
        with pytest.raises(DiskFull):
            await group.lease("c", 1)
        state["full"] = False

    run(work, FaultyFiles(MemoryFiles(), before))


def test_a_deliveries_log_that_makes_no_sense_is_refused() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def first(broker: Broker) -> None:
        group = await filled(broker, 3)
        await group.lease("c", 3)
        await broker.topic("t").partitions[0].groups._ledger.journal.commit(Message(b"nonsense"))
        killed.append(disk.after_kill())

    async def again(broker: Broker) -> None: ...

    run(first, MemoryFiles(disk))
    with pytest.raises(LogCorrupt):
        run(again, MemoryFiles(killed[0]))


def test_nothing_is_handed_out_of_a_lease_that_ran_out_before_others_knew_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker)
        groups = group.topic.partition(0).groups
        flushed = groups.flushed

        async def late() -> None:
            """As of a partition whose followers are slow."""
            clock_of(broker).advance_us(SETTINGS.visibility_us)
            list(groups.ticks())
            await flushed()

        group.topic.is_replicated = groups.is_replicated = True
        monkeypatch.setattr(groups, "flushed", late)
        assert await group.lease("c", 6) == []
        monkeypatch.setattr(groups, "flushed", flushed)
        again = await group.lease("c", 100)
        assert sorted(values_of(again)) == [b"%d" % i for i in range(10)]
        assert {groups.state("g").attempts[offset] for offset in range(6)} == {2}

    run(work)


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_lag_counts_only_messages_that_are_in_the_log(cleanup: Literal["delete", "compact"]) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(cleanup=cleanup))
        started, clock = await group_on(broker, "started", "t"), clock_of(broker)
        await started.start()
        later = await group_on(broker, "later", "t")
        await topic.publish(Message(b"next year", b"delayed", deliver_at=clock.now_us() + 365 * DAY_US))
        for number in range(9):
            await topic.publish(Message(b"%d" % number, b"key"))
        assert [started.lag(), later.lag()] == [[10], [10]]
        clock.advance_us(8 * DAY_US)
        topic.partition(0).messages.roll()
        await broker.maintain()
        left = 1 if cleanup == "delete" else 2
        assert [started.lag(), later.lag()] == [[left], [left]]
        assert values_of(await started.lease("c", 10)) == ([] if cleanup == "delete" else [b"8"])
        assert started.lag() == [left]
        lines = rendered(await of_broker(broker)).splitlines()
        assert f'penstock_group_lag{{group="started",topic="t",partition="0"}} {left}' in lines

    run(work)


def test_lag_does_not_count_what_retention_has_deleted_before_a_poll() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker)
        await group.start()
        clock_of(broker).advance_us(9 * DAY_US)
        await broker.maintain()
        assert broker.topic("t").partition(0).messages.start_offset == 10
        assert group.lag() == [0]

    run(work)


def test_the_error_for_a_lease_that_was_given_back_says_so() -> None:
    async def work(broker: Broker) -> None:
        group = await filled(broker)
        (handed,) = await group.lease("c", 1)
        await group.release(handed.receipt)
        with pytest.raises(LeaseNotFound, match="given back"):
            await group.ack(handed.receipt)

    run(work)
