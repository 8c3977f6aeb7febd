"""A broker in a cluster: what it does when partitions are lost, when nothing is committed, and when etcd is away."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from broker_files import inline_of, turns
from broker_support import clock_of, group_on, values
from led_broker import Leading, SharedCatalog, leading, run_led, until
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.broker.topic import Topic
from penstock.errors import (
    EtcdRefused,
    EtcdReplaced,
    EtcdUnavailable,
    Fatal,
    LeadershipLost,
    NotLeader,
    OutcomeUnknown,
    PenstockError,
)
from penstock.message import Message

SECOND, DAY = 1_000_000, 86_400_000_000
ETCD_AWAY = [EtcdUnavailable("nobody answers"), OutcomeUnknown("the answer was lost"), EtcdRefused("no space")]


# --- schedules -------------------------------------------------------------------------------------------


async def schedule(broker: Broker, name: str, topic: str, producer: int) -> None:
    await broker.schedules.create(name, topic, "@every 60s", Message(name.encode()), timezone="UTC", producer=producer)


def stored(topic: Topic) -> int:
    return topic.partition(0).messages.committed_offset


@pytest.mark.parametrize("error", ETCD_AWAY, ids=lambda error: error.code)
def test_an_occurrence_is_published_once_though_nobody_could_write_that_down(error: PenstockError) -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        topic = led.broker.topic("t")
        await schedule(led.broker, "s", "t", 1)
        clock_of(led.broker).advance_us(61 * SECOND)
        led.catalog.failure = error
        for _ in range(10):
            await led.broker.tick()
            await topic.publish(Message(b"another"))
        assert isinstance(led.broker.schedules.failures["s"], type(error))
        assert stored(topic) == 2 + 10
        led.catalog.failure = None
        await led.broker.tick()
        assert (stored(topic), led.broker.schedules.get("s").published) == (12, 2)
        assert led.broker.schedules.get("s").pending == "t:0:1"
        clock_of(led.broker).advance_us(61 * SECOND)
        await led.broker.tick()
        assert (stored(topic), led.broker.schedules.get("s").published) == (13, 3)

    run_led(work)


def test_the_first_occurrence_is_published_once_though_nobody_could_write_that_down() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        led.away.add(partition)
        creating = asyncio.create_task(schedule(led.broker, "s", "t", 1))
        await until(lambda: partition.messages.end_offset == 1)
        led.catalog.failure = EtcdUnavailable("nobody answers")
        led.come_back(partition)
        await creating
        assert isinstance(led.broker.schedules.failures["s"], EtcdUnavailable)
        led.catalog.failure = None
        await led.broker.tick()
        assert (stored(led.broker.topic("t")), led.broker.schedules.get("s").published) == (1, 1)

    run_led(work)


def test_a_schedule_whose_partition_is_lost_before_the_first_occurrence_is_created_all_the_same() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        inline_of(led.broker).hold()
        creating = asyncio.create_task(schedule(led.broker, "s", "t", 1))
        await turns()
        logs = led.lose("t", 0)
        inline_of(led.broker).go_on()
        # Otherwise a client would ask the next leader, and hear that the schedule exists already.
        await creating
        assert isinstance(led.broker.schedules.failures["s"], NotLeader)
        await led.lead("t", 0, logs)
        await led.broker.tick()
        assert (stored(led.broker.topic("t")), led.broker.schedules.get("s").published) == (1, 1)
        assert led.broker.schedules.failures == {}

    run_led(work)


def pending(broker: Broker) -> list[str]:
    return [str(one.id) for one in scheduled.scheduled(broker.topic("t"))]


def test_a_schedule_is_deleted_by_the_leader_of_its_partition_or_not_at_all() -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a, leading(catalog) as b:
            await a.create("t", 1)
            b.broker.follow_catalog()
            await schedule(a.broker, "s", "t", 1)
            with pytest.raises(NotLeader):
                await b.broker.schedules.delete("s")
            assert (len(b.broker.schedules.list()), pending(a.broker)) == (1, ["t:0:0"])
            await a.broker.schedules.delete("s")
            assert (b.broker.schedules.list(), pending(a.broker)) == ([], [])

    asyncio.run(main())


@pytest.mark.parametrize("error", ETCD_AWAY, ids=lambda error: error.code)
def test_a_deletion_of_a_schedule_that_failed_half_way_is_finished_by_the_next_one(error: PenstockError) -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await schedule(led.broker, "s", "t", 1)
        led.catalog.failure = error
        with pytest.raises(type(error)):
            await led.broker.schedules.delete("s")
        led.catalog.failure = None
        await led.broker.schedules.delete("s")
        clock_of(led.broker).advance_us(61 * SECOND)
        await led.broker.tick()
        assert (led.broker.schedules.list(), pending(led.broker), stored(led.broker.topic("t"))) == ([], [], 1)
        group = await group_on(led.broker, "g", "t")
        await group.seek("earliest")
        assert values(await group.lease("c", 10)) == []

    run_led(work)


def test_an_occurrence_that_nobody_could_write_down_is_deleted_with_its_schedule() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await schedule(led.broker, "s", "t", 1)
        clock_of(led.broker).advance_us(61 * SECOND)
        led.catalog.failure = EtcdUnavailable("nobody answers")
        await led.broker.tick()
        led.catalog.failure = None
        assert pending(led.broker) == ["t:0:1"]
        assert led.broker.schedules.get("s").pending == "t:0:0"
        await led.broker.schedules.delete("s")
        assert pending(led.broker) == []

    run_led(work)


def test_a_schedule_deleted_by_the_previous_leader_does_not_come_back_with_its_next_occurrence() -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a, leading(catalog) as b:
            await a.create("t", 1)
            b.broker.follow_catalog()
            await schedule(a.broker, "s", "t", 1)
            deleted = catalog.schedules[0]
            partition = await b.lead("t", 0, a.lose("t", 0))
            clock_of(b.broker).advance_us(61 * SECOND)
            b.away.add(partition)
            ticking = asyncio.create_task(b.broker.tick())
            await until(lambda: partition.messages.end_offset == 2)
            # The previous leader had cancelled the first occurrence, and was slow.
            catalog.delete_schedule(deleted)
            b.come_back(partition)
            await until(lambda: partition.deliveries.synced_offset == partition.deliveries.end_offset)
            b.come_back(partition)
            b.away.clear()
            await ticking
            assert catalog.schedules == []
            assert "t:0:1" not in pending(b.broker)

    asyncio.run(main())


def test_only_an_occurrence_of_the_schedule_is_cancelled_with_it() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await schedule(led.broker, "s", "t", 1)
        later = Message(b"another", deliver_at=clock_of(led.broker).now_us() + DAY)
        await led.broker.topic("t").publish(later)
        known = led.catalog.schedules[0]
        # As after an unclean election: another message has the offset.
        led.catalog.put_schedule(msgspec.structs.replace(known, pending="t:0:1"), known)
        await led.broker.schedules.delete("s")
        assert "t:0:1" in pending(led.broker)

    run_led(work)


def test_the_first_occurrence_is_published_once_though_whoever_made_the_schedule_gave_up() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        led.away.add(partition)
        creating = asyncio.create_task(schedule(led.broker, "s", "t", 1))
        await until(lambda: partition.messages.end_offset == 1)
        creating.cancel()
        await turns()
        await led.broker.tick()
        assert led.broker.schedules.get("s").published == 0, "it is not committed yet"
        led.come_back(partition)
        await until(lambda: led.broker.schedules.get("s").published == 1)
        await led.broker.tick()
        assert stored(led.broker.topic("t")) == 1

    run_led(work)


def test_an_occurrence_is_published_once_though_its_leader_died_before_it_was_written_down() -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a:
            await a.create("t", 1)
            await schedule(a.broker, "s", "t", 1)
            async with leading(catalog) as b:
                await b.lead("t", 0, a.lose("t", 0))
                clock_of(b.broker).advance_us(61 * SECOND)
                catalog.failure = EtcdUnavailable("nobody answers")
                await b.broker.tick()
                logs = b.lose("t", 0)
            catalog.failure = None
            assert logs[0].committed_offset == 2
            await a.lead("t", 0, logs)
            clock_of(a.broker).advance_us(61 * SECOND)
            await a.broker.tick()
            assert (stored(a.broker.topic("t")), a.broker.schedules.get("s").published) == (2, 2)

    asyncio.run(main())


def test_a_schedule_whose_partition_can_not_commit_holds_up_nothing_else() -> None:
    async def work(led: Leading) -> None:
        for number, name in enumerate(("stuck", "other"), start=1):
            await led.create(name, 1)
            await schedule(led.broker, name, name, number)
        (stuck,) = led.broker.topic("stuck").partitions
        led.away.add(stuck)
        clock_of(led.broker).advance_us(61 * SECOND)
        first = asyncio.create_task(led.broker.tick())
        await until(lambda: led.broker.schedules.get("other").published == 2 and stuck.messages.end_offset == 2)
        clock_of(led.broker).advance_us(61 * SECOND)
        # Although the first one is not over.
        await led.broker.tick()
        await schedule(led.broker, "third", "other", 3)
        assert led.broker.schedules.get("other").published == 3
        assert (first.done(), stuck.messages.end_offset) == (False, 2)
        led.come_back(stuck)
        await first
        assert (stored(led.broker.topic("stuck")), led.broker.schedules.get("stuck").published) == (3, 3)

    run_led(work)


# --- dead letters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ETCD_AWAY, ids=lambda error: error.code)
def test_a_dead_letter_whose_topic_etcd_does_not_take_is_tried_again(error: PenstockError) -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await led.broker.topic("t").publish(Message(b"bad"))
        group = await group_on(led.broker, "g", "t")
        (handed,) = await group.lease("c", 1)
        led.catalog.failure = error
        await group.reject(handed.receipt, "bad")
        for _ in range(3):
            await led.broker.settle()
            assert (led.broker.failure, [topic.name for topic in led.broker.topics]) == (None, ["t"])
            await led.broker.tick()
        await led.broker.settle()
        led.catalog.failure = None
        await led.broker.tick()
        await led.broker.settle()
        # Made, and not led by anybody yet.
        (identity,) = led.broker.topic("t.dlq").record.partitions
        await led.lead("t.dlq", 0, led.broker.directories.logs(identity))
        await led.broker.tick()
        await led.broker.settle()
        (letter,) = led.broker.dead_letters.letters("t")
        assert letter.message.value == b"bad"

    run_led(work)


def test_an_etcd_that_was_replaced_stops_the_broker() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await led.broker.topic("t").publish(Message(b"bad"))
        group = await group_on(led.broker, "g", "t")
        (handed,) = await group.lease("c", 1)
        led.catalog.failure = EtcdReplaced("set back to a backup")
        await group.reject(handed.receipt, "bad")
        await led.broker.settle()
        with pytest.raises(Fatal, match="set back to a backup"):
            await led.broker.tick()

    run_led(work)


def test_one_letter_though_its_leader_died_before_it_was_written_down() -> None:
    """And though a tick comes first of all."""

    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a:
            await a.create("t", 1)
            await a.create("t.dlq", 1)
            for word in (b"1", b"2"):
                await a.broker.topic("t").publish(Message(word))
            group = await group_on(a.broker, "g", "t")
            (handed,) = await group.lease("c", 1)
            await group.reject(handed.receipt, "bad")
            await a.broker.settle()
            async with leading(catalog) as b:
                partition = await b.lead("t", 0, a.lose("t", 0))
                await b.lead("t.dlq", 0, a.lose("t.dlq", 0))
                (handed,) = await b.broker.group("g", "t").lease("c", 1)
                await b.broker.group("g", "t").reject(handed.receipt, "bad")
                b.away.add(partition)
                await until(lambda: stored(b.broker.topic("t.dlq")) == 2)
                logs, graves = b.lose("t", 0), b.lose("t.dlq", 0)
            await a.lead("t.dlq", 0, graves)
            await a.lead("t", 0, logs)
            await a.broker.tick()
            await a.broker.settle()
            words = [letter.message.value for letter in a.broker.dead_letters.letters("t")]
            assert words == [b"1", b"2"]

    asyncio.run(main())


def test_a_partition_that_was_lost_stores_nothing_when_its_node_leads_again() -> None:
    async def work(led: Leading) -> None:
        (lost,) = await led.create("t", 1)
        await led.lead("t", 0, led.lose("t", 0))
        end = lost.messages.end_offset
        with pytest.raises(LeadershipLost):
            await lost.publish(Message(b"late"))
        assert lost.messages.end_offset == end
        await led.broker.topic("t").publish(Message(b"on"))
        assert stored(led.broker.topic("t")) == end + 1

    run_led(work)


@pytest.mark.parametrize("is_source_lost", [True, False])
def test_a_leader_that_was_replaced_while_it_made_a_letter_publishes_none_when_it_leads_again(
    is_source_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader in between has published one, if it led both partitions."""

    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a:
            await a.create("t", 1)
            await a.create("t.dlq", 1)
            await a.broker.topic("t").publish(Message(b"x"))
            group = await group_on(a.broker, "g", "t")
            made, goes_on = asyncio.Event(), asyncio.Event()
            on_a_reading_thread = a.broker._work.on_a_reading_thread

            async def held(work: Any) -> Any:
                result = await on_a_reading_thread(work)
                if getattr(work, "func", None) == a.broker.dead_letters._frame:
                    made.set()
                    await goes_on.wait()
                return result

            monkeypatch.setattr(a.broker._work, "on_a_reading_thread", held)
            (handed,) = await group.lease("c", 1)
            await group.reject(handed.receipt, "bad")
            await made.wait()
            graves = a.lose("t.dlq", 0)
            if is_source_lost:
                async with leading(catalog) as b:
                    await b.lead("t.dlq", 0, graves)
                    await b.lead("t", 0, a.lose("t", 0))
                    await b.broker.tick()
                    await b.broker.settle()
                    assert len(list(b.broker.dead_letters.letters("t"))) == 1
                    graves, logs = b.lose("t.dlq", 0), b.lose("t", 0)
                await a.lead("t", 0, logs)
            grave = await a.lead("t.dlq", 0, graves)
            goes_on.set()
            await a.broker.settle()
            await a.broker.tick()
            await a.broker.settle()
            # Whatever is in the log counts.
            grave.committed(0, grave.messages.synced_offset)
            assert len(list(a.broker.dead_letters.letters("t", with_settled=True))) == 1

    asyncio.run(main())


