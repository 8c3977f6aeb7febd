"""Jobs that were taken together. Each is answered for once: acknowledged, to be tried again, or given up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidInput, NotLeased
from penstock.handlers import reason_of
from penstock.ring.exchange import UNWRITABLE
from penstock.ring.settings import Duration

if TYPE_CHECKING:
    from penstock.ring.jobs import Jobs

# Numbers that follow each other: the first, and how many.
Run = tuple[int, int]

# Keys of equal dicts must not depend on the order of their entries.
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class _Settled(set[int]):
    """Positions of a batch that are answered for, and indexes to find the next one without going through all."""

    __slots__ = ("alike", "jobs", "reached", "same", "sequences")

    def __init__(self, jobs: list[Any], sequences: list[int]) -> None:
        self.jobs = jobs
        self.sequences = sequences
        self.same = _Index(self, id)
        self.alike = _Index(self, _content_key)
        # All positions below it are answered for.
        self.reached = 0

    def left(self) -> Iterator[int]:
        while self.reached in self:
            self.reached += 1
        return (at for at in range(self.reached, len(self.jobs)) if at not in self)


class _Index:
    """Positions that are left, by a key of their jobs. Built at the first search."""

    __slots__ = ("_key_of", "_places", "_settled")

    def __init__(self, settled: _Settled, key_of: Callable[[Any], Hashable]) -> None:
        self._settled = settled
        self._key_of = key_of
        # The last position first.
        self._places: dict[Hashable, list[int]] | None = None

    def search(self, job: Any, begun: dict[Hashable, Iterator[int]]) -> Iterator[int]:
        """Positions with the key of `job`, in order. A search in `begun` with the same key goes on where it stopped."""
        key = self._key_of(job)
        if key not in begun:
            begun[key] = self._left(key)
        return begun[key]

    def _left(self, key: Hashable) -> Iterator[int]:
        """Positions answered for, from the front on, are dropped for good."""
        settled, jobs = self._settled, self._settled.jobs
        if self._places is None:
            self._places = {}
            for at in range(len(jobs) - 1, -1, -1):
                self._places.setdefault(self._key_of(jobs[at]), []).append(at)
        places = self._places.get(key, [])
        while places and places[-1] in settled:
            places.pop()
        return (at for at in reversed(places) if at not in settled)


def _content_key(job: Any) -> Hashable:
    """The same for most equal jobs; 1 and 1.0 in a dict, for example, have different ones."""
    try:
        return hash(job)
    except TypeError:
        pass
    try:
        return _encoder.encode(job)
    except UNWRITABLE:
        return None


class JobBatch(msgspec.Struct, eq=False):
    """What `Ring.take` returns; empty, and false, if there was nothing in time.

        with ring.take(100) as batch:           # acknowledges at the end, tries again after an error
            for job in batch:
                ...

    Or by hand: `ack()`, `retry(some, "5s")`, `fail(some, "reason")`; without `some` they speak of all that were not
    answered for yet. One thread at a time.
    """

    _ring: Jobs
    jobs: list[Any]
    # How often each has been handed out, this time included; None if for all it is the first.
    _attempts: list[int] | None = None
    # Their numbers in the journal, in the order of `jobs`; None without a journal.
    _runs: list[Run] | None = None
    # Positions that are answered for, once it is some and not all.
    _settled: _Settled | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.jobs)

    def __getitem__(self, at: int) -> Any:
        return self.jobs[at]

    @property
    def attempts(self) -> list[int]:
        """For each job, how often it has been handed out: 1 at first."""
        return [1] * len(self.jobs) if self._attempts is None else list(self._attempts)

    def ack(self, jobs: Sequence[Any] | None = None) -> None:
        """They are done. NotLeased if they were answered for already."""
        ring = self._ring
        if jobs is None and self._settled is None and self._runs is None:
            # The usual way, without a lock: taking it out of the set happens once, whoever else tries.
            try:
                ring._in_flight.remove(self)
            except KeyError:
                if self.jobs:
                    raise _answered() from None
                return
            if ring._joiners_waiting:
                ring._wake_joiners()
            return
        ring._ack(self, self._positions(jobs))

    def retry(self, jobs: Sequence[Any] | None = None, delay: Duration | None = None, *, reason: str = "") -> None:
        """They come again after `delay`, or after what the ring's `backoff` says; or, tried often enough, fail."""
        _check_reason(reason)
        self._ring._retry(self, self._positions(jobs, "a delay is given as delay=…"), delay, reason)

    def fail(self, jobs: Sequence[Any] | None = None, reason: str = "") -> None:
        """They will not be tried again: `Ring.failed` has them."""
        _check_reason(reason)
        self._ring._fail(self, self._positions(jobs, "a reason is given as reason=…"), reason)

    @property
    def is_settled(self) -> bool:
        """Whether all are answered for."""
        return self not in self._ring._in_flight

    def __enter__(self) -> JobBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            self.ack()
        else:
            self.retry(reason=reason_of(error))

    def __repr__(self) -> str:
        settled = len(self.jobs) if self.is_settled else len(self._settled or ())
        return f"<JobBatch of {len(self.jobs):,}, {settled:,} answered for>"

    # --- for the ring --------------------------------------------------------------------------------------

    def _positions(self, jobs: Sequence[Any] | None, instead: str = "") -> list[int]:
        """`instead`: what somebody may have meant who gives no list."""
        if jobs is None:
            left = list(range(len(self.jobs)) if self._settled is None else self._settled.left())
            if self.jobs and (not left or self.is_settled):
                raise _answered()
            return left
        if isinstance(jobs, str | bytes) or not isinstance(jobs, Sequence):
            message = f"jobs are given as a list of some of the batch's, not as {type(jobs).__name__}"
            raise InvalidInput(f"{message}; {instead}" if instead else message)
        if not jobs:
            return []
        if self.is_settled:
            raise _answered()
        return self._matching(jobs)

    def _matching(self, jobs: Sequence[Any]) -> list[int]:
        """A position for each of them: that very object if it can be found, else an equal one."""
        settled = self._answered()
        found: dict[int, None] = {}
        same: dict[Hashable, Iterator[int]] = {}
        alike: dict[Hashable, Iterator[int]] = {}
        for job in jobs:
            at = next((at for at in settled.same.search(job, same) if at not in found), None)
            # Almost every equal job has the same key; the others are looked for among all.
            for places in (settled.alike.search(job, alike), settled.left()) if at is None else ():
                at = next((at for at in places if at not in found and self.jobs[at] == job), None)
                if at is not None:
                    break
            if at is None:
                raise NotLeased("a job is not of this batch, or was answered for already")
            found[at] = None
        return list(found)

    def _answered(self) -> _Settled:
        """Of a batch that was handed out: its numbers do not change any more."""
        if self._settled is None:
            self._settled = _Settled(self.jobs, self._sequences())
        return self._settled

    def _sequence(self, at: int) -> int:
        return self._answered().sequences[at]

    def _attempt(self, at: int) -> int:
        return 1 if self._attempts is None else self._attempts[at]

    def _sequences(self) -> list[int]:
        if self._runs is None:
            return [0] * len(self.jobs)
        return [number for first, count in self._runs for number in range(first, first + count)]

    def _note_settled(self, positions: Sequence[int]) -> bool:
        """Whether all are answered for now."""
        if len(positions) == len(self.jobs):
            return True
        settled = self._answered()
        settled.update(positions)
        return len(settled) == len(self.jobs)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise InvalidInput(f"a reason is a text, not a value of type {type(reason).__name__}")


def _answered() -> NotLeased:
    return NotLeased("the jobs of this batch were answered for already")
