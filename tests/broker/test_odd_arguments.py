"""What a user may hand to the broker by mistake gets a typed error; nothing foreign escapes, nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyroaring import BitMap64

from broker_files import Work, run_inline
from broker_support import clock_of
from penstock.batch import Batch
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import Where
from penstock.broker.group import Group, Receipt
from penstock.broker.ids import MessageId
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.broker.topic import Topic
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles

HOUR, HUGE, NAN = 3_600_000_000, 1 << 70, float("nan")


class On(NamedTuple):
    """A broker in the middle of its work."""

    broker: Broker
    topic: Topic
    group: Group
    unstarted: Group
    receipt: Receipt


async def working(broker: Broker) -> On:
    topic = await broker.create_topic("t", 2)
    await broker.join("g", "c", ["t"], ordering="key")
    group = broker.group("g", "t")
    await topic.publish(Message(b"bad", key=b"k"), 1)
    (handed,) = await group.lease("c", 1)
    await group.reject(handed.receipt, "bad")
    await broker.settle()
    await topic.publish(Message(b"leased", key=b"a"), 0)
    (handed,) = await group.lease("c", 1)
    await topic.publish(Message(b"later", deliver_at=clock_of(broker).now_us() + HOUR), 0)
    await topic.publish(Message(b"ready"), 0)
    await broker.schedules.create("s", "t", "0 * * * *", Message(b"x"), timezone="UTC", producer=1)
    await broker.create_group("unstarted")
    return On(broker, topic, group, broker.group("unstarted", "t"), handed.receipt)


async def state_of(on: On) -> object:
    """Everything that a call could have changed."""
    partitions = [partition for record in on.broker.topics for partition in on.broker.topic(record.name).partitions]
    for partition in partitions:
        await partition.groups.flushed()
    members = on.broker.consumers.of("g")
    assert members is not None
    return (
        on.broker.topics,
        on.broker.groups,
        on.broker.schedules.list(),
        list(members.names()),
        [(partition.messages.end_offset, partition.deliveries.end_offset) for partition in partitions],
    )


async def still_works(on: On) -> None:
    await on.broker.tick()
    await on.group.ack(on.receipt)
    await on.topic.publish(Message(b"x"))
    assert await on.broker.poll("g", "c", ["t"])


@contextmanager
def refused(odd: object) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        return
    except Exception as error:
        pytest.fail(f"{odd!r} made {error!r}")
    pytest.fail(f"{odd!r} was taken")


# --- the table -------------------------------------------------------------------------------------------

Call = Callable[[On, Any], Any]
Table = dict[str, tuple[Call, tuple[Any, ...]]]

NOT_TEXT = (None, 5, 1.5, True, b"t", [], {}, ["t"])
NAMES = (*NOT_TEXT, "", "../x", ".x", "__own", "x" * 201, "é", "a b", "\ud800")
KNOWN_NAMES = (*NAMES, "missing")
NAME_LISTS = (None, 5, "t", [], [5], [None], [""], ["missing"], ["t", "../x"])
NOT_NUMBERS = ("1", "", b"1", 1.5, NAN, True, [], {}, [1], np.array([1]))
# Of arguments that may be None.
OPTIONAL = (*NOT_NUMBERS, -1, HUGE)
NUMBERS = (*OPTIONAL, None)
SIZES = (*NOT_NUMBERS, None, 0, -1)
SETTINGS = (5, "earliest", {"start": "latest"}, [5])
REASONS = (None, 5, b"bad", [])
PLACES = ((9, 0), (-1, 0), ("0", 0), (True, 0), (0, "0"), (0, -1), (0, 1.5), (0, HUGE), (0, None), (0, 99))
IDS = (None, 5, b"t:0:0", "", "t", "t:0", "t:0:x", "t:0:-1", "t:0:0:0", [], ("t", 0, 0), "missing:0:0")
IDS += tuple(MessageId("t", *place) for place in PLACES)  # type: ignore[arg-type]
MESSAGES = (None, b"x", "x", 5, [], {"value": b"x"}, Message("x"), Message(b"x", key="k"))  # type: ignore[arg-type]
MESSAGES += (Message(b"x", headers=5), Message(b"x", priority=7))  # type: ignore[arg-type]
MESSAGES += (Message(b"x", deliver_at="1"), Message(b"x", expires_at=NAN))  # type: ignore[arg-type]
RANGES = (None, {9: (0, 1)}, {"0": (0, 1)}, {0: (-1, 1)}, {0: (1, 0)}, {0: (0, 99)}, {0: (0, HUGE)})
RANGES += ({0: ("0", "1")}, {0: (0.0, 1.5)}, {0: (False, True)}, {0: (None, None)})
TOPIC_SETTINGS = ({"cleanup": "shred"}, {"cleanup": []}, {"retention_age_us": 0}, {"retention_age_us": "x"})
TOPIC_SETTINGS += ({"retention_bytes": -1}, {"tombstone_age_us": 1.5}, {"max_delay_us": HUGE})
GROUP_SETTINGS = ({"start": "middle"}, {"start": []}, {"visibility_us": 0}, {"visibility_us": "x"}, {"lanes": 5})
GROUP_SETTINGS += ({"max_retries": -1}, {"max_retries": HUGE}, {"backoff_initial_us": HUGE}, {"backoff_max_us": -1})
GROUP_SETTINGS += ({"backoff_factor": NAN}, {"backoff_jitter": 2}, {"max_in_flight": 0}, {"session_us": HUGE})
# They are written to the catalog, which can't be read then.
POISON_OF_TOPICS = ({"max_delay_us": None}, {"retention_bytes": True}, {"dead_letters": None}, {"dead_letters": "no"})
POISON_OF_GROUPS = ({"visibility_us": None}, {"session_us": True}, {"max_retries": 1.5}, {"backoff_factor": True})

BROKER: Table = {
    "topic": (lambda on, odd: on.broker.topic(odd), KNOWN_NAMES),
    "create_topic name": (lambda on, odd: on.broker.create_topic(odd), (*NAMES, "t")),
    "create_topic partitions": (lambda on, odd: on.broker.create_topic("new", odd), (*NUMBERS, 0, 1001)),
    "create_topic settings": (lambda on, odd: on.broker.create_topic("new", 1, odd), SETTINGS),
    "TopicSettings": (lambda on, odd: on.broker.create_topic("new", 1, TopicSettings(**odd)), TOPIC_SETTINGS),
    "change_topic name": (lambda on, odd: on.broker.change_topic(odd), KNOWN_NAMES),
    "change_topic partitions": (lambda on, odd: on.broker.change_topic("t", partitions=odd), (*OPTIONAL, 0, 1, 1001)),
    "change_topic settings": (lambda on, odd: on.broker.change_topic("t", settings=odd), SETTINGS),
    "delete_topic": (lambda on, odd: on.broker.delete_topic(odd), KNOWN_NAMES),
    "create_group name": (lambda on, odd: on.broker.create_group(odd), NAMES),
    "create_group settings": (lambda on, odd: on.broker.create_group("new", odd), SETTINGS),
    "GroupSettings": (lambda on, odd: on.broker.create_group("new", GroupSettings(**odd)), GROUP_SETTINGS),
    "ensure_group": (lambda on, odd: on.broker.ensure_group(odd), NAMES),
    "change_group": (lambda on, odd: on.broker.change_group(odd), KNOWN_NAMES),
    "delete_group": (lambda on, odd: on.broker.delete_group(odd), KNOWN_NAMES),
    "group": (lambda on, odd: on.broker.group(odd, "t"), KNOWN_NAMES),
    "group topic": (lambda on, odd: on.broker.group("g", odd), (None, 5, b"t", "", "../x", "missing")),
    "group_topics": (lambda on, odd: on.broker.group_topics(odd), KNOWN_NAMES),
    "join group": (lambda on, odd: on.broker.join(odd, "c", ["t"]), NAMES),
    "join consumer": (lambda on, odd: on.broker.join("g", odd, ["t"]), NAMES),
    "join topics": (lambda on, odd: on.broker.join("g", "c", odd), NAME_LISTS),
    "join session_us": (lambda on, odd: on.broker.join("g", "c", ["t"], session_us=odd), (*OPTIONAL, 0)),
    "leave": (lambda on, odd: on.broker.leave(odd, "c"), KNOWN_NAMES),
    "poll group": (lambda on, odd: on.broker.poll(odd, "c", ["t"]), KNOWN_NAMES),
    "poll consumer": (lambda on, odd: on.broker.poll("g", odd, ["t"]), (*NAMES, "stranger")),
    "poll topics": (lambda on, odd: on.broker.poll("g", "c", odd), NAME_LISTS),
    "poll count": (lambda on, odd: on.broker.poll("g", "c", ["t"], count=odd), (*NUMBERS, 0, 10_001)),
    "poll bytes_max": (lambda on, odd: on.broker.poll("g", "c", ["t"], bytes_max=odd), SIZES),
    "poll wait_us": (lambda on, odd: on.broker.poll("g", "c", ["t"], wait_us=odd), NUMBERS),
    "poll visibility_us": (lambda on, odd: on.broker.poll("g", "c", ["t"], visibility_us=odd), (*OPTIONAL, 0)),
    "message": (lambda on, odd: on.broker.message(odd), IDS),
    "trace": (lambda on, odd: on.broker.trace(odd), IDS),
    "why": (lambda on, odd: on.broker.why(odd, "g"), [odd for odd in IDS if odd != MessageId("t", 0, 99)]),
    "state_at topic": (lambda on, odd: on.broker.state_at("g", odd, 1), KNOWN_NAMES),
    "state_at time_us": (lambda on, odd: on.broker.state_at("g", "t", odd), NUMBERS),
    "replay topic": (lambda on, odd: on.broker.replay(odd, "new", from_us=0), KNOWN_NAMES),
    "replay group": (lambda on, odd: on.broker.replay("t", odd, from_us=0), (*NAMES, "g")),
    "replay offsets": (lambda on, odd: on.broker.replay("t", "new", offsets=odd), RANGES),
    "replay from_us": (lambda on, odd: on.broker.replay("t", "new", from_us=odd), ("0", 1.5, NAN, [], {}, None)),
    "replay to_us": (lambda on, odd: on.broker.replay("t", "new", to_us=odd), ("0", 1.5, NAN, [], {}, None)),
    "replay settings": (lambda on, odd: on.broker.replay("t", "new", from_us=0, **odd), ({"start": 5}, {"colour": 1})),
}
TOPIC: Table = {
    "partition": (lambda on, odd: on.topic.partition(odd), (*NUMBERS, 2)),
    "publish message": (lambda on, odd: on.topic.publish(odd), MESSAGES),
    "publish partition": (lambda on, odd: on.topic.publish(Message(b"x"), odd), (*OPTIONAL, 2)),
    "publish_batch batch": (lambda on, odd: on.topic.publish_batch(odd), (None, 5, b"x", [], [Message(b"x")])),
    "publish_batch partition": (lambda on, odd: on.topic.publish_batch(BATCH, odd), (*OPTIONAL, 2, np.int64(1))),
    "publish_batch codec": (lambda on, odd: on.topic.publish_batch(BATCH, codec=odd), (None, "zstd", -1, 99)),
    "publish_frame frame": (lambda on, odd: on.topic.publish_frame(odd, 0), (None, 5, b"x", [], Message(b"x"))),
    "publish_frame partition": (lambda on, odd: on.topic.publish_frame(FRAME, odd), (*NUMBERS, 2)),
}
GROUP: Table = {
    "lease consumer": (lambda on, odd: on.group.lease(odd, 1), NAMES),
    "lease count": (lambda on, odd: on.group.lease("c", odd), (*NUMBERS, 0, 10_001)),
    "lease bytes_max": (lambda on, odd: on.group.lease("c", 1, odd), SIZES),
    "lease visibility_us": (lambda on, odd: on.group.lease("c", 1, visibility_us=odd), (*OPTIONAL, 0)),
    "lease partitions": (lambda on, odd: on.group.lease("c", 1, partitions=odd), ([9], [-1], ["0"], [None], "0")),
    "nack reason": (lambda on, odd: on.group.nack(on.receipt, reason=odd), REASONS),
    "nack delay_us": (lambda on, odd: on.group.nack(on.receipt, delay_us=odd), OPTIONAL),
    "reject reason": (lambda on, odd: on.group.reject(on.receipt, odd), REASONS),
    "extend": (lambda on, odd: on.group.extend(on.receipt, odd), (*OPTIONAL, 0)),
    "seek": (lambda on, odd: on.group.seek(odd), (None, 5, "middle", [], b"latest")),
    "seek time_us": (lambda on, odd: on.group.seek(time_us=odd), NUMBERS),
    "seek offset": (lambda on, odd: on.group.seek(offset=odd, partition=0), (*NUMBERS, 99)),
    "seek partition": (lambda on, odd: on.group.seek(offset=0, partition=odd), (*NUMBERS, 2)),
    "release_key": (lambda on, odd: on.group.release_key(odd), ("k", 5, [], b"other", None)),
    "release_key partition": (lambda on, odd: on.group.release_key(b"k", odd), (0, -1, 9, "1", 1.5, [])),
}


def answers(name: str, answer: Callable[[Group, Receipt], Awaitable[None]]) -> Table:
    return {
        f"{name} partition": (lambda on, odd: answer(on.group, on.receipt._replace(partition=odd)), (*NUMBERS, 2)),
        f"{name} lease": (lambda on, odd: answer(on.group, on.receipt._replace(lease=odd)), (None, 5, -1, "x", HUGE)),
        f"{name} before any lease": (lambda on, odd: answer(on.unstarted, odd), (Receipt(0, 1, BitMap64([0])),)),
    }


def answers_for_some(name: str, answer: Callable[[Group, Receipt], Awaitable[None]]) -> Table:
    odd_offsets = (BitMap64(), BitMap64([99]), BitMap64([0, 99]))
    return {
        **answers(name, answer),
        f"{name} offsets": (lambda on, odd: answer(on.group, on.receipt._replace(offsets=odd)), odd_offsets),
    }


GROUP |= answers_for_some("ack", Group.ack)
GROUP |= answers_for_some("nack", Group.nack)
GROUP |= answers_for_some("release", Group.release)
GROUP |= answers_for_some("reject", lambda group, receipt: group.reject(receipt, "bad"))
GROUP |= answers("extend", Group.extend)
SCHEDULED: Table = {
    "scheduled": (lambda on, odd: scheduled.scheduled(on.topic, odd), ("1", 1.5, NAN, [], -1)),
    "get": (lambda on, odd: scheduled.get(on.topic, odd), (*IDS, "t:0:0")),
    "cancel": (lambda on, odd: scheduled.cancel(on.topic, odd), (*IDS, "t:0:0")),
    "reschedule": (lambda on, odd: scheduled.reschedule(on.topic, odd, 0, clock_of(on.broker)), (*IDS, "t:0:0")),
    "reschedule deliver_at": (
        lambda on, odd: scheduled.reschedule(on.topic, MessageId("t", 0, 1), odd, clock_of(on.broker)),
        NUMBERS,
    ),
}
DEAD_LETTERS: Table = {
    "letters": (lambda on, odd: on.broker.dead_letters.letters(odd), KNOWN_NAMES),
    "letter": (lambda on, odd: on.broker.dead_letters.letter(odd), (MessageId("t", 0, 0), MessageId("t.dlq", 9, 0))),
    "redrive": (lambda on, odd: on.broker.dead_letters.redrive(odd), KNOWN_NAMES),
    "redrive where": (lambda on, odd: on.broker.dead_letters.redrive("t", odd), (5, "k", [], {"key": b"k"})),
    "redrive rate": (lambda on, odd: on.broker.dead_letters.redrive("t", rate=odd), ("1", 0, -1, NAN, 1e9, True, [])),
    "redrive redrives_max": (
        lambda on, odd: on.broker.dead_letters.redrive("t", redrives_max=odd),
        ("1", None, -1, 1.5, NAN, []),
    ),
    "discard": (lambda on, odd: on.broker.dead_letters.discard(odd), KNOWN_NAMES),
}
SCHEDULES: Table = {
    "get": (lambda on, odd: on.broker.schedules.get(odd), (None, 5, [], "", "missing")),
    "delete": (lambda on, odd: on.broker.schedules.delete(odd), (None, 5, [], "", "missing")),
    "create name": (lambda on, odd: create(on, name=odd), (*NAMES, "s")),
    "create topic": (lambda on, odd: create(on, topic=odd), KNOWN_NAMES),
    "create cron": (lambda on, odd: create(on, cron=odd), (*NOT_TEXT, "", "* * * *", "61 * * * *", "0 0 31 2 *")),
    "create message": (lambda on, odd: create(on, message=odd), MESSAGES),
    "create timezone": (lambda on, odd: create(on, timezone=odd), (*NOT_TEXT, "", "No/Where", "../../etc/passwd")),
    "create producer": (lambda on, odd: create(on, producer=odd), (None, "1", 1.5, NAN, [], 0, -1, 1 << 63, HUGE)),
}
ELSEWHERE: Table = {
    "create_topic settings": (lambda on, odd: on.broker.create_topic("new", 1, odd), (0, "", [], {})),
    "TopicSettings": (lambda on, odd: on.broker.create_topic("new", 1, TopicSettings(**odd)), POISON_OF_TOPICS),
    "GroupSettings": (lambda on, odd: on.broker.create_group("new", GroupSettings(**odd)), POISON_OF_GROUPS),
    "GroupSettings of text": (lambda on, odd: on.broker.create_group("new", GroupSettings(max_retries=odd)), ("1", [])),
    "ensure_group settings": (lambda on, odd: on.broker.ensure_group("new", start=odd), ("\ud800",)),
    "schedules.create producer": (lambda on, odd: create(on, producer=odd), (True,)),
    "group topic": (lambda on, odd: on.broker.group("g", odd), ([], {})),
    "join topics": (lambda on, odd: on.broker.join("g", "c", odd), ([[]],)),
    "leave consumer": (lambda on, odd: on.broker.leave("g", odd), ([], {}, None, "../x")),
    "poll topics": (lambda on, odd: on.broker.poll("g", "c", odd), ([[]],)),
    "why group": (lambda on, odd: on.broker.why(MessageId("t", 0, 0), odd), ([], {}, None, "../x")),
    "state_at group": (lambda on, odd: on.broker.state_at(odd, "t", 1), ([], {}, None, "../x")),
    "replay offsets": (lambda on, odd: on.broker.replay("t", "new", offsets=odd), (5, [], {0: 5}, {0: (0, 1, 2)})),
    "replay from_us": (lambda on, odd: on.broker.replay("t", "new", from_us=odd), (-1, HUGE, True)),
    "Group.replay": (lambda on, odd: on.unstarted.replay(0, *odd), ((-5, 3), ("a", 3), (3, 1), (0, 99))),
    "Group.lease partitions": (lambda on, odd: on.group.lease("c", 1, partitions=odd), (5, 1.5)),
    "Group.ack": (lambda on, odd: on.group.ack(odd), (None, 5, [])),
    "Group.ack lease": (lambda on, odd: on.group.ack(on.receipt._replace(lease=odd)), ([], {})),
    "Group.ack offsets": (lambda on, odd: on.group.ack(on.receipt._replace(offsets=odd)), (None, 5, [], [0], {0})),
    "publish headers": (lambda on, odd: on.topic.publish(Message(b"x", headers=odd)), (np.array([1]),)),
    "letters where": (lambda on, odd: on.broker.dead_letters.letters("t", odd), (5, "k", {})),
    "letter": (lambda on, odd: on.broker.dead_letters.letter(odd), (None, 5, "t.dlq")),
    "discard where": (lambda on, odd: on.broker.dead_letters.discard("t", odd), (5, "k", {})),
    "Where reason_contains": (
        lambda on, odd: on.broker.dead_letters.letters("t", Where(reason_contains=odd)),
        (5, b"bad", []),
    ),
    "Where ids": (lambda on, odd: on.broker.dead_letters.letters("t", Where(ids=odd)), (5, "t:1:0", b"t:1:0")),
    "Where key": (lambda on, odd: on.broker.dead_letters.letters("t", Where(key=odd)), (5, "k")),
    "Where since_us": (lambda on, odd: on.broker.dead_letters.letters("t", Where(since_us=odd)), ("1", [])),
}
CHANGES: dict[str, tuple[Any, ...]] = {
    "start": ("middle", 5, None, []),
    "visibility_us": (*NUMBERS, 0),
    "max_retries": NUMBERS,
    "backoff_initial_us": NUMBERS,
    "backoff_factor": ("2", None, -1, 0.5, NAN, []),
    "backoff_max_us": NUMBERS,
    "backoff_jitter": ("2", None, -1, 2, NAN, []),
    "ordering": ("keys", 5, None),
    "on_poison": ("drop", 5, None),
    "assignment": ("random", 5, None),
    "lanes": ("some", 5, None),
    "max_in_flight": (*NUMBERS, 0),
    "session_us": (*NUMBERS, 0),
    "colour": ("red",),
}
BATCH = Batch.from_messages([Message(b"x")], 1)
FRAME = Frame.of(BATCH)


async def create(on: On, **given: Any) -> object:
    good: dict[str, Any] = {"name": "new", "topic": "t", "cron": "0 * * * *", "message": Message(b"x")}
    return await on.broker.schedules.create(**{**good, "timezone": "UTC", "producer": 1, **given})


def rows() -> Iterator[Any]:
    tables = {"Broker": BROKER, "Topic": TOPIC, "Group": GROUP, "scheduled": SCHEDULED}
    for owner, table in {**tables, "DeadLetters": DEAD_LETTERS, "Schedules": SCHEDULES}.items():
        for name, (call, odd) in table.items():
            yield pytest.param(call, odd, id=f"{owner} {name}")
    for name, (call, odd) in ELSEWHERE.items():
        yield pytest.param(call, odd, id=name)


# --- the tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "odd_values"), list(rows()))
def test_odd_arguments_are_refused_and_change_nothing(call: Call, odd_values: tuple[Any, ...]) -> None:
    async def work(broker: Broker) -> None:
        on = await working(broker)
        before = await state_of(on)
        for odd in odd_values:
            with refused(odd):
                await outcome(call(on, odd))
            assert await state_of(on) == before, odd
        await still_works(on)

    run_inline(work)


async def outcome(called: object) -> None:
    if isinstance(called, Awaitable):
        await called
    elif isinstance(called, Iterator):
        list(called)


@pytest.mark.parametrize("name", CHANGES)
def test_odd_settings_of_a_group_are_refused_and_change_nothing(name: str) -> None:
    async def work(broker: Broker) -> None:
        on = await working(broker)
        before = await state_of(on)
        for odd in CHANGES[name]:
            with refused(odd):
                await broker.change_group("g", **{name: odd})
            with refused(odd):
                await broker.ensure_group("new", **{name: odd})
            assert await state_of(on) == before, odd
        await still_works(on)

    run_inline(work)


@pytest.mark.parametrize("odd", POISON_OF_TOPICS, ids=str)
def test_whatever_settings_of_a_topic_were_taken_the_next_start_can_read_them(odd: dict[str, Any]) -> None:
    async def before(broker: Broker) -> None:
        with suppress(PenstockError):
            await broker.create_topic("t", 1, TopicSettings(**odd))

    run_and_open_again(before)


@pytest.mark.parametrize("odd", POISON_OF_GROUPS, ids=str)
def test_whatever_settings_of_a_group_were_taken_the_next_start_can_read_them(odd: dict[str, Any]) -> None:
    async def before(broker: Broker) -> None:
        with suppress(PenstockError):
            await broker.create_group("g", GroupSettings(**odd))

    run_and_open_again(before)


def run_and_open_again(before: Work) -> None:
    disk = MemoryDisk()

    async def after(broker: Broker) -> None: ...

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


def test_a_group_can_neither_begin_nor_cease_to_mind_lanes() -> None:
    async def work(broker: Broker) -> None:
        on = await working(broker)
        before = await state_of(on)
        with refused("none"):
            await broker.change_group("g", lanes="none")
        assert await state_of(on) == before

    run_inline(work)


def test_the_reason_of_a_failure_may_be_any_text() -> None:
    """It often is that of an exception, which may hold what can't be written as UTF-8."""

    async def work(broker: Broker) -> None:
        on = await working(broker)
        await on.group.reject(on.receipt, "\ud800" + "x" * 5000)
        await broker.settle()
        reasons = [letter.obituary.reason for letter in broker.dead_letters.letters("t")]
        assert reasons[0].startswith("\\ud800xxx")
        assert len(reasons[0]) < 1100

    run_inline(work)


def test_an_id_may_be_given_as_text() -> None:
    async def work(broker: Broker) -> None:
        on = await working(broker)
        assert broker.message("t:0:0").value == b"leased"  # type: ignore[arg-type]
        assert scheduled.get(on.topic, "t:0:1").message.value == b"later"  # type: ignore[arg-type]

    run_inline(work)
