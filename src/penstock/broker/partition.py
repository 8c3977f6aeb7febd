"""One partition: its messages, and everything that happens to them.

    partitions/<id>/messages      a log of the messages
    partitions/<id>/deliveries    a log of what happened to them

Belongs to one event loop, but is opened, maintained and closed on a thread: all that takes the disk long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.acks import ALL
from penstock.batch import Batch
from penstock.broker import snapshot
from penstock.broker.bell import Bell
from penstock.broker.commits import Commits
from penstock.broker.delays import NOTHING_MOVED, DueTimes, LatelyDue
from penstock.broker.deliveries import Deliveries
from penstock.broker.delivery import Delivery
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.journal import Journal
from penstock.broker.offsets import Ints, below, bitmap_of
from penstock.broker.producers import Found, ProducerShares
from penstock.broker.reading import Reading
from penstock.broker.recollection import SPECIAL, Committing, Recollection, Where
from penstock.broker.settings import DAY_US, TopicSettings
from penstock.broker.work import retrieve
from penstock.clock import Clock
from penstock.errors import PenstockError, StorageError
from penstock.frame import Frame, FrameFacts, Producer
from penstock.limits import MIB, Limits
from penstock.message import Message
from penstock.storage.cache import SegmentCache
from penstock.storage.commit import Committed
from penstock.storage.compaction import compact
from penstock.storage.epochs import epoch_at
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.replicated import held_offsets
from penstock.storage.retention import Retention, apply_retention
from penstock.storage.segment import COMPACTED, Segment

# Its logs, by number.
MESSAGES, DELIVERIES = 0, 1
_DELIVERIES_SEGMENT_BYTES = 16 * MIB
# Compaction never deletes the last message of a key, so the deliveries log needs an end of its own.
_COMPACTED_HISTORY_US = 7 * DAY_US
# How long a delayed message stays at most after its time, if retention goes by bytes alone.
_LATELY_DUE_US = 7 * DAY_US


class Partition:
    """Opened with `Partition.open`."""

    def __init__(
        self,
        messages: Log,
        deliveries: Log,
        *,
        clock: Clock,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], bytes],
        limits: Limits,
        bell: Bell,
        frames: FrameCache,
        failed: Callable[[PenstockError], None],
        wrote: Callable[[int], None] | None = None,
        recollection: Recollection | None = None,
        producers: ProducerShares | None = None,
    ) -> None:
        """`failed` is told on the loop of each message that could not be written, also if nobody waits for it. `wrote`
        of each log of which more is on disk, if that is not enough: see `Journal`. `recollection` is that of a replica
        which has followed so far. `producers` bounds what the broker remembers of them."""
        recollection = recollection or Recollection(messages)
        recollection.take(clock.now_us())
        self.messages = messages
        self.deliveries = deliveries
        self.reading = Reading(messages, frames, recollection)
        self._clock = clock
        self.bell = bell
        self._journal = Journal(
            messages,
            clock=clock,
            disk=disk,
            loop=loop,
            limits=limits,
            told=partial(bell.ring, at=self),
            failed=failed,
            wrote=None if wrote is None else partial(wrote, MESSAGES),
        )
        self._producers = recollection.producers
        if producers is not None:
            self._producers.join(producers)
        self.commits = Commits()
        # Of a replicated one. At the unclean epochs an operator had a leader elected that did not have everything.
        self.epoch = 0
        self.unclean: tuple[int, ...] = ()
        self._disk = disk
        self._loop = loop
        self.groups = Deliveries(
            deliveries,
            self.reading,
            clock=clock,
            disk=disk,
            loop=loop,
            new_id=new_id,
            wrote=None if wrote is None else partial(wrote, DELIVERIES),
        )
        self.groups.wake = partial(bell.ring, at=self)
        self.groups.regrouped = bell.ring
        # Of a replicated partition, if fewer replicas are in sync than its topic demands: how many there are and were
        # to be. Kept by whoever leads it.
        self.too_few: tuple[int, int] | None = None
        # Of a replicated partition: has all replicas delete what lies below an offset of a log. Set by its leader.
        self.expire: Callable[[int, int], None] | None = None
        # Where the logs are to begin, for `expire`.
        self._wanted_starts = [0, 0]
        # Of each rewritten segment, by its first offset, next offset and generation: offsets without a message.
        self._removed: dict[tuple[int, int, int], BitMap64] = {}
        self.reading.recollection = None

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        clock: Clock,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        cache: SegmentCache,
        new_id: Callable[[], bytes],
        limits: Limits,
        bell: Bell,
        frames: FrameCache,
        failed: Callable[[PenstockError], None],
        producers: ProducerShares,
        sync_within_us: int | None = None,
        settings: LogSettings | None = None,
    ) -> Partition:
        messages, deliveries = open_logs(files, clock=clock, cache=cache, new_id=new_id, settings=settings)
        try:
            partition = cls(
                messages,
                deliveries,
                clock=clock,
                disk=disk,
                loop=loop,
                new_id=new_id,
                limits=limits,
                bell=bell,
                frames=frames,
                failed=failed,
                producers=producers,
            )
            messages.sync_within(sync_within_us)
            return partition
        except PenstockError:
            messages.close()
            deliveries.close()
            raise

    # --- publishing --------------------------------------------------------------------------------------

    def publish(self, item: Frame | Message, acks: str = ALL) -> asyncio.Future[Committed]:
        """Done when it is on disk. A batch that an idempotent producer sends again is found, not stored again.

        What is handed in first is stored first: there is nothing to await before it is in the queue.
        """
        storing = self.storing(item, acks)
        if isinstance(item, Message) and acks == ALL and not _is_special(item):
            return storing
        # We must hear ourselves where it went, also if the caller gives up waiting.
        return asyncio.shield(storing)

    @property
    def is_gathering(self) -> bool:
        """What is published now is written together with others."""
        return self._journal.is_gathering

    def storing(self, item: Frame | Message, acks: str = ALL) -> asyncio.Future[Committed]:
        """The same for a caller that never gives up: this must not be cancelled."""
        if isinstance(item, Frame):
            producer = item.producer
            if producer.id:
                return self._store_once(item, producer, acks)
        return self._as_far(self._commit(item), acks)

    def _as_far(self, committing: Committing, acks: str) -> Committing:
        return committing if acks == ALL else self._journal.on_disk(committing)

    def store_alone(self, frame: Frame, facts: FrameFacts) -> Committed | None:
        """On disk when this returns, written on the loop. None if it does not come alone, came before, or is special in
        any way: then it is for `storing`."""
        if facts.flags & SPECIAL:
            return None
        producer = facts.producer
        if not producer.id:
            return self._journal.commit_alone(frame)
        if self._producers.find(producer, facts.span, frame.body_crc) is not None:
            return None
        self._producers.admit(producer, frame.owner)
        committed = self._journal.commit_alone(frame)
        if committed is not None:
            self._producers.add(producer, facts.span, committed, frame.body_crc, frame.owner)
        return committed

    def has_stored(self, frame: Frame) -> bool:
        """It came before, from an idempotent producer."""
        producer = frame.producer
        return bool(producer.id) and self._producers.find(producer, frame.count, frame.body_crc) is not None

    def _store_once(self, frame: Frame, producer: Producer, acks: str) -> asyncio.Future[Committed]:
        known = self._producers.find(producer, frame.count, frame.body_crc)
        if known is not None and known.is_same:
            # It may still be on its way: this caller learns of it no earlier than the one that sent it first.
            return self._as_far(known.where, acks) if isinstance(known.where, asyncio.Future) else self._at(known.where)
        if known is not None:
            finding = self._loop.create_task(self._find_stored(known, frame, acks))
            finding.add_done_callback(retrieve)
            return finding
        self._producers.admit(producer, frame.owner)
        committing = self._commit(frame)
        self._producers.add(producer, frame.count, committing, frame.body_crc, frame.owner)
        committing.add_done_callback(partial(self._settle, producer))
        return self._as_far(committing, acks)

    def _at(self, where: Committed) -> Committing:
        found: Committing = self._loop.create_future()
        found.set_result(where)
        return found

    async def _find_stored(self, known: Found[Where], frame: Frame, acks: str) -> Committed:
        """Return where the messages of a frame are; SequenceTooOld if others are stored there, or not all of them are
        there any more. An answer means that what was stored first is on disk, also if it is an error."""
        where = known.where
        first = where if isinstance(where, Committed) else await asyncio.shield(self._as_far(where, acks))
        base = first.base_offset + known.behind
        is_there = await self._loop.run_in_executor(self._disk.executor, self._holds, base, frame)
        # If the log was truncated meanwhile, what was compared says nothing.
        self._journal.check_led()
        if not is_there:
            raise self._producers.too_old(frame.producer)
        return Committed(base, first.append_time)

    def _holds(self, base: int, frame: Frame) -> bool:
        """Whether the messages of a frame are stored from this offset on. On a thread."""
        ours = frame.batch(verify=False)
        stored = []
        for offsets, batch, _ in self.reading.timed_batches(BitMap64(range(base, base + ours.count))):
            rows = np.flatnonzero((offsets >= base) & (offsets < base + ours.count))
            if len(rows):
                stored.append(batch.rows(rows))
        return sum(batch.count for batch in stored) == ours.count and Batch.concat(stored).to_arrow().equals(
            ours.to_arrow()
        )

    def _commit(self, item: Frame | Message) -> Committing:
        if not _is_special(item):
            return self._journal.commit(item)
        # Before it is on its way: the disk may be faster than we are.
        self.reading.special_comes()
        try:
            committing = self._journal.commit(item)
        except PenstockError:
            self.reading.special_came(None)
            raise
        committing.add_done_callback(partial(self._special_came, item))
        return committing

    def _special_came(self, item: Frame | Message, committing: Committing) -> None:
        """Its lane and its time are known before anybody can see it."""
        if committing.exception() is not None:
            self.reading.special_came(None)
            return
        base = committing.result().base_offset
        if isinstance(item, Frame):
            batch = item.batch(verify=False)
            self.groups.add_special(base + np.arange(batch.count), batch)
            self.reading.special_came(base + item.count)
        else:
            self.groups.add_special_one(base, item.priority, item.deliver_at)
            self.reading.special_came(base + 1)
        self.bell.ring(at=self)

    def _settle(self, producer: Producer, committing: Committing) -> None:
        if committing.exception() is not None:
            self._producers.forget(producer)

    async def synced(self) -> None:
        """What was published so far is on disk, also if the topic's messages need not be: something else is going to be
        written down that relies on them."""
        if self.messages.synced_offset < self.messages.end_offset:
            await self._loop.run_in_executor(self._disk.executor, self.messages.sync)

    def lag(self, state: Delivery) -> int:
        """Messages in the log that the group is not done with. An expired one counts until a poll passes over it."""
        return state.lag(self.messages.start_offset, self.reading.visible_offset, self.reading.missing)

    # --- upkeep ------------------------------------------------------------------------------------------

    def protected(self) -> BitMap64:
        """What neither retention nor compaction may take: delayed messages to come, dead letters not written yet,
        messages that were redriven and are not done, and messages that others of their key wait for."""
        offsets = self.groups.delays.pending | self.groups.holding_up()
        for name in self.groups.groups:
            state = self.groups.state(name)
            offsets.update(state.dying)
            offsets |= state.brought_back()
        return offsets

    def maintain(
        self, settings: TopicSettings, protected: Ints, until: int, due_times: DueTimes = NOTHING_MOVED
    ) -> None:
        """Retention, merging and compaction, on a thread. Reads and writes go on meanwhile.

        `protected` are the offsets below `until` that must stay, ascending; what comes after it must stay in any case:
        nothing is known of it yet, or it is not archived. Retention also keeps messages that were due lately.
        """
        now = self._clock.now_us()

        def must_stay(offsets: Ints) -> npt.NDArray[np.bool_]:
            return np.isin(offsets, protected) | (offsets >= until)

        if settings.cleanup == "delete":
            retention = Retention(age_us_max=settings.retention_age_us, bytes_max=settings.retention_bytes)
            age_us = settings.retention_age_us or _LATELY_DUE_US
            lately_due = LatelyDue(self.messages, due_times, now_us=now, age_us=age_us)
            apply_retention(
                self.messages,
                retention,
                now_us=now,
                keep_from=until,
                protected=lambda offsets: must_stay(offsets) | lately_due(offsets),
                delete_prefix=partial(self._delete_prefix, MESSAGES),
            )
        for segment in self.messages.segments[:-1]:
            merge_small_frames(self.messages, segment)
        if settings.cleanup == "compact":
            compact(
                self.messages,
                now_us=now,
                tombstone_age_us=settings.tombstone_age_us,
                keep_from=until,
                protected=must_stay,
            )
        self._find_removed(settings)
        self._shorten_deliveries(settings)

    def _find_removed(self, settings: TopicSettings) -> None:
        """Look for removed messages in the segments that were rewritten without some since the last time."""
        found: dict[tuple[int, int, int], BitMap64] = {}
        for segment in self.messages.segments[:-1]:
            header = segment.header
            is_compacted = settings.cleanup == "compact" or header.flags & COMPACTED
            if not header.generation or not (is_compacted or segment.base_offset < self.messages.whole_from):
                # As it was appended, or merged with nothing removed.
                continue
            identity = segment.base_offset, segment.next_offset, header.generation
            try:
                found[identity] = self._removed[identity] if identity in self._removed else self._missing_in(segment)
            except StorageError as error:
                if not self.messages.lost_to_others(error, [segment]):
                    raise
        self._removed = found

    def _missing_in(self, segment: Segment) -> BitMap64:
        missing = BitMap64(range(segment.base_offset, segment.next_offset))
        for offsets in held_offsets(self.messages, segment):
            missing -= bitmap_of(offsets)
        return missing

    def _shorten_deliveries(self, settings: TopicSettings) -> None:
        """What happened to messages is kept as long as they are, and from the last snapshot on in any case.

        A message that is kept for its delay does not keep the story of all the others, nor does the last one of a key.
        """
        last = snapshot.find_last(self.deliveries)
        if last is None:
            return
        whole_from = min(self.messages.whole_from, self.messages.committed_offset)
        first = next(iter(self.messages.read(whole_from, bytes_max=1)), None)
        since_us = self._clock.now_us() if first is None else first.append_time
        age_us = settings.retention_age_us
        if settings.cleanup == "compact":
            age_us = age_us or _COMPACTED_HISTORY_US
        if age_us is not None:
            since_us = max(since_us, self._clock.now_us() - age_us)
        bound = min(last.start, self.deliveries.offset_at(since_us))
        starts = [segment.base_offset for segment in self.deliveries.segments if segment.base_offset <= bound]
        if starts and starts[-1] > self.deliveries.start_offset:
            self._delete_prefix(DELIVERIES, starts[-1])

    def _delete_prefix(self, number: int, offset: int) -> None:
        if self.expire is None:
            (self.messages, self.deliveries)[number].delete_prefix(offset)
        else:
            self._wanted_starts[number] = offset

    def after_maintenance(self) -> None:
        """On the loop: what was deleted, and what every group is done with, need not be remembered."""
        if self.expire is not None:
            for number, log in enumerate((self.messages, self.deliveries)):
                if self._wanted_starts[number] > log.start_offset:
                    self.expire(number, self._wanted_starts[number])
        self.forget_deleted()

    def forget_deleted(self) -> None:
        self.reading.forget()
        removed = BitMap64()
        for missing in self._removed.values():
            removed |= missing
        self.reading.removed = removed
        self.reading.holes.remove_range(0, self.messages.start_offset)
        floors = [self.groups.state(name).floor for name in self.groups.groups if not name.startswith("__")]
        bound = min(floors, default=self.messages.start_offset)
        for known in (self.groups.lanes, self.groups.delays):
            known.forget(min(bound, self.messages.start_offset), below(removed, bound))
        for name in self.groups.groups:
            self.groups.state(name).forget_dead(self.messages.start_offset, removed)

    def committed(self, log: int, offset: int, nodes: tuple[str, ...] = ()) -> None:
        """Of a replicated partition: what lies below it is wherever it has to be, on these nodes."""
        if log == MESSAGES:
            self.commits.add(offset, self._clock.now_us(), nodes)
            self.messages.hold_back(offset)
            self._journal.committed(offset)
        else:
            self.deliveries.hold_back(offset)
            self.groups.committed(offset)

    def cut_before(self, offset: int, until: int, epoch: int) -> int | None:
        """For whoever read up to `offset` at that epoch (0: unknown), when there was something up to `until`: where the
        log was cut off since, if it was. After an unclean election others come to the same offsets."""
        if not self.unclean:
            return None
        if epoch:
            since = next((unclean for unclean in self.unclean if unclean > epoch), None)
        else:
            # Whoever begins to read knows no more than what there was a moment ago.
            since = self.unclean[-1] if max(offset, until) > self.reading.visible_offset else None
        if since is None:
            return None
        firsts = (entry.first_offset for entry in self.messages.lineage if entry.epoch >= since)
        return next((first for first in firsts if first < until), None)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of the message at that offset; 0 without replication."""
        return epoch_at(self.messages.lineage, offset)

    def resign(self) -> None:
        """Another node may lead it now. The logs stay open, and belong to whoever opened them."""
        self._journal.resign()
        self._producers.leave()
        self.groups.resign()
        self.reading.close()
        self.bell.ring()

    async def stop(self) -> None:
        """Ahead of `close`, on the loop."""
        await self._journal.stop()

    def close(self) -> None:
        self._producers.leave()
        try:
            self.messages.close()
        finally:
            self.deliveries.close()


