"""Handing messages to a function: ack when it returns, nack when it raises."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import pytest
from pyroaring import BitMap64

from penstock.client import received
from penstock.client.answers import Ack, Answer
from penstock.client.blocking import Received
from penstock.client.client import Client
from penstock.client.lease import Lease
from penstock.client.transport import Receipt
from penstock.errors import ConnectionLost, Fatal, InvalidInput, NotLeader, NotLeased, PenstockError
from penstock.testing import VirtualClock, VirtualQueue


def publish(queue: VirtualQueue, count: int, *, keys: int | None = None) -> None:
    for number in range(count):
        queue.publish("orders", b"%d" % number, key=None if keys is None else f"k{number % keys}")


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


def test_a_handler_that_exits_fails_like_any_other(queue: VirtualQueue) -> None:
    publish(queue, 1)
    assert queue.consumer("w", "orders", until_idle="1s").run(lambda message: sys.exit(3)) == (0, 1)
    (step,) = [step for step in queue.trace("orders:0:0").steps if step.what == "NACKED"]
    assert step.reason == "RuntimeError: SystemExit: 3"


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
