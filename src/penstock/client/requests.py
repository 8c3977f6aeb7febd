"""What a client asks of a broker that is not about messages on their way, and what it hears back.

A request is a struct that knows the type of its reply, so one `call` of the transport serves all of them. Settings are
in the broker's words here (`visibility_us`); `settings.py` has the users'. Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from pyroaring import BitMap64

from penstock.message import Message

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
# Of a page of a listing. A page ends earlier if its items are large.
PAGE_MAX = 200


class Request(msgspec.Struct, Generic[R_co], frozen=True, tag=True):
    """`R_co` is the reply.

    Some have `partitions`, for a cluster: it is answered for exactly those then, and by nobody who does not lead all of
    them (NotLeader). None is for all that are led by whoever answers; a broker on its own leads all there are.
    """


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """One page of a listing. `next` is the `after` of the next page; it is empty on the last one.

    A request whose `after` is None, of an older client, is answered with a plain list, or fails if that would be long.
    """

    items: list[T]
    next: str = ""


# --- topics -------------------------------------------------------------------------------------------------


class PartitionInfo(msgspec.Struct, frozen=True):
    """The messages of a partition have offsets `start_offset` to `end_offset`, the last one not included."""

    number: int
    start_offset: int
    end_offset: int
    bytes: int
    # Everything below it is in an archive, as far as the broker was told.
    archived: int = 0
    # From here on retention has taken nothing out. Below it, down to the start, single messages may be left of what
    # there was: delayed ones that are not due yet. A broker that is older than this says nothing of it.
    whole_from: int = 0
    # So many of the offsets hold no message, as far as is known: a crash has left them, or an election in a cluster.
    empty: int = 0

    def __post_init__(self) -> None:
        if self.whole_from < self.start_offset:
            msgspec.structs.force_setattr(self, "whole_from", self.start_offset)

    @property
    def messages(self) -> int:
        return self.end_offset - self.start_offset - self.empty


# Not `Any`: of that, a broker would decode whatever it is sent before it can check rights, at 50 times its size.
SettingValue = bool | int | float | str | None


class TopicInfo(msgspec.Struct, frozen=True):
    """`partitions` has all there are, unless it was asked for what is known: then those are left out that nobody leads
    at the moment, and `unknown` has their numbers."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    settings: dict[str, Any]
    created_us: int
    # Delayed messages that are not due yet.
    scheduled: int
    # Made with the topic: one that was deleted and made again has another. Empty if the broker is older than ids.
    id: str = ""
    # Partitions there are, whoever leads them. 0 if the broker is older than this.
    count: int = 0

    @property
    def unknown(self) -> tuple[int, ...]:
        known = {one.number for one in self.partitions}
        return tuple(number for number in range(self.count) if number not in known)


class CreateTopic(Request[TopicInfo], frozen=True):
    """`owner` is for nodes of a cluster: a broker with keys puts the client's principal there."""

    name: str
    partitions: int | None
    settings: Mapping[str, SettingValue]
    owner: str = ""


class ChangeTopic(Request[TopicInfo], frozen=True):
    name: str
    partitions: int | None
    settings: Mapping[str, SettingValue]


class DeleteTopic(Request[None], frozen=True):
    name: str


class DescribeTopic(Request[TopicInfo], frozen=True):
    """Of none of its partitions (an empty tuple): any node of a cluster knows its settings, and how many it has."""

    name: str
    partitions: tuple[int, ...] | None = None
    # Without those that nobody leads, rather than not at all.
    partial: bool = False


class ListTopics(Request[list[TopicInfo] | Listed[TopicInfo]], frozen=True):
    """By name, those behind `after`. With `names`, those of them that exist, whatever `after` is."""

    partial: bool = False
    after: str | None = None
    limit: int = PAGE_MAX
    names: tuple[str, ...] | None = None


class FindOffsets(Request[list[int]], frozen=True):
    """Of each partition: where it starts, where it ends, or what was appended first at a time or after it."""

    topic: str
    at: Literal["earliest", "latest"] | int
    partitions: tuple[int, ...] | None = None


class Archived(Request[TopicInfo], frozen=True):
    """Below these offsets, by partition, everything of the topic with this id is in an archive; None for the one of
    that name, whichever it is. What was said before is taken back, where it was more, only if it `lowers`."""

    topic: str
    topic_id: str | None
    offsets: dict[int, int]
    lowers: bool = False


class ArchiveInfo(msgspec.Struct, frozen=True):
    """`place` is where the broker says that its archive is, a directory or a URI; None if it says nothing."""

    topic_id: str
    place: str | None
    # Of each partition, as in PartitionInfo. Empty if the broker is older than that.
    whole_from: tuple[int, ...] = ()


class FindArchive(Request[ArchiveInfo], frozen=True):
    """Who reads a topic needs its id to find it in an archive, and must know what only an archive can have."""

    topic: str
    partitions: tuple[int, ...] | None = None


