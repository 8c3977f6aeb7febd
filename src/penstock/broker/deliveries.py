"""All groups of one partition, and the log of what happened to its messages.

Decide, apply, write: an event changes the state in memory at once, so that the next decision sees it, and goes to the
deliveries log in the same order. Whoever asked hears of it when it is on disk; a lease need not wait for that, since a
lease that a crash forgets only means that its messages are delivered again.

If an event can't be written, memory is ahead of the disk and nobody may build on it: the groups of this partition
stop, and the next start reads the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from pyroaring import BitMap64

from penstock.broker.delivery import Delivery
from penstock.broker.events import AnyEvent, Leased, from_value, to_message, unpack
from penstock.broker.journal import Journal
from penstock.broker.retries import RetryPolicy
from penstock.clock import Clock
from penstock.errors import Fatal, GroupNotFound, InvalidFrame, LogCorrupt, PenstockError
from penstock.storage.commit import Committed
from penstock.storage.log import Log


class Deliveries:
    """Belongs to one event loop; made on a thread, since it reads the log."""

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], bytes],
    ) -> None:
        self._clock = clock
        self._journal = Journal(log, clock=clock, executor=executor, loop=loop)
        self._groups: dict[str, Delivery] = {}
        self._stopped: PenstockError | None = None
        # A crash may forget a lease, so ids do not simply go on: each life counts from somewhere else. What a consumer
        # holds from an earlier life is then unknown, and never mistaken for somebody else's.
        self._lease = int.from_bytes(new_id()[:5], "big") << 22
        for value in _values(log):
            self._recall(from_value(value))

    @property
    def groups(self) -> list[str]:
        return sorted(self._groups)

    def state(self, group: str) -> Delivery:
        try:
            return self._groups[group]
        except KeyError:
            raise GroupNotFound(f"group {group} has not started here", group=group) from None

    def has(self, group: str) -> bool:
        return group in self._groups

    # --- what groups do ----------------------------------------------------------------------------------

    async def start(self, group: str, offset: int) -> None:
        """The group begins at `offset`, or is moved there; what it had leased is no longer its own."""
        await self._decided([self._groups.get(group, Delivery(group)).seek(offset)])

    def lease(
        self,
        group: str,
        *,
        consumer: str,
        count: int,
        end_offset: int,
        visibility_us: int,
        in_flight_max: int,
        policy: RetryPolicy,
    ) -> Leased | None:
        """Up to `count` messages below `end_offset`; None if there are none, or too many are out already."""
        self._check()
        state = self.state(group)
        now = self._clock.now_us()
        self._decided(state.due(now, policy))
        room = min(count, in_flight_max - state.in_flight)
        if room <= 0:
            return None
        self._lease += 1
        leased = state.lease(
            now_us=now,
            count=room,
            end_offset=end_offset,
            consumer=consumer,
            identity=self._lease,
            deadline_us=now + visibility_us,
        )
        if leased is not None:
            self._decided([leased])
        return leased

    async def ack(self, group: str, lease: int, offsets: BitMap64) -> None:
        """On disk when this returns: these messages are never delivered to this group again."""
        self._check()
        await self._decided([self.state(group).ack(lease, offsets)])

    async def nack(
        self,
        group: str,
        lease: int,
        offsets: BitMap64,
        *,
        policy: RetryPolicy,
        reason: str = "",
        delay_us: int | None = None,
    ) -> None:
        self._check()
        state, now = self.state(group), self._clock.now_us()
        await self._decided(state.nack(lease, offsets, now_us=now, policy=policy, reason=reason, delay_us=delay_us))

    async def reject(self, group: str, lease: int, offsets: BitMap64, reason: str) -> None:
        self._check()
        await self._decided([self.state(group).reject(lease, offsets, reason)])

    async def release(self, group: str, lease: int, offsets: BitMap64) -> None:
        self._check()
        await self._decided([self.state(group).release(lease, offsets)])

    async def extend(self, group: str, lease: int, visibility_us: int) -> None:
        self._check()
        await self._decided([self.state(group).extend(lease, self._clock.now_us() + visibility_us)])

    # --- the log -----------------------------------------------------------------------------------------

    def _decided(self, events: Sequence[AnyEvent]) -> asyncio.Future[list[Committed]]:
        """Applied now; done when written.

        Into the queue first: what it refuses, because too much is waiting, must not be applied either. And shielded:
        that a caller gives up waiting must not hide that its event could not be written.
        """
        self._check()
        now = self._clock.now_us()
        commits = []
        for event in events:
            commits.append(self._journal.commit(to_message(event, now)))
            self._apply(event)
        written = asyncio.gather(*commits)
        written.add_done_callback(self._stop_if_failed)
        return asyncio.shield(written)

    def _stop_if_failed(self, written: asyncio.Future[list[Committed]]) -> None:
        if not written.cancelled() and isinstance(error := written.exception(), PenstockError):
            self._stopped = Fatal(f"what happened to messages could not be written: {error.message}", **error.details)

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped.again()

    def _apply(self, event: AnyEvent) -> None:
        state = self._groups.get(event.group)
        if state is None:
            state = self._groups[event.group] = Delivery(event.group)
        state.apply(event)

    def _recall(self, event: AnyEvent) -> None:
        try:
            self._apply(event)
        except KeyError as error:
            raise LogCorrupt(f"the deliveries log speaks of a lease it never gave: {event}") from error


def _values(log: Log) -> Iterable[bytes | None]:
    for frame in log.frames(log.start_offset):
        try:
            yield from frame.batch(verify=False).values()
        except InvalidFrame as error:
            raise LogCorrupt(f"a frame of the deliveries log can't be decoded: {error.message}") from error


def offsets_of(leased: Leased) -> BitMap64:
    return unpack(leased.offsets)