async def give_up(led: Leading, word: bytes) -> None:
    await led.broker.topic("t").publish(Message(word))
    (handed,) = await led.broker.group("g", "t").lease("c", 1)
    await led.broker.group("g", "t").reject(handed.receipt, "bad")


def test_a_letter_of_a_deleted_topic_is_not_taken_for_one_of_its_successor() -> None:
    """Nor if another node leads the dead letters for a moment, and all of them are searched."""

    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await led.create("t.dlq", 1)
        await group_on(led.broker, "g", "t")
        await give_up(led, b"old")
        await led.broker.settle()
        led.lose("t", 0)
        await led.broker.delete_topic("t")
        await led.create("t", 1)
        graves = led.lose("t.dlq", 0)
        await give_up(led, b"new")
        await led.lead("t.dlq", 0, graves)
        await led.broker.tick()
        await led.broker.settle()
        words = [letter.message.value for letter in led.broker.dead_letters.letters("t")]
        assert words == [b"old", b"new"]
        assert not led.broker.topic("t").partition(0).groups.state("g").dying

    run_led(work)


def test_after_an_unclean_election_a_letter_is_redriven_as_a_copy_and_not_in_place_of_what_has_its_offset() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await led.create("t.dlq", 1)
        logs = led.lose("t", 0)
        logs[0].append_epoch_start(1)
        await led.lead("t", 0, logs)
        await group_on(led.broker, "g", "t")
        await give_up(led, b"lost")
        await led.broker.settle()
        (letter,) = led.broker.dead_letters.letters("t")
        assert (letter.obituary.offset, letter.obituary.epoch) == (1, 1)
        # The new leader had none of it, and another message comes to the offset.
        led.lose("t", 0)
        logs[0].truncate(0)
        logs[0].append_epoch_start(2)
        await led.lead("t", 0, logs)
        await led.broker.topic("t").publish(Message(b"another"))
        done = await led.broker.dead_letters.redrive("t")
        assert (done.in_place, done.copied, done.already) == ([], [letter.id], [])
        stored = led.broker.topic("t").partition(0).reading
        assert [stored.message(offset).message.value for offset in (1, 2)] == [b"another", b"lost"]

    run_led(work)