def open_logs(
    files: Files,
    *,
    clock: Clock,
    cache: SegmentCache,
    new_id: Callable[[], bytes],
    settings: LogSettings | None = None,
) -> tuple[Log, Log]:
    """Messages and deliveries of the partition in that directory; both or none."""
    messages = Log.open(files.directory("messages"), clock=clock, settings=settings, cache=cache, new_log_id=new_id)
    try:
        deliveries = Log.open(
            files.directory("deliveries"),
            clock=_NotBefore(clock, messages),
            settings=_small(settings),
            cache=cache,
            new_log_id=new_id,
        )
    except PenstockError:
        messages.close()
        raise
    return messages, deliveries


class _NotBefore:
    """The clock of the deliveries: what happens to a message is never stamped before the message, whatever the clock
    was set to in between. So its story is found from its own time on."""

    def __init__(self, clock: Clock, messages: Log) -> None:
        self._clock = clock
        self._messages = messages

    def now_us(self) -> int:
        return max(self._clock.now_us(), self._messages.segments[-1].last_append_time)

    def monotonic_us(self) -> int:
        return self._clock.monotonic_us()


def _is_special(item: Frame | Message) -> bool:
    """In another lane, or with a delay."""
    if isinstance(item, Frame):
        return bool(item.flags & SPECIAL)
    return isinstance(item, Message) and bool(item.deliver_at or item.priority)


def _small(settings: LogSettings | None) -> LogSettings:
    """Of deliveries whole segments are deleted as well, and they are written more slowly."""
    settings = settings or LogSettings()
    return LogSettings(min(settings.segment_bytes_max, _DELIVERIES_SEGMENT_BYTES), settings.segment_age_us_max)
