"""The embedded broker with a disk in memory and a clock that moves when told: a week passes in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.client import blocking
from penstock.client.client import Client
from penstock.client.closing import CLOSE_TIMEOUT
from penstock.client.portal import Portal
from penstock.client.words import Duration
from penstock.clock import Instant
from penstock.local.transport import LocalTransport
from penstock.testing.clock import ManualClock
from penstock.testing.memory_files import MemoryDisk, MemoryFiles
from penstock.testing.timers import ManualTimers

# Retention and compaction, as often as a broker in real time sees to them.
MAINTENANCE_US = 60_000_000
# A schedule of every second has so many occurrences in almost three hours.
STEPS_MAX = 10_000


class _Follower(Protocol):
    def next_due(self) -> int | None:
        """When something is going to happen by itself next, after now."""

    def tick(self) -> None:
        """What has come by now happens, and is over when this returns."""


class VirtualClock(ManualClock):
    """Moves from one thing that is due to the next, so that each happens at its time.

    After 10,000 of them it moves to the end at once: whoever needs more than that moves it in smaller steps.
    """

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        super().__init__(now_us)
        self.followers: list[_Follower] = []

    def advance_us(self, by: int) -> None:
        if by < 0:
            self.step_us(by)
            return
        target_us = self._now_us + by
        for _ in range(STEPS_MAX):
            dues = [due for follower in self.followers if (due := follower.next_due()) is not None]
            due_us = min(dues, default=target_us)
            if due_us >= target_us:
                break
            self._move(due_us)
        self._move(target_us)

    def step_us(self, by: int) -> None:
        super().step_us(by)
        self._tick()

    def _move(self, to_us: int) -> None:
        super().advance_us(to_us - self._now_us)
        self._tick()

    def _tick(self) -> None:
        for follower in self.followers:
            follower.tick()


class VirtualQueue(blocking.Client):
    """What `penstock.open` returns, for tests. Nothing waits: a poll returns what there is."""

    def __init__(self, clock: VirtualClock | None = None, disk: MemoryDisk | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.disk = disk or MemoryDisk()
        self._transport: LocalTransport
        portal = Portal()
        try:
            super().__init__(portal.run(self._open()), portal)
        except BaseException:
            portal.stop()
            raise
        self._maintained_us = self.clock.monotonic_us()
        self.clock.followers.append(self)

    async def _open(self) -> Client:
        self._transport = await LocalTransport.open(
            partial(MemoryFiles, self.disk), clock=self.clock, timers=ManualTimers(), is_kept=False, dice=lambda: 0.5
        )
        return Client(self._transport, place="in memory")

    def restart(self) -> None:
        """Closes the broker and opens it again on the same disk. Consumers and producers end with the old one."""
        self._portal.run(self._inner.close())
        self._use(self._portal.run(self._open()))

    def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        if self in self.clock.followers:
            self.clock.followers.remove(self)
        super().close(timeout)

    # --- time --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self._portal.run(_tick(self._transport.broker))
        if self.clock.monotonic_us() - self._maintained_us >= MAINTENANCE_US:
            self._maintained_us = self.clock.monotonic_us()
            self._portal.run(self._transport.broker.maintain())

    def next_due(self) -> int | None:
        return self._portal.run(_next_due(self._transport.broker, Instant.of(self.clock)))


async def _tick(broker: Broker) -> None:
    await broker.tick()
    # What was given up is written down first, and buried then.
    for record in broker.topics:
        for partition in broker.topic(record.name).partitions:
            await partition.groups.flushed()
    await broker.settle()


async def _next_due(broker: Broker, now: Instant) -> int | None:
    lasting = (now.to_wall(due_us) for due_us in _lasting(broker))
    return min((due for due in (*_dues(broker), *lasting) if due > now.wall_us), default=None)


def _dues(broker: Broker) -> Iterator[int]:
    """By the wall clock. One source at a time: what is overdue in one must not hide what is to come in another."""
    for schedule in broker.schedules.list():
        yield schedule.due_us
    for record in broker.topics:
        for partition in broker.topic(record.name).partitions:
            yield from _known(partition.groups.delays.next_due())


def _lasting(broker: Broker) -> Iterator[int]:
    """The same by the monotonic clock."""
    for group in broker.groups:
        yield from _known(broker.consumers.next_due(group.name))
    for record in broker.topics:
        for partition in broker.topic(record.name).partitions:
            for name in partition.groups.groups:
                state = partition.groups.state(name)
                yield from (due for due, _ in state.waits())
                yield from (lease.deadline_us for lease in state.leases.values())


def _known(due_us: int | None) -> Iterator[int]:
    if due_us is not None:
        yield due_us
