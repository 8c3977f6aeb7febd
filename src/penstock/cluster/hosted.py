"""One replica on this node: its two logs, and whoever decides about them.

`core` decides, step by step; here is what comes of it. What takes the disk long is done on a thread, one thing after
the other for a partition, and comes back as an event. Little copies, as most are, are written at once and synced by the
kernel, those of both logs at the same time; whatever else is to be done waits for them. While this node leads, and may
serve, the partition is open over the logs; otherwise they are a copy that nobody writes to but what comes from the
leader.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from crc32c import crc32c

from penstock.broker.commits import Commits
from penstock.broker.disk import Synced
from penstock.broker.partition import Partition
from penstock.broker.recollection import Recollection
from penstock.broker.topic import TooFew
from penstock.cluster.cleaning import CopyCleaner, cleaned_segment, next_segment
from penstock.cluster.core.effects import (
    Ask,
    Begin,
    Committed,
    Cut,
    Follow,
    Hold,
    Propose,
    Reread,
    Reset,
    Rest,
    Serve,
    Store,
    Trim,
    Wake,
)
from penstock.cluster.core.events import (
    Begun,
    Event,
    Expired,
    ProposalEnded,
    RecordSeen,
    Stored,
    Tick,
    Trimmed,
    Unanswered,
    WasCut,
    Wrote,
)
from penstock.cluster.core.extent import LOGS, MESSAGES, Extent
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.lineage import Lineage
from penstock.cluster.core.membership import still_in_sync
from penstock.cluster.core.messages import Data, Fetch, Reply
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.replica import Replica
from penstock.cluster.core.site import Site
from penstock.cluster.core.timing import Timing
from penstock.cluster.tasks import failure_of
from penstock.cluster.words import CleanedQuery, CleanedSegment
from penstock.errors import DiskFull, InvalidFrame, LogClosed, LogDiverged, PenstockError
from penstock.frame import FrameRun
from penstock.limits import KIB, MIB
from penstock.storage.log import Log
from penstock.storage.merge import merge_small_frames
from penstock.storage.replicated import append_replicated, copies

log = logging.getLogger("penstock.cluster")

T = TypeVar("T")
Logs = tuple[Log, Log]
# Of one log in one answer to a follower.
SENT_BYTES_MAX = 2 * MIB
# Of one log, kept for the next follower that asks for the same.
_KEPT_BYTES_MAX = 16 * KIB
# What a copy hears later than this after the reply before may have been so for a while.
_TOLD_WITHIN_US = 1_000_000
# After something that passes.
_AGAIN_S = 0.5


class Host(Protocol):
    """The node, as far as a replica needs it."""

    def now_us(self) -> int:
        """Of the machine's boot."""

    def wall_us(self) -> int:
        """Of the calendar."""

    def on_a_thread(self, work: Callable[[], T]) -> Awaitable[T]: ...

    def store(self, log: Log, append: Callable[[], T], size: int, *, begins_epoch: bool) -> Awaitable[T]:
        """The same for what writes so many bytes to a log, which are on disk then; or at once, if that is little."""

    def store_soon(self, log: Log, append: Callable[[], T], size: int, done: Synced) -> T | None:
        """If it is little: written when this returns, on disk when `done` is called. Otherwise None."""

    def ask(self, leader: str, hosted: Hosted, fetch: Fetch) -> None: ...

    def withdraw(self, hosted: Hosted) -> None:
        """The replica no longer follows the leader that it last fetched from, if any."""

    def reply(self, hosted: Hosted, reply: Reply) -> None: ...

    async def propose(self, hosted: Hosted, revision: int, record: PartitionRecord) -> RecordSeen | None:
        """What the record is now, if that is known."""

    def reread(self) -> None: ...

    def wake(self, hosted: Hosted, at_us: int) -> None: ...

    async def lead(self, hosted: Hosted) -> Partition | None:
        """None if it was to lead no more before that could be."""

    def show(self, hosted: Hosted) -> None:
        """Its partition can be used."""

    def hide(self, hosted: Hosted) -> None: ...

    def drop(self, hosted: Hosted) -> None:
        """Its copy is not needed any more."""

    def broke(self, error: PenstockError) -> None: ...


