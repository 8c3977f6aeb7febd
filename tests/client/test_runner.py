"""Handing messages to a function: ack when it returns, nack when it raises."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from threading import Barrier, Event, Thread, active_count, current_thread, get_ident
from time import monotonic, sleep
from typing import Any

import pytest
from pyroaring import BitMap64

from penstock.client import received, thread_workers
from penstock.client.answers import Ack, Answer, Extend, Nack, Release
from penstock.client.blocking import Received
from penstock.client.client import Client
from penstock.client.lease import Lease
from penstock.client.transport import Receipt
from penstock.errors import (
    ConnectionLost,
    Fatal,
    InvalidInput,
    LogClosed,
    NotLeader,
    NotLeased,
    Overloaded,
    PenstockError,
)
from penstock.testing import VirtualClock, VirtualQueue


def publish(queue: VirtualQueue, count: int, *, keys: int | None = None) -> None:
    for number in range(count):
        queue.publish("orders", b"%d" % number, key=None if keys is None else f"k{number % keys}")


def until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not is_so():
        assert monotonic() < deadline
        sleep(0.001)


def test_what_a_handler_returns_from_is_acknowledged(queue: VirtualQueue) -> None:
    publish(queue, 50)
    seen: list[bytes | None] = []
    done = queue.consumer("w", "orders", until_idle="1s").run(lambda message: seen.append(message.value))
    assert done == (50, 0)
    assert sorted(seen, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(50)]
    assert queue.lag("w") == {"orders": [0]}
    assert queue.group("w").members == {}, "it leaves when it is over"


def test_handlers_run_at_the_same_time_on_threads_of_their_own(queue: VirtualQueue) -> None:
    publish(queue, 4)
    together = Barrier(4, timeout=30)
    threads = set()

    def handler(message: Received) -> None:
        together.wait()
        threads.add(current_thread().name)

    assert queue.consumer("w", "orders", until_idle="1s").run(handler, concurrency=4) == (4, 0)
    assert len(threads) == 4


def test_quick_handlers_share_one_thread(queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_workers, "LONE_RATE", 0)
    publish(queue, 300)
    threads = set()
    consumer = queue.consumer("w", "orders", until_idle="1s")
    assert consumer.run(lambda message: threads.add(current_thread().name), concurrency=8) == (300, 0)
    assert len(threads) == 1


def test_handlers_that_block_get_threads_of_their_own_after_quick_ones(queue: VirtualQueue) -> None:
    publish(queue, 1_200)
    together = Barrier(8, timeout=30)

    def handler(message: Received) -> None:
        if message.offset % 400 >= 392:
            together.wait()

    assert queue.consumer("w", "orders", until_idle="1s").run(handler, concurrency=8) == (1_200, 0)


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_no_message_is_lost_or_doubled_while_threads_come_and_go(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    """The rate that counts as quick changes all the time, and with it the number of threads."""
    random = Random(8)
    monkeypatch.setattr(thread_workers, "LONE_S", 0.0)
    monkeypatch.setattr(thread_workers, "WIDE_S", 0.0)
    monkeypatch.setattr(thread_workers, "SLOW_MAX", 1)
    with queue.producer("orders") as producer:
        for number in range(3_000):
            producer.send(b"%d" % number, key=f"k{number % 40}")
    handled: list[int] = []
    threads: Counter[str] = Counter()

    def handler(message: Received) -> None:
        handled.append(message.offset)
        threads[current_thread().name] += 1
        if random.random() < 0.1:
            monkeypatch.setattr(thread_workers, "LONE_RATE", random.choice([0, 1 << 62]))
            sleep(0)

    consumer = queue.consumer("w", "orders", ordering=ordering, until_idle="1s", prefetch=500)
    assert consumer.run(handler, concurrency=8) == (3_000, 0)
    assert sorted(handled) == list(range(3_000))
    assert len(threads) > 1
    if ordering == "key":
        orders = {key: [offset for offset in handled if offset % 40 == key] for key in range(40)}
        assert all(order == sorted(order) for order in orders.values())


def test_what_a_handler_raises_is_the_reason_and_in_the_end_a_dead_letter(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    publish(queue, 3)
    attempts: Counter[bytes | None] = Counter()

    def handler(message: Received) -> None:
        attempts[message.value] += 1
        if message.value == b"1":
            raise ValueError("no such product")

    settings: dict[str, Any] = {"max_retries": 2, "backoff": {"initial": "1s", "jitter": 0}}
    outcomes = []
    for _ in range(4):
        outcomes.append(queue.consumer("w", "orders", until_idle="1s", **settings).run(handler))
        clock.advance("1m")
    assert outcomes == [(2, 1), (0, 1), (0, 1), (0, 0)]
    assert attempts == {b"0": 1, b"1": 3, b"2": 1}
    (letter,) = queue.dead_letters.list("orders", group="w")
    assert (letter.original, letter.reason, letter.attempts) == ("orders:0:1", "ValueError: no such product", 3)
    assert [failure.attempt for failure in letter.failures] == [1, 2, 3]
    assert letter.message.value == b"1"


def test_messages_of_one_key_are_handled_one_after_the_other(queue: VirtualQueue) -> None:
    publish(queue, 60, keys=3)
    at_work: set[bytes | None] = set()
    order: dict[bytes | None, list[int]] = {}
    clashes = []

    def handler(message: Received) -> None:
        if message.key in at_work:
            clashes.append(message.id)
        at_work.add(message.key)
        order.setdefault(message.key, []).append(message.offset)
        at_work.discard(message.key)

    assert queue.consumer("w", "orders", ordering="key", until_idle="1s").run(handler, concurrency=8) == (60, 0)
    assert clashes == []
    assert order == {b"k%d" % key: list(range(key, 60, 3)) for key in range(3)}


def test_a_busy_key_does_not_keep_other_keys_waiting(queue: VirtualQueue) -> None:
    for number in range(20):
        queue.publish("orders", b"%d" % number, key="slow")
    queue.publish("orders", b"other", key="fast")
    fast_is_done = Event()

    def handler(message: Received) -> None:
        if message.key == b"fast":
            fast_is_done.set()
        else:
            assert fast_is_done.wait(30)

    consumer = queue.consumer("w", "orders", ordering="key", until_idle="1s")
    assert consumer.run(handler, concurrency=2) == (21, 0)


def test_nobody_is_idle_while_something_is_worked_on(queue: VirtualQueue) -> None:
    queue.create_topic("empty", 1)
    publish(queue, 3, keys=1)
    empty = queue.consumer("other", "empty")

    def handler(message: Received) -> None:
        # Meanwhile the next one is asked for, and does not come: its key is busy.
        for _ in range(3):
            assert empty.poll(wait="1s") == []

    consumer = queue.consumer("w", "orders", ordering="key", prefetch=1, until_idle="1s")
    assert consumer.run(handler, concurrency=2) == (3, 0)


def test_after_a_failure_the_rest_of_the_key_waits_for_its_next_try(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 6, keys=2)
    order: list[bytes | None] = []

    def handler(message: Received) -> None:
        order.append(message.value)
        if message.value == b"0" and message.attempt == 1:
            raise ValueError

    settings: dict[str, Any] = {"ordering": "key", "backoff": {"initial": "1s", "jitter": 0}}
    assert queue.consumer("w", "orders", until_idle="1s", **settings).run(handler) == (3, 1)
    assert sorted(order) == [b"0", b"1", b"3", b"5"]
    clock.advance("1s")
    order.clear()
    assert queue.consumer("w", "orders", until_idle="1s", **settings).run(handler) == (3, 0)
    assert order == [b"0", b"2", b"4"]


def test_a_handler_may_answer_itself(queue: VirtualQueue) -> None:
    publish(queue, 3)

    def handler(message: Received) -> None:
        if message.value == b"0":
            message.reject("bad")
        elif message.value == b"1":
            message.nack(delay="1d")
        else:
            message.extend("1m")

    assert queue.consumer("w", "orders", until_idle="1s").run(handler) == (1, 0)
    assert [letter.original for letter in queue.dead_letters.list("orders")] == ["orders:0:0"]
    assert queue.why("orders:0:1", "w").code == "waiting"
    assert queue.why("orders:0:2", "w").code == "acknowledged"


def test_a_handler_that_took_too_long_is_no_error(queue: VirtualQueue, clock: VirtualClock) -> None:
    publish(queue, 1)
    attempts = []

    def handler(message: Received) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            clock.advance("31s")

    consumer = queue.consumer("w", "orders", visibility="30s", backoff={"initial": "0s"}, until_idle="1s")
    # The first time it was too late to acknowledge it; only the second one counts.
    assert consumer.run(handler) == (1, 0)
    assert attempts == [1, 2]


def test_an_error_without_a_readable_text_is_the_failure_of_its_message_alone(queue: VirtualQueue) -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def handle(message: Received) -> None:
        if message.value == b"bad":
            raise Unreadable

    queue.create_group("w", max_retries=0)
    for value in (b"bad", b"good"):
        queue.publish("orders", value)
    assert queue.consumer("w", "orders", until_idle="1s").run(handle, 1) == (1, 1)
    (letter,) = queue.dead_letters.list("orders")
    assert letter.reason == "Unreadable"


def test_a_handler_that_exits_fails_like_any_other(queue: VirtualQueue) -> None:
    publish(queue, 1)
    assert queue.consumer("w", "orders", until_idle="1s").run(lambda message: sys.exit(3)) == (0, 1)
    (step,) = [step for step in queue.trace("orders:0:0").steps if step.what == "NACKED"]
    assert step.reason == "SystemExit: 3"


def test_closing_the_consumer_ends_the_running(queue: VirtualQueue) -> None:
    publish(queue, 1)
    consumer = queue.consumer("w", "orders")
    is_handled = Event()
    outcomes = []
    thread = Thread(target=lambda: outcomes.append(consumer.run(lambda message: is_handled.set())))
    thread.start()
    assert is_handled.wait(30)
    consumer.close()
    thread.join(30)
    assert outcomes == [(1, 0)]


def test_a_closed_consumer_says_so_instead_of_giving_nothing(queue: VirtualQueue) -> None:
    queue.publish("orders", b"1")
    consumer = queue.consumer("w", "orders")
    consumer.close()
    for ask in (
        lambda: consumer.run(lambda message: None),
        lambda: list(consumer),
        lambda: list(consumer.batches()),
        consumer.poll,
    ):
        with pytest.raises(LogClosed, match="is closed"):
            ask()


def test_closing_the_consumer_gives_back_what_no_handler_has_begun(queue: VirtualQueue) -> None:
    publish(queue, 20)
    consumer = queue.consumer("w", "orders")
    assert consumer.run(lambda message: consumer.close(), concurrency=1) == (1, 0)
    assert queue.lag("w") == {"orders": [19]}
    assert len(queue.consumer("w", "orders").poll()) == 19


def test_who_closes_a_consumer_that_is_being_closed_waits_until_it_has_left(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        consumer = client.consumer("w", "orders")
        await consumer.join()
        transport = client._transport
        leave, may_leave = transport.leave, asyncio.Event()

        async def leave_later(group: str, name: str) -> None:
            await may_leave.wait()
            await leave(group, name)

        transport.leave = leave_later
        closings = [asyncio.ensure_future(consumer.close()) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(closing.done() for closing in closings)
        may_leave.set()
        await asyncio.gather(*closings)
        assert (await client.group("w")).members == {}

    run_client(work)


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_what_is_behind_a_message_that_was_given_up_and_skipped_comes_at_once(
    queue: VirtualQueue, ordering: str
) -> None:
    publish(queue, 10, keys=1)
    attempts: list[int] = []

    def handler(message: Received) -> None:
        attempts.append(message.attempt)
        if message.value == b"1":
            raise ValueError("poison")

    settings: dict[str, Any] = {"ordering": ordering, "on_poison": "skip", "max_retries": 0}
    assert queue.consumer("w", "orders", until_idle="1s", **settings).run(handler) == (9, 1)
    assert attempts == [1] * 10, "and nobody is charged for what was not handed out"


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_an_ack_of_which_nobody_knows_whether_it_arrived_is_given_again(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch, is_carried_out: bool
) -> None:
    publish(queue, 3)
    transport, errors = queue._transport, [ConnectionLost("the broker was killed")]
    answer = transport.answer

    async def lose_one(group: str, receipt: Receipt, given: Answer) -> None:
        if is_carried_out or not errors:
            await answer(group, receipt, given)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(transport, "answer", lose_one)
    assert queue.consumer("w", "orders", until_idle="1s").run(lambda message: None) == (3, 0)
    assert queue.lag("w") == {"orders": [0]}


@pytest.mark.parametrize(
    ("handler", "concurrency"), [(7, 8), (None, 8), (print, 0), (print, "8"), (print, 10_000), (asyncio.sleep, 8)]
)
def test_what_can_not_be_run_is_refused(queue: VirtualQueue, handler: Any, concurrency: Any) -> None:
    with pytest.raises(InvalidInput):
        queue.consumer("w", "orders").run(handler, concurrency)


def _yields(message: Received) -> Iterator[None]:
    yield


async def _yields_later(message: Received) -> AsyncIterator[None]:
    yield


class _Yields:
    def __call__(self, message: Received) -> Iterator[None]:
        yield


@pytest.mark.parametrize("handler", [_yields, _yields_later, _Yields(), partial(_yields)])
def test_a_handler_that_would_do_nothing_is_refused_and_nothing_is_acknowledged(
    queue: VirtualQueue, handler: Any
) -> None:
    queue.publish("orders", b"1")
    consumer = queue.consumer("w", "orders")
    with pytest.raises(InvalidInput, match="yield"):
        consumer.run(handler)
    assert [message.value for message in queue.consumer("w", "orders").poll()] == [b"1"]


def test_a_handler_that_returns_a_generator_has_failed_and_the_log_says_so(
    queue: VirtualQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish("orders", b"1")
    with queue.consumer("w", "orders", until_idle="1s", max_retries=0) as consumer:
        assert consumer.run(lambda message: _yields(message)) == (0, 1)
    (letter,) = queue.dead_letters.list("orders")
    assert "returned a generator" in letter.reason
    (record,) = [record for record in caplog.records if record.name == "penstock.consumer"]
    assert letter.original in record.getMessage()
    assert record.exc_info is not None


def test_async_handlers_run_on_the_event_loop(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(20):
            await client.publish("orders", b"%d" % number)
        at_work = most = 0

        async def handler(message: received.Received) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            for _ in range(10):
                await asyncio.sleep(0)
            at_work -= 1
            if message.value == b"7":
                await message.reject("unlucky")

        class Callable:
            async def __call__(self, message: received.Received) -> None:
                await handler(message)

        assert await client.consumer("a", "orders", until_idle="1s").run(handler, concurrency=5) == (19, 0)
        assert most == 5
        assert await client.consumer("b", "orders", until_idle="1s").run(Callable()) == (19, 0)
        assert await client.consumer("c", "orders", until_idle="1s").run(lambda message: handler(message)) == (19, 0)
        assert len(await client.dead_letters.list("orders")) == 3

    run_client(work)


def test_a_handler_whose_own_task_was_cancelled_has_failed_and_the_others_go_on(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(20):
            await client.publish("orders", b"%d" % number, key="k")

        async def handler(message: received.Received) -> None:
            if message.value == b"3":
                inner = asyncio.ensure_future(asyncio.sleep(60))
                asyncio.get_running_loop().call_soon(inner.cancel)
                await inner

        settings: dict[str, Any] = {"ordering": "key", "max_retries": 0, "on_poison": "skip"}
        consumer = client.consumer("w", "orders", until_idle="0s", **settings)
        assert await consumer.run(handler, concurrency=2) == (19, 1)

    run_client(work)


def test_one_message_wakes_one_worker(queue: VirtualQueue) -> None:
    publish(queue, 1)
    before = active_count()
    threads: list[int] = []
    consumer = queue.consumer("w", "orders", until_idle="0s")
    assert consumer.run(lambda message: threads.append(active_count()), concurrency=100) == (1, 0)
    assert threads == [before + 1]


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_a_run_that_is_cancelled_between_two_messages_has_acknowledged_the_first(run_client: Any, count: int) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders") as producer:
            for number in range(400):
                await producer.send(b"%d" % number)
        handled: list[int] = []

        async def handler(message: received.Received) -> None:
            handled.append(message.offset)
            if len(handled) == count:
                running.cancel()

        running = asyncio.create_task(client.consumer("w", "orders", prefetch=1_000).run(handler, concurrency=1))
        with pytest.raises(asyncio.CancelledError):
            await running
        found = await client.consumer("w", "orders").poll(1_000)
        assert sorted([*handled, *(message.offset for message in found)]) == list(range(400))

    run_client(work)


def test_what_goes_wrong_in_the_broker_ends_the_running(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(3):
            await client.publish("orders", b"%d" % number)

        async def broken(*arguments: object) -> None:
            raise Fatal("the disk is gone")

        async def handler(message: received.Received) -> None:
            client._transport.answer = broken  # type: ignore[method-assign]

        with pytest.raises(Fatal, match="the disk is gone"):
            await client.consumer("w", "orders").run(handler)
        del client._transport.answer

    run_client(work)


def test_a_run_that_is_cancelled_gives_back_what_it_was_working_on(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        await client.publish("orders", b"a")
        is_at_work = asyncio.Event()

        async def handler(message: received.Received) -> None:
            is_at_work.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(client.consumer("w", "orders").run(handler))
        await is_at_work.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [message.attempt for message in await client.consumer("w", "orders").poll()] == [1]

    run_client(work)


def test_a_message_stays_leased_while_its_handler_works(
    queue: VirtualQueue, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(queue, 1)
    attempts = []
    is_renewed = Event()
    answer = Lease.answer

    async def noted(lease: Lease, rows: Any, offsets: Any, said: Any) -> None:
        await answer(lease, rows, offsets, said)
        is_renewed.set()

    monkeypatch.setattr(Lease, "answer", noted)

    def handler(message: Received) -> None:
        attempts.append(message.attempt)
        for _ in range(3):
            is_renewed.clear()
            clock.advance("30ms")
            assert is_renewed.wait(30)

    consumer = queue.consumer("w", "orders", visibility="40ms", max_retries=0, until_idle="1s")
    assert consumer.run(handler) == (1, 0)
    assert attempts == [1]


def test_an_interrupted_run_waits_for_its_handlers_and_acknowledges_what_they_did(
    queue: VirtualQueue, caplog: pytest.LogCaptureFixture
) -> None:
    publish(queue, 3, keys=1)
    handled: list[bytes | None] = []
    begun, may_end = Event(), Event()

    def handler(message: Received) -> None:
        begun.set()
        assert may_end.wait(30)
        handled.append(message.value)

    def interrupt(main: int) -> None:
        assert begun.wait(30)
        signal.pthread_kill(main, signal.SIGINT)
        until(lambda: "waiting for 1 handlers" in caplog.text)
        assert [message.value for message in other.poll()] == [], "its key is at work"
        may_end.set()

    other = queue.consumer("w", "orders", ordering="key")
    with ThreadPoolExecutor() as threads:
        interrupting = threads.submit(interrupt, get_ident())
        with pytest.raises(KeyboardInterrupt):
            queue.consumer("w", "orders", ordering="key").run(handler)
        interrupting.result()
    assert handled == [b"0"]
    assert queue.lag("w") == {"orders": [2]}
    assert [message.value for message in other.poll()] == [b"1", b"2"], "and what no handler has begun was released"


def test_a_second_interrupt_does_not_wait_and_the_message_stays_leased(
    queue: VirtualQueue, caplog: pytest.LogCaptureFixture
) -> None:
    publish(queue, 1)
    begun, may_end = Event(), Event()

    def handler(message: Received) -> None:
        begun.set()
        assert may_end.wait(30)

    def interrupt(main: int) -> None:
        assert begun.wait(30)
        signal.pthread_kill(main, signal.SIGINT)
        until(lambda: "waiting for 1 handlers" in caplog.text)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor() as threads:
        interrupting = threads.submit(interrupt, get_ident())
        with pytest.raises(KeyboardInterrupt):
            queue.consumer("w", "orders").run(handler)
        interrupting.result()
    assert queue.consumer("w", "orders").poll() == []
    may_end.set()
    until(lambda: queue.lag("w") == {"orders": [0]})


def test_handlers_of_many_keys_that_fail_at_random_keep_the_order_of_each_key(queue: VirtualQueue) -> None:
    random = Random(26)
    publish(queue, 600, keys=20)
    order: dict[bytes | None, list[int]] = {}
    at_work: set[bytes | None] = set()
    clashes = []

    def handler(message: Received) -> None:
        if message.key in at_work:
            clashes.append(message.id)
        at_work.add(message.key)
        try:
            if random.random() < 0.1:
                sleep(0.001)
            if random.random() < 0.05:
                raise ValueError(message.id)
            order.setdefault(message.key, []).append(message.offset)
        finally:
            at_work.discard(message.key)

    settings: dict[str, Any] = {"ordering": "key", "backoff": {"initial": "0s"}, "max_retries": 1_000}
    done = failed = 0
    while any(queue.lag("w")["orders"]) if done else True:
        outcome = queue.consumer("w", "orders", until_idle="1s", prefetch=70, **settings).run(handler, concurrency=8)
        done, failed = done + outcome.done, failed + outcome.failed
    assert (done, clashes) == (600, [])
    assert failed > 0
    assert order == {b"k%d" % key: list(range(key, 600, 20)) for key in range(20)}


def test_a_lost_message_does_not_keep_others_of_its_lease_from_being_acknowledged(queue: VirtualQueue) -> None:
    publish(queue, 5)
    seen: list[bytes | None] = []

    def handler(message: Received) -> None:
        seen.append(message.value)
        if message.value == b"2" and seen.count(b"2") == 1:
            receipt = Receipt(*message.lease.id, BitMap64([message.offset]))
            queue._portal.run(queue._transport.answer("w", receipt, Release()))

    assert queue.consumer("w", "orders", until_idle="0s").run(handler, concurrency=1) == (5, 0)
    assert sorted(filter(None, seen)) == [b"0", b"1", b"2", b"2", b"3", b"4"]
    assert queue.lag("w") == {"orders": [0]}


@pytest.mark.parametrize("linger", ["0s", "50ms"])
def test_leases_that_a_seek_takes_away_are_no_error_of_the_run(queue: VirtualQueue, linger: str) -> None:
    publish(queue, 6)
    seen = []

    def handler(message: Received) -> None:
        seen.append(message.value)
        if len(seen) == 3:
            message.ack()
            queue.seek("w", "orders", "earliest")

    outcome = queue.consumer("w", "orders", until_idle="0s", ack_linger=linger).run(handler, concurrency=1)
    assert outcome.failed == 0
    assert queue.lag("w") == {"orders": [0]}


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_after_a_nack_that_was_refused_nothing_behind_it_is_handled(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    publish(queue, 6, keys=1)
    transport, handled = queue._transport, list[bytes | None]()
    answer = transport.answer

    async def refuse_nacks(group: str, receipt: Receipt, given: Answer) -> None:
        if isinstance(given, Nack):
            raise Overloaded("the disk is busy")
        await answer(group, receipt, given)

    def handler(message: Received) -> None:
        handled.append(message.value)
        raise ValueError

    monkeypatch.setattr(transport, "answer", refuse_nacks)
    with pytest.raises(Overloaded):
        queue.consumer("w", "orders", ordering=ordering).run(handler)
    assert handled == [b"0"]
    assert queue.lag("w") == {"orders": [6]}


def test_a_renewal_that_hangs_does_not_keep_other_leases_from_being_renewed(
    clock: VirtualClock, queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.create_topic("two", 2)
    for partition in range(2):
        queue.publish("two", b"x", partition=partition)
    transport, renewed = queue._transport, Event()
    answer = transport.answer

    async def hang(group: str, receipt: Receipt, given: Answer) -> None:
        if isinstance(given, Extend) and receipt.partition == 0:
            await asyncio.Event().wait()
        await answer(group, receipt, given)
        if isinstance(given, Extend):
            renewed.set()

    monkeypatch.setattr(transport, "answer", hang)
    attempts: list[tuple[int, int]] = []

    def handler(message: Received) -> None:
        attempts.append((message.partition, message.attempt))
        if message.partition == 1:
            for _ in range(3):
                renewed.clear()
                clock.advance("30ms")
                assert renewed.wait(30)
            consumer.close()

    consumer = queue.consumer("w", "two", visibility="40ms", max_retries=0)
    consumer.run(handler, concurrency=2)
    assert (1, 1) in attempts
    assert (1, 2) not in attempts


def test_close_ends_a_run_that_waits_for_the_renewal_of_a_prefetched_message(
    clock: VirtualClock, queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(queue, 2)
    transport, asked = queue._transport, Event()
    answer = transport.answer

    async def hang(group: str, receipt: Receipt, given: Answer) -> None:
        if isinstance(given, Extend):
            asked.set()
            await asyncio.Event().wait()
        await answer(group, receipt, given)

    monkeypatch.setattr(transport, "answer", hang)
    consumer = queue.consumer("w", "orders", visibility="40s")

    def close() -> None:
        assert asked.wait(30)
        consumer.close()

    closing = Thread(target=close)
    closing.start()
    assert consumer.run(lambda message: clock.advance("30s"), concurrency=1) == (1, 0)
    closing.join()


def test_only_what_was_acknowledged_counts_as_done(queue: VirtualQueue) -> None:
    for number in range(4):
        queue.publish("orders", b"%d" % number)

    def handler(message: Received) -> None:
        if message.value == b"0":
            message.nack("1h")
        elif message.value == b"1":
            message.reject("bad")
        elif message.value == b"2":
            message.ack()

    assert queue.consumer("w", "orders", until_idle="0s").run(handler) == (2, 0)


def test_a_nack_of_which_nobody_knows_whether_it_arrived_keeps_the_order_of_its_key(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        queue.publish("orders", b"%d" % number, key="k")
    transport, errors = queue._transport, [ConnectionLost("the broker was killed")]
    answer, handled = transport.answer, list[tuple[bytes | None, int]]()

    async def lose_one(group: str, receipt: Receipt, given: Answer) -> None:
        await answer(group, receipt, given)
        if errors:
            raise errors.pop()

    def handle(message: Received) -> None:
        handled.append((message.value, message.attempt))
        if len(handled) == 1:
            raise RuntimeError("not now")

    monkeypatch.setattr(transport, "answer", lose_one)
    backoff = {"initial": "0s", "jitter": 0}
    consumer = queue.consumer("w", "orders", ordering="key", backoff=backoff, until_idle="1s")
    consumer.run(handle, concurrency=1)
    assert handled == [(b"0", 1), (b"0", 2), (b"1", 1), (b"2", 1)]


@pytest.mark.parametrize("last", [ConnectionLost("no answer"), NotLeader("nobody yet")], ids=lambda error: error.code)
def test_an_ack_of_which_nobody_knows_whether_it_arrived_may_be_said_until_somebody_does(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch, last: PenstockError
) -> None:
    publish(queue, 1)
    transport = queue._transport
    answer, errors = transport.answer, [last, ConnectionLost("no answer")]

    async def lose_two(group: str, receipt: Receipt, given: Answer) -> None:
        await answer(group, receipt, given)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(transport, "answer", lose_two)
    (message,) = queue.consumer("w", "orders").poll()
    with pytest.raises(type(last)):
        message.ack()
    assert message.is_held, "as far as anybody knows"
    message.ack()
    assert not message.is_held


def test_an_ack_that_is_said_again_is_no_error_only_if_it_was_carried_out(queue: VirtualQueue) -> None:
    publish(queue, 3)
    consumer = queue.consumer("w", "orders")
    first, second, _ = consumer.poll()
    first.ack()
    transport, again = queue._transport, Ack(again=True)

    def say(message: Received) -> None:
        receipt = Receipt(*message.lease.id, BitMap64([message.offset]))
        queue._portal.run(transport.answer("w", receipt, again))

    say(first)
    second.nack(delay="1h")
    with pytest.raises(NotLeased):
        say(second)


def test_of_acks_that_are_said_again_those_are_carried_out_that_were_not(queue: VirtualQueue) -> None:
    publish(queue, 3)
    messages = queue.consumer("w", "orders").poll()
    messages[1].ack()
    every = Receipt(*messages[0].lease.id, BitMap64([message.offset for message in messages]))
    queue._portal.run(queue._transport.answer("w", every, Ack(again=True)))
    assert queue.lag("w") == {"orders": [0]}
