"""What a group leases next from a partition: lanes, delays, expiry and order, decided for whole sets of offsets.

    choose    which messages could be next, by count: per lane those that came back, then fresh ones
    read      their frames, as far as the bytes allow
    decide    which of them are leased: not those that expired, are gone, or whose key is busy

Plain messages of a plain group cost nothing here but a range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from pyroaring import BitMap64

from penstock.broker.delays import Delays
from penstock.broker.delivery import Delivery
from penstock.broker.events import GroupEvent, Leased, Passed, pack
from penstock.broker.key_hash import NO_KEY, Hashes
from penstock.broker.lanes import BY_PRIORITY, Lanes, LanesPolicy, Turns, Waiting, weights_of
from penstock.broker.offsets import Ints, array_of, below, bitmap_of, from_on
from penstock.broker.ordering import Admitted
from penstock.frame import HAS_TTL, Frame
from penstock.message import Priority

_NOTHING = BitMap64()
_FAR = 1_000


@dataclass(slots=True)
class Candidates:
    """Of one lane: messages behind its cursor, and fresh ones from the cursor on to `cursor`, which it would move to.

    `hidden` and `gone` lie between the two cursors and are passed over.
    """

    lane: Priority
    behind: BitMap64
    fresh: BitMap64
    cursor: int
    hidden: BitMap64 = field(default_factory=BitMap64)
    gone: BitMap64 = field(default_factory=BitMap64)
    # There are fresh ones that were not looked at.
    is_short: bool = False
    _offsets: BitMap64 | None = None

    @property
    def offsets(self) -> BitMap64:
        if self._offsets is None:
            self._offsets = self.behind | self.fresh if self.behind else self.fresh
        return self._offsets

    def cut(self, reached: int) -> None:
        """Only what lies before `reached` could be read."""
        if not self.offsets or self.offsets.max() < reached:
            return
        self._offsets = None
        first = self.fresh.next_set_bit(reached) if self.fresh and self.fresh.max() >= reached else None
        self.behind = below(self.behind, reached)
        if first is not None:
            self.fresh = below(self.fresh, reached)
            self.hidden = below(self.hidden, first)
            self.gone = below(self.gone, first)
            self.cursor = first


class Gathered(NamedTuple):
    """Frames that hold messages of a lane, in order; which of the messages are there; how far the reading got; and the
    flags of all frames together."""

    frames: list[Frame]
    there: BitMap64
    reached: int
    size: int
    flags: int


class Cold(Exception):
    """These messages, up to so many bytes, are not in the page cache. To be read on a thread (`Reading.load`)."""

    def __init__(self, offsets: BitMap64, bytes_max: int) -> None:
        super().__init__()
        self.offsets = offsets
        self.bytes_max = bytes_max


class Reader(Protocol):
    """The messages of the partition."""

    def gather(self, offsets: BitMap64, bytes_max: int, *, waits: bool = True) -> Gathered:
        """Cold if it would wait for the disk, unless it `waits`."""
        ...

    def hashes_in(self, frames: list[Frame], offsets: Ints) -> Hashes:
        """Of the keys of these messages, which are all in the frames."""
        ...


class Picked(NamedTuple):
    """What is leased of one lane, the frames it is in, and the flags of all of them together."""

    offsets: BitMap64
    frames: list[Frame]
    flags: int


class Decision(NamedTuple):
    events: list[GroupEvent]
    picked: list[Picked]
    # Of the keys of what is leased, in the order of the offsets; None if keys do not matter.
    hashes: Hashes | None
    blocked: list[tuple[Priority, Ints, Hashes]]


class Leasing:
    """How one group leases from one partition."""

    def __init__(self, delivery: Delivery, lanes: Lanes, delays: Delays, policy: LanesPolicy) -> None:
        self._delivery = delivery
        self._lanes = lanes
        self._delays = delays
        self._policy = policy
        self._turns = Turns()
        # Of the lanes that take part in the lease that is being decided; None if they are not weighted.
        self._weights: dict[Priority, float] | None = None

    def has_nothing(self, end: int, monotonic_us: int) -> bool:
        """Surely nothing to lease or to do below `end`, told without a closer look; False says nothing."""
        if self._delays.pending or not (self._policy == "none" or self._lanes.is_plain):
            return False
        return self._delivery.is_through(end) and not self._delivery.has_returned(monotonic_us)

    # --- choose ------------------------------------------------------------------------------------------

    def _choose(self, count: int, start: int, end: int, now_us: int, ages: Ages) -> list[Candidates]:
        """Up to `count` messages in the order in which they are to be delivered, of those in [start, end)."""
        delivery = self._delivery
        self._weights = None
        if delivery.end is not None:
            end = min(end, delivery.end)
        ready = delivery.ready - delivery.order.blocked if delivery.order.blocked else delivery.ready
        if self._policy == "none" or self._lanes.is_plain:
            return [self._normal(ready, count, start, end, _NOTHING)]
        others = self._lanes.high | self._lanes.low
        chosen = []
        left = count
        shares = self._shares(ready, count, start, end, now_us, ages) if self._policy == "weighted" else None
        for lane in BY_PRIORITY:
            some = left if shares is None else shares.get(lane, 0)
            if some <= 0:
                continue
            if lane is Priority.NORMAL:
                candidates = self._normal(ready - others, some, start, end, others)
            else:
                candidates = self._other(lane, ready, some, start, end)
            chosen.append(candidates)
            left -= len(candidates.behind) + len(candidates.fresh)
            if candidates.is_short and shares is None:
                # The rest of this lane goes before any other.
                break
        return chosen

    def _normal(self, ready: BitMap64, count: int, start: int, end: int, others: BitMap64) -> Candidates:
        behind = self._behind(Priority.NORMAL, ready, count)
        first = max(self._delivery.cursors.normal, self._delivery.floor)
        cursor = self._delivery.cursors.normal
        if first >= end:
            return Candidates(Priority.NORMAL, behind, BitMap64(), cursor)
        if self._is_enough(behind, count):
            return Candidates(Priority.NORMAL, behind, BitMap64(), cursor, is_short=True)
        count -= len(behind)
        gone = BitMap64()
        if first < start:
            # Retention was faster. What it deleted is passed over at once, however much it was.
            gone = BitMap64(range(first, min(start, end))) - others - self._delivery.done
            first = min(start, end)
        stop = min(first + count, end)
        delays, done = self._delays, self._delivery.done
        passed = [bitmap for bitmap in (others, delays.pending, delays.cancelled, done) if _reaches(bitmap, first, end)]
        fresh = BitMap64(range(first, stop))
        for bitmap in passed:
            fresh -= bitmap
        while passed and len(fresh) < count and stop < end:
            stop = min(first + 4 * (stop - first), end)
            fresh = BitMap64(range(first, stop))
            for bitmap in passed:
                fresh -= bitmap
        if len(fresh) > count:
            fresh = fresh[:count]
            stop = fresh.max() + 1
        if not passed:
            return Candidates(Priority.NORMAL, behind, fresh, stop, gone=gone)
        window = BitMap64(range(first, stop)) - others - done
        return Candidates(
            Priority.NORMAL,
            behind,
            fresh,
            stop,
            hidden=window & delays.pending,
            gone=gone | (window & delays.cancelled),
        )

    def _behind(self, lane: Priority, ready: BitMap64, count: int) -> BitMap64:
        if not ready:
            return BitMap64()
        behind = ready.copy() if len(ready) <= count else ready[:count]
        more = self._delivery.order.more(lane, behind, count - len(behind))
        return behind | more if more else behind

    def _is_enough(self, behind: BitMap64, count: int) -> bool:
        """By key, a lease is better half full than filled from far ahead: what is passed over on the way there would
        be scattered over all that follows."""
        return len(behind) >= (count + 1) // 2 if self._delivery.order.needs_keys else len(behind) >= count

    def _other(self, lane: Priority, ready: BitMap64, count: int, start: int, end: int) -> Candidates:
        bitmap = self._lanes.high if lane is Priority.HIGH else self._lanes.low
        cursor = self._delivery.cursors.high if lane is Priority.HIGH else self._delivery.cursors.low
        behind = self._behind(lane, ready & bitmap, count) if ready else BitMap64()
        first = max(cursor, self._delivery.floor)
        if not _reaches(bitmap, first, end):
            return Candidates(lane, behind, BitMap64(), cursor)
        if self._is_enough(behind, count):
            return Candidates(lane, behind, BitMap64(), cursor, is_short=True)
        count -= len(behind)
        ahead = below(from_on(bitmap, first), end) - self._delivery.done
        gone = below(ahead, start) | (ahead & self._delays.cancelled)
        hidden = ahead & self._delays.pending
        fresh = (ahead - gone - hidden)[:count]
        # As far as the last one taken, or as the lane goes.
        stop = fresh.max() + 1 if len(fresh) == count else max(ahead.max() + 1, cursor) if ahead else cursor
        return Candidates(lane, behind, fresh, stop, hidden=below(hidden, stop), gone=below(gone, stop))

    def _shares(
        self, ready: BitMap64, count: int, start: int, end: int, now_us: int, ages: Ages
    ) -> dict[Priority, int]:
        waiting = []
        others = self._lanes.high | self._lanes.low
        for lane in BY_PRIORITY:
            if lane is Priority.NORMAL:
                candidates = self._normal(ready - others, count, start, end, others)
            else:
                candidates = self._other(lane, ready, count, start, end)
            offsets = candidates.offsets
            waiting.append(Waiting(lane, len(offsets), ages.published_us(offsets.min()) if offsets else now_us))
        self._weights = weights_of(waiting, now_us)
        return self._turns.share(waiting, count, self._weights)

    # --- read and decide ---------------------------------------------------------------------------------

    def lease(
        self,
        reader: LaneReader,
        *,
        count: int,
        look_at: int,
        bytes_max: int,
        start: int,
        end: int,
        now_us: int,
        consumer: str,
        identity: int,
        deadline_us: int,
        waits: bool = True,
    ) -> Decision | None:
        """Up to `count` messages of about `bytes_max` bytes out of [start, end); None if there is nothing to do.

        `look_at` is how many may be looked at for that, if some of them can't be leased.
        """
        delivery = self._delivery
        if delivery.order.stands(delivery):
            return None
        decision = _Deciding(delivery, reader, count, now_us)
        chosen = self._choose(look_at, start, end, now_us, reader)
        left = sum(len(candidates.offsets) for candidates in chosen)
        for candidates in chosen:
            if bytes_max <= 0 or decision.is_full:
                break
            offsets = candidates.offsets
            if not offsets:
                decision.pass_over(candidates)
                continue
            # Weighted lanes share the bytes as well; otherwise a lane that is cut short lets none pass.
            share = bytes_max if self._weights is None else max(bytes_max * len(offsets) // left, 1)
            left -= len(offsets)
            gathered = reader.gather(offsets, share, waits=waits)
            candidates.cut(gathered.reached)
            bytes_max -= gathered.size
            decision.add(candidates, gathered)
            if self._weights is None and gathered.reached <= offsets.max():
                break
        if self._weights is not None:
            self._turns.took(self._weights, decision.by_lane)
        return decision.made(consumer, identity, deadline_us)


class Ages(Protocol):
    def published_us(self, offset: int) -> int: ...


class LaneReader(Reader, Ages, Protocol): ...


class _Keys(NamedTuple):
    offsets: Ints
    hashes: Hashes
    admitted: Admitted

    def below(self, bound: int) -> _Keys:
        kept = self.offsets < bound
        return _Keys(self.offsets[kept], self.hashes[kept], self.admitted[kept])


class _Deciding:
    def __init__(self, delivery: Delivery, reader: Reader, count: int, now_us: int) -> None:
        self._delivery = delivery
        self._reader = reader
        self._count = count
        self._now_us = now_us
        self._cursors = delivery.cursors
        self._leased = BitMap64()
        self._skipped, self._hidden, self._lapsed, self._gone = BitMap64(), BitMap64(), BitMap64(), BitMap64()
        self._picked: list[Picked] = []
        self._keys: list[tuple[Ints, Hashes]] = []
        self._blocked: list[tuple[Priority, Ints, Hashes]] = []
        self.by_lane: dict[Priority, int] = {}

    @property
    def is_full(self) -> bool:
        return len(self._leased) >= self._count

    def pass_over(self, candidates: Candidates) -> None:
        self._hidden |= candidates.hidden
        self._gone |= candidates.gone
        match candidates.lane:
            case Priority.NORMAL:
                self._cursors = self._cursors._replace(normal=candidates.cursor)
            case Priority.HIGH:
                self._cursors = self._cursors._replace(high=candidates.cursor)
            case _:
                self._cursors = self._cursors._replace(low=candidates.cursor)

    def add(self, candidates: Candidates, gathered: Gathered) -> None:
        offsets = candidates.offsets
        there = offsets if gathered.there is offsets else gathered.there & offsets
        lapsed = _NOTHING
        if gathered.flags & HAS_TTL:
            lapsed = self._expired(gathered.frames) & there
        taken = there - lapsed if lapsed else there
        keys = self._keys_of(candidates, taken, gathered.frames) if self._delivery.order.needs_keys else None
        if keys is not None:
            taken = bitmap_of(keys.offsets[keys.admitted]) if not keys.admitted.all() else taken
        room = self._count - len(self._leased)
        if len(taken) > room:
            # More was looked at than is wanted: as if it had not been.
            until = taken[room]
            taken = taken[:room]
            candidates.cut(until)
            offsets, lapsed = below(offsets, until), below(lapsed, until)
            keys = keys.below(until) if keys is not None else None
        self.pass_over(candidates)
        if there is not offsets:
            self._gone |= offsets - there
        self._lapsed |= lapsed
        if keys is not None:
            self._sort_out(candidates, keys)
        if taken:
            self._leased |= taken
            self._picked.append(Picked(taken, gathered.frames, gathered.flags))
            self.by_lane[candidates.lane] = len(taken)

    def _keys_of(self, candidates: Candidates, taken: BitMap64, frames: list[Frame]) -> _Keys:
        order = self._delivery.order
        offsets = array_of(taken)
        # Ascending: those behind the cursor come first.
        behind = len(taken & candidates.behind) if candidates.behind else 0
        hashes = np.zeros(len(offsets), np.uint64)
        if behind:
            hashes[:behind] = order.known(candidates.lane, offsets[:behind])
        unknown = hashes == NO_KEY
        if unknown.all():
            hashes = self._reader.hashes_in(frames, offsets)
        elif unknown.any():
            hashes[unknown] = self._reader.hashes_in(frames, offsets[unknown])
        return _Keys(offsets, hashes, order.admit(candidates.lane, offsets, hashes, candidates.offsets))

    def _sort_out(self, candidates: Candidates, keys: _Keys) -> None:
        if keys.admitted.all():
            self._keys.append((keys.offsets, keys.hashes))
            return
        refused = ~keys.admitted
        self._blocked.append((candidates.lane, keys.offsets[refused], keys.hashes[refused]))
        self._skipped |= bitmap_of(keys.offsets[refused]) & candidates.fresh
        self._keys.append((keys.offsets[keys.admitted], keys.hashes[keys.admitted]))

    def _expired(self, frames: list[Frame]) -> BitMap64:
        expired = BitMap64()
        for frame in frames:
            if frame.flags & HAS_TTL:
                batch = frame.batch()
                assert batch.expires_at is not None
                is_over = (batch.expires_at > 0) & (batch.expires_at <= self._now_us)
                expired |= bitmap_of(frame.offsets(batch)[is_over])
        return expired

    def made(self, consumer: str, identity: int, deadline_us: int) -> Decision | None:
        delivery, events = self._delivery, list[GroupEvent]()
        # A long way over nothing is worth a row too: the next one need not go it again.
        is_far = self._cursors.normal - delivery.cursors.normal > _FAR and not self._leased
        if self._skipped or self._hidden or self._lapsed or self._gone or is_far:
            events.append(
                Passed(
                    delivery.group,
                    self._cursors,
                    pack(self._skipped),
                    pack(self._hidden),
                    pack(self._lapsed),
                    pack(self._gone),
                )
            )
        if self._leased:
            events.append(Leased(delivery.group, consumer, identity, pack(self._leased), self._cursors, deadline_us))
        if not events and not self._blocked:
            return None
        return Decision(events, self._picked, _joined(self._keys), self._blocked)


def _joined(parts: list[tuple[Ints, Hashes]]) -> Hashes | None:
    if len(parts) < 2:
        return parts[0][1] if parts else None
    hashes = np.concatenate([part[1] for part in parts])
    return hashes[np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")]


def _reaches(bitmap: BitMap64, first: int, end: int) -> bool:
    return bool(bitmap) and bool(bitmap.range_cardinality(first, end))
