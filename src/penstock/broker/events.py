"""What happens to messages: the rows of a partition's deliveries log.

One row covers a set of offsets, so a thousand messages leased together are one row. The value of the row is
MessagePack of the event, an array that starts with its letter; the key is the group; the timestamp is when it happened.
Offsets are a 64-bit Roaring bitmap in its portable serialisation, which other languages read; no bytes at all are the
empty set.

What concerns the partition and not one group has the empty name for a group: delays that are due, cancelled, moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.decoding import msgpack_decoder
from penstock.errors import LogCorrupt
from penstock.message import Message


class Cursors(NamedTuple):
    """How far a group has come in each lane: what lies before has been looked at, what lies behind has not."""

    normal: int
    high: int
    low: int

    @classmethod
    def at(cls, offset: int) -> Cursors:
        return cls(offset, offset, offset)


# Of a group's generation: below is its order in a history of the catalog, above the number of that history.
HISTORY_SHIFT = 40


class Origin(NamedTuple):
    """Which of the groups that had a name one after the other: when it was created, and its `GroupRecord.generation`.
    Zeros where that is not known."""

    made_us: int = 0
    generation: int = 0

    @property
    def history(self) -> int:
        """How often the catalog had been restored from a backup when the group was created."""
        return self.generation >> HISTORY_SHIFT

    def is_before(self, other: Origin) -> bool:
        """This was an earlier group. Dates decide nothing but where an older version has left out the generation.

        Of two histories the catalog can't tell. Then they are one: to deliver everything again to a group that the
        backup did not have is worse than to let one go on that was deleted and created again.
        """
        if self.generation and other.generation:
            return self.history == other.history and self.generation < other.generation
        if other.generation:
            return 0 < self.made_us != other.made_us
        return 0 < self.made_us < other.made_us


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`group` on each: a row must be understood alone."""

    group: str


class Started(Event, frozen=True, array_like=True, gc=False, tag="S"):
    """The group begins at `offset`, or was moved there: all it held is let go.

    `hidden` are delayed messages before it that are not due yet: they come when they are. `end` bounds a replay.
    `made_us` and `generation` are the group's `Origin`: another one may have the same name later.
    """

    offset: int
    hidden: bytes = b""
    end: int | None = None
    made_us: int = 0
    generation: int = 0


class Leased(Event, frozen=True, array_like=True, gc=False, tag="L"):
    """`offsets` went to `consumer` until `deadline_us`."""

    consumer: str
    lease: int
    offsets: bytes
    cursors: Cursors
    deadline_us: int


class Passed(Event, frozen=True, array_like=True, gc=False, tag="P"):
    """The cursors moved over these without delivering them.

    `skipped`: their key was busy. `hidden`: not due yet. `lapsed`: expired. `gone`: cancelled, or deleted by retention.
    """

    cursors: Cursors
    skipped: bytes = b""
    hidden: bytes = b""
    lapsed: bytes = b""
    gone: bytes = b""


class Extended(Event, frozen=True, array_like=True, gc=False, tag="E"):
    lease: int
    deadline_us: int


class Acknowledged(Event, frozen=True, array_like=True, gc=False, tag="A"):
    lease: int
    offsets: bytes


class Nacked(Event, frozen=True, array_like=True, gc=False, tag="N"):
    """Given back by the consumer; ready again at `due_us`."""

    lease: int
    offsets: bytes
    due_us: int
    reason: str


class Expired(Event, frozen=True, array_like=True, gc=False, tag="X"):
    """The lease ran out; what was left of it is ready again at `due_us`, which is at once."""

    lease: int
    offsets: bytes
    due_us: int


class Released(Event, frozen=True, array_like=True, gc=False, tag="R"):
    """Given back unseen, as if it had not been delivered."""

    lease: int
    offsets: bytes


class Exhausted(Event, frozen=True, array_like=True, gc=False, tag="D"):
    """Not to be delivered again: rejected, or tried too often.

    With `since`, each becomes a dead letter, which will be found in the dead-letter topic from that offset on. `parked`
    are the keys that wait from now on until somebody releases them, each with the message that it waits for.
    """

    lease: int
    offsets: bytes
    reason: str
    since: int | None = None
    parked: tuple[tuple[bytes, int], ...] = ()


class Buried(Event, frozen=True, array_like=True, gc=False, tag="B"):
    """These are in the dead-letter topic, the i-th at `places[i]` of the partition of the same number."""

    offsets: bytes
    places: tuple[int, ...]


class Redriven(Event, frozen=True, array_like=True, gc=False, tag="V"):
    """Dead letters that are to be tried again, as if they had never been delivered, from `due_us` on."""

    offsets: bytes
    due_us: int


