"""The queue for tests: nothing waits, and time moves when told."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from penstock.errors import DirectoryLocked, InvalidInput, LogClosed
from penstock.testing import ManualClock, ManualTimers, MemoryDisk, VirtualClock, VirtualQueue

DAY_US = 86_400_000_000


def test_a_delay_of_seven_days_takes_no_time() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("reminders", 1)
        queue.publish("reminders", b"renew", delay="7d")
        consumer = queue.consumer("mailer", "reminders")
        start = time.perf_counter()
        queue.clock.advance("6d23h59m59s")
        assert consumer.poll(wait="5m") == []
        queue.clock.advance("1s")
        assert [message.value for message in consumer.poll()] == [b"renew"]
        assert time.perf_counter() - start < 60


def test_what_was_due_has_happened_when_the_clock_has_moved() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("orders", 1)
        queue.publish("orders", b"a", delay="1h")
        queue.clock.advance("1h")
        assert queue.topic("orders").scheduled == 0
        consumer = queue.consumer("w", "orders", visibility="30s", max_retries=0)
        consumer.poll()
        queue.clock.advance("30s")
        assert [message.value for message in queue.reader("orders.dlq")] == [b"a"]
        assert [letter.reason for letter in queue.dead_letters.list("orders")] == ["the lease ran out"]


def test_everything_happens_at_its_time_also_within_one_move() -> None:
    with VirtualQueue() as queue:
        start_us = queue.clock.now_us()
        queue.create_topic("orders", 1)
        queue.create_topic("ticks", 1)
        queue.schedules.create("hourly", "ticks", "@hourly", b"tick")
        queue.publish("orders", b"a")
        consumer = queue.consumer("w", "orders", visibility="30s", backoff={"initial": "10s", "jitter": 0})
        consumer.poll()
        queue.clock.advance("7d")
        assert queue.clock.now_us() == start_us + 7 * DAY_US
        assert len(list(queue.reader("ticks"))) == 7 * 24 + 1, "one for every hour, and the next one"
        assert len(queue.consumer("t", "ticks").poll(1_000)) == 7 * 24
        expired = [step for step in queue.trace("orders:0:0").steps if step.what == "LEASE_EXPIRED"]
        assert [(step.time_us - start_us, (step.until_us or 0) - start_us) for step in expired] == [
            (30_000_000, 30_000_000)
        ]
        assert [message.attempt for message in consumer.poll()] == [2]


def test_many_small_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.queue.STEPS_MAX", 20)
    with VirtualQueue() as queue:
        queue.create_topic("ticks", 1)
        queue.schedules.create("often", "ticks", "every 1s", b"tick")
        start_us = queue.clock.now_us()
        queue.clock.advance("1d")
        assert queue.clock.now_us() == start_us + DAY_US
        assert 20 < len(list(queue.reader("ticks"))) < 30


def test_a_restart_keeps_what_was_acknowledged() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("orders", 1)
        for number in range(3):
            queue.publish("orders", b"%d" % number)
        queue.publish("orders", b"later", delay="7d")
        old = queue.consumer("w", "orders")
        old.poll(1)[0].ack()
        producer = queue.producer("orders")
        queue.restart()
        assert [message.value for message in queue.consumer("w", "orders").poll()] == [b"1", b"2"]
        with pytest.raises(LogClosed):
            old.poll()
        with pytest.raises(LogClosed):
            producer.send(b"x")
        assert [scheduled.message.value for scheduled in queue.scheduled.list("orders")] == [b"later"]
        queue.clock.advance("7d")
        assert b"later" in [message.value for message in queue.consumer("other", "orders").poll()]


def test_queues_may_share_a_clock_and_a_disk_only_one_at_a_time() -> None:
    clock, disk = VirtualClock(), MemoryDisk()
    with VirtualQueue(clock, disk) as one, VirtualQueue(clock) as two:
        for queue in (one, two):
            queue.create_topic("orders", 1)
            queue.publish("orders", b"a", delay="1h")
        clock.advance("1h")
        assert [queue.topic("orders").scheduled for queue in (one, two)] == [0, 0]
        with pytest.raises(DirectoryLocked):
            VirtualQueue(clock, disk)
    assert clock.followers == []
    with VirtualQueue(clock, disk) as again:
        assert len(list(again.reader("orders"))) == 1


def test_a_clock_is_moved_as_users_write_time() -> None:
    for clock in (ManualClock(1_000), VirtualClock(1_000)):
        clock.advance("1s")
        clock.advance(timedelta(milliseconds=1))
        clock.advance_us(-1_000)
        assert clock.now_us() == 1_001_000
        with pytest.raises(InvalidInput):
            clock.advance(5)  # type: ignore[arg-type]


def test_waiting_takes_a_moment_and_hears_of_what_happens_in_it() -> None:
    async def main() -> None:
        timers = ManualTimers()
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        soon: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert not await timers.wait(never, until_us=0)
        asyncio.get_running_loop().call_soon(soon.set_result, None)
        assert await timers.wait(soon, until_us=1 << 62)
        never.cancel()

    asyncio.run(main())


def test_a_queue_that_is_not_closed_is_no_trouble() -> None:
    queue = VirtualQueue()
    queue.create_topic("orders", 1)
    queue.clock.followers.clear()
    thread = queue._portal._thread
    with pytest.warns(ResourceWarning, match="<VirtualQueue in memory, open> was never closed"):
        del queue
    thread.join(30)
    assert not thread.is_alive()


def test_retention_and_compaction_happen_as_time_goes_by() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("short", partitions=1, retention={"hours": 1})
        queue.create_topic("latest", partitions=1, cleanup="compact")
        for number in range(6):
            queue.publish("short", b"%d" % number)
            queue.publish("latest", b"%d" % number, key="k")
            queue.clock.advance("2d")
        assert [message.value for message in queue.reader("short")] == []
        assert len([message.value for message in queue.reader("latest")]) < 3