def test_after_an_unclean_election_of_the_dead_letters_a_copy_has_a_producer_of_its_own() -> None:
    """Another letter at the offset of one that was copied would be taken for a copy that is there already."""

    async def work(led: Leading) -> None:
        await led.create("t", 1)
        (graves,) = await led.create("t.dlq", 1)
        identity = MessageId("t.dlq", 0, 0)
        letters = led.broker.dead_letters
        before = letters._producer(identity)
        logs = led.lose("t.dlq", 0)
        logs[0].append_epoch_start(2)
        graves = await led.lead("t.dlq", 0, logs)
        # An ordinary election changes nothing: a copy may be on its way.
        assert letters._producer(identity) == before
        graves.unclean = (2,)
        assert letters._producer(identity) != before
        graves.unclean = (3,)
        assert letters._producer(identity) == before

    run_led(work)


@pytest.mark.parametrize("gives_up", ["reject", "nack"])
def test_letters_are_made_once_though_whoever_gave_up_does_not_wait_until_others_know(gives_up: str) -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        await led.create("t.dlq", 1)
        await led.broker.topic("t").publish(Message(b"bad"))
        group = await group_on(led.broker, "g", "t", GroupSettings(max_retries=0))
        (handed,) = await group.lease("c", 1)
        led.away.add(partition)
        giving_up = asyncio.create_task(
            group.nack(handed.receipt) if gives_up == "nack" else group.reject(handed.receipt, "bad")
        )
        await turns()
        giving_up.cancel()
        await turns()
        before = len(asyncio.all_tasks())
        for _ in range(5):
            await led.broker.tick()
        assert len(asyncio.all_tasks()) == before
        assert list(led.broker.dead_letters.letters("t")) == []
        led.come_back(partition)
        await led.broker.settle()
        assert len(list(led.broker.dead_letters.letters("t"))) == 1

    run_led(work)


