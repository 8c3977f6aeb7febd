"""One partition on one node of the simulation: what the production shell is to do with effects, on a fake disk.

Log operations are done one after the other. A leader's appends are written at once and synced in groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.cluster.core import effects, events
from penstock.cluster.core.extent import LOGS
from penstock.cluster.core.messages import Data, Part, Reply
from penstock.cluster.core.replica import Replica
from penstock.cluster.core.site import Site
from simulation.cluster.disk import Entry, epochs_of
from simulation.cluster.loop import MS
from simulation.cluster.serving import Serving

if TYPE_CHECKING:
    from simulation.cluster.node import Node

UNANSWERED = 600 * MS


class Hosted:
    def __init__(self, node: Node, partition: int) -> None:
        self.node = node
        self.partition = partition
        self.world = node.world
        self.logs = node.disk.partitions[partition]
        site = Site(node.name, node.disk.name, node.incarnation, (self.logs[0].extent(), self.logs[1].extent()))
        site.timing = node.world.timing
        self.replica = Replica(site)
        self.serving: Serving | None = None
        self.until_us = 0
        self.is_held = False
        self.epoch = 0
        self.is_gone = False
        self._inbox: deque[Any] = deque()
        self._is_stepping = False
        self._is_syncing = False
        self._operations: deque[Callable[[], None]] = deque()
        self._is_operating = False
        self._incoming: tuple[list[Entry], list[Entry]] = ([], [])

    # ---- the state machine

    def step(self, event: Any) -> None:
        self._inbox.append(event)
        if self._is_stepping or self.is_gone:
            return
        self._is_stepping = True
        while self._inbox:
            for effect in self.replica.step(self.node.clock_us(), self._inbox.popleft()):
                _DO[type(effect)](self, effect)
        self._is_stepping = False

    def _later(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        """On this node, if it is still the same process then; when it is awake."""
        self.world.loop.after(delay, self._due, do, args)

    def _due(self, do: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.is_gone and not self.node.is_asleep(self._due, do, args):
            do(*args)

    def seen(self, revision: int, record: Any) -> None:
        if revision > self.replica.revision:
            self.step(events.RecordSeen(revision, record))

    # ---- roles

    def _begin(self, effect: effects.Begin) -> None:
        self.serving = None
        self.is_held = False
        self.node.withdraw(self.partition)
        self._operate(self._append_first, effect.epoch)

    def _append_first(self, epoch: int) -> None:
        self.epoch = epoch
        firsts = self.logs[0].end, self.logs[1].end
        for log in self.logs:
            log.entries.append((epoch, None))
        self.step(events.Begun(epoch, firsts))
        self.sync()
        self._operated()

    def _follow(self, effect: effects.Follow) -> None:
        self.serving = None
        self.node.withdraw(self.partition)
        self.world.count("follow")
        self.sync()

    def _rest(self, effect: effects.Rest) -> None:
        self.serving = None
        self.node.withdraw(self.partition)
        self.sync()
        if not effect.is_host and (self.logs[0].end or self.logs[1].end):
            # What this node has read may be old.
            self.node.call(self._may_delete, self.world.etcd.is_still_at, self.partition, effect.revision)

    def _may_delete(self, is_so: bool | None) -> None:
        if is_so and not self.is_gone and self.replica.role is None:
            self.world.count("copy deleted")
            self.node.delete_copy(self)

    def _serve(self, effect: effects.Serve) -> None:
        self.until_us = effect.until_us
        self.is_held = False
        if self.serving is None:
            self.world.count("served")
            self.serving = Serving(self)

    def _hold(self, effect: effects.Hold) -> None:
        self.is_held = True
        self.world.count("hold")

    def _committed(self, effect: effects.Committed) -> None:
        self.world.checker.committed(self, effect.log, effect.offset)
        if self.serving is not None:
            self.serving.committed(effect.log, effect.offset)

    @property
    def is_serving(self) -> bool:
        return self.serving is not None and self.node.clock_us() < self.until_us

    # ---- logs

    def append(self, log: int, value: Any) -> int:
        """As leader. Returns the offset."""
        own = self.logs[log]
        offset = own.end
        own.entries.append((self.epoch, value))
        self.step(events.Wrote(log, own.end, own.durable))
        self.sync()
        return offset

    def sync(self) -> None:
        if not self._is_syncing and any(log.durable < log.end for log in self.logs):
            self._is_syncing = True
            self._later(self.node.sync_delay(), self._synced, self.logs[0].end, self.logs[1].end)

    def _synced(self, *ends: int) -> None:
        self._is_syncing = False
        for log in LOGS:
            own = self.logs[log]
            if own.durable < ends[log]:
                own.durable = min(ends[log], own.end)
                self.step(events.Wrote(log, own.end, own.durable))
        if self.serving is not None:
            self.serving.synced()
        self.sync()

    def _operate(self, do: Callable[..., None], *args: Any) -> None:
        self._operations.append(lambda: do(*args))
        if not self._is_operating:
            self._is_operating = True
            self._operations[0]()

    def _operated(self) -> None:
        self._operations.popleft()
        self._is_operating = bool(self._operations)
        if self._is_operating:
            self._operations[0]()

    def _cut(self, effect: effects.Cut) -> None:
        self.world.count("cut")
        self.world.checker.cut(self, effect.log, effect.offset)
        self._operate(self._later, self.node.sync_delay(), self._was_cut, effect.log, effect.offset)

    def _was_cut(self, log: int, offset: int) -> None:
        self.logs[log].cut(offset)
        self.step(events.WasCut(log, self.logs[log].base, offset))
        self._operated()

    def _reset(self, effect: effects.Reset) -> None:
        self.world.count("reset")
        self._operate(self._later, self.node.sync_delay(), self._was_reset, effect.log, effect.start)

    def _was_reset(self, log: int, start: int) -> None:
        self.logs[log].reset(start)
        self.step(events.WasCut(log, start, start))
        self._operated()

    def _store(self, effect: effects.Store) -> None:
        self._operate(self._write, effect.log, self._incoming[effect.log], effect.data.epochs)

    def _write(self, log: int, entries: list[Entry], epochs: tuple[tuple[int, int], ...]) -> None:
        self.logs[log].entries += entries
        self._later(self.node.sync_delay(), self._stored, log, epochs)

    def _stored(self, log: int, epochs: tuple[tuple[int, int], ...]) -> None:
        own = self.logs[log]
        own.durable = own.end
        self.step(events.Stored(log, own.end, epochs))
        self._operated()

    def _trim(self, effect: effects.Trim) -> None:
        self.world.count("trim")
        self._operate(self._later, self.node.sync_delay(), self._was_trimmed, effect.log, effect.start)

    def _was_trimmed(self, log: int, start: int) -> None:
        own = self.logs[log]
        if own.base < start <= own.end:
            own.trim(start)
        self.step(events.Trimmed(log, own.base))
        self._operated()

    def expire(self, log: int, start: int) -> None:
        """By retention, as leader."""
        if self.logs[log].base < start <= self.replica.committed[log]:
            self.step(events.Expired(log, start))

    # ---- others

    def _ask(self, effect: effects.Ask) -> None:
        fetch = effect.fetch
        self.node.ask(effect.leader, self.partition, fetch)
        self._later(UNANSWERED, self._unanswered, fetch.request)

    def _unanswered(self, request: int) -> None:
        if request == self.replica.site.request:
            self.step(events.Unanswered())

    def _reply(self, reply: Reply) -> None:
        if reply.is_fenced:
            self.world.count("fenced")
        parts: list[Part] = []
        frames: list[list[Entry]] = []
        for log, part in enumerate(reply.parts):
            entries: list[Entry] = []
            if isinstance(part, Data):
                end = min(part.end, part.first + 1 + int(self.node.random.random() * 12))
                entries = self.logs[log].read(part.first, end)
                part = Data(part.first, end, epochs_of(entries, part.first))
            parts.append(part)
            frames.append(entries)
        self.node.send(reply.to, self.partition, replace(reply, parts=(parts[0], parts[1])), (frames[0], frames[1]))

    def replied(self, reply: Reply, frames: tuple[list[Entry], list[Entry]]) -> None:
        self._incoming = frames
        self.step(reply)

    def _propose(self, effect: effects.Propose) -> None:
        self.world.count("proposed")
        self.node.call(self._proposed, self.world.etcd.swap, self.partition, effect.revision, effect.record)

    def _proposed(self, result: Any) -> None:
        if result is None:
            self.world.count("unknown")
        else:
            self.seen(*result)
        self.step(events.ProposalEnded())

    def _reread(self, effect: effects.Reread) -> None:
        self.node.reread()

    def _wake(self, effect: effects.Wake) -> None:
        self._later(max(effect.at_us - self.node.clock_us(), 0) * 1.02 + MS, self.tick)

    def tick(self) -> None:
        self.step(self.node.tick_event())


_DO: dict[type, Callable[[Hosted, Any], None]] = {
    effects.Begin: Hosted._begin,
    effects.Follow: Hosted._follow,
    effects.Rest: Hosted._rest,
    effects.Serve: Hosted._serve,
    effects.Hold: Hosted._hold,
    effects.Committed: Hosted._committed,
    effects.Cut: Hosted._cut,
    effects.Reset: Hosted._reset,
    effects.Trim: Hosted._trim,
    effects.Ask: Hosted._ask,
    effects.Store: Hosted._store,
    effects.Propose: Hosted._propose,
    effects.Reread: Hosted._reread,
    effects.Wake: Hosted._wake,
    Reply: Hosted._reply,
}
