"""Consumers: messages one by one, some at a time, in columns; answers, and what becomes of what nobody saw."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from penstock.client.blocking import Consumer, Received
from penstock.client.client import Client
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    LeaseNotFound,
    LogClosed,
    NotLeased,
    PenstockError,
    SettingsConflict,
    TopicNotFound,
)
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualClock, VirtualQueue


def publish(queue: VirtualQueue, count: int, *, keys: int | None = None, topic: str = "orders", start: int = 0) -> None:
    for number in range(start, start + count):
        queue.publish(topic, b"%d" % number, key=None if keys is None else f"k{number % keys}")


def values(messages: list[Received]) -> list[bytes | None]:
    return [message.value for message in messages]


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def lag(queue: VirtualQueue, group: str = "w") -> int:
    return sum(queue.lag(group)["orders"])


# --- one by one ---------------------------------------------------------------------------------------------


def test_messages_are_iterated_and_do_not_come_again_once_acknowledged(queue: VirtualQueue) -> None:
    publish(queue, 5)
    seen = []
    for message in queue.consumer("w", ["orders"], until_idle="1s"):
        seen.append(message.value)
        message.ack()
    assert seen == numbers(5)
    assert lag(queue) == 0
    assert queue.consumer("w", "orders").poll() == []


def test_a_received_message_tells_all_about_itself(queue: VirtualQueue, clock: VirtualClock) -> None:
    queue.publish("orders", "v", key="k", headers={"h": "1"}, priority="low", timestamp="2020-01-01T00:00:00Z")
    (message,) = queue.consumer("w", "orders").poll()
    assert (message.value, message.key, message.headers, message.priority) == (b"v", b"k", (("h", b"1"),), -1)
    assert (message.topic, message.partition, message.offset, message.id) == ("orders", 0, 0, "orders:0:0")
    assert (message.timestamp, message.append_time) == (1_577_836_800_000_000, clock.now_us())
    assert message.attempt == 1
    assert repr(message) == "<Received orders:0:0 key=b'k' value=b'v'>"


def test_a_nacked_message_comes_again_with_its_attempts_counted(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 2)
    consumer = queue.consumer("w", "orders", backoff={"initial": "5s", "factor": 2, "jitter": 0})
    first, second = consumer.poll()
    second.ack()
    first.nack(reason="not yet")
    assert consumer.poll(wait="1s") == []
    clock.advance("5s")
    (again,) = consumer.poll()
    assert (again.value, again.attempt) == (b"0", 2)
    again.nack(delay="1h")
    clock.advance("59m")
    assert consumer.poll() == []
    clock.advance("1m")
    assert [message.attempt for message in consumer.poll()] == [3]


def test_a_rejected_message_is_a_dead_letter_at_once(queue: VirtualQueue) -> None:
    publish(queue, 1)
    (message,) = queue.consumer("w", "orders").poll()
    message.reject("bad")
    (letter,) = queue.dead_letters.list("orders")
    assert (letter.original, letter.group, letter.reason, letter.attempts) == ("orders:0:0", "w", "bad", 1)


def test_a_released_message_is_ready_at_once_and_its_delivery_does_not_count(queue: VirtualQueue) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders")
    consumer.poll()[0].release()
    assert [(message.value, message.attempt) for message in consumer.poll()] == [(b"0", 1)]


def test_extending_keeps_a_message_for_longer(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders", visibility="30s")
    (message,) = consumer.poll()
    clock.advance("20s")
    message.extend("1m")
    clock.advance("50s")
    message.extend()
    clock.advance("25s")
    message.ack()


def test_a_message_whose_time_is_up_is_somebody_elses(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders", visibility="30s", backoff={"initial": "1s", "jitter": 0})
    (message,) = consumer.poll()
    clock.advance("30s")
    with pytest.raises(LeaseNotFound):
        message.ack()
    clock.advance("1s")
    (again,) = consumer.poll()
    assert again.attempt == 2
    again.ack()


@pytest.mark.parametrize("first", [Received.ack, Received.nack, Received.reject, Received.release])
@pytest.mark.parametrize("second", [Received.ack, Received.nack, Received.reject, Received.release, Received.extend])
def test_a_message_is_answered_for_once(
    queue: VirtualQueue, first: Callable[[Received], None], second: Callable[[Received], None]
) -> None:
    publish(queue, 2)
    message, other = queue.consumer("w", "orders").poll()
    first(message)
    with pytest.raises(NotLeased):
        second(message)
    other.ack()
    with pytest.raises(NotLeased, match="answered already, or taken back by the broker: orders:0:0") as refused:
        second(message)
    assert refused.value.details["ids"] == ["orders:0:0"]


def test_an_answer_that_comes_too_late_is_refused_with_the_ids(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 7)
    batch = next(queue.consumer("w", "orders", visibility="30s").batches())
    message = next(iter(batch.messages()))
    clock.advance("30s")
    with pytest.raises(LeaseNotFound, match=r"orders:0:0$") as refused:
        message.ack()
    assert refused.value.details["ids"] == ["orders:0:0"]
    with pytest.raises(LeaseNotFound, match=r"orders:0:0, .*, orders:0:4 and 2 more$") as refused:
        batch.nack()
    assert (len(refused.value.details["ids"]), refused.value.details["count"]) == (5, 7)


def test_of_a_batch_that_was_answered_for_in_part_the_rest_is_extended(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    publish(queue, 4, keys=2)
    batch = next(queue.consumer("w", "orders", visibility="30s", ordering="key").batches())
    messages = list(batch.messages())
    messages[0].nack("1m")
    with pytest.raises(NotLeased, match="orders:0:2"):
        messages[2].extend()
    clock.advance("20s")
    batch.extend()
    clock.advance("20s")
    messages[1].ack()
    with pytest.raises(NotLeased, match="orders:0:0, orders:0:1") as refused:
        batch.ack()
    assert refused.value.details["ids"] == ["orders:0:0", "orders:0:1"]
    messages[3].ack()
    with pytest.raises(NotLeased):
        batch.extend()


def test_how_long_to_wait_may_be_said_without_its_name_and_may_be_nothing(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders")
    consumer.poll()[0].nack(0)
    (message,) = consumer.poll()
    message.nack("10s", reason="busy")
    assert consumer.poll() == []
    clock.advance("10s")
    (message,) = consumer.poll()
    for wrong in ("busy", "-10s"):
        with pytest.raises(InvalidInput, match=r"^delay: a duration "):
            message.nack(wrong)


@pytest.mark.parametrize(
    "answer",
    [
        lambda m: m.nack(delay=5),
        lambda m: m.nack(delay="soon"),
        lambda m: m.nack(delay="20000d"),
        lambda m: m.nack(reason=7),
        lambda m: m.reject(7),
        lambda m: m.extend("0s"),
        lambda m: m.extend(30),
        lambda m: m.extend("30d"),
    ],
)
def test_an_answer_that_makes_no_sense_changes_nothing(queue: VirtualQueue, answer: Callable[[Any], None]) -> None:
    publish(queue, 1)
    (message,) = queue.consumer("w", "orders").poll()
    with pytest.raises(InvalidInput):
        answer(message)
    message.ack()


# --- polling and prefetching --------------------------------------------------------------------------------


def test_a_poll_returns_no_more_than_asked_for(queue: VirtualQueue) -> None:
    publish(queue, 5)
    consumer = queue.consumer("w", "orders")
    assert values(consumer.poll(max=2)) == numbers(2)
    assert values(consumer.poll(10)) == numbers(3, start=2)
    assert consumer.poll(wait="5m") == []


def test_polling_hands_out_first_what_was_fetched_ahead(queue: VirtualQueue) -> None:
    publish(queue, 5)
    consumer = queue.consumer("w", "orders", prefetch=3)
    assert next(consumer).value == b"0"
    assert values(consumer.poll(10)) == numbers(2, start=1)
    assert values(consumer.poll(10)) == numbers(2, start=3)


def test_iterating_ends_when_nothing_has_come_for_long_enough(queue: VirtualQueue) -> None:
    consumer = queue.consumer("w", "orders", until_idle="10m")
    assert list(consumer) == []
    publish(queue, 1)
    assert values(list(consumer)) == numbers(1), "it can be iterated again"


def test_closing_gives_back_what_nobody_has_seen(queue: VirtualQueue) -> None:
    publish(queue, 10)
    with queue.consumer("w", "orders") as consumer:
        seen = [next(consumer), next(consumer)]
    other = queue.consumer("w", "orders")
    assert [(message.value, message.attempt) for message in other.poll()] == [(n, 1) for n in numbers(8, start=2)]
    for message in seen:
        message.ack()
    with pytest.raises(LogClosed, match="is closed"):
        consumer.poll()
    consumer.close()


def test_a_consumer_nobody_refers_to_any_more_leaves_its_group(queue: VirtualQueue) -> None:
    publish(queue, 10)
    for message in queue.consumer("w", "orders", name="gone"):
        message.ack()
        break
    del message
    gc.collect()
    # Leaving is done on the event loop, in the order of things; it takes a few turns.
    until = time.monotonic() + 30
    while queue.group("w").members:
        assert time.monotonic() < until
    assert values(queue.consumer("w", "orders").poll()) == numbers(9, start=1)


def test_messages_fetched_ahead_are_kept_while_others_are_worked_on(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 10)
    done = []
    for message in queue.consumer("w", "orders", visibility="30s", until_idle="1s"):
        clock.advance("16s")
        message.ack()
        done.append((message.value, message.attempt))
    assert done == [(number, 1) for number in numbers(10)]


def test_messages_that_waited_too_long_are_not_handed_out(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 3)
    consumer = queue.consumer("w", "orders", visibility="30s", backoff={"initial": "0s"}, until_idle="1s")
    slow = next(consumer)
    clock.advance("31s")
    with pytest.raises(LeaseNotFound):
        slow.ack()
    assert sorted((message.value, message.attempt) for message in consumer) == [(n, 2) for n in numbers(3)]


def test_when_a_group_is_moved_what_was_fetched_ahead_is_forgotten(queue: VirtualQueue) -> None:
    publish(queue, 3)
    consumer = queue.consumer("w", "orders", until_idle="1s")
    first = next(consumer)
    queue.seek("w", "orders", "earliest")
    with pytest.raises(LeaseNotFound):
        first.ack()
    assert [message.value for message in consumer if message.ack() is None] == numbers(3)


def test_closing_ends_the_waiting_of_another_thread(queue: VirtualQueue) -> None:
    consumer = queue.consumer("w", "orders")
    consumer.join()
    seen: list[list[Received]] = []
    thread = Thread(target=lambda: seen.append(list(consumer)))
    thread.start()
    consumer.close()
    thread.join(30)
    assert seen == [[]]


def test_a_poll_that_is_cancelled_has_leased_nothing(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        consumer = client.consumer("w", "orders")
        await consumer.join()
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.publish("orders", b"a")
        assert [message.attempt for message in await consumer.poll()] == [1]

    run_client(work)


# --- order --------------------------------------------------------------------------------------------------


def test_what_must_not_be_done_before_a_nacked_message_is_not_handed_out(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    publish(queue, 6, keys=2)
    consumer = queue.consumer("w", "orders", ordering="key", until_idle="1s", backoff={"initial": "1s", "jitter": 0})
    next(consumer).nack()
    assert values([message for message in consumer if message.ack() is None]) == [b"1", b"3", b"5"]
    clock.advance("1s")
    assert values([message for message in consumer if message.ack() is None]) == [b"0", b"2", b"4"]


def test_a_consumer_hears_when_the_order_of_its_group_is_changed(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders", until_idle="1s", backoff={"initial": "1s", "jitter": 0})
    next(consumer).ack()
    queue.change_group("w", ordering="key")
    publish(queue, 6, keys=2, start=10)
    next(consumer).nack()
    assert values([message for message in consumer if message.ack() is None]) == [b"11", b"13", b"15"]


def test_in_a_strict_partition_nothing_comes_before_a_nacked_message(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 4)
    consumer = queue.consumer(
        "w", "orders", ordering="partition", until_idle="1s", backoff={"initial": "1s", "jitter": 0}
    )
    next(consumer).ack()
    next(consumer).nack()
    assert list(consumer) == []
    clock.advance("1s")
    assert values([message for message in consumer if message.ack() is None]) == numbers(3, start=1)


@pytest.mark.parametrize(("on_poison", "left"), [("skip", [b"1", b"2", b"3"]), ("park", [b"1", b"3"])])
def test_a_rejected_message_parks_its_key_unless_it_is_to_be_skipped(
    queue: VirtualQueue, on_poison: str, left: list[bytes]
) -> None:
    publish(queue, 4, keys=2)
    consumer = queue.consumer("w", "orders", ordering="key", on_poison=on_poison, until_idle="1s")
    next(consumer).reject("bad")
    assert values([message for message in consumer if message.ack() is None]) == left


# --- in columns ---------------------------------------------------------------------------------------------


def test_a_batch_has_columns_and_one_answer_for_all_of_it(queue: VirtualQueue, clock: VirtualClock) -> None:
    with queue.producer("orders") as producer:
        for number in range(1_000):
            producer.send(f"{number}", key=f"k{number}")
    consumer = queue.consumer("w", "orders", prefetch=600, until_idle="1s")
    sizes = []
    for batch in consumer.batches():
        table = batch.arrow()
        sizes.append(len(batch))
        assert table.schema.names == [
            "partition",
            "offset",
            "append_time",
            "key",
            "value",
            "headers",
            "timestamp",
            "deliver_at",
            "expires_at",
            "priority",
            "attempt",
        ]
        assert table.column("value").to_pylist() == [b"%d" % offset for offset in batch.offsets]
        assert table.column("offset").to_pylist() == list(batch.offsets)
        assert set(table.column("append_time").to_pylist()) == {table.column("append_time")[0].as_py()}
        batch.ack()
        with pytest.raises(NotLeased):
            batch.ack()
    assert sizes == [600, 400]
    assert lag(queue) == 0


def test_of_a_frame_only_those_are_handed_out_that_are_not_done(queue: VirtualQueue) -> None:
    with queue.producer("orders", linger="1h") as producer:
        for number in range(6):
            producer.send(f"{number}")
    consumer = queue.consumer("w", "orders", until_idle="1s")
    for message in consumer.poll():
        message.ack() if message.offset in (1, 4) else message.release()
    (batch,) = consumer.batches()
    assert batch.arrow()["value"].to_pylist() == [b"0", b"2", b"3", b"5"]
    assert batch.arrow()["offset"].to_pylist() == [0, 2, 3, 5]
    assert values(list(batch.messages())) == [b"0", b"2", b"3", b"5"]
    batch.ack()
    assert lag(queue) == 0


def test_a_nacked_batch_comes_again(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 3)
    consumer = queue.consumer("w", "orders", until_idle="1s")
    (batch,) = consumer.batches()
    assert (batch.topic, batch.partition, len(batch)) == ("orders", 0, 3)
    batch.extend("1m")
    batch.nack(delay="10s", reason="later")
    publish(queue, 1, start=3)
    clock.advance("10s")
    (again,) = consumer.batches()
    found = again.arrow()
    assert dict(zip(found["value"].to_pylist(), found["attempt"].to_pylist(), strict=True)) == {
        b"0": 2,
        b"1": 2,
        b"2": 2,
        b"3": 1,
    }
    first, *rest = again.messages()
    first.ack()
    with pytest.raises(NotLeased):
        again.reject("bad")
    for message in rest:
        message.ack()


# --- groups -------------------------------------------------------------------------------------------------


def test_consumers_of_one_group_share_the_partitions_and_take_over_when_one_leaves(queue: VirtualQueue) -> None:
    queue.create_topic("events", 4)
    with queue.consumer("w", "events", name="ann") as ann, queue.consumer("w", "events", name="bob") as bob:
        members = queue.group("w").members
        assert sorted(len(parts) for parts in members.values()) == [2, 2]
        for number in range(4):
            queue.publish("events", b"%d" % number, partition=number)
        got = {name: {m.partition for m in consumer.poll()} for name, consumer in (("ann", ann), ("bob", bob))}
        assert got == {name: {number for _, number in parts} for name, parts in members.items()}
        bob.close()
        assert list(queue.group("w").members) == ["ann"]
        for number in range(4):
            queue.publish("events", b"%d" % number, partition=number)
        assert {message.partition for message in ann.poll()} == {0, 1, 2, 3}


def test_in_a_shared_group_more_consumers_than_partitions_have_work(queue: VirtualQueue) -> None:
    publish(queue, 3)
    consumers = [queue.consumer("w", "orders", assignment="shared") for _ in range(3)]
    assert [values(consumer.poll(1)) for consumer in consumers] == [[b"0"], [b"1"], [b"2"]]


def test_groups_do_not_influence_one_another(queue: VirtualQueue) -> None:
    publish(queue, 3)
    for message in queue.consumer("a", "orders").poll():
        message.reject("not for us")
    assert values(queue.consumer("b", "orders").poll()) == numbers(3)


def test_a_group_that_starts_at_the_end_sees_what_comes_after_its_first_member(queue: VirtualQueue) -> None:
    publish(queue, 3)
    with queue.consumer("w", "orders", start="latest") as consumer:
        publish(queue, 1, start=3)
        assert values(consumer.poll()) == [b"3"]


def test_a_consumer_of_several_topics_gets_all_of_them(queue: VirtualQueue) -> None:
    queue.create_topic("returns", 1)
    queue.publish("orders", b"o")
    queue.publish("returns", b"r")
    got = queue.consumer("w", ["orders", "returns"]).poll()
    assert {(message.topic, message.value) for message in got} == {("orders", b"o"), ("returns", b"r")}


def test_settings_of_a_group_that_is_there_must_be_those_it_has(queue: VirtualQueue) -> None:
    queue.create_group("w", visibility="10s")
    queue.consumer("w", "orders").join()
    queue.consumer("w", "orders", visibility="10s").join()
    with pytest.raises(SettingsConflict, match="visibility"):
        queue.consumer("w", "orders", visibility="11s").join()


def test_members_join_again_when_the_group_was_changed_under_them(queue: VirtualQueue) -> None:
    queue.create_topic("events", 2)
    consumers = [queue.consumer("w", "events") for _ in range(2)]
    for consumer in consumers:
        consumer.join()
    queue.change_group("w", assignment="shared")
    for number in range(2):
        queue.publish("events", b"%d" % number, partition=number)
    assert [len(consumer.poll(1)) for consumer in consumers] == [1, 1]
    queue.delete_group("w")
    assert len(consumers[0].poll()) == 2, "a group that was deleted starts anew"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda q: q.consumer("w", "nowhere").join(), TopicNotFound),
        (lambda q: q.consumer("w", []).join(), InvalidInput),
        (lambda q: q.consumer("w", 7), InvalidInput),
        (lambda q: q.consumer("w", [7]).join(), InvalidName),
        (lambda q: q.consumer("bad name", "orders").join(), InvalidName),
        (lambda q: q.consumer("w", "orders", name="bad name").join(), InvalidName),
        (lambda q: q.consumer("w", "orders", colour="red"), InvalidSetting),
        (lambda q: q.consumer("w", "orders", ordering="keys"), InvalidSetting),
        (lambda q: q.consumer("w", "orders", prefetch=0), InvalidInput),
        (lambda q: q.consumer("w", "orders", until_idle=3), InvalidInput),
        (lambda q: q.consumer("w", "orders").poll(0), InvalidInput),
        (lambda q: q.consumer("w", "orders").poll(wait=1), InvalidInput),
    ],
)
def test_a_consumer_that_can_not_be_is_refused(
    queue: VirtualQueue, make: Callable[[Any], object], error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        make(queue)


def test_a_consumer_has_a_name_of_its_own(queue: VirtualQueue) -> None:
    names = {queue.consumer("w", "orders").name for _ in range(10)}
    assert len(names) == 10
    assert isinstance(queue.consumer("w", "orders", name="ann"), Consumer)


def test_a_name_is_one_consumers_of_a_group_at_a_time(queue: VirtualQueue) -> None:
    ann = queue.consumer("w", "orders", name="ann")
    with pytest.raises(AlreadyExists, match="group w already has a consumer ann") as refused:
        queue.consumer("w", "orders", name="ann")
    assert refused.value.details == {"group": "w", "consumer": "ann"}
    queue.consumer("other", "orders", name="ann").join()
    ann.close()
    again = queue.consumer("w", "orders", name="ann")
    again.join()
    assert list(queue.group("w").members) == ["ann"]
    del again
    queue.consumer("w", "orders", name="ann")


def test_what_was_fetched_ahead_is_given_back_in_time_and_costs_no_attempt(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    publish(queue, 4)
    slow = queue.consumer("g", "orders", visibility="30s", max_retries=0, assignment="shared")
    first = next(slow)
    clock.advance("16s")
    queue._portal.run(slow._inner.membership._give_back_stale())
    others = queue.consumer("g", "orders").poll()
    assert [(message.value, message.attempt) for message in others] == [(b"1", 1), (b"2", 1), (b"3", 1)]
    clock.advance("13s")
    first.ack()
    assert queue.dead_letters.list("orders") == []


def test_giving_back_one_of_a_lane_leaves_those_of_its_key_in_other_lanes(queue: VirtualQueue) -> None:
    queue.publish("orders", b"normal", key="k")
    for number in range(2):
        queue.publish("orders", b"high %d" % number, key="k", priority="high")
    high, next_high, normal = queue.consumer("w", "orders", ordering="key").poll(10)
    high.nack("1h")
    with pytest.raises(NotLeased):
        next_high.extend()
    normal.extend()
    normal.ack()


def test_in_order_of_the_partition_a_lower_lane_waits_for_a_higher_one(queue: VirtualQueue) -> None:
    queue.publish("orders", b"low", priority="low")
    queue.publish("orders", b"normal")
    queue.publish("orders", b"high", priority="high")
    high, normal, low = queue.consumer("w", "orders", ordering="partition").poll(10)
    high.ack()
    normal.nack("0s")
    with pytest.raises(NotLeased):
        low.extend()


@pytest.mark.parametrize("way", ["one by one", "batches"])
def test_a_loop_that_ends_because_nothing_comes_makes_room_for_others(queue: VirtualQueue, way: str) -> None:
    publish(queue, 3)
    first = queue.consumer("w", "orders", until_idle="1s", name="first")
    held = list(first) if way == "one by one" else [each for batch in first.batches() for each in batch.messages()]
    assert queue.group("w").members == {}
    publish(queue, 1, start=3)
    second = queue.consumer("w", "orders", until_idle="1s", name="second")
    assert values(list(second)) == [b"3"]
    # What was handed out is still to be answered for, and it may ask again.
    for message in held:
        message.ack()
    publish(queue, 1, start=4)
    assert values(list(first)) == [b"4"]


# --- ahead --------------------------------------------------------------------------------------------------


class Counting:
    """A transport that counts what is asked for, and what comes."""

    def __init__(self, inner: LocalTransport) -> None:
        self.inner = inner
        self.asked: list[int] = []
        self.held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def poll(self, *where: Any, count: int, bytes_max: int, wait_us: int) -> Any:
        self.asked.append(count)
        found = await self.inner.poll(*where, count=count, bytes_max=bytes_max, wait_us=wait_us)
        self.held += sum(len(delivery.receipt.offsets) for delivery in found)
        return found


def test_while_the_last_half_is_worked_on_the_next_half_is_fetched(run_client: Any) -> None:
    ways: list[Counting] = []

    def through(transport: LocalTransport) -> Counting:
        ways.append(Counting(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(300):
            await client.publish("orders", b"%d" % number)
        seen = []
        consumer = client.consumer("w", "orders", prefetch=100, until_idle="1s")
        async for message in consumer:
            seen.append(message.value)
            # As long as it takes to work on it: what was asked for meanwhile comes.
            for _ in range(3):
                await asyncio.sleep(0)
            assert ways[0].held - len(seen) <= 100, "never more ahead than it was told"
        assert seen == [b"%d" % number for number in range(300)]
        assert ways[0].asked[:5] == [100, 50, 50, 50, 50]

    run_client(work, through=through)


def test_whoever_fetches_few_ahead_gets_no_more_before_they_are_worked_on(run_client: Any) -> None:
    ways: list[Counting] = []

    def through(transport: LocalTransport) -> Counting:
        ways.append(Counting(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(30):
            await client.publish("orders", b"%d" % number)
        async for message in client.consumer("w", "orders", prefetch=10, until_idle="1s"):
            await asyncio.sleep(0)
            assert ways[0].held <= message.offset // 10 * 10 + 10

    run_client(work, through=through)