# --- groups ----------------------------------------------------------------------------------------------


async def half_stuck(led: Leading) -> Partition:
    """Of two partitions, each with a message that a group has done, the one that can't commit."""
    group, partitions = await two_partitions(led)
    for handed in await group.lease("c", 10):
        await group.ack(handed.receipt)
    led.away.add(partitions[0])
    return partitions[0]


async def change_others(led: Leading) -> None:
    await led.broker.create_topic("other", 1)
    await led.broker.ensure_group("another")


def test_a_deletion_that_waits_for_other_nodes_is_done_everywhere_and_keeps_nobody_from_changes() -> None:
    async def work(led: Leading) -> None:
        stuck = await half_stuck(led)
        deleting = asyncio.create_task(led.broker.delete_group("g"))
        await until(lambda: not led.broker.has_group("g") and not stuck.groups.has("g"))
        await change_others(led)
        group = await group_on(led.broker, "g", "t")
        assert [partition.groups.has("g") for partition in group.topic.partitions] == [False, False]
        (handed,) = await group.lease("c", 10, partitions=[1])
        assert values([handed]) == [b"1"], "it is another group"
        assert not deleting.done()
        led.come_back(stuck)
        await deleting

    run_led(work)


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_group_is_not_taken_for_one_of_its_name_that_was_deleted_while_nobody_led_the_partition(
    snapshots: bool,
) -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        await led.broker.topic("t").publish(Message(b"1"))
        group = await group_on(led.broker, "g", "t")
        for handed in await group.lease("c", 10):
            await group.ack(handed.receipt)
        if snapshots:
            await partition.groups.snapshot()
        logs = led.lose("t", 0)
        await led.broker.delete_group("g")
        led.catalog.clock.advance_us(1)
        group = await group_on(led.broker, "g", "t")
        await led.lead("t", 0, logs)
        led.broker.take_up(led.broker.topic("t"), 0)
        await led.broker.settle()
        assert values(await group.lease("c", 10)) == [b"1"]

    run_led(work)


