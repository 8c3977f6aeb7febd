"""Replays into groups of their own, messages that come again and again, and consumers that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.broker import scheduled
from penstock.broker.broker import Broker, Polled
from penstock.broker.settings import GroupSettings
from penstock.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    MemberNotFound,
    NotFound,
    SettingsConflict,
    TopicNotFound,
)
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles

SECOND = 1_000_000


def got(polled: list[Polled]) -> list[bytes | None]:
    return values([one.handed for one in polled])


# --- replay ------------------------------------------------------------------------------------------------


def test_a_replay_of_a_time_comes_to_a_group_of_its_own_and_ends() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        live = await group_on(broker, "live", "t")
        times = []
        for i in range(6):
            times.append(clock.now_us())
            await topic.publish(Message(b"%d" % i))
            clock.advance_us(SECOND)
        await ack_all(live, await live.lease("c", 4))
        assert await broker.replay("t", "shadow", from_us=times[2], to_us=times[5]) == 3
        shadow = broker.group("shadow", "t")
        first = await shadow.lease("c", 2)
        assert values(first) == [b"2", b"3"]
        await topic.publish(Message(b"new"))
        assert values(await live.lease("c", 10)) == [b"4", b"5", b"new"]
        await ack_all(shadow, first)
        await ack_all(shadow, await shadow.lease("c", 10))
        assert (await shadow.lease("c", 10), shadow.lag()) == ([], [0])

    run(work)


@pytest.mark.parametrize(("to", "came"), [({"offset": 3, "partition": 0}, [b"3"]), ({"to": "earliest"}, [b"2", b"3"])])
def test_a_replay_that_is_moved_keeps_its_end(to: dict[str, Any], came: list[bytes]) -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        times = []
        for i in range(6):
            times.append(clock.now_us())
            await topic.publish(Message(b"%d" % i))
            clock.advance_us(SECOND)
        await broker.replay("t", "shadow", from_us=times[2], to_us=times[4])
        shadow = broker.group("shadow", "t")
        await ack_all(shadow, await shadow.lease("c", 10))
        await shadow.seek(**to)
        handed = values(await shadow.lease("c", 10))
        assert handed[-len(came) :] == came
        assert handed[-1] == b"3"
        await shadow.seek("latest")
        assert await shadow.lease("c", 10) == []

    run(work)


def test_a_replay_may_repeat_delays_and_lanes_or_ignore_them() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        await topic.publish(Message(b"late", deliver_at=clock.now_us() + 60 * SECOND))
        await topic.publish(Message(b"plain"))
        await topic.publish(Message(b"high", priority=1))
        clock.advance_us(3600 * SECOND)
        await broker.replay("t", "ignoring", offsets={0: (0, 3)})
        assert values(await broker.group("ignoring", "t").lease("c", 10)) == [b"late", b"plain", b"high"]
        await broker.replay("t", "repeating", offsets={0: (0, 3)}, delays=True, lanes=True)
        group = broker.group("repeating", "t")
        handed = await group.lease("c", 10)
        assert values(handed) == [b"high", b"plain"]
        await ack_all(group, handed)
        clock.advance_us(59 * SECOND)
        assert await group.lease("c", 10) == []
        clock.advance_us(SECOND)
        assert values(await group.lease("c", 10)) == [b"late"]

    run(work)


def test_a_replay_goes_on_after_a_restart() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for i in range(5):
            await topic.publish(Message(b"%d" % i))
        await broker.replay("t", "shadow", offsets={0: (1, 4)})
        await ack_all(broker.group("shadow", "t"), await broker.group("shadow", "t").lease("c", 1))

    async def after(broker: Broker) -> None:
        assert values(await broker.group("shadow", "t").lease("c", 10)) == [b"2", b"3"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_what_a_replay_is_of_stays_known_when_its_group_is_changed() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for word in (b"1", b"2"):
            await topic.publish(Message(word), 1)
        await broker.replay("t", "shadow", offsets={1: (1, 2)})
        await broker.change_group("shadow", max_retries=9)

    async def after(broker: Broker) -> None:
        (record,) = broker.groups
        assert record.replay is not None
        assert (record.replay.topic, record.replay.ranges) == (broker.topic("t").record.id, ((0, 0), (1, 2)))
        assert record.settings.max_retries == 9
        assert values(await broker.group("shadow", "t").lease("c", 10)) == [b"2"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_a_replay_of_nothing_that_is_there_is_refused() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        await topic.publish(Message(b"x"), 0)
        await (await group_on(broker, "live", "t")).start()
        for wrong in ({0: (0, 5)}, {0: (1, 0)}, {0: (-1, 1)}, {7: (0, 1)}):
            with pytest.raises((InvalidInput, NotFound)):
                await broker.replay("t", "shadow", offsets=wrong)
        with pytest.raises(InvalidInput):
            await broker.replay("t", "shadow")
        with pytest.raises(AlreadyExists):
            await broker.replay("t", "live", offsets={0: (0, 1)})
        with pytest.raises(TopicNotFound):
            await broker.replay("missing", "shadow", offsets={0: (0, 1)})
        assert [group.name for group in broker.groups] == ["live"]

    run(work)


# --- schedules ---------------------------------------------------------------------------------------------


def test_a_schedule_publishes_its_message_again_and_again() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await group.start()
        await broker.schedules.create("tick", "t", "@every 60s", Message(b"tick"), timezone="UTC", producer=5)
        came = 0
        for _ in range(5 * 60):
            clock.advance_us(SECOND)
            await broker.tick()
            handed = await group.lease("c", 10)
            await ack_all(group, handed)
            came += len(values(handed))
        assert came == 5
        assert len(list(scheduled.scheduled(topic))) == 1
        await broker.schedules.delete("tick")
        assert (list(scheduled.scheduled(topic)), broker.schedules.list()) == ([], [])

    run(work)


def test_a_schedule_goes_on_after_a_restart_without_making_up_for_what_it_missed() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        await group_on(broker, "g", "t")
        await broker.schedules.create("tick", "t", "@every 60s", Message(b"tick"), timezone="UTC", producer=5)

    async def after(broker: Broker) -> None:
        clock, group = clock_of(broker), broker.group("g", "t")
        clock.advance_us(600 * SECOND)
        await broker.tick()
        late = await group.lease("c", 10)
        assert values(late) == [b"tick"]
        await ack_all(group, late)
        clock.advance_us(60 * SECOND)
        await broker.tick()
        assert values(await group.lease("c", 10)) == [b"tick"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_a_schedule_that_can_not_be_is_refused() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        schedules, message = broker.schedules, Message(b"x")
        for cron in ("", "nonsense", "0 0 30 2 *", "* * * * * *", "61 * * * *"):
            with pytest.raises(InvalidInput):
                await schedules.create("s", "t", cron, message, timezone="UTC", producer=1)
        with pytest.raises(InvalidInput):
            await schedules.create("s", "t", "@daily", message, timezone="Mars/Olympus", producer=1)
        with pytest.raises(TopicNotFound):
            await schedules.create("s", "missing", "@daily", message, timezone="UTC", producer=1)
        with pytest.raises(InvalidName):
            await schedules.create("../s", "t", "@daily", message, timezone="UTC", producer=1)
        with pytest.raises(InvalidInput):
            late = Message(b"x", deliver_at=clock_of(broker).now_us() + SECOND)
            await schedules.create("s", "t", "@daily", late, timezone="UTC", producer=1)
        await schedules.create("s", "t", "@daily", message, timezone="UTC", producer=1)
        with pytest.raises(AlreadyExists):
            await schedules.create("s", "t", "@daily", message, timezone="UTC", producer=1)
        with pytest.raises(NotFound):
            await schedules.delete("other")

    run(work)


# --- members -----------------------------------------------------------------------------------------------


def test_members_share_the_partitions_and_only_what_moves_pauses() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 4)
        for partition in range(4):
            await topic.publish(Message(b"%d" % partition), partition)
        await broker.join("g", "anna", ["t"])
        await broker.join("g", "ben", ["t"])
        members = broker.consumers.of("g")
        assert members is not None
        assert [len(members.assigned(name)) for name in ("anna", "ben")] == [2, 2]
        first, second = await broker.poll("g", "anna", ["t"]), await broker.poll("g", "ben", ["t"])
        assert sorted(got(first) + got(second)) == [b"0", b"1", b"2", b"3"]  # type: ignore[type-var]
        kept = members.assigned("anna")
        broker.leave("g", "ben")
        assert len(members.assigned("anna")) == 4
        assert set(kept) < set(members.assigned("anna"))
        assert {change.reason for change in members.history} == {"joined anna", "joined ben", "left ben"}
        with pytest.raises(MemberNotFound):
            await broker.poll("g", "ben", ["t"])

    run(work)


def test_a_member_that_falls_silent_loses_its_partitions() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        await broker.join("g", "anna", ["t"], session_us=10 * SECOND)
        await broker.join("g", "ben", ["t"], session_us=10 * SECOND)
        clock_of(broker).advance_us(6 * SECOND)
        broker.consumers.heartbeat("g", "ben")
        clock_of(broker).advance_us(6 * SECOND)
        await broker.tick()
        for partition in range(2):
            await topic.publish(Message(b"%d" % partition), partition)
        assert sorted(got(await broker.poll("g", "ben", ["t"]))) == [b"0", b"1"]  # type: ignore[type-var]
        with pytest.raises(MemberNotFound):
            broker.consumers.heartbeat("g", "anna")

    run(work)


def test_a_partition_moves_at_once_and_its_busy_keys_stay_where_they_are() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for word in (b"1", b"2"):
            await topic.publish(Message(word, key=b"k"))
        await broker.join("g", "anna", ["t"], ordering="key")
        held = await broker.poll("g", "anna", ["t"], count=1)
        await topic.publish(Message(b"3", key=b"other"))
        await broker.join("g", "ben", ["t"])
        broker.leave("g", "anna")
        assert got(await broker.poll("g", "ben", ["t"])) == [b"3"]
        await broker.group("g", "t").ack(held[0].handed.receipt)
        assert got(await broker.poll("g", "ben", ["t"])) == [b"2"]

    run(work)


def test_more_consumers_than_partitions_may_share_the_work() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for i in range(6):
            await topic.publish(Message(b"%d" % i))
        for name in ("a", "b", "c"):
            await broker.join("g", name, ["t"], assignment="shared")
        assert [got(await broker.poll("g", name, ["t"], count=2)) for name in ("a", "b", "c")] == [
            [b"0", b"1"],
            [b"2", b"3"],
            [b"4", b"5"],
        ]

    run(work)


def test_a_member_that_comes_back_after_a_restart_has_what_it_had() -> None:
    disk = MemoryDisk()
    before_restart: dict[str, list[object]] = {}

    async def before(broker: Broker) -> None:
        for name in ("t", "u"):
            await broker.create_topic(name, 5)
        for name in ("x", "y", "z"):
            await broker.join("g", name, ["t", "u"], session_us=SECOND)
        members = broker.consumers.of("g")
        assert members is not None
        before_restart.update({name: list(members.assigned(name)) for name in ("x", "y", "z")})

    async def after(broker: Broker) -> None:
        for name in ("z", "y", "x"):
            await broker.join("g", name, ["t", "u"], session_us=SECOND)
        members = broker.consumers.of("g")
        assert members is not None
        assert {name: members.assigned(name) for name in ("x", "y", "z")} == before_restart

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_members_of_a_process_that_is_gone_are_not_waited_for() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        await broker.create_topic("t", 3)
        await broker.join("g", "old", ["t"])

    async def after(broker: Broker) -> None:
        await broker.topic("t").publish(Message(b"x"))
        await broker.join("g", "new", ["t"])
        assert got(await broker.poll("g", "new", ["t"])) == [b"x"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_a_group_is_made_once_and_joined_as_it_is() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        await broker.join("g", "a", ["t"], ordering="key", max_retries=5)
        await broker.join("g", "b", ["t"], ordering="key")
        for given, error in (
            ({"ordering": "none"}, SettingsConflict),
            ({"max_retries": 6}, SettingsConflict),
            ({"colour": "red"}, InvalidSetting),
            ({"ordering": "random"}, InvalidSetting),
            ({"max_retries": -1}, InvalidSetting),
        ):
            with pytest.raises(error):
                await broker.join("g", "c", ["t"], **given)
        members = broker.consumers.of("g")
        assert members is not None
        assert members.names() == ["a", "b"]
        with pytest.raises(TopicNotFound):
            await broker.join("g", "c", ["missing"])
        with pytest.raises(InvalidInput):
            await broker.join("g", "c", [])
        with pytest.raises(InvalidName):
            await broker.join("g", "../c", ["t"])
        with pytest.raises(GroupNotFound):
            broker.group("other", "t")

    run(work)


class Until:
    """Timers that tell until when somebody would have waited."""

    def __init__(self) -> None:
        self.us: list[int] = []

    async def wait(self, ring: asyncio.Future[None], until_us: int, due_us: int = 0) -> bool:
        self.us.append(until_us)
        return False


def test_a_member_does_not_wait_for_what_only_another_may_lease() -> None:
    timers = Until()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for number in range(2):
            await topic.publish(Message(b"%d" % number), number)
        for name in ("c1", "c2"):
            await broker.join("g", name, ["t"], session_us=45 * SECOND, visibility_us=10 * SECOND)
        assert len(await broker.poll("g", "c1", ["t"])) == 1
        for polled in await broker.poll("g", "c2", ["t"]):
            await broker.group("g", "t").ack(polled.handed.receipt)
        # The lease of the first one is over, and it does not ask again; nor is it heard of.
        for after in (20 * SECOND, 40 * SECOND):
            clock_of(broker).advance_us(after)
            assert await broker.poll("g", "c2", ["t"], wait_us=100 * SECOND) == []
            assert timers.us.pop() == clock_of(broker).monotonic_us() + 100 * SECOND
        await broker.tick()
        assert got(await broker.poll("g", "c2", ["t"], wait_us=100 * SECOND)) != []

    run(work, timers=timers)


def test_who_can_get_no_more_waits_for_a_lease_to_end_and_not_for_what_is_due_already() -> None:
    timers = Until()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for value in (b"1", b"2", b"3"):
            await topic.publish(Message(value))
        await broker.join("g", "c", ["t"], visibility_us=10 * SECOND, max_in_flight=2)
        first, second = [(await broker.poll("g", "c", ["t"], count=1))[0].handed.receipt for _ in range(2)]
        await broker.group("g", "t").nack(first, delay_us=SECOND)
        await broker.poll("g", "c", ["t"], visibility_us=20 * SECOND)
        clock_of(broker).advance_us(2 * SECOND)
        assert await broker.poll("g", "c", ["t"], wait_us=100 * SECOND) == []
        assert timers.us == [clock_of(broker).monotonic_us() + 8 * SECOND]
        await broker.group("g", "t").ack(second)
        assert got(await broker.poll("g", "c", ["t"])) == [b"1"]

    run(work, timers=timers)


def test_a_deleted_group_starts_from_nothing_when_it_comes_again() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish(Message(b"x"))
        group = await group_on(broker, "g", "t", GroupSettings(max_retries=7))
        await ack_all(group, await group.lease("c", 1))
        await broker.delete_group("g")
        assert broker.groups == []
        with pytest.raises(GroupNotFound):
            broker.group("g", "t")
        again = await group_on(broker, "g", "t")
        assert values(await again.lease("c", 1)) == [b"x"]

    run(work)


def test_a_group_misses_nothing_of_partitions_that_are_added() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await broker.join("g", "a", ["t"], start="latest")
        await broker.change_topic("t", partitions=2)
        await topic.publish(Message(b"x"), 1)
        assert got(await broker.poll("g", "a", ["t"])) == [b"x"]

    run(work)
