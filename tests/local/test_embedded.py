"""The embedded broker on a real disk, in real time, as a user's program has it."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple

import pytest

import penstock
from penstock.client.blocking import Client, Received
from penstock.errors import BatchTooLarge, DirectoryLocked, InvalidInput, LogClosed, StorageError, TopicNotFound
from penstock.testing import VirtualQueue


class Order(NamedTuple):
    key: str
    value: bytes


ORDERS = [Order(f"user-{number % 3}", b'{"id":%d}' % number) for number in range(30)]


# --- what the design shows, word for word -------------------------------------------------------------------


def test_the_blocking_client_does_what_the_design_shows(tmp_path: Path) -> None:
    handled: list[bytes | None] = []
    with penstock.open(tmp_path / "data") as q:
        q.create_topic("orders", partitions=6)
        q.publish("orders", b'{"id":1}', key="user-1", delay="30m", priority="high")
        with q.producer("orders", linger="5ms", compression="zstd") as p:
            for order in ORDERS:
                p.send(order.value, key=order.key)
        for msg in q.consumer("processors", ["orders"], ordering="key", until_idle="50ms"):
            handled.append(msg.value)
            msg.ack()
        assert sorted(handled) == sorted(order.value for order in ORDERS)
        done = q.consumer("w", ["orders"], until_idle="50ms").run(lambda msg: None, concurrency=8)
        assert done == (30, 0)
        batches = q.reader("orders", from_time="2026-01-14T15:00:00Z", to_time="2100-01-01T00:00:00Z").batches()
        assert sum(batch.num_rows for batch in batches) == 31


def test_the_async_client_does_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        handled: list[bytes | None] = []
        async with penstock.aio.open(tmp_path / "data") as q:
            await q.create_topic("orders", partitions=6)
            await q.publish("orders", b'{"id":1}', key="user-1", delay="30m", priority="high")
            async with q.producer("orders", linger="5ms", compression="zstd") as p:
                sent = [await p.send(order.value, key=order.key) for order in ORDERS]
            assert len({(await each).id for each in sent}) == 30
            async for msg in q.consumer("processors", ["orders"], ordering="key", until_idle="50ms"):
                handled.append(msg.value)
                await msg.ack()
            assert sorted(handled) == sorted(order.value for order in ORDERS)

            async def handler(msg: penstock.aio.Received) -> None:
                assert msg.attempt == 1

            assert await q.consumer("w", ["orders"], until_idle="50ms").run(handler, concurrency=8) == (30, 0)
            reader = q.reader("orders", from_time="2026-01-14T15:00:00Z")
            assert sum([batch.num_rows async for batch in reader.batches()]) == 31
        with pytest.raises(LogClosed):
            await q.publish("orders", b"too late")
        again = await penstock.aio.open(tmp_path / "data")
        assert sum((await again.lag("w"))["orders"]) == 1, "the delayed one"
        await again.close()

    asyncio.run(main())


# --- opening and closing ------------------------------------------------------------------------------------


def test_topics_can_be_listed_while_one_is_being_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with penstock.aio.open(tmp_path) as q:
            making = asyncio.ensure_future(q.create_topic("large", partitions=20))
            while not making.done():
                await q.topics()
                await asyncio.sleep(0)
            assert [topic.name for topic in await q.topics()] == ["large"]

    asyncio.run(main())


def test_everything_survives_closing_and_opening(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1, retention={"hours": 1})
        for number in range(5):
            q.publish("orders", b"%d" % number)
        q.publish("orders", b"later", delay="1h")
        q.schedules.create("nightly", "orders", "@daily", b"report")
        with q.consumer("w", "orders", visibility="10s") as consumer:
            first, second, third = consumer.poll(3)
            first.ack()
            second.reject("bad")
            third.release()
    with penstock.open(tmp_path) as q:
        assert q.topic("orders").settings["retention"]["hours"] == 1
        assert q.group("w").settings["visibility"] == "10s"
        assert [letter.original for letter in q.dead_letters.list("orders")] == ["orders:0:1"]
        assert [scheduled.message.value for scheduled in q.scheduled.list("orders")].count(b"later") == 1
        assert [schedule.name for schedule in q.schedules.list()] == ["nightly"]
        assert [message.value for message in q.consumer("w", "orders").poll()] == [b"2", b"3", b"4"]
        assert q.why("orders:0:0", "w").code == "acknowledged"


def test_a_directory_is_open_in_one_place_at_a_time(tmp_path: Path) -> None:
    with penstock.open(tmp_path), pytest.raises(DirectoryLocked):
        penstock.open(tmp_path)
    with penstock.open(str(tmp_path)) as q:
        assert q.topics() == []


def test_what_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is not a directory"):
        penstock.open(tmp_path / "file")


def test_limits_are_those_of_a_server(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", limits={"message_bytes_max": 10}) as q:
        q.create_topic("orders")
        q.publish("orders", b"0123456789")
        with pytest.raises(BatchTooLarge):
            q.publish("orders", b"0123456789a")
    for wrong in ({"speed": 1}, {"message_bytes_max": 0}, {"message_bytes_max": "10"}, 7):
        with pytest.raises(InvalidInput):
            penstock.open(tmp_path / "q", limits=wrong)  # type: ignore[arg-type]


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    q = penstock.open(tmp_path)
    q.create_topic("orders", 1)
    producer, consumer, reader = q.producer("orders"), q.consumer("w", "orders"), q.reader("orders")
    q.close()
    q.close()
    for use in (
        q.topics,
        lambda: q.publish("orders", b""),
        lambda: q.consumer("w", "orders"),
        lambda: q.scheduled.list("orders"),
        lambda: producer.send(b""),
        consumer.poll,
        lambda: list(reader),
    ):
        with pytest.raises(LogClosed, match="closed"):
            use()


def test_closing_the_client_sends_what_producers_hold_and_gives_back_what_consumers_hold(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        producer = q.producer("orders", linger="1h")
        producer.send(b"a")
        q.publish("orders", b"b")
        consumer = q.consumer("w", "orders", name="ann")
        assert next(consumer).value == b"b"
        producer.send(b"c")
    with penstock.open(tmp_path) as q:
        assert [message.value for message in q.reader("orders")] == [b"b", b"a", b"c"]
        assert q.group("w").members == {}
        assert [m.value for m in q.consumer("w", "orders").poll()] == [b"a", b"c"]


def test_what_a_producer_holds_is_sent_also_if_nobody_refers_to_it_any_more(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        sending = q.producer("orders", linger="1h").send(b"a")
        gc.collect()
    assert sending.result().offset == 0


def test_a_client_nobody_refers_to_any_more_lets_go_of_the_directory(tmp_path: Path) -> None:
    q = penstock.open(tmp_path)
    q.create_topic("orders", 1)
    q.publish("orders", b"a")
    thread = q._portal._thread
    with pytest.warns(ResourceWarning, match=rf"<Client {tmp_path}, open> was never closed: use it in a `with`"):
        del q
    thread.join(30)
    with penstock.open(tmp_path) as q:
        assert [message.value for message in q.reader("orders")] == [b"a"]


def test_what_a_client_made_keeps_it_alive(tmp_path: Path) -> None:
    def opened() -> Client:
        q = penstock.open(tmp_path)
        q.create_topic("orders", 1)
        q.publish("orders", b"a")
        return q

    consumer = opened().consumer("w", "orders")
    gc.collect()
    (message,) = consumer.poll()
    message.ack()
    consumer._client.close()


def run_script(text: str, directory: Path, prints: str | None = None) -> str:
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", text]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    # On a busy machine anything may take long, which asyncio tells in this mode.
    said = "".join(line for line in result.stderr.splitlines(True) if not re.match(r"Executing <.* took ", line))
    assert (result.returncode, said) == (0, ""), result.stderr
    assert prints is None or result.stdout.strip() == prints
    return result.stdout


def test_what_producers_hold_at_the_end_of_a_script_is_sent_and_the_broker_closed(tmp_path: Path) -> None:
    run_script(
        """