def test_a_replay_that_waits_for_other_nodes_keeps_nobody_from_changes() -> None:
    async def work(led: Leading) -> None:
        stuck = await half_stuck(led)
        replaying = asyncio.create_task(led.broker.replay("t", "again", from_us=0))
        await until(lambda: stuck.groups.has("again"))
        await change_others(led)
        assert not replaying.done()
        led.come_back(stuck)
        assert await replaying == 2

    run_led(work)


def test_why_at_an_offset_that_no_message_has_says_so() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        await led.broker.topic("t").publish(Message(b"1"))
        group = await group_on(led.broker, "g", "t")
        for handed in await group.lease("c", 10):
            await group.ack(handed.receipt)
        partition.reading.holes.add(0)
        found = await led.broker.why(MessageId("t", 0, 0), "g")
        assert (found.code, found.answer) == (
            "not_published",
            "there is no message t:0:0: an election or a crash took its offset",
        )

    run_led(work)


# --- maintenance -----------------------------------------------------------------------------------------


async def old_messages(led: Leading, name: str) -> Partition:
    """Of which nothing need be kept."""
    (partition,) = await led.create(name, 1)
    topic = led.broker.topic(name)
    await led.broker.change_topic(name, settings=TopicSettings(retention_age_us=DAY))
    await (await group_on(led.broker, "of-" + name, name)).start()
    for _ in range(3):
        await topic.publish(Message(b"old"))
    return partition


