"""Clocks that are set, and clocks of several nodes that differ: what lasts lasts by the monotonic clock."""

from __future__ import annotations

import asyncio

import pytest

from broker_files import Inline
from broker_support import ack_all, broker_on, clock_of, group_on, run, values
from led_broker import Leading, SharedCatalog, leading
from penstock.broker.broker import Broker
from penstock.broker.delivery import Delivery
from penstock.broker.events import Origin
from penstock.broker.members import Members
from penstock.broker.settings import GroupSettings
from penstock.message import Message
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles

SECOND, HOUR, YEAR = 1_000_000, 3_600_000_000, 365 * 86_400_000_000
STEPS = [HOUR, -HOUR, 10 * YEAR]


class LoopClock:
    """Goes with the loop; the wall clock is set by somebody."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.set_by_us = 1_700_000_000 * SECOND

    def now_us(self) -> int:
        return self.set_by_us + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(self._loop.time() * SECOND)


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is to be done, it is later at once."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = (each.when() for each in self._scheduled if not each.cancelled())  # type: ignore[attr-defined]
            self._now = max(self._now, min(timers, default=0))
        super()._run_once()  # type: ignore[misc]


async def leased_once(broker: Broker, visibility_us: int = 30 * SECOND) -> None:
    topic = await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t", GroupSettings(visibility_us=visibility_us, start="earliest"))
    await topic.publish(Message(b"job"))
    assert values(await group.lease("one", 10)) == [b"job"]


# --- one broker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_us", STEPS)
def test_a_lease_lasts_its_time_though_the_clock_is_set(step_us: int) -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        await leased_once(broker)
        clock.step_us(step_us)
        await broker.tick()
        clock.advance_us(30 * SECOND - 1)
        await broker.tick()
        assert await broker.group("g", "t").lease("two", 10) == []
        clock.advance_us(1)
        assert values(await broker.group("g", "t").lease("two", 10)) == [b"job"]

    run(work)


@pytest.mark.parametrize("step_us", STEPS)
def test_an_extended_lease_lasts_its_time_though_the_clock_is_set(step_us: int) -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(start="earliest"))
        await topic.publish(Message(b"job"))
        ((receipt, _),) = await group.lease("one", 10)
        await group.extend(receipt, 60 * SECOND)
        clock.step_us(step_us)
        clock.advance_us(60 * SECOND - 1)
        assert await group.lease("two", 10) == []
        clock.advance_us(1)
        assert values(await group.lease("two", 10)) == [b"job"]

    run(work)


@pytest.mark.parametrize("step_us", STEPS)
def test_a_nacked_message_waits_its_time_though_the_clock_is_set(step_us: int) -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(start="earliest"))
        await topic.publish(Message(b"job"))
        ((receipt, _),) = await group.lease("one", 10)
        await group.nack(receipt, delay_us=60 * SECOND)
        clock.step_us(step_us)
        clock.advance_us(60 * SECOND - 1)
        assert await group.lease("one", 10) == []
        clock.advance_us(1)
        assert values(await group.lease("one", 10)) == [b"job"]

    run(work)


@pytest.mark.parametrize("step_us", STEPS)
def test_a_member_stays_for_its_session_though_the_clock_is_set(step_us: int) -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        await broker.create_topic("t", 1)
        await broker.join("g", "ann", ["t"], session_us=20 * SECOND)
        clock.step_us(step_us)
        clock.advance_us(20 * SECOND - 1)
        await broker.tick()
        members = broker.consumers.of("g")
        assert isinstance(members, Members)
        assert members.names() == ["ann"]
        clock.advance_us(1)
        await broker.tick()
        assert members.names() == []

    run(work)


@pytest.mark.parametrize("step_us", STEPS)
def test_a_poll_waits_as_long_as_it_was_asked_to_though_the_clock_is_set(step_us: int) -> None:
    async def main() -> None:
        clock, loop = LoopClock(), asyncio.get_running_loop()
        broker = await Broker.open(MemoryFiles(), clock=clock, executor=Inline())
        await broker.create_topic("t", 1)
        await broker.join("g", "ann", ["t"])
        began = loop.time()
        polling = asyncio.ensure_future(broker.poll("g", "ann", ["t"], wait_us=2 * SECOND))
        await asyncio.sleep(0.5)
        clock.set_by_us += step_us
        assert await polling == []
        assert loop.time() - began == pytest.approx(2, abs=0.01)
        await broker.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_a_delayed_message_is_due_by_the_clock_and_comes_soon_after_that_is_set_forward() -> None:
    async def main() -> None:
        clock, loop = LoopClock(), asyncio.get_running_loop()
        broker = await Broker.open(MemoryFiles(), clock=clock, executor=Inline())
        topic = await broker.create_topic("t", 1)
        await broker.join("g", "ann", ["t"])
        await topic.publish(Message(b"later", deliver_at=clock.now_us() + HOUR))
        polling = asyncio.ensure_future(broker.poll("g", "ann", ["t"], wait_us=60 * SECOND))
        await asyncio.sleep(5)
        assert not polling.done()
        began = loop.time()
        clock.set_by_us += HOUR
        (polled,) = await polling
        assert values([polled.handed]) == [b"later"]
        assert loop.time() - began <= 1.01
        await broker.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("ends", ["close", "kill"])
@pytest.mark.parametrize("step_us", STEPS)
def test_a_lease_becomes_no_shorter_by_a_restart_though_the_clock_was_set(step_us: int, ends: str) -> None:
    """Closed with a snapshot, or killed, when some of its time was over."""

    async def main() -> None:
        disk, clock = MemoryDisk(), ManualClock()
        broker = await Broker.open(MemoryFiles(disk), clock=clock, executor=Inline())
        await leased_once(broker)
        clock.advance_us(10 * SECOND)
        await broker.topic("t").partition(0).groups.flushed()
        killed = disk.after_kill()
        await broker.close()
        clock.step_us(step_us)
        files = MemoryFiles(killed if ends == "kill" else disk)
        broker = await Broker.open(files, clock=clock, executor=Inline())
        group = broker.group("g", "t")
        clock.advance_us(20 * SECOND - 1)
        await broker.tick()
        assert await group.lease("two", 10) == []
        # And no longer than it was given.
        clock.advance_us(10 * SECOND + 1)
        assert values(await group.lease("two", 10)) == [b"job"]
        await broker.close()

    asyncio.run(main())


# --- several nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_us", [31 * SECOND, -31 * SECOND, 10 * YEAR])
def test_a_new_leader_whose_clock_differs_does_not_lease_what_another_consumer_holds(step_us: int) -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with leading(catalog) as one, leading(catalog) as two:
            await one.create("t", 1)
            two.broker.follow_catalog()
            await one.broker.topic("t").publish(Message(b"job"), 0)
            await one.broker.create_group("g")
            two.broker.follow_catalog()
            group = one.broker.group("g", "t")
            await group.seek("earliest")
            assert values(await group.lease("one", 10, visibility_us=30 * SECOND)) == [b"job"]
            logs = one.lose("t", 0)
            clock = clock_of(two.broker)
            clock.step_us(step_us)
            await two.lead("t", 0, logs)
            two.broker.take_up(two.broker.topic("t"), 0)
            group = two.broker.group("g", "t")
            assert await group.lease("two", 10) == []
            clock.advance_us(30 * SECOND - 1)
            assert await group.lease("two", 10) == []
            clock.advance_us(1)
            assert values(await group.lease("two", 10)) == [b"job"]

    asyncio.run(main())


async def acknowledged(led: Leading) -> None:
    broker = led.broker
    await led.create("t", 1)
    await broker.create_group("g")
    for number in range(10):
        await broker.topic("t").publish(Message(b"%d" % number), 0)
    group = broker.group("g", "t")
    await group.seek("earliest")
    await ack_all(group, await group.lease("c", 10))


@pytest.mark.parametrize("step_us", [5 * SECOND, 0, -5 * SECOND])
def test_a_group_that_is_created_again_inherits_nothing_whatever_the_clock_says(step_us: int) -> None:
    async def main() -> None:
        async with leading(SharedCatalog.new()) as led:
            broker = led.broker
            await acknowledged(led)
            logs = led.lose("t", 0)
            # Nobody leads the partition while the group is deleted, and created again by a node with another clock.
            await broker.delete_group("g")
            led.catalog.clock.step_us(step_us)
            await broker.create_group("g")
            await led.lead("t", 0, logs)
            broker.take_up(broker.topic("t"), 0)
            await broker.settle()
            assert not broker.topic("t").partition(0).groups.has("g")

    asyncio.run(main())


def test_a_group_that_is_created_again_starts_anew_though_its_predecessor_is_not_dropped_yet() -> None:
    async def main() -> None:
        async with leading(SharedCatalog.new()) as led:
            broker = led.broker
            await acknowledged(led)
            logs = led.lose("t", 0)
            await broker.delete_group("g")
            await broker.create_group("g")
            await led.lead("t", 0, logs)
            # Before the new leader has looked for what was deleted meanwhile.
            group = broker.group("g", "t")
            assert len(values(await group.lease("c", 20))) == 10
            broker.take_up(broker.topic("t"), 0)
            await broker.settle()
            assert broker.topic("t").partition(0).groups.has("g"), "what was dropped was the predecessor"

    asyncio.run(main())


def test_a_group_keeps_its_state_though_its_settings_are_changed_while_nobody_leads_the_partition() -> None:
    async def main() -> None:
        async with leading(SharedCatalog.new()) as led:
            broker = led.broker
            await acknowledged(led)
            logs = led.lose("t", 0)
            led.catalog.clock.advance_us(5 * SECOND)
            await broker.change_group("g", visibility_us=7 * SECOND)
            await led.lead("t", 0, logs)
            broker.take_up(broker.topic("t"), 0)
            await broker.settle()
            assert broker.group("g", "t").lag() == [0]

    asyncio.run(main())


def test_a_state_that_is_newer_than_the_catalog_that_a_node_has_seen_is_kept() -> None:
    state = Delivery("g")
    state.origin = Origin(made_us=5, generation=8)
    assert not state.origin.is_before(Origin(made_us=9, generation=7))
    assert state.origin.is_before(Origin(made_us=1, generation=9))


@pytest.mark.parametrize(
    ("state", "record", "is_before"),
    [
        (Origin(5, 0), Origin(5, 0), False),
        (Origin(5, 0), Origin(6, 0), True),
        # Begun by a node with an older version, of a group that a newer one has created.
        (Origin(5, 0), Origin(5, 3), False),
        (Origin(5, 0), Origin(4, 3), True),
        (Origin(0, 0), Origin(4, 3), False),
    ],
)
def test_groups_of_an_older_version_are_told_apart_by_their_dates(
    state: Origin, record: Origin, is_before: bool
) -> None:
    assert state.is_before(record) == is_before


def test_the_generation_of_groups_goes_up_over_restarts() -> None:
    async def main() -> None:
        files = MemoryFiles()
        generations = []
        for _ in range(3):
            async with broker_on(files) as broker:
                await broker.create_group("g")
                generations.append(broker.group_record("g").generation)
                await broker.delete_group("g")
        assert generations == [1, 2, 3]

    asyncio.run(main())


def test_a_manual_clock_that_is_set_lets_no_time_pass() -> None:
    clock = ManualClock()
    before = clock.now_us(), clock.monotonic_us()
    clock.step_us(-5)
    clock.advance_us(3)
    clock.advance_us(-4)
    assert (clock.now_us() - before[0], clock.monotonic_us() - before[1]) == (-6, 3)