import atexit, penstock
q = penstock.open("data")
q.create_topic("orders", 2)
producer = q.producer("orders", linger="1h")
sent = [producer.send(f"{number}") for number in range(10)]
atexit.register(lambda: print(len({each.result(0).id for each in sent}), q))
""",
        tmp_path,
        prints="10 <Client data, closed>",
    )
    with penstock.open(tmp_path / "data") as q:
        assert len(list(q.reader("orders"))) == 10


def test_lag_after_a_kill_counts_messages_and_not_the_offsets_that_are_passed_over(tmp_path: Path) -> None:
    script = """
import os, signal, penstock
q = penstock.open("data")
q.create_topic("t", partitions=1, durability="interval", sync_interval="10m")
for number in range(3):
    q.publish("t", b"%d" % number)
with q.consumer("g", "t", until_idle="50ms") as consumer:
    for batch in consumer.batches():
        batch.ack()
print(q.lag("g"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, "{'t': [0]}\n"), result.stderr
    for _ in range(2):
        # The second time after a clean end.
        with penstock.open(tmp_path / "data") as q:
            assert q.topic("t").partitions[0].end_offset > 3
            assert q.lag("g") == {"t": [0]}
    with penstock.open(tmp_path / "data") as q:
        q.publish("t", b"new")
        assert q.lag("g") == {"t": [1]}
        with q.consumer("g", "t", until_idle="50ms") as consumer:
            assert [message.value for batch in consumer.batches() for message in batch.messages()] == [b"new"]


def test_what_can_not_be_sent_at_the_end_of_a_script_is_told(tmp_path: Path) -> None:
    script = """
import penstock
q = penstock.open("data")
q.create_topic("orders", 1)
producer = q.producer("orders", linger="1h")
producer.send("a")
q.delete_topic("orders")
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "<Client data, closed> was left open, and could not be closed at exit: TopicNotFound: " in result.stderr


def test_an_async_client_that_is_not_closed_is_warned_of_and_so_is_what_was_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        q = await penstock.aio.open(tmp_path)
        await q.create_topic("orders", 1)
        producer = q.producer("orders", linger="1h")
        await producer.send(b"a")
        await producer.send(b"b")

    with pytest.warns(ResourceWarning) as warned:  # noqa: PT031
        asyncio.run(main())
        gc.collect()
    assert {str(warning.message).partition(":")[0] for warning in warned} >= {
        f"<Client {tmp_path}, open> was never closed",
        "<Producer for orders, 2 unsent> was never closed",
    }


def test_what_was_closed_or_has_sent_everything_is_not_warned_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with penstock.aio.open(tmp_path) as q:
            await q.create_topic("orders", 1)
            producer = q.producer("orders", linger="0s")
            await (await producer.send(b"a"))
            await q.producer("orders", linger="1h").send(b"b")

    # What others have left behind.
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(warning.message) for warning in warned if "was never closed" in str(warning.message)] == []


def test_a_script_that_forgets_to_close_ends_quietly_and_loses_nothing(tmp_path: Path) -> None:
    run_script(
        """
import penstock
q = penstock.open("data")
q.create_topic("orders", 2)
for number in range(10):
    q.publish("orders", f"{number}", key="k")
consumer = q.consumer("w", "orders")
next(consumer).ack()
producer = q.producer("orders")
producer.send(b"x").result()
""",
        tmp_path,
    )
    with penstock.open(tmp_path / "data") as q:
        assert len(list(q.reader("orders"))) == 11
        assert sum(q.lag("w")["orders"]) == 10


def test_after_a_fork_the_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    printed = run_script(
        """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import penstock
from penstock.errors import DirectoryLocked, LogClosed
with penstock.open("data") as q:
    q.create_topic("orders", 1)
    child = os.fork()
    if child == 0:
        try:
            q.publish("orders", b"from the child")
        except LogClosed as error:
            print(error, flush=True)
        try:
            penstock.open("data")
        except DirectoryLocked:
            print("locked", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    q.publish("orders", b"from the parent")
    print([message.value for message in q.reader("orders")])
""",
        tmp_path,
    )
    assert printed.splitlines() == [
        "this client belongs to the process from which this one was forked: open another client in this process",
        "locked",
        "[b'from the parent']",
    ]


# --- threads ------------------------------------------------------------------------------------------------


def test_threads_share_one_client(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 3)
        got: Counter[bytes | None] = Counter()
        lock = Lock()

        def publish(thread: int) -> None:
            for number in range(25):
                q.publish("orders", f"{thread}-{number}", key=f"{thread}")

        def consume() -> None:
            for message in q.consumer("w", "orders"):
                message.ack()
                with lock:
                    got[message.value] += 1
                    if len(got) == 100:
                        all_are_here.set()

        all_are_here = Event()
        threads = [Thread(target=publish, args=[number]) for number in range(4)]
        threads += [Thread(target=consume) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert all_are_here.wait(60)
    for thread in threads:
        thread.join(60)
    assert got == {f"{thread}-{number}".encode(): 1 for thread in range(4) for number in range(25)}


def test_threads_share_one_consumer(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        with q.producer("orders") as producer:
            for number in range(100):
                producer.send(f"{number}")
        consumer = q.consumer("w", "orders", until_idle="50ms", prefetch=7)
        got: list[bytes | None] = []

        def consume() -> None:
            for message in consumer:
                got.append(message.value)
                message.ack()

        threads = [Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(int(value or b"") for value in got) == list(range(100))


def test_a_blocking_call_on_the_clients_own_loop_is_refused_instead_of_hanging(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)

        async def on_its_loop() -> None:
            q.publish("orders", b"x")

        with pytest.raises(LogClosed, match=r"use penstock\.aio there"):
            q._portal.run(on_its_loop())


def test_what_another_thread_waits_for_ends_when_the_client_is_closed(tmp_path: Path) -> None:
    q = penstock.open(tmp_path)
    q.create_topic("orders", 1)
    consumer = q.consumer("w", "orders")
    consumer.join()
    got: list[list[Received]] = []
    thread = Thread(target=lambda: got.append(list(consumer)))
    thread.start()
    while not consumer._inner.membership._polling:
        pass
    q.close()
    thread.join(30)
    assert got == [[]]


# --- real time ----------------------------------------------------------------------------------------------


def test_a_poll_waits_for_what_comes(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        consumer = q.consumer("w", "orders")
        consumer.join()
        is_asking = Event()
        got: list[list[Received]] = []

        def poll() -> None:
            is_asking.set()
            got.append(consumer.poll(wait="30s"))

        thread = Thread(target=poll)
        thread.start()
        assert is_asking.wait(30)
        q.publish("orders", b"a")
        thread.join(30)
        assert [message.value for message in got[0]] == [b"a"]


def test_delays_back_off_and_leases_run_by_themselves(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        q.publish("orders", b"a", delay="50ms")
        consumer = q.consumer("w", "orders", max_retries=2, backoff={"initial": "10ms", "jitter": 0})
        (message,) = consumer.poll(wait="30s")
        message.nack(delay="20ms")
        (message,) = consumer.poll(wait="30s")
        assert message.attempt == 2
        # Left to run out.
        message.extend("50ms")
        (message,) = consumer.poll(wait="30s")
        assert message.attempt == 3
        message.extend("50ms")
        while not (letters := q.dead_letters.list("orders")):
            pass
        assert [(letter.reason, letter.attempts) for letter in letters] == [("the lease ran out", 3)]


def test_one_that_waits_keeps_nobody_from_working(tmp_path: Path) -> None:
    """A message of another group that is overdue, and that nobody fetches, once made every poll spin."""
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        q.publish("orders", b"a")
        with q.consumer("gone", "orders", backoff={"initial": "1ms", "jitter": 0}) as consumer:
            consumer.poll()[0].nack()
        other = q.consumer("w", "orders")
        other.poll()[0].ack()
        got: list[list[Received]] = []
        thread = Thread(target=lambda: got.append(other.poll(wait="30s")))
        thread.start()
        for _ in range(20):
            assert q.trace("orders:0:0").steps
        q.publish("orders", b"b")
        thread.join(20)
        assert [message.value for message in got[0]] == [b"b"]


def test_a_topic_can_be_deleted_while_it_is_read_and_consumed(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("orders", 1)
        q.publish("orders", b"a")
        consumer = q.consumer("w", "orders")
        (message,) = consumer.poll()
        q.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            message.ack()
        with pytest.raises(TopicNotFound):
            consumer.poll()
        q.create_topic("orders", 1)
        q.publish("orders", b"b")
        assert [m.value for m in consumer.poll()] == [b"b"]


def test_the_queue_for_tests_is_the_same_client() -> None:
    assert issubclass(VirtualQueue, Client)
