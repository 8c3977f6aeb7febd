"""What a leader serves: producers, consumers, readers. A queue as small as can be, over the two logs.

It is made when the leader begins to serve: then all of its logs is committed, and is what it knows. Whatever it decides
it appends at once and goes by at once; it answers when that is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.cluster.loop import MS

if TYPE_CHECKING:
    from simulation.cluster.hosted import Hosted

VISIBILITY = 700 * MS
Answer = Callable[..., None]


class Serving:
    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        # By producer: the last sequence, and where it is.
        self._last: dict[str, tuple[int, int]] = {}
        self._leases: dict[int, int] = {}
        self._due: dict[int, int] = {}
        self._acked: set[int] = set()
        # Not leased and not acknowledged.
        self._ready: list[int] = []
        self._waiters: tuple[list[tuple[int, Callable[[], None]]], ...] = ([], [])
        self._durable_waiters: list[tuple[int, Callable[[], None]]] = []
        messages, deliveries = hosted.logs
        for offset, (_, value) in enumerate(messages.entries, messages.base):
            if value is not None:
                self._last[value[0]] = value[1], offset
                self._ready.append(offset)
        for _, row in deliveries.entries:
            if row is not None:
                self._apply(row)

    def _apply(self, row: tuple[str, Any, int]) -> None:
        kind, lease, offset = row
        if kind == "done":
            self._ready = [other for other in self._ready if other >= offset]
            self._leases = {other: held for other, held in self._leases.items() if other >= offset}
            # Its producers are still to be recognised.
            for producer, last in lease:
                self._last[producer] = max(last, self._last.get(producer, last))
        elif kind == "lease":
            self._leases[offset] = lease
            self._due[lease] = self._hosted.node.clock_us() + VISIBILITY
            if offset in self._ready:
                self._ready.remove(offset)
        elif self._leases.get(offset) == lease:
            del self._leases[offset]
            if kind == "ack":
                self._acked.add(offset)
            else:
                self._ready.append(offset)
                self._ready.sort()

    def _write(self, row: tuple[str, Any, int]) -> int:
        self._apply(row)
        return self._hosted.append(1, row)

    # ---- requests. An answer is called with what there is to say; never, if leadership ends meanwhile.

    def publish(self, producer: str, sequence: int, acks: str, answer: Answer) -> None:
        last, offset = self._last.get(producer, (-1, 0))
        if sequence > last:
            offset = self._hosted.logs[0].end
            self._last[producer] = sequence, offset
            self._hosted.append(0, (producer, sequence))
        elif sequence < last:
            answer("repeated")
            return
        if acks == "all":
            checker, partition = self._hosted.world.checker, self._hosted.partition
            self._when_committed(0, offset, lambda: (checker.acked(partition, producer, sequence), answer("ok")))
        elif acks == "leader":
            self._durable_waiters.append((offset, lambda: answer("ok")))
            self._tell_durable()

    def poll(self, answer: Answer) -> None:
        self._expire()
        committed = self._hosted.replica.committed[0]
        offset = next((offset for offset in self._ready if offset < committed), None)
        if offset is None:
            answer("nothing")
            return
        world, partition = self._hosted.world, self._hosted.partition
        lease = world.next_lease()
        at = self._write(("lease", lease, offset))
        self.when_leased(at, lambda: (world.checker.leased(partition, lease, offset), answer("ok", lease, offset)))

    def when_leased(self, at: int, tell: Callable[[], Any]) -> None:
        self._when_committed(1, at, tell)

    def ack(self, lease: int, offset: int, answer: Answer) -> None:
        self._expire()
        if self._leases.get(offset) != lease:
            answer("not leased")
            return
        checker, partition = self._hosted.world.checker, self._hosted.partition
        at = self._write(("ack", lease, offset))
        self._when_committed(1, at, lambda: (checker.ok_acked(partition, lease, offset), answer("ok")))

    def retain(self, start: int) -> None:
        """Delete messages, and then rows that speak of them; but a row says first that all those are done with. For
        which of the two logs will be shorter on some replica, nobody knows."""
        known = tuple((producer, last) for producer, last in self._last.items() if last[1] < start)
        at = self._write(("done", known, start))
        self._when_committed(1, at, lambda: self._trim(start, at))

    def _trim(self, start: int, at: int) -> None:
        rows = self._hosted.logs[1]
        needed = (i for i, (_, row) in enumerate(rows.entries, rows.base) if row and (i == at or row[2] >= start))
        self._hosted.expire(1, next(needed))
        self._hosted.expire(0, start)

    def _expire(self) -> None:
        now = self._hosted.node.clock_us()
        for offset, lease in [(o, lease) for o, lease in self._leases.items() if self._due[lease] < now]:
            self._hosted.world.count("lease expired")
            self._write(("expire", lease, offset))

    # ---- waiting

    def _when_committed(self, log: int, offset: int, tell: Callable[[], Any]) -> None:
        if self._hosted.replica.committed[log] > offset:
            tell()
        else:
            self._waiters[log].append((offset, tell))

    def committed(self, log: int, offset: int) -> None:
        waiters = self._waiters[log]
        while waiters and waiters[0][0] < offset:
            waiters.pop(0)[1]()

    def _tell_durable(self) -> None:
        durable = self._hosted.logs[0].durable
        while self._durable_waiters and self._durable_waiters[0][0] < durable:
            self._durable_waiters.pop(0)[1]()

    def synced(self) -> None:
        if self._durable_waiters:
            self._tell_durable()
