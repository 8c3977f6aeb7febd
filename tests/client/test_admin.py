"""Topics, groups, messages that come later, dead letters, and what happened to a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clock import rfc3339
from penstock.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidInput,
    InvalidSetting,
    MessageNotFound,
    NotFound,
    NotScheduled,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    TopicNotFound,
)
from penstock.testing import VirtualClock, VirtualQueue


def publish(queue: VirtualQueue, count: int, topic: str = "orders", **fields: Any) -> None:
    for number in range(count):
        queue.publish(topic, b"%d" % number, **fields)


def polled(queue: VirtualQueue, group: str, topic: str = "orders", **settings: Any) -> list[bytes | None]:
    """What a consumer of that group gets now, and gives back."""
    with queue.consumer(group, topic, **settings) as consumer:
        messages = consumer.poll()
        for message in reversed(messages):
            message.release()
        return [message.value for message in messages]


# --- topics and groups --------------------------------------------------------------------------------------


def test_topics_are_listed_described_and_deleted(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 3)
    queue.publish("orders", b"later", delay="1h")
    assert len(queue.create_topic("events").partitions) == 6
    assert [topic.name for topic in queue.topics()] == ["events", "orders"]
    orders = queue.topic("orders")
    (partition,) = orders.partitions
    assert (partition.number, partition.start_offset, partition.end_offset) == (0, 0, 4)
    assert partition.bytes > 0
    assert (orders.scheduled, orders.created_us) == (1, clock.now_us())
    assert orders.id == queue.change_topic("orders", max_delay="2d").id
    queue.delete_topic("orders")
    assert [topic.name for topic in queue.topics()] == ["events"]
    with pytest.raises(TopicNotFound):
        queue.topic("orders")


def test_a_topic_made_again_has_another_id(queue: VirtualQueue) -> None:
    before = queue.topic("orders").id
    queue.delete_topic("orders")
    assert before
    assert queue.create_topic("orders").id not in ("", before)


def test_groups_are_listed_described_and_deleted(queue: VirtualQueue) -> None:
    publish(queue, 3)
    queue.create_group("idle")
    with queue.consumer("w", "orders", name="ann") as consumer:
        consumer.poll()[0].ack()
        assert [group.name for group in queue.groups()] == ["idle", "w"]
        assert queue.group("w").members == {"ann": [("orders", 0)]}
        assert queue.group("w").lag == queue.lag("w") == {"orders": [2]}
    assert queue.group("idle").lag == {}
    queue.delete_group("w")
    with pytest.raises(GroupNotFound):
        queue.group("w")


def test_a_group_is_moved_to_an_end_an_offset_or_a_time(queue: VirtualQueue, clock: VirtualClock) -> None:
    for number in range(5):
        queue.publish("orders", b"%d" % number)
        clock.advance("1m")
    queue.create_group("w")
    for to, expected in (
        ("latest", []),
        ("earliest", [b"0", b"1", b"2", b"3", b"4"]),
        (3, [b"3", b"4"]),
        (rfc3339(clock.now_us() - 60_000_000), [b"4"]),
    ):
        queue.seek("w", "orders", to)
        assert polled(queue, "w") == expected
    queue.create_topic("events", 2)
    with pytest.raises(InvalidInput, match="say which"):
        queue.seek("w", "events", 0)
    queue.seek("w", "events", 0, partition=1)


def test_a_parked_key_is_listed_and_released(queue: VirtualQueue, clock: VirtualClock) -> None:
    for value in (b"bad", b"good"):
        queue.publish("orders", value, key="k")
    with queue.consumer("w", "orders", ordering="key") as consumer:
        consumer.poll(1)[0].reject("poison")
        assert consumer.poll() == []
        (parked,) = queue.parked_keys("w")
        assert (parked.topic, parked.partition, parked.key, parked.offset) == ("orders", 0, b"k", 0)
        assert (parked.reason, parked.since_us) == ("poison", clock.now_us())
        assert queue.release_key("w", "orders", "k") == 1
        assert [message.value for message in consumer.poll()] == [b"good"]
    assert queue.parked_keys("w") == []
    with pytest.raises(NotFound):
        queue.release_key("w", "orders", "k")


def test_a_replay_is_a_group_that_gets_a_stretch_of_the_past(queue: VirtualQueue, clock: VirtualClock) -> None:
    for number in range(5):
        queue.publish("orders", b"%d" % number, priority="high" if number == 2 else "normal")
        clock.advance("1m")
    start, end = (rfc3339(clock.now_us() - minutes * 60_000_000) for minutes in (4, 1))
    assert queue.replay("orders", "again", from_time=start, to_time=end, visibility="10s") == 3
    assert polled(queue, "again") == [b"1", b"2", b"3"]
    assert queue.group("again").settings["visibility"] == "10s"
    assert queue.replay("orders", "some", offsets={0: (0, 2)}) == 2
    assert polled(queue, "some") == [b"0", b"1"]
    assert queue.replay("orders", "with-lanes", from_time=start, lanes=True) == 4
    assert polled(queue, "with-lanes") == [b"2", b"1", b"3", b"4"]
    with pytest.raises(AlreadyExists):
        queue.replay("orders", "again", from_time=start)


# --- later --------------------------------------------------------------------------------------------------


def test_delayed_messages_are_listed_moved_cancelled_and_delivered(queue: VirtualQueue, clock: VirtualClock) -> None:
    ids = {hours: queue.publish("orders", f"{hours}", delay=f"{hours}h").id for hours in (3, 1, 2, 4)}
    listed = queue.scheduled.list("orders")
    assert [scheduled.message.value for scheduled in listed] == [b"1", b"2", b"3", b"4"]
    assert queue.scheduled.list("orders", limit=1)[0].id == ids[1]
    queue.scheduled.cancel(ids[1])
    queue.scheduled.reschedule(ids[2], delay="5h")
    queue.scheduled.reschedule(ids[3], deliver_at=rfc3339(clock.now_us() + 60_000_000))
    queue.scheduled.deliver_now(ids[4])
    assert queue.scheduled.get(ids[2]).deliver_at == clock.now_us() + 5 * 3_600_000_000
    assert polled(queue, "w") == [b"4"]
    clock.advance("1m")
    assert polled(queue, "w") == [b"3", b"4"]
    clock.advance("4h58m")
    assert polled(queue, "w") == [b"3", b"4"]
    clock.advance("1m")
    assert polled(queue, "w") == [b"3", b"2", b"4"]
    with pytest.raises(NotScheduled, match=rf"^{ids[1]} is not waiting for its time") as refused:
        queue.scheduled.cancel(ids[1])
    assert refused.value.details == {"id": ids[1]}
    with pytest.raises(NotScheduled):
        queue.scheduled.get(ids[2])


def test_a_schedule_publishes_again_and_again(queue: VirtualQueue, clock: VirtualClock) -> None:
    schedule = queue.schedules.create("tick", "orders", "every 10m", "now", key="k", headers={"h": "1"})
    assert (schedule.name, schedule.topic, schedule.cron, schedule.timezone) == ("tick", "orders", "every 10m", "UTC")
    assert schedule.due_us > clock.now_us()
    assert queue.scheduled.get(schedule.pending).message.key == b"k"
    clock.advance("35m")
    assert polled(queue, "w") == [b"now"] * 3
    assert [each.name for each in queue.schedules.list()] == ["tick"]
    queue.schedules.delete("tick")
    clock.advance("1h")
    assert polled(queue, "w") == [b"now"] * 3
    assert queue.schedules.list() == []


# --- dead letters -------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_redriven_and_discarded(queue: VirtualQueue, clock: VirtualClock) -> None:
    for number in range(4):
        queue.publish("orders", b"%d" % number, key=f"k{number}")
    consumer = queue.consumer("w", "orders")
    for message in consumer.poll():
        message.reject(f"reason {message.offset}")
    letters = queue.dead_letters.list("orders")
    assert [letter.message.value for letter in letters] == [b"0", b"1", b"2", b"3"]
    assert queue.dead_letters.get(letters[0].id) == letters[0]
    assert [each.original for each in queue.dead_letters.list("orders", key="k2")] == ["orders:0:2"]
    assert [each.original for each in queue.dead_letters.list("orders", reason="son 1")] == ["orders:0:1"]
    assert [each.original for each in queue.dead_letters.list("orders", ids="orders:0:3")] == ["orders:0:3"]
    assert queue.dead_letters.list("orders", group="other") == []
    assert queue.dead_letters.list("orders", since=rfc3339(clock.now_us() + 1)) == []
    assert len(queue.dead_letters.list("orders", limit=2)) == 2

    trial = queue.dead_letters.redrive("orders", ids=[letters[1].id], dry_run=True)
    assert trial.in_place == (letters[1].id,)
    assert consumer.poll() == []
    assert queue.dead_letters.redrive("orders", ids=[letters[1].id]) == trial
    assert [(message.id, message.attempt) for message in consumer.poll()] == [("orders:0:1", 1)]

    assert queue.dead_letters.discard("orders", key="k0") == 1
    assert [each.original for each in queue.dead_letters.list("orders")] == ["orders:0:2", "orders:0:3"]
    settled = queue.dead_letters.list("orders", with_settled=True)
    assert [each.is_settled for each in settled] == [True, True, False, False]

    queue.dead_letters.redrive("orders", rate=1)
    assert len(consumer.poll()) == 1
    clock.advance("1s")
    assert len(consumer.poll()) == 1


# --- what happened ------------------------------------------------------------------------------------------


def test_a_message_tells_what_happened_to_it_and_why_it_is_where_it_is(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    identity = queue.publish("orders", b"a", delay="1m").id
    assert queue.why(identity, "w").code == "delayed"
    clock.advance("1m")
    consumer = queue.consumer("w", "orders", name="ann", backoff={"initial": "1s", "jitter": 0})
    consumer.poll()[0].nack(reason="busy")
    why = queue.why(identity, "w")
    assert (why.code, "busy" in why.answer) == ("waiting", True)
    clock.advance("1s")
    consumer.poll()[0].ack()
    assert queue.why(identity, "w").code == "acknowledged"
    trace = queue.trace(identity)
    assert [step.what for step in trace.steps] == [
        "PUBLISHED",
        "SCHEDULED",
        "RELEASED",
        "DELIVERED",
        "NACKED",
        "REDELIVERED",
        "ACKNOWLEDGED",
        "RETAINED",
    ]
    assert trace.id == identity
    assert {step.consumer for step in trace.steps if step.group == "w"} == {"ann"}
    assert trace.latency_us("w") == 61_000_000
    assert trace.latency_us("nobody") is None


def test_the_state_of_a_group_is_known_for_times_past(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 3)
    consumer = queue.consumer("w", "orders")
    messages = consumer.poll()
    clock.advance("1s")
    before = rfc3339(clock.now_us())
    clock.advance("1s")
    messages[0].ack()
    clock.advance("1s")
    (then,) = queue.state_at("w", "orders", before)
    (now,) = queue.state_at("w", "orders", rfc3339(clock.now_us()))
    assert (list(then.unacknowledged), list(then.leased)) == ([0, 1, 2], [0, 1, 2])
    assert (list(now.unacknowledged), now.floor, now.end_offset) == ([1, 2], 1, 3)


# --- what is refused ----------------------------------------------------------------------------------------


def test_times_are_taken_back_as_they_were_given_out(queue: VirtualQueue, clock: VirtualClock) -> None:
    first = queue.publish("orders", b"0")
    clock.advance("1m")
    second = queue.publish("orders", b"1", timestamp=first.append_time)
    assert queue.message(second.id).timestamp == first.append_time
    consumer = queue.consumer("w", "orders", until_idle="0s")
    for message in consumer:
        message.ack()
    queue.seek("w", "orders", time=second.append_time)
    assert [message.value for message in consumer] == [b"1"]
    assert [m.value for m in queue.reader("orders", from_time=second.append_time)] == [b"1"]
    assert [m.value for m in queue.reader("orders", to_time=second.append_time)] == [b"0"]
    assert queue.replay("orders", "again", from_time=first.append_time, to_time=second.append_time) == 1
    assert queue.state_at("w", "orders", first.append_time) == []
    later = queue.publish("orders", b"2", deliver_at=second.append_time + 60_000_000)
    (scheduled,) = queue.scheduled.list("orders")
    queue.scheduled.reschedule(later.id, deliver_at=scheduled.deliver_at + 1)
    assert queue.scheduled.get(later.id).deliver_at == second.append_time + 60_000_001
    with pytest.raises(InvalidInput, match=f"is an offset, and .* looks like a time: say time={first.append_time}"):
        queue.seek("w", "orders", first.append_time)
    for wrong in ({}, {"to": 0, "time": first.append_time}):
        with pytest.raises(InvalidInput, match="one of them"):
            queue.seek("w", "orders", **wrong)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda q: q.create_topic("bad name"), InvalidInput),
        (lambda q: q.create_topic("events", colour="red"), InvalidSetting),
        (lambda q: q.create_topic("events", partitions="6"), InvalidInput),
        (lambda q: q.change_topic("nowhere"), TopicNotFound),
        (lambda q: q.change_topic("orders", cleanup="burn"), InvalidSetting),
        (lambda q: q.delete_topic("nowhere"), TopicNotFound),
        (lambda q: q.topic(None), InvalidInput),
        (lambda q: q.group("nobody"), GroupNotFound),
        (lambda q: q.lag("nobody"), GroupNotFound),
        (lambda q: q.change_group("nobody"), GroupNotFound),
        (lambda q: q.delete_group("nobody"), GroupNotFound),
        (lambda q: q.parked_keys("nobody"), GroupNotFound),
        (lambda q: q.seek("nobody", "orders", "latest"), GroupNotFound),
        (lambda q: q.seek("g", "nowhere", "latest"), TopicNotFound),
        (lambda q: q.seek("g", "orders", "somewhere"), InvalidInput),
        (lambda q: q.seek("g", "orders", None), InvalidInput),
        (lambda q: q.seek("g", "orders", True), InvalidInput),
        (lambda q: q.seek("g", "orders", 99), OffsetOutOfRange),
        (lambda q: q.seek("g", "orders", "latest", partition=7), PartitionNotFound),
        (lambda q: q.release_key("g", "orders", 7), InvalidInput),
        (lambda q: q.replay("orders", "new"), InvalidInput),
        (lambda q: q.replay("orders", "new", offsets={0: (0, 99)}), InvalidInput),
        (lambda q: q.replay("orders", "new", from_time="2020-01-01T00:00:00Z", colour="red"), InvalidSetting),
        (lambda q: q.scheduled.list("nowhere"), TopicNotFound),
        (lambda q: q.scheduled.list("orders", limit=-1), InvalidInput),
        (lambda q: q.dead_letters.list("orders", limit="1"), InvalidInput),
        (lambda q: q.scheduled.get("orders:0:0"), NotScheduled),
        (lambda q: q.scheduled.get("orders"), InvalidInput),
        (lambda q: q.scheduled.cancel("orders:7:0"), PartitionNotFound),
        (lambda q: q.scheduled.reschedule("orders:0:0"), InvalidInput),
        (lambda q: q.scheduled.reschedule("orders:0:0", delay="1s", deliver_at="2030-01-01T00:00:00Z"), InvalidInput),
        (lambda q: q.schedules.create("s", "nowhere", "@daily", b""), TopicNotFound),
        (lambda q: q.schedules.create("s", "orders", "at noon", b""), InvalidInput),
        (lambda q: q.schedules.create("s", "orders", "@daily", b"", timezone="Mars/Olympus"), InvalidInput),
        (lambda q: q.schedules.create("s", "orders", "@daily", b"", delay="1s"), InvalidInput),
        (lambda q: q.schedules.delete("s"), NotFound),
        (lambda q: q.dead_letters.list("nowhere"), TopicNotFound),
        (lambda q: q.dead_letters.list("orders", since="then"), InvalidInput),
        (lambda q: q.dead_letters.get("orders:0:0"), MessageNotFound),
        (lambda q: q.dead_letters.redrive("orders", rate=0), InvalidInput),
        (lambda q: q.message("orders:0:1"), MessageNotFound),
        (lambda q: q.message("nowhere:0:0"), TopicNotFound),
        (lambda q: q.message(7), InvalidInput),
        (lambda q: q.trace("orders:0"), InvalidInput),
        (lambda q: q.trace("orders:0:1"), MessageNotFound),
        (lambda q: q.why("orders:1:0", "g"), PartitionNotFound),
        (lambda q: q.state_at("g", "orders", "then"), InvalidInput),
        (lambda q: q.state_at("g", "nowhere", "2020-01-01T00:00:00Z"), TopicNotFound),
    ],
)
def test_what_can_not_be_done_is_refused_with_a_sentence(
    queue: VirtualQueue, ask: Callable[[Any], object], error: type[PenstockError]
) -> None:
    queue.publish("orders", b"a")
    queue.create_group("g")
    with pytest.raises(error) as refused:
        ask(queue)
    assert refused.value.message
    assert [topic.name for topic in queue.topics()] == ["orders"]
    assert [group.name for group in queue.groups()] == ["g"]
    assert queue.schedules.list() == []