def test_a_partition_that_can_not_commit_holds_up_the_maintenance_of_no_other() -> None:
    async def work(led: Leading) -> None:
        stuck, other = [await old_messages(led, name) for name in ("a", "b")]
        led.away.add(stuck)
        clock_of(led.broker).advance_us(2 * DAY)
        first = asyncio.create_task(led.broker.maintain())
        await turns()
        await led.broker.maintain()
        assert (stuck.messages.start_offset, other.messages.start_offset, first.done()) == (0, 3, False)
        led.come_back(stuck)
        await first
        assert stuck.messages.start_offset == 3

    run_led(work)


def test_a_partition_with_too_few_replicas_is_not_maintained() -> None:
    async def work(led: Leading) -> None:
        short, other = [await old_messages(led, name) for name in ("a", "b")]
        led.away.add(short)
        short.too_few = (1, 2)
        clock_of(led.broker).advance_us(2 * DAY)
        await led.broker.maintain()
        assert (short.messages.start_offset, other.messages.start_offset) == (0, 3)

    run_led(work)


def test_a_partition_that_is_lost_while_it_is_maintained_is_left_alone_and_the_others_are_not() -> None:
    async def work(led: Leading) -> None:
        lost, other = [await old_messages(led, name) for name in ("a", "b")]
        led.away.add(lost)
        clock_of(led.broker).advance_us(2 * DAY)
        maintaining = asyncio.create_task(led.broker.maintain())
        await turns()
        led.lose("a", 0)
        await maintaining
        assert (lost.messages.start_offset, other.messages.start_offset) == (0, 3)

    run_led(work)


def test_a_partition_that_is_lost_while_another_is_maintained_is_left_alone() -> None:
    async def work(led: Leading) -> None:
        first, lost = [await old_messages(led, name) for name in ("a", "b")]
        clock_of(led.broker).advance_us(2 * DAY)
        inline_of(led.broker).hold(first.maintain)
        maintaining = [asyncio.create_task(led.broker.maintain()) for _ in range(2)]
        await turns()
        led.lose("b", 0)
        inline_of(led.broker).go_on()
        await asyncio.gather(*maintaining)
        assert (first.messages.start_offset, lost.messages.start_offset) == (3, 0)

    run_led(work)


# --- leases ----------------------------------------------------------------------------------------------


async def two_partitions(led: Leading) -> tuple[Group, list[Partition]]:
    """A message in each."""
    partitions = await led.create("t", 2)
    for number in range(2):
        await led.broker.topic("t").publish(Message(b"%d" % number), number)
    return await group_on(led.broker, "g", "t", GroupSettings(visibility_us=DAY)), partitions


def leased_from(partition: Partition) -> bool:
    return partition.groups.has("g") and bool(partition.groups.state("g").leases)


def test_nothing_is_handed_out_of_a_topic_whose_partitions_were_all_lost_meanwhile() -> None:
    async def work(led: Leading) -> None:
        group, partitions = await two_partitions(led)
        await group.start_in([0])
        led.away |= set(partitions)
        # Where the group has yet to start, the lease waits for that to be committed.
        leasing = asyncio.create_task(group.lease("c", 10, partitions=[1, 0]))
        await until(lambda: leased_from(partitions[0]))
        for number in range(2):
            led.lose("t", number)
        with pytest.raises(LeadershipLost):
            await leasing

    run_led(work)


def test_what_is_leased_from_a_partition_is_handed_out_though_another_one_was_lost() -> None:
    async def work(led: Leading) -> None:
        group, partitions = await two_partitions(led)
        await group.start()
        led.away |= set(partitions)
        leasing = asyncio.create_task(group.lease("c", 10))
        await until(lambda: all(map(leased_from, partitions)))
        led.lose("t", 1)
        led.come_back(partitions[0])
        assert values(await leasing) == [b"0"]

    run_led(work)