class Frames(NamedTuple):
    """Of a leader's log: the log's id, and from where on nothing was taken out of it."""

    log: bytes
    frames: memoryview
    whole_from: int


class _Asked(NamedTuple):
    first: int
    until: int
    bytes_max: int
    epoch: int


class Hosted:
    def __init__(
        self, identity: str, logs: Logs, host: Host, node: str, disk: str, incarnation: str, timing: Timing
    ) -> None:
        self.identity = identity
        self.logs = logs
        self._host = host
        # Why it is quarantined, as the log says already.
        self._reported = ""
        extents = (_extent(logs[0]), _extent(logs[1]))
        self.replica = Replica(Site(node, disk, incarnation, extents, timing))
        self.cleaner = CopyCleaner(identity, logs[MESSAGES], self.replica)
        # While this node leads and has begun to serve.
        self.partition: Partition | None = None
        self.serves_until_us = 0
        # Others can use the partition.
        self.is_shown = False
        self._jobs: deque[Callable[[], Awaitable[None]]] = deque()
        self._working: asyncio.Task[None] | None = None
        # Copies that are written, and on their way to the disk without a job: no job begins before they are there.
        self._on_the_way = 0
        self._all_arrived = asyncio.Event()
        self._all_arrived.set()
        self._proposing: asyncio.Task[None] | None = None
        # Jobs that end this node's own appends. What those add is not known before.
        self._standing_back = 0
        # The epoch at which the partition is being opened; 0 if it is not.
        self._opening_epoch = 0
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._arrived: tuple[Frames | None, Frames | None] = (None, None)
        # Of each log: what was asked for last on behalf of a follower, and read for it.
        self._sent: list[tuple[_Asked, tuple[Data, FrameRun]] | None] = [None, None]
        self._is_closed = False
        # For when this node leads.
        self.recollection: Recollection = Recollection(logs[0])
        # When messages were committed, and what that is known by: the last reply, and that none was missed.
        self._commits = Commits()
        self._replied_us = 0
        self._was_out_of_sync = True
        for each in logs:
            each.hold_back(each.start_offset, anew=True)

    @property
    def record(self) -> PartitionRecord | None:
        return self.replica.record

    @property
    def shown(self) -> str:
        """Its name, for people."""
        return self.identity if self.record is None else f"{self.record.topic}:{self.record.number}"

    @property
    def is_leader(self) -> bool:
        return isinstance(self.replica.role, Leader)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def epoch(self) -> int:
        return 0 if self.replica.role is None else self.replica.role.epoch

    def recollected(self) -> Recollection:
        """For whoever opens the partition now. What comes later is for the next time."""
        found, self.recollection = self.recollection, Recollection(self.logs[0])
        return found

    # --- steps -------------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """One after the other, also if one comes of another."""
        self._events.append(event)
        if self._is_stepping or self._is_closed:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                for effect in self.replica.step(self._host.now_us(), event):
                    _DO[type(effect)](self, effect)
                self._was_out_of_sync |= isinstance(event, RecordSeen) and not self._is_in_sync()
                partition = self.partition
                if partition is not None and (isinstance(event, RecordSeen | Tick) or partition.too_few is not None):
                    self._count(partition)
        except Exception as error:
            # It is between two states; whoever called may know nothing of that.
            self._host.broke(failure_of(error))
            raise
        finally:
            self._is_stepping = False

    def _count(self, partition: Partition) -> None:
        """Writers who want it on all replicas are refused while too few are in sync."""
        role = self.replica.role
        if isinstance(role, Leader):
            partition.too_few = self._too_few(role)

    def _too_few(self, leader: Leader) -> tuple[int, int] | None:
        in_sync, min_isr = len(still_in_sync(self._host.now_us(), leader)), leader.ballot.record.min_isr
        return (in_sync, min_isr) if in_sync < min_isr else None

    def is_under_min_isr(self) -> bool:
        """This node leads it, and nothing can be published."""
        role = self.replica.role
        if not isinstance(role, Leader):
            return False
        return (self._too_few(role) if self.partition is None else self.partition.too_few) is not None

    def is_under_replicated(self) -> bool:
        """This node leads it, and not all replicas are alive and keep up."""
        role = self.replica.role
        if not isinstance(role, Leader):
            return False
        in_sync = {member.node for member in still_in_sync(self._host.now_us(), role)}
        return not in_sync.issuperset(role.ballot.record.replicas)

    def lagging(self) -> tuple[str, ...]:
        """Those of the ISR that do not keep up, as far as this node knows, if it leads."""
        role = self.replica.role
        if not isinstance(role, Leader):
            return ()
        in_sync = still_in_sync(self._host.now_us(), role)
        return tuple(member.node for member in role.ballot.record.isr if member not in in_sync)

    def too_few_to_begin(self) -> TooFew | None:
        """If that keeps this node from serving what it leads: the frame that begins the epoch is not committed."""
        role = self.replica.role
        if not isinstance(role, Leader) or role.is_open or (too_few := self._too_few(role)) is None:
            return None
        in_sync, min_isr = too_few
        up = sum(node in role.site.tick.live for node in role.ballot.record.hosting)
        return TooFew(in_sync, min_isr, is_awaited=up >= min_isr)

    def wrote(self, number: int) -> None:
        """The leader's own appends are on disk so far."""
        own = self.logs[number]
        durable = own.synced_offset
        self.step(Wrote(number, max(own.end_offset, durable), durable))

    def replied(self, reply: Reply, arrived: tuple[Frames | None, Frames | None]) -> None:
        self._arrived = arrived
        self.step(reply)
        self._arrived = (None, None)
        before_us, self._replied_us = self._replied_us, self._host.now_us()
        if self.partition is None:
            self._note_commit(self._replied_us - before_us)

    def _note_commit(self, since_us: int) -> None:
        """A copy is told with what comes next how far others may see. If that comes late, or the copy was not in sync,
        nobody here knows since when they do."""
        committed = min(self.replica.committed[MESSAGES], self.logs[MESSAGES].end_offset)
        if committed <= self._commits.last:
            return
        if self._was_out_of_sync or since_us > _TOLD_WITHIN_US:
            self._commits.skip(committed)
            self._was_out_of_sync = not self._is_in_sync()
        else:
            self._commits.add(committed, self._host.wall_us(), self._in_sync())

    def _is_in_sync(self) -> bool:
        site = self.replica.site
        return self.record is not None and self.record.is_in_sync(site.node, site.disk)

    def data(self, part: Data, number: int, bytes_max: int = SENT_BYTES_MAX) -> tuple[Data, FrameRun]:
        """What is sent of it, and of what was appended since."""
        own, extent = self.logs[number], self.replica.site.logs[number]
        if own.end_offset > extent.end:
            # Whoever gets it may have it on disk sooner than this node, and come back for more: it must not be told
            # then that its log has gone another way.
            self.wrote(number)
        asked = _Asked(part.first, extent.end, bytes_max, self.epoch)
        last = self._sent[number]
        if last is not None and last[0] == asked:
            # The other follower has just got the same.
            return last[1]
        run = copies(own, part.first, until=extent.end, bytes_max=bytes_max)
        epochs = extent.lineage.within(part.first, run.next_offset)
        ids = tuple(extent.lineage.id_of(epoch) for epoch, _ in epochs)
        sent = Data(part.first, run.next_offset, epochs, ids), run
        self._sent[number] = (asked, sent) if len(run.data) <= _KEPT_BYTES_MAX else None
        return sent

    def tidy(self) -> None:
        """On a thread, of a copy: what came one by one is merged into larger frames, as its leader does with its own.
        What is committed stays as it is, whoever leads."""
        own = self.logs[MESSAGES]
        committed = min(self.replica.committed[MESSAGES], own.end_offset)
        if own.ceiling is not None and own.ceiling < committed:
            own.hold_back(committed)
        for segment in own.segments[:-1]:
            merge_small_frames(own, segment)

    async def cleaned(self, query: CleanedQuery) -> CleanedSegment:
        """For a follower that removes what this leader has removed."""
        own = self.logs[MESSAGES]
        is_leader = self.partition is not None and self.epoch == query.epoch
        segment = next_segment(own, query) if is_leader else None
        if segment is None:
            return CleanedSegment(query.partition, query.epoch)
        return await self._host.on_a_thread(partial(cleaned_segment, own, query, segment))

    # --- what comes of them ------------------------------------------------------------------------------

    def _begin(self, effect: Begin) -> None:
        if self.partition is not None:
            # It has led before, too, and goes on with what it has; nobody is served before the epoch has begun.
            self.serves_until_us = 0
            self._host.hide(self)
        self._host.withdraw(self)
        self._job(partial(self._begun, effect.epoch))
        # Most often the one before has died. Nothing is committed until it is out of the ISR.
        self._host.wake(self, self._host.now_us())

    async def _begun(self, epoch: int) -> None:
        # Random, as an incarnation is: no other leader has it, should the number of the epoch have been used before.
        epoch_id = crc32c(self.replica.site.incarnation.encode())

        def begin() -> None:
            for each in self.logs:
                # One of them may have begun before there was no room for the other.
                if each.last_epoch != epoch:
                    each.append_epoch_start(epoch, epoch_id)

        def sync() -> None:
            for each in self.logs:
                each.sync()

        if self.partition is None:
            for each in self.logs:
                each.hold_back(each.start_offset, anew=True)
        await self._once_there_is_room(begin, lambda: self.is_leader and self.epoch == epoch)
        first = _first_of(self.logs[MESSAGES], epoch)
        if self.partition is not None and first is not None:
            # It was open before, and knows only of the holes that there were then.
            self.partition.reading.holes.add(first)
        if self.partition is not None:
            self._tell_epoch(self.partition)
        self.step(Begun(epoch, (first, _first_of(self.logs[1], epoch)), epoch_id))
        await self._host.on_a_thread(sync)
        for number in LOGS:
            self.wrote(number)

    async def _once_there_is_room(self, work: Callable[[], None], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Or not at all, if it is not wanted before."""
        while is_wanted() and not self._is_closed:
            try:
                await self._host.on_a_thread(work)
                return
            except DiskFull as error:
                log.warning("%s has to wait for room on the disk: %s", self.shown, error.message)
                await asyncio.sleep(_AGAIN_S)

    def _follow(self, effect: Follow) -> None:
        self._stand_back()

    @property
    def quarantined(self) -> str:
        """Why this copy takes no part in replication, though the record says that it should. Empty if it does."""
        record, last = self.record, self.replica.site.last_epoch
        if record is not None and record.epoch < last:
            return (
                f"it is of epoch {last}, and the record in etcd of epoch {record.epoch}: etcd was set back to a backup"
            )
        if self.replica.is_quarantined:
            return "it has what its leader lacks, from before etcd was set back to a backup"
        return ""

    def _rest(self, effect: Rest) -> None:
        if self.quarantined and self.quarantined != self._reported:
            self._reported = self.quarantined
            log.error(
                "the copy of %s is quarantined: %s. It is kept unchanged and follows no leader. Decide what to do "
                "with it: `penstock cluster status`",
                self.shown,
                self.quarantined,
            )
        self._stand_back()
        if not effect.is_host:
            self._host.drop(self)

    def _stand_back(self) -> None:
        """Nobody writes to the logs any more but a leader, through us."""
        self.serves_until_us = 0
        self._host.withdraw(self)
        if self.partition is not None:
            self._host.hide(self)
            self.partition.resign()
            self.partition = None

        def follow() -> None:
            for each in self.logs:
                each.follow()
                each.sync()

        async def synced() -> None:
            await self._host.on_a_thread(follow)
            for number in LOGS:
                self.wrote(number)
            self._standing_back -= 1
            self.step(Unanswered())

        self._standing_back += 1
        self._job(synced)

    def _serve(self, effect: Serve) -> None:
        self.serves_until_us = effect.until_us
        if self.partition is not None:
            self._host.show(self)
        elif self._opening_epoch != self.epoch:
            self._opening_epoch = self.epoch
            self._job(partial(self._open, self.epoch))

    async def _open(self, epoch: int) -> None:
        """Recover the partition for the leader of `epoch`, whose start record is committed in both logs.

        If the epoch ends meanwhile, this attempt is discarded. The next epoch opens the partition with its own `Serve`:
        until its start record is committed, readers of the logs see less than the leader was elected with.
        """
        partition = None
        try:
            if self._leads(epoch):
                self._check_committed(epoch)
                partition = await self._host.lead(self)
        finally:
            if self._opening_epoch == epoch:
                self._opening_epoch = 0
        if partition is None:
            return
        if not self._leads(epoch):
            partition.resign()
            return
        self.partition, partition.commits = partition, self._commits
        partition.expire = partial(self._expire, partition)
        self._tell_epoch(partition)
        self._count(partition)
        # Of what it was not told while it followed.
        self._commits.skip(self.replica.committed[MESSAGES])
        for number in LOGS:
            partition.committed(number, self.replica.committed[number], self._in_sync())
        if self.serves_until_us > self._host.now_us():
            self._host.show(self)

    def _leads(self, epoch: int) -> bool:
        return self.is_leader and self.epoch == epoch and not self._is_closed

    def _check_committed(self, epoch: int) -> None:
        """Recovery reads up to the high watermark, which must have passed the start record of the leader's epoch: below
        that lies everything the leader was elected with."""
        for own in self.logs:
            first = _first_of(own, epoch)
            assert first is not None, f"{self.shown} has not begun epoch {epoch}"
            assert own.safe_offset > first, f"{self.shown} is not committed up to epoch {epoch}"

    def _tell_epoch(self, partition: Partition) -> None:
        partition.epoch, partition.unclean = self.epoch, () if self.record is None else self.record.unclean

    def _hold(self, effect: Hold) -> None:
        self.serves_until_us = 0
        self._host.hide(self)

    def _committed(self, effect: Committed) -> None:
        if self.partition is not None:
            self.partition.committed(effect.log, effect.offset, self._in_sync())
        else:
            self.logs[effect.log].hold_back(effect.offset)

    def _in_sync(self) -> tuple[str, ...]:
        record = self.record
        return () if record is None else tuple(member.node for member in record.isr)

    def _cut(self, effect: Cut) -> None:
        own = self.logs[effect.log]
        if effect.log == MESSAGES:
            self._commits.clear()
            self._tell_cut(effect.offset, own)
        self._change(effect.log, partial(own.truncate, effect.offset))

    def _tell_cut(self, offset: int, own: Log) -> None:
        unclean = () if self.record is None else self.record.unclean
        if own.end_offset > offset and any(epoch > own.last_epoch for epoch in unclean):
            log.warning(
                "%s is cut off at offset %d, and ended at %d: an unclean election has given up what was behind",
                self.shown,
                offset,
                own.end_offset,
            )

    def _reset(self, effect: Reset) -> None:
        if effect.log == MESSAGES:
            self._commits.clear()
            self._tell_cut(effect.start, self.logs[MESSAGES])
        self._change(effect.log, partial(self.logs[effect.log].reset, effect.start))

    def _change(self, number: int, change: Callable[[], None]) -> None:
        async def changed() -> None:
            await self._once_there_is_room(change)
            own = self.logs[number]
            self.step(WasCut(number, own.start_offset, own.end_offset))

        self._job(changed)

    def _expire(self, partition: Partition, number: int, start: int) -> None:
        """By retention, of a partition that is led here."""
        if self.partition is partition:
            self.step(Expired(number, start))

    def _trim(self, effect: Trim) -> None:
        self._job(partial(self._trimmed, effect))

    async def _trimmed(self, effect: Trim) -> None:
        own, extent = self.logs[effect.log], self.replica.site.logs[effect.log]

        def trim() -> None:
            own.delete_prefix(effect.start)
            if own.segments[-1].base_offset < effect.start:
                # A copy's segments end at other offsets than its leader's. Sealed, this one can be deleted as a whole.
                with suppress(DiskFull):
                    own.roll()

        try:
            # It may have been cut or reset since, or another may lead.
            if own.start_offset < effect.start <= min(extent.trimming_to, own.end_offset):
                await self._host.on_a_thread(trim)
        except DiskFull as error:
            # Even this takes a little. What else there is to do does not wait for it.
            log.warning("%s can't be trimmed: %s; trying again", self.shown, error.message)
            asyncio.get_running_loop().call_later(_AGAIN_S, self._job, partial(self._trimmed, effect))
            return
        if self.partition is not None:
            self.partition.forget_deleted()
        self.step(Trimmed(effect.log, own.start_offset))

    def _store(self, effect: Store) -> None:
        arrived = self._arrived[effect.log]
        assert arrived is not None, "a part of a reply with data has frames"
        own = self.logs[effect.log]

        begins_epoch = any(epoch > self._last(effect.log) for epoch, _ in effect.data.epochs)
        # A leader of an older build sends none.
        epoch_ids = {epoch: id for (epoch, _), id in zip(effect.data.epochs, effect.data.ids, strict=False)}

        def append() -> int:
            frames, end = arrived.frames, effect.data.end
            return append_replicated(own, frames, source_id=arrived.log, next_offset=end, epoch_ids=epoch_ids)

        def store_anew() -> int:
            own.reset(own.start_offset, epoch=next(reversed(own.lineage), None))
            end = append()
            own.sync()
            return end

        async def tried() -> int:
            try:
                return await self._host.store(own, append, len(arrived.frames), begins_epoch=begins_epoch)
            except LogDiverged as error:
                if error.details["by"] != "append_time" or own.start_offset < own.end_offset:
                    raise
            # The leader has begun anew here, with a clock that is behind. Nothing is left of what was before, and its
            # time is all there is to give up. Not by the event loop: whoever tidies the log may have to be waited for.
            return await self._host.on_a_thread(store_anew)

        async def stored() -> None:
            is_diverged = False
            try:
                end = await tried()
                if min(arrived.whole_from, end) > own.whole_from:
                    await self._host.on_a_thread(partial(own.note_whole_from, arrived.whole_from))
            except (LogDiverged, InvalidFrame, DiskFull) as error:
                # The leader is asked again, when room may have been made, or another one leads.
                log.warning("%s can't be copied: %s; asking again", self.shown, error.message)
                await asyncio.sleep(_AGAIN_S)
                end, is_diverged = own.end_offset, isinstance(error, LogDiverged)
            begun = tuple(entry for entry in own.lineage if entry.epoch > self._last(effect.log))
            self.step(Stored(effect.log, end, begun, is_diverged))

        is_plain = not begins_epoch and arrived.whole_from <= own.whole_from
        is_next = self._is_free and not self._jobs
        if not (is_plain and is_next and self._store_soon(effect.log, append, len(arrived.frames))):
            self._job(stored)

    @property
    def _is_free(self) -> bool:
        """No job is under way."""
        return self._working is None or self._working.done()

    def _store_soon(self, number: int, append: Callable[[], int], size: int) -> bool:
        """As most copies are: little, and nothing to be decided about it. False if nothing has been written."""

        def synced(error: PenstockError | None) -> None:
            self._on_the_way -= 1
            if not self._on_the_way:
                self._all_arrived.set()
            if error is None:
                self.step(Stored(number, end, ()))
            else:
                self._failed(error)
            self._work_on()

        try:
            written = self._host.store_soon(self.logs[number], append, size, synced)
        except PenstockError:
            # The job will hear the same, and knows what to do.
            return False
        if written is None:
            return False
        end = written
        self._on_the_way += 1
        self._all_arrived.clear()
        return True

    def _last(self, number: int) -> int:
        return self.replica.site.logs[number].lineage.last

    def _ask(self, effect: Ask) -> None:
        if self._standing_back:
            # Its own appends may be on their way to the disk still, to the offsets that it would ask for.
            return
        self._host.ask(effect.leader, self, effect.fetch)

    def _reply(self, effect: Reply) -> None:
        self._host.reply(self, effect)

    def _propose(self, effect: Propose) -> None:
        async def proposed() -> None:
            if effect.record.leader != self.replica.site.node:
                await self._settled()
            seen = await self._host.propose(self, effect.revision, effect.record)
            if seen is not None:
                self.step(seen)
            self.step(ProposalEnded())

        self._proposing = asyncio.get_running_loop().create_task(proposed())
        self._proposing.add_done_callback(self._look_at)

    async def _settled(self) -> None:
        """Before another leads: what was decided here is written, and known wherever it has to be. Else whoever leads
        next may know of a lease that nobody was told of. Nobody gets any more: it is hidden since it is handed over."""
        if self.partition is not None:
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(self.replica.site.timing.settling_us / 1e6):
                    await self.partition.groups.flushed()

    def _reread(self, effect: Reread) -> None:
        self._host.reread()

    def _wake(self, effect: Wake) -> None:
        self._host.wake(self, effect.at_us)

    # --- work --------------------------------------------------------------------------------------------

    def _job(self, job: Callable[[], Awaitable[None]]) -> None:
        self._jobs.append(job)
        self._work_on()

    def _work_on(self) -> None:
        if self._jobs and self._is_free and not self._on_the_way and not self._is_closed:
            self._working = asyncio.get_running_loop().create_task(self._work())
            self._working.add_done_callback(self._look_at)

    async def _work(self) -> None:
        while self._jobs and not self._is_closed:
            await self._jobs.popleft()()

    def _look_at(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if not (isinstance(error, LogClosed) and self._is_closed):
            self._host.broke(failure_of(error))

    async def close(self) -> None:
        """The logs too. What is under way on a thread comes to its end first."""
        self._is_closed = True
        self.serves_until_us = 0
        if self.partition is not None:
            self._host.hide(self)
            self.partition.resign()
            self.partition = None
        await self._all_arrived.wait()
        for task in (self._working, self._proposing):
            if task is not None and not task.done():
                await asyncio.wait([task])

        def close() -> None:
            try:
                self.logs[0].close()
            finally:
                self.logs[1].close()

        await self._host.on_a_thread(close)


def _first_of(own: Log, epoch: int) -> int | None:
    """Where the log's last epoch begins, if it is that one."""
    last = own.lineage[-1:]
    return last[0].first_offset if last and last[0].epoch == epoch else None


def _extent(own: Log) -> Extent:
    lineage = Lineage(entry for entry in own.lineage if entry.epoch)
    return Extent(own.start_offset, own.end_offset, lineage)


_DO: dict[type, Callable[[Hosted, Any], None]] = {
    Begin: Hosted._begin,
    Follow: Hosted._follow,
    Rest: Hosted._rest,
    Serve: Hosted._serve,
    Hold: Hosted._hold,
    Committed: Hosted._committed,
    Cut: Hosted._cut,
    Reset: Hosted._reset,
    Trim: Hosted._trim,
    Store: Hosted._store,
    Ask: Hosted._ask,
    Reply: Hosted._reply,
    Propose: Hosted._propose,
    Reread: Hosted._reread,
    Wake: Hosted._wake,
}

__all__ = ["Frames", "Host", "Hosted"]