class Copying(Event, frozen=True, array_like=True, gc=False, tag="Y"):
    """A copy of the dead letter at `offset` is about to be published to the topic with this id: from `since` on it will
    be found in that partition, by a producer that is named after the letter. Of the group that knows what is settled.
    """

    offset: int
    topic: str
    partition: int
    since: int


class Unparked(Event, frozen=True, array_like=True, gc=False, tag="K"):
    keys: tuple[bytes, ...]


class Deferred(Event, frozen=True, array_like=True, gc=False, tag="F"):
    """For this group alone, these come at `due_us`: a replay that repeats their delays."""

    offsets: bytes
    due_us: int


class Assigned(Event, frozen=True, array_like=True, gc=False, tag="W"):
    """The partition belongs to this member of the group from now on; to nobody, if None.

    A member that is lasting may outlive the broker and come back to it.
    """

    member: str | None
    generation: int
    reason: str
    is_lasting: bool = True


class Dropped(Event, frozen=True, array_like=True, gc=False, tag="Z"):
    """The group is deleted."""


class Due(Event, frozen=True, array_like=True, gc=False, tag="U"):
    """Delayed messages whose time has come."""

    offsets: bytes


class Cancelled(Event, frozen=True, array_like=True, gc=False, tag="C"):
    """Delayed messages that shall never appear."""

    offsets: bytes


class Moved(Event, frozen=True, array_like=True, gc=False, tag="M"):
    """A delayed message that is due at another time."""

    offset: int
    due_us: int


GroupEvent = (
    Started
    | Leased
    | Passed
    | Extended
    | Acknowledged
    | Nacked
    | Expired
    | Released
    | Exhausted
    | Buried
    | Redriven
    | Copying
    | Unparked
    | Deferred
)
AnyEvent = GroupEvent | Assigned | Dropped | Due | Cancelled | Moved


class Truncated(Event, frozen=True, array_like=True, gc=False, tag="T"):
    """Messages from `offset` on are not the ones that earlier rows speak of: an unclean election gave those up.

    Never written. `events_of` derives it from the epochs of both logs, so every replica derives the same one.
    """

    offset: int


class Together(Event, frozen=True, array_like=True, gc=False, tag="+"):
    """Several events in one row: all of them happened, or none.

    With `times`, they are of several decisions that nobody waited for, and each has its own; otherwise of one.
    """

    events: tuple[AnyEvent, ...]
    times: tuple[int, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_any: Any = AnyEvent | Together
_decoder = msgpack_decoder(_any)


def pack(offsets: BitMap64) -> bytes:
    """As runs where that is shorter: a thousand offsets less one are 31 bytes and not 2,026."""
    offsets.run_optimize()
    packed: bytes = offsets.serialize() if offsets else b""
    return packed


def unpack(packed: bytes) -> BitMap64:
    return BitMap64.deserialize(packed) if packed else BitMap64()


def to_message(events: Sequence[AnyEvent], now_us: int) -> Message:
    """One row for what was decided together."""
    first = events[0]
    row = first if len(events) == 1 else Together(first.group, tuple(events))
    return Message(_encoder.encode(row), key=first.group.encode(), timestamp=now_us)


def to_messages(decisions: Sequence[tuple[Sequence[AnyEvent], int]], *, bytes_max: int) -> list[Message]:
    """As few rows as possible for decisions and when they were taken: cheaper to write than a row for each."""
    events = [event for decided, _ in decisions for event in decided]
    times = [at_us for decided, at_us in decisions for _ in decided]
    value = _encoder.encode(Together("", tuple(events), tuple(times)))
    if len(value) <= bytes_max or len(decisions) == 1:
        return [Message(value, key=b"", timestamp=times[-1])]
    half = len(decisions) // 2
    return to_messages(decisions[:half], bytes_max=bytes_max) + to_messages(decisions[half:], bytes_max=bytes_max)


def from_value(value: bytes | None, at_us: int) -> list[tuple[AnyEvent, int]]:
    """The events of a row that was written at that time, and when each happened."""
    try:
        row: AnyEvent | Together = _decoder.decode(value or b"")
    except msgspec.DecodeError as error:
        raise LogCorrupt(f"a row of the deliveries log is not an event: {error}") from error
    if not isinstance(row, Together):
        return [(row, at_us)]
    times = row.times or (at_us,) * len(row.events)
    if len(times) != len(row.events):
        raise LogCorrupt(f"a row of the deliveries log has {len(row.events)} events and {len(times)} times")
    return list(zip(row.events, times, strict=True))