def test_what_is_leased_from_a_partition_is_handed_out_though_another_one_was_hidden_before() -> None:
    async def work(led: Leading) -> None:
        group, partitions = await two_partitions(led)
        await group.start_in([0])
        led.away.add(partitions[1])
        leasing = asyncio.create_task(group.lease("c", 10, partitions=[1, 0]))
        await until(lambda: leased_from(partitions[0]))
        # Not lost yet: its session is not surely valid. What was leased there is as good as before.
        led.broker.replicated.hide(led.broker.topic("t"), 0)
        led.come_back(partitions[1])
        assert sorted(values(await leasing), key=str) == [b"0", b"1"]

    run_led(work)


def test_what_was_leased_is_given_back_if_nobody_waits_for_it_any_more() -> None:
    async def work(led: Leading) -> None:
        group, partitions = await two_partitions(led)
        await group.start_in([0])
        led.away.add(partitions[1])
        leasing = asyncio.create_task(group.lease("c", 10, partitions=[1, 0]))
        await until(lambda: leased_from(partitions[0]))
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        assert not leased_from(partitions[0])
        assert values(await group.lease("d", 10, partitions=[0])) == [b"0"]

    run_led(work)


def test_a_lease_that_nobody_could_be_told_of_is_an_error_and_not_nothing() -> None:
    async def work(led: Leading) -> None:
        group, _ = await two_partitions(led)
        await group.start()
        led.lose("t", 0)
        led.lose("t", 1)
        with pytest.raises(NotLeader):
            await group.lease("c", 10)

    run_led(work)


def test_a_poll_that_leases_from_several_partitions_waits_for_all_of_them_at_once() -> None:
    async def work(led: Leading) -> None:
        partitions = await led.create("t", 3)
        group = await group_on(led.broker, "g", "t", GroupSettings(start="earliest"))
        for number in range(3):
            await led.broker.topic("t").publish(Message(b"%d" % number), partition=number)
        await group.start()
        ends = [partition.deliveries.end_offset for partition in partitions]
        led.away.update(partitions)
        leasing = asyncio.create_task(group.lease("c", 10))
        # No time passes: it is not that what is held back is due.
        await until(lambda: any(each.deliveries.end_offset > end for each, end in zip(partitions, ends, strict=True)))
        assert all(each.deliveries.end_offset > end for each, end in zip(partitions, ends, strict=True))
        for partition in partitions:
            led.come_back(partition)
        assert sorted(values(await leasing)) == [b"0", b"1", b"2"]

    run_led(work)


def test_who_asks_again_hears_once_that_another_node_leads_what_was_led_here() -> None:
    async def work(led: Leading) -> None:
        await two_partitions(led)
        await led.broker.join("g", "ann", ["t"])
        await led.broker.poll("g", "ann", ["t"])
        led.lose("t", 0)

        with pytest.raises(NotLeader, match="that were led here"):
            await led.broker.poll("g", "ann", ["t"])

        # What is said from then on is what is wrong with the question itself: here it names both.
        with pytest.raises(NotLeader, match="does not lead partition 0"):
            await led.broker.poll("g", "ann", ["t"])

    run_led(work)


# --- retention -------------------------------------------------------------------------------------------


def test_nothing_is_deleted_by_what_is_not_committed_yet() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        topic, clock = led.broker.topic("t"), clock_of(led.broker)
        later = await topic.publish(Message(b"later", deliver_at=clock.now_us() + 8 * DAY))
        clock.advance_us(8 * DAY - SECOND)
        async with led.broker._upkeep._tidying:
            # Behind another partition that is looked after.
            maintaining = asyncio.create_task(led.broker.maintain())
            await turns(100)
            led.away.add(partition)
            # Also beyond the time for which retention leaves it to consumers.
            clock.advance_us(8 * DAY)
            list(partition.groups.ticks())
            assert later.offset not in partition.protected(), "its time has come"
        await maintaining
        # Whoever leads next may not know that, and would wait for its time.
        assert partition.messages.start_offset == later.offset

        led.come_back(partition)
        await led.broker.maintain()
        assert partition.messages.start_offset == later.offset + 1

    run_led(work)