# --- groups -------------------------------------------------------------------------------------------------


class GroupInfo(msgspec.Struct, frozen=True):
    """`lag` has, for each topic, the messages not done in each partition; `members` what each of them may lease from.

    In a group whose assignment is shared, every member may lease from everything. `partitions` has, for each topic, the
    numbers of the partitions that `lag` is of, in its order. A node of a cluster tells of those that it leads, and of
    members only if it looks after them. `unknown` has the numbers of those that nobody leads at the moment, if it was
    asked for what is known; of a node, those of any topic that it leads and does not serve yet.
    """

    name: str
    settings: dict[str, Any]
    created_us: int
    lag: dict[str, list[int]]
    members: dict[str, list[tuple[str, int]]]
    partitions: dict[str, list[int]] = {}
    unknown: dict[str, list[int]] = {}

    def lags_of(self, topic: str) -> list[int | None]:
        """For each partition there is; None where nobody leads it."""
        known = dict(zip(self.partitions.get(topic) or range(len(self.lag[topic])), self.lag[topic], strict=True))
        return [known.get(number) for number in range(len(known) + len(self.unknown.get(topic, ())))]


def not_known(*infos: GroupInfo) -> dict[str, list[int]]:
    """Partitions that any of them does not know of: what was asked between two of them may lack what is in these."""
    topics = sorted({topic for info in infos for topic in info.unknown})
    return {topic: sorted({number for info in infos for number in info.unknown.get(topic, ())}) for topic in topics}


class CreateGroup(Request[GroupInfo], frozen=True):
    """`owner` as of a topic; so it is of a replay and of a schedule."""

    name: str
    settings: Mapping[str, SettingValue]
    owner: str = ""


class ChangeGroup(Request[GroupInfo], frozen=True):
    name: str
    settings: Mapping[str, SettingValue]


class DeleteGroup(Request[None], frozen=True):
    name: str


class DescribeGroup(Request[GroupInfo], frozen=True):
    """`partitions` are by topic; without them, of the topics that the group has asked for messages of."""

    name: str
    partitions: dict[str, tuple[int, ...]] | None = None
    # Without the lag of partitions that nobody leads, rather than not at all.
    partial: bool = False
    # The node that answers must know at least what was decided up to this revision of the cluster's metadata.
    revision: int = 0


class ListGroups(Request[list[GroupInfo] | Listed[GroupInfo]], frozen=True):
    """As `ListTopics`."""

    partial: bool = False
    revision: int = 0
    after: str | None = None
    limit: int = PAGE_MAX
    names: tuple[str, ...] | None = None


class Seek(Request[None], frozen=True):
    """To one of the three."""

    group: str
    topic: str
    to: Literal["earliest", "latest"] | None
    time_us: int | None
    offset: int | None
    partition: int | None
    partitions: tuple[int, ...] | None = None


class ParkedKey(msgspec.Struct, frozen=True):
    """A key that waits for somebody to release it, since the message at `offset` was given up; None is all keys."""

    topic: str
    partition: int
    key: bytes | None
    offset: int
    since_us: int
    reason: str


class ListParkedKeys(Request[list[ParkedKey] | Listed[ParkedKey]], frozen=True):
    """By topic, partition and offset. `partitions` are by topic."""

    group: str
    partitions: dict[str, tuple[int, ...]] | None = None
    # Without partitions that nobody leads, rather than not at all.
    partial: bool = False
    after: str | None = None
    limit: int = PAGE_MAX


class ReleaseKey(Request[int], frozen=True):
    """The reply is in how many partitions it was parked."""

    group: str
    topic: str
    key: bytes | None
    partition: int | None
    partitions: tuple[int, ...] | None = None


class Replay(Request[int], frozen=True):
    """A new group that gets the messages of a time, or of ranges of offsets, and nothing else: how many."""

    topic: str
    group: str
    from_us: int | None
    to_us: int | None
    offsets: dict[int, tuple[int, int]] | None
    delays: bool
    lanes: bool
    settings: Mapping[str, SettingValue]
    owner: str = ""


# --- messages that come later -------------------------------------------------------------------------------


class Scheduled(msgspec.Struct, frozen=True):
    """A delayed message that is not due yet."""

    id: str
    deliver_at: int
    message: Message


class ListScheduled(Request[list[Scheduled] | Listed[Scheduled]], frozen=True):
    """By time, then by partition and offset."""

    topic: str
    limit: int
    partitions: tuple[int, ...] | None = None
    after: str | None = None


class GetScheduled(Request[Scheduled], frozen=True):
    id: str


class CancelScheduled(Request[None], frozen=True):
    id: str


class Reschedule(Request[None], frozen=True):
    id: str
    deliver_at: int


