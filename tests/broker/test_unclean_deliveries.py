"""A copy that is elected uncleanly may have deliveries of messages that it lacks. Other messages get those offsets: no
group takes them for the ones that it knew."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, rows, values
from led_broker import Leading, Logs, SharedCatalog, leading, run_led
from penstock.broker.deliveries import groups_beyond
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings
from penstock.message import Message, Priority

SECOND = 1_000_000


async def publish(led: Leading, count: int, name: str = "new") -> list[bytes | None]:
    """Returns the values, in order."""
    sent: list[bytes | None] = [b"%s %d" % (name.encode(), number) for number in range(count)]
    for value in sent:
        await led.broker.topic("t").publish(Message(value), 0)
    return sent


def cut(logs: Logs, end: int) -> None:
    """The copy has messages up to `end`, and all deliveries; it leads at the next epoch."""
    logs[0].hold_back(0, anew=True)
    logs[0].truncate(end)
    begin_epoch(logs)


def begin_epoch(logs: Logs) -> None:
    epoch = max(log.last_epoch for log in logs) + 1
    for log in logs:
        log.follow()
        log.append_epoch_start(epoch)
        log.sync()


async def elect(led: Leading, logs: Logs) -> Partition:
    partition = await led.lead("t", 0, logs)
    led.broker.take_up(led.broker.topic("t"), 0)
    for name in partition.groups.groups:
        partition.groups.state(name).check((partition.groups.lanes.high, partition.groups.lanes.low))
    return partition


async def elect_uncleanly(led: Leading, end: int) -> Partition:
    logs = led.lose("t", 0)
    cut(logs, end)
    return await elect(led, logs)


async def consume(group: Group) -> list[bytes | None]:
    """Everything that the group gets, acknowledged."""
    got = []
    while handed := await group.lease("c", 100):
        got += values(handed)
        await ack_all(group, handed)
    return got


async def make(led: Leading, count: int, **settings: object) -> Group:
    await led.create("t", 1)
    begin_epoch(logs := led.lose("t", 0))
    await led.lead("t", 0, logs)
    await publish(led, count, "old")
    return await group_on(led.broker, "g", "t", GroupSettings().changed(**settings))


def test_a_group_gets_what_is_published_at_offsets_that_it_had_acknowledged() -> None:
    async def work(led: Leading) -> None:
        await consume(await make(led, 100))
        # The epoch begins with an offset of its own.
        partition = await elect_uncleanly(led, 61)
        assert partition.groups.set_back == {"g": (101, 61)}
        sent = await publish(led, 60)
        group = led.broker.group("g", "t")
        assert group.lag() == [60]
        assert await consume(group) == sent
        assert group.lag() == [0]

    run_led(work)


def test_the_next_leader_sets_a_group_back_though_more_was_published_than_was_lost() -> None:
    """The state says nothing of that any more: by then it does not go beyond the messages."""

    async def work(led: Leading) -> None:
        await consume(await make(led, 100))
        logs = led.lose("t", 0)
        cut(logs, 61)
        # It dies before it writes anything but messages: no row, no snapshot.
        partition = await led.lead("t", 0, logs)
        deliveries = logs[1].end_offset
        led.away.add(partition)
        sent = [b"new %d" % number for number in range(60)]
        publishing = [asyncio.ensure_future(led.broker.topic("t").publish(Message(value), 0)) for value in sent]
        while logs[0].end_offset < 62 + 60:
            await asyncio.sleep(0)
        led.lose("t", 0)
        await asyncio.gather(*publishing, return_exceptions=True)
        logs[1].hold_back(0, anew=True)
        logs[1].truncate(min(deliveries, logs[1].end_offset))
        begin_epoch(logs)
        await elect(led, logs)
        assert await consume(led.broker.group("g", "t")) == sent

    run_led(work)


def test_a_group_that_was_set_back_stays_so_at_every_later_leader() -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a:
            await consume(await make(a, 100))
            await elect_uncleanly(a, 61)
            sent = await publish(a, 60)
            handed = await a.broker.group("g", "t").lease("c", 10)
            await ack_all(a.broker.group("g", "t"), handed)
            async with leading(catalog) as b:
                logs = a.lose("t", 0)
                begin_epoch(logs)
                partition = await elect(b, logs)
                assert partition.groups.set_back == {}, "a snapshot has it"
                assert await consume(b.broker.group("g", "t")) == sent[len(values(handed)) :]
                b.lose("t", 0)

    asyncio.run(main())


def test_leases_retries_dead_letters_and_parked_keys_of_lost_messages_are_forgotten() -> None:
    async def work(led: Leading) -> None:
        await led.create("t.dlq", 1)
        group = await make(led, 20, ordering="key", backoff_initial_us=60 * SECOND, max_retries=5)
        for number in range(20):
            await led.broker.topic("t").publish(Message(b"keyed %d" % number, key=b"k%d" % number), 0)
        handed = {int(offsets[0]): (receipt, offsets) for receipt, offsets, _ in rows(await group.lease("c", 100))}

        def answer(offset: int):  # type: ignore[no-untyped-def]
            receipt, offsets = handed[offset]
            return receipt._replace(offsets=offsets)

        kept, lost = (21, 22, 23, 24), (35, 36, 37, 38)
        for acked, nacked, rejected, _ in (kept, lost):
            await group.ack(answer(acked))
            await group.nack(answer(nacked), reason="later")
            await group.reject(answer(rejected), "bad")
        await led.broker.settle()
        state = group.topic.partition(0).groups.state("g")
        assert {parked.offset for parked in state.parked.values()} == {23, 37}
        partition = await elect_uncleanly(led, 30)
        state = partition.groups.state("g")
        assert {parked.offset for parked in state.parked.values()} == {23}
        assert set(state.dead) | set(state.dying) == {23}
        assert (set(state.attempts), set(state.failures)) == ({22}, {22})
        assert max(max(lease.offsets) for lease in state.leases.values()) < 30
        assert state.waiting == BitMap64([22])
        assert state.in_flight == sum(len(lease.offsets) for lease in state.leases.values())
        sent = await publish(led, 20)
        assert [value for value in await consume(led.broker.group("g", "t")) if value in sent] == sent

    run_led(work)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_delays_and_lanes_of_lost_messages_are_not_those_of_new_ones(has_snapshot: bool) -> None:
    async def work(led: Leading) -> None:
        group = await make(led, 10)
        topic, clock = led.broker.topic("t"), clock_of(led.broker)
        due = clock.now_us() + 60 * SECOND
        for number in range(12):
            special = (
                Message(b"later %d" % number, deliver_at=due) if number % 2 else Message(b"h", priority=Priority.HIGH)
            )
            await topic.publish(special, 0)
        await consume(group)
        partition = topic.partition(0)
        await partition.groups.cancel(20)
        await partition.groups.reschedule(22, due + 1)
        if has_snapshot:
            await partition.groups.snapshot()
        partition = await elect_uncleanly(led, 15)
        delays, lanes = partition.groups.delays, partition.groups.lanes
        assert max(delays.pending) < 15
        assert (len(delays.cancelled), delays.moved) == (0, {})
        assert max(lanes.high) < 15
        sent = await publish(led, 10)
        assert await consume(led.broker.group("g", "t")) == sent
        # New ones are what they are, at whichever offset.
        await topic.publish(Message(b"high", priority=Priority.HIGH), 0)
        await topic.publish(Message(b"soon", deliver_at=clock.now_us() + SECOND), 0)
        logs = led.lose("t", 0)
        begin_epoch(logs)
        partition = await elect(led, logs)
        assert (26 in partition.groups.lanes.high, 27 in partition.groups.delays.pending) == (True, True)
        clock.advance_us(2 * SECOND)
        assert sorted(map(bytes, filter(None, await consume(led.broker.group("g", "t"))))) == [b"high", b"soon"]

    run_led(work)


def test_a_replay_does_not_go_on_into_messages_that_came_later() -> None:
    async def work(led: Leading) -> None:
        await make(led, 100)
        await led.broker.replay("t", "again", offsets={0: (1, 101)})
        await led.broker.settle()
        await elect_uncleanly(led, 61)
        await publish(led, 60)
        again = led.broker.group("again", "t")
        assert await consume(again) == [b"old %d" % number for number in range(60)]

    run_led(work)


def test_history_counts_the_attempts_of_the_new_message_alone() -> None:
    async def work(led: Leading) -> None:
        group = await make(led, 10)
        for _ in range(2):
            for handed in await group.lease("c", 100):
                await group.release(handed.receipt) if _ == 0 else await group.ack(handed.receipt)
        before_us = clock_of(led.broker).now_us()
        clock_of(led.broker).advance_us(SECOND)
        partition = await elect_uncleanly(led, 5)
        await publish(led, 5)
        await consume(led.broker.group("g", "t"))
        await partition.groups.flushed()
        start, end = await led.broker.chronicle.ends(partition)
        columns, _ = await led.broker.chronicle.read(partition, start, end, 1 << 20)
        whats, attempts = columns[2], columns[7]
        delivered = [(what, attempt) for what, attempt in zip(whats, attempts, strict=True) if "DELIVERED" in what]
        assert set(delivered) == {("DELIVERED", 1)}
        trace = await led.broker.trace(MessageId("t", 0, 7))
        assert [step.what for step in trace.steps].count("DELIVERED") == 1
        (then,) = await led.broker.state_at("g", "t", before_us)
        assert then.floor == 11, "before the election, it was so"
        (now,) = await led.broker.state_at("g", "t", clock_of(led.broker).now_us())
        assert (now.floor, len(now.unacknowledged)) == (11, 0)

    run_led(work)


def test_a_copy_tells_which_groups_have_come_further_than_its_messages() -> None:
    async def work(led: Leading) -> None:
        await consume(await make(led, 50))
        other = await group_on(led.broker, "other", "t")
        await other.lease("c", 20)
        await led.broker.settle()
        logs = led.lose("t", 0)
        assert groups_beyond(logs[1], logs[0]) == {}
        logs[0].hold_back(0, anew=True)
        logs[0].truncate(31)
        assert groups_beyond(logs[1], logs[0]) == {"g": 51}
        begin_epoch(logs)
        assert groups_beyond(logs[1], logs[0]) == {}
        await elect(led, logs)

    run_led(work)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_groups_did_all_that_is_published_after_the_election_is_delivered(seed: int) -> None:
    async def work(led: Leading) -> None:
        dice = Random(seed)
        ordering = dice.choice(["none", "key", "partition"])
        group = await make(
            led, 40, ordering=ordering, max_retries=dice.randrange(3), backoff_initial_us=1, on_poison="skip"
        )
        for _ in range(dice.randrange(1, 12)):
            for receipt, _ in await group.lease("c", dice.randrange(1, 15)):
                do = dice.choice([group.ack, group.nack, group.release, None])
                if do is not None:
                    await do(receipt)
            clock_of(led.broker).advance_us(dice.choice([1, 40 * SECOND]))
            if dice.random() < 0.2:
                await group.topic.partition(0).groups.snapshot()
            if dice.random() < 0.2:
                begin_epoch(logs := led.lose("t", 0))
                assert (await elect(led, logs)).groups.set_back == {}, "a clean election changes nothing"
                group = led.broker.group("g", "t")
        end = dice.randrange(1, 41)
        await elect_uncleanly(led, end)
        sent = await publish(led, 40)
        if dice.random() < 0.5:
            begin_epoch(logs := led.lose("t", 0))
            await elect(led, logs)
        clock_of(led.broker).advance_us(60 * SECOND)
        group = led.broker.group("g", "t")
        got = await consume(group)
        assert [value for value in got if value in set(sent)] == sent, f"seed {seed}"
        assert group.lag() == [0]

    run_led(work)