class Schedule(msgspec.Struct, frozen=True):
    """A message that comes again and again. `due_us` is when it comes next, and `pending` the id it has then."""

    name: str
    topic: str
    cron: str
    timezone: str
    message: Message
    created_us: int
    due_us: int
    pending: str


class CreateSchedule(Request[Schedule], frozen=True):
    name: str
    topic: str
    cron: str
    timezone: str
    message: Message
    owner: str = ""


class ListSchedules(Request[list[Schedule] | Listed[Schedule]], frozen=True):
    """By name."""

    after: str | None = None
    limit: int = PAGE_MAX


class DeleteSchedule(Request[None], frozen=True):
    name: str


# --- dead letters -------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True):
    """One attempt that did not end well."""

    attempt: int
    leased_us: int
    failed_us: int
    consumer: str
    reason: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that a group has given up.

    `id` is where the letter is, `original` where the message was; `round` counts how often that was given up.
    """

    id: str
    original: str
    group: str
    reason: str
    attempts: int
    failures: tuple[Failure, ...]
    round: int
    published_us: int
    died_us: int
    is_settled: bool
    message: Message


class Where(msgspec.Struct, frozen=True):
    """Which dead letters are meant: those that fit everything that is given."""

    group: str | None = None
    ids: tuple[str, ...] | None = None
    key: bytes | None = None
    reason_contains: str | None = None
    since_us: int | None = None
    until_us: int | None = None


class ListDeadLetters(Request[list[DeadLetter] | Listed[DeadLetter]], frozen=True):
    """By partition and offset. `partitions` are those of the dead-letter topic, as in `Redrive` and `Discard`."""

    topic: str
    where: Where
    with_settled: bool
    limit: int
    partitions: tuple[int, ...] | None = None
    after: str | None = None


class GetDeadLetter(Request[DeadLetter], frozen=True):
    id: str


class Redriven(msgspec.Struct, frozen=True):
    """What a redrive did, or would do, by the ids of the letters.

    `refused` were given up so often that another attempt would fail as well, or were deleted while a consumer had them:
    their letters are empty. `already` were redriven before.
    """

    in_place: tuple[str, ...]
    copied: tuple[str, ...]
    refused: tuple[str, ...]
    already: tuple[str, ...]


class Redrive(Request[Redriven], frozen=True):
    topic: str
    where: Where
    dry_run: bool
    rate: float | None
    partitions: tuple[int, ...] | None = None


class Discard(Request[int], frozen=True):
    topic: str
    where: Where
    partitions: tuple[int, ...] | None = None


# --- what happened ------------------------------------------------------------------------------------------


class Found(msgspec.Struct, frozen=True):
    append_time: int
    message: Message


class GetMessage(Request[Found], frozen=True):
    id: str


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a message. `until_us` is when something follows from it by itself."""

    time_us: int
    what: str
    group: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    reason: str | None = None
    until_us: int | None = None
    place: str | None = None


class Trace(msgspec.Struct, frozen=True):
    id: str
    steps: tuple[Step, ...]

    def latency_us(self, group: str) -> int | None:
        """From its publishing to its acknowledgement by that group."""
        for step in self.steps:
            if step.group == group and step.what == "ACKNOWLEDGED":
                return step.time_us - self.steps[0].time_us
        return None


class GetTrace(Request[Trace], frozen=True):
    id: str


class Why(msgspec.Struct, frozen=True):
    """`code` for machines, `answer` for people."""

    code: str
    answer: str


class FindDeliveries(Request[list[tuple[int, int]]], frozen=True):
    """Where the deliveries log of each partition starts, and where it ends: all that has happened by now is before."""

    topic: str
    partitions: tuple[int, ...] | None = None


class Happenings(msgspec.Struct, frozen=True):
    """A stretch of a deliveries log, column by column: what happened, one after the other.

    `offsets` are the messages it happened to, as a 64-bit Roaring bitmap in its portable serialisation; None if it
    happened to no message in particular.
    """

    next_offset: int
    event_offset: list[int]
    time_us: list[int]
    event: list[str]
    group: list[str | None]
    offsets: list[bytes | None]
    consumer: list[str | None]
    lease: list[int | None]
    attempt: list[int | None]
    reason: list[str | None]
    until_us: list[int | None]


class ReadDeliveries(Request[Happenings], frozen=True):
    """From `offset` of the deliveries log on, before `until`; `bytes_max` is how much of the log is read."""

    topic: str
    partition: int
    offset: int
    until: int
    bytes_max: int


class AskWhy(Request[Why], frozen=True):
    id: str
    group: str


class StateAt(msgspec.Struct, frozen=True):
    """A group in one partition as it was at some time. The sets are of offsets."""

    partition: int
    floor: int
    end_offset: int
    unacknowledged: BitMap64
    leased: BitMap64
    dead: BitMap64


class GetStateAt(Request[list[StateAt]], frozen=True):
    group: str
    topic: str
    time_us: int
    partitions: tuple[int, ...] | None = None
