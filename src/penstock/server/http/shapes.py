"""What goes in and out, as JSON. The description at /openapi.json is made from these.

Bytes are base64, durations text with a unit ("5m"), times RFC 3339. What comes in with a field that is not here is
refused: a setting that was misspelt shall not be ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from penstock.broker.settings import PARTITIONS_MAX
from penstock.client.requests import PAGE_MAX, PartitionInfo
from penstock.server.http.failures import Failure

RECEIPTS_MAX = 10_000
POLL_MAX = 1_000

Duration = Annotated[
    str | int, Meta(description='How long, with its unit: "250ms", "30s", "5m", "1h30m"; 0 needs none.')
]
Time = Annotated[
    str | int, Meta(description='When: "2026-01-14T15:00:00Z" (RFC 3339), or microseconds since 1970 as a number.')
]
TimeShown = Annotated[str, Meta(description="RFC 3339, UTC, with microseconds.")]
TimeAsked = Annotated[str, Meta(description="RFC 3339, or microseconds since 1970.")]
Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX, description="The number of a partition, from 0 on.")]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Names = Annotated[list[str], Meta(min_length=1, max_length=1_000)]
Receipts = Annotated[
    list[str], Meta(min_length=1, max_length=RECEIPTS_MAX, description="As they came with the messages.")
]
Limit = Annotated[int, Meta(ge=1, le=1_000, description="At most so many.")]
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Items of a page, at most.")]
After = Annotated[str, Meta(description="The `next` of the page before; without it, the first page.")]
NextPage = Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]
As = Annotated[
    Literal["text", "json"] | None,
    Meta(description="Values as `text` or `json` where they are that; as base64 in `value` otherwise."),
]


class _In(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Out(msgspec.Struct):
    pass


class NoQuery(_In):
    pass


class PageQuery(_In):
    limit: PageLimit = PAGE_MAX
    after: After = ""


class Shown(_In):
    as_: As = msgspec.field(default=None, name="as")


# --- settings -----------------------------------------------------------------------------------------------


class Retention(_In):
    """How long messages are kept; null for no bound."""

    hours: Annotated[float | UnsetType | None, Meta(description="By age.")] = UNSET
    bytes: Annotated[int | UnsetType | None, Meta(description="By the size of each partition.")] = UNSET


class TopicSettings(_In):
    retention: Retention | UnsetType | None = UNSET
    cleanup: Annotated[str | UnsetType, Meta(description="delete, or compact: the last message of each key.")] = UNSET
    tombstone_age: Duration | UnsetType = UNSET
    max_delay: Duration | UnsetType = UNSET
    dead_letters: Annotated[bool | UnsetType, Meta(description="Whether messages given up go to a topic.")] = UNSET
    archive: Annotated[
        str | UnsetType, Meta(description="none, or required: nothing is deleted that is not archived.")
    ] = UNSET
    durability: Annotated[
        str | UnsetType,
        Meta(description="fsync, or interval: answered before it is on disk, and a power loss may take the last ones."),
    ] = UNSET
    sync_interval: Annotated[
        str | int | UnsetType,
        Meta(description='With interval: so long after a publish, at most, it is synced; from "1ms" to "10m".'),
    ] = UNSET
    replicas: Annotated[
        int | UnsetType | None,
        Meta(description="In a cluster: on how many nodes each partition is; null for 3, or as many as there are."),
    ] = UNSET
    min_isr: Annotated[
        int | UnsetType | None,
        Meta(description="In a cluster: how many replicas must be in sync to publish; null for 2 of 3, else 1."),
    ] = UNSET


class CreateTopic(TopicSettings, kw_only=True):
    """Settings may stand beside the name, or in `config`."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    config: TopicSettings | UnsetType = UNSET


class ChangeTopic(TopicSettings):
    """What is not named stays as it is. There can be more partitions, never fewer."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    config: TopicSettings | UnsetType = UNSET


class Backoff(_In):
    """How long a message waits before it is tried again."""

    initial: Duration | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    max: Duration | UnsetType = UNSET
    jitter: float | UnsetType = UNSET


class GroupSettings(_In):
    start: Annotated[str | UnsetType, Meta(description="earliest or latest.")] = UNSET
    visibility: Duration | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    ordering: Annotated[str | UnsetType, Meta(description="none, key or partition.")] = UNSET
    on_poison: Annotated[str | UnsetType, Meta(description="park, skip or block.")] = UNSET
    assignment: Annotated[str | UnsetType, Meta(description="sticky or shared.")] = UNSET
    lanes: Annotated[str | UnsetType, Meta(description="strict, weighted or none.")] = UNSET
    max_in_flight: int | UnsetType = UNSET
    session: Duration | UnsetType = UNSET


class CreateGroup(GroupSettings, kw_only=True):
    """If it is there already, it must have these settings."""

    name: str


class ChangeGroup(GroupSettings):
    """What is not named stays as it is."""


# --- topics -------------------------------------------------------------------------------------------------


class Topic(_Out):
    name: str
    partitions: tuple[PartitionInfo, ...]
    settings: dict[str, Any]
    created_at: TimeShown
    scheduled: Annotated[int, Meta(description="Delayed messages that are not due yet.")]
    id: Annotated[str, Meta(description="Of the topic: one that was deleted and made again has another.")]
    unknown: Annotated[
        tuple[int, ...],
        Meta(description="Partitions that nobody in the cluster leads at the moment. They are not among the others."),
    ] = ()


class Topics(_Out):
    topics: list[Topic]
    next: NextPage = None


class Archived(_In, kw_only=True):
    """Below these offsets, by partition, everything is in an archive."""

    offsets: dict[int, Offset]
    topic_id: Annotated[
        str | None, Meta(description="The id of the topic that was archived; otherwise the one of that name now.")
    ] = None


# --- messages in --------------------------------------------------------------------------------------------


class Content(_In):
    value: Annotated[
        str | UnsetType | None,
        Meta(
            description="Base64; null is a tombstone. Without `encoding` it must be of UTF-8.",
            extra_json_schema={"contentEncoding": "base64"},
        ),
    ] = UNSET
    encoding: Annotated[
        Literal["base64"] | None, Meta(description="With value: base64 of any bytes, not only of UTF-8.")
    ] = None
    text: Annotated[str | UnsetType, Meta(description="Instead of value: stored as UTF-8.")] = UNSET
    json: Annotated[Raw | UnsetType, Meta(description="Instead of value: any JSON, stored as it is written.")] = UNSET
    key: str | None = None
    key_base64: Annotated[bytes | None, Meta(description="Instead of key, for one that is not text.")] = None
    headers: dict[str, str] | None = None
    headers_base64: Annotated[
        list[tuple[str, bytes]] | None, Meta(description="Instead of headers: names and bytes, also twice the same.")
    ] = None
    priority: Annotated[str | int, Meta(description="high, normal or low.")] = "normal"


class Publish(Content):
    """A message: exactly one of value, text and json; the rest may be left out."""

    delay: Duration | None = None
    deliver_at: Time | None = None
    ttl: Duration | None = None
    expires_at: Time | None = None
    timestamp: Time | None = None
    partition: Partition | None = None
    acks: Annotated[
        Literal["all", "leader"],
        Meta(
            description="In a cluster: on which disks it is when it is answered. One of the leader alone may be lost."
        ),
    ] = "all"


class PublishBatch(_In):
    messages: Annotated[list[Publish], Meta(min_length=1)]


class Published(_Out):
    """On disk. The timestamp is when it was appended."""

    id: str
    partition: int
    offset: int
    timestamp: TimeShown


class Result(_Out):
    """As for a message that is published alone; or what is wrong with it."""

    id: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: TimeShown | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


class PublishedBatch(_Out):
    """One result a message, in their order."""

    results: list[Result]


# --- messages out -------------------------------------------------------------------------------------------


class Message(_Out, kw_only=True):
    """`value` is base64, and null for a tombstone. `timestamp` is the producer's, `append_time` the broker's."""

    id: str
    topic: str
    partition: int
    offset: int
    key: str | None
    key_base64: Annotated[bytes | UnsetType, Meta(description="Of a key that is not text.")] = UNSET
    value: bytes | UnsetType | None = UNSET
    encoding: Annotated[
        Literal["base64"] | UnsetType, Meta(description="If the value is not UTF-8, as `value` of a publish needs it.")
    ] = UNSET
    text: Annotated[str | UnsetType, Meta(description="Instead of value, with ?as=text.")] = UNSET
    json: Annotated[Raw | UnsetType, Meta(description="Instead of value, with ?as=json.")] = UNSET
    headers: dict[str, str]
    headers_base64: Annotated[
        list[tuple[str, bytes]] | UnsetType, Meta(description="All of them, if some are not text or come twice.")
    ] = UNSET
    timestamp: TimeShown
    append_time: TimeShown | UnsetType = UNSET
    priority: Literal["high", "normal", "low"]
    deliver_at: TimeShown | UnsetType = UNSET
    expires_at: TimeShown | UnsetType = UNSET


class Received(Message, kw_only=True):
    attempt: Annotated[int, Meta(description="Which delivery to this group it is, from 1 on.")]
    receipt: Annotated[str, Meta(description="To answer for it with.")]


Next = Annotated[
    str, Meta(pattern=r"^[0-9]{1,5}:[0-9]{1,18}$", description="That of the last reply, to go on from there.")
]


class Log(_Out):
    messages: list[Message]
    next_offset: Annotated[int | None, Meta(description="Where to go on, if a partition was named.")]
    next: Annotated[str | None, Meta(description="Where to go on, as `next`, if none was. None: that was all of it.")]


class ReadQuery(Shown):
    partition: Annotated[Partition | None, Meta(description="All of them, one after the other, if none is named.")] = (
        None
    )
    offset: Offset | None = None
    next: Next | None = None
    from_time: TimeAsked | None = None
    to_time: TimeAsked | None = None
    include_deleted: Annotated[
        bool, Meta(description="What the log no longer has is read from the server's archive.")
    ] = False
    limit: Limit = 100


# --- consuming ----------------------------------------------------------------------------------------------


class Poll(_In, kw_only=True):
    """Makes the group if it is not there; settings that are given must be those it has."""

    topics: str | Names
    consumer: Annotated[str, Meta(description="Its name in the group. Those of one name are one member.")] = "http"
    max: Annotated[int, Meta(ge=1, le=POLL_MAX)] = 100
    wait: Annotated[Duration, Meta(description="How long to wait for a first message, at most 5m.")] = 0
    visibility: Annotated[Duration | None, Meta(description="How long they are yours, if not as the group has it.")] = (
        None
    )
    settings: GroupSettings | UnsetType = UNSET


class Polled(_Out):
    messages: list[Received]


class StreamQuery(Shown, kw_only=True):
    topics: Annotated[str, Meta(description="Names, with commas between them.")]
    consumer: str = "http"
    max_in_flight: Annotated[
        int, Meta(ge=1, le=POLL_MAX, description="So many come without having been answered for.")
    ] = 100
    visibility: str | None = None


class Ack(_In):
    receipts: Receipts


class Nack(_In):
    receipts: Receipts
    delay: Annotated[Duration | None, Meta(description="If not by the group's back-off.")] = None
    reason: str = ""


class Reject(_In):
    receipts: Receipts
    reason: str = ""


class Extend(_In):
    """For everything that was leased together with these."""

    receipts: Receipts
    visibility: Annotated[Duration | None, Meta(description="From now on; if not as the group has it.")] = None


class NotAnswered(_Out):
    receipt: str
    code: str
    message: str


class Answered(_Out):
    done: int
    failed: list[NotAnswered]


# --- groups -------------------------------------------------------------------------------------------------


class Assigned(_Out):
    topic: str
    partition: int


class Group(_Out):
    name: str
    settings: dict[str, Any]
    created_at: TimeShown
    lag: Annotated[
        dict[str, list[int | None]],
        Meta(description="Messages not done, by topic, for each partition; null where nobody serves it at the moment."),
    ]
    members: Annotated[dict[str, list[Assigned]], Meta(description="What each member may lease from.")]


class Groups(_Out):
    groups: list[Group]
    next: NextPage = None


class Seek(_In, kw_only=True):
    topic: str
    to: Annotated[str | int | None, Meta(description="earliest, latest, a time (RFC 3339), or an offset.")] = None
    time: Annotated[Time | None, Meta(description="Instead of `to`.")] = None
    partition: Partition | None = None


class ParkedKey(_Out, kw_only=True):
    """A key that waits to be released, since the message was given up; null is all of the partition."""

    topic: str
    partition: int
    key: str | None
    key_base64: bytes | UnsetType = UNSET
    message: Annotated[str, Meta(description="The id of the message that was given up.")]
    since: TimeShown
    reason: str


class ParkedKeys(_Out):
    keys: list[ParkedKey]
    unknown: Annotated[
        dict[str, list[int]],
        Meta(description="By topic, partitions that nobody serves at the moment. What is parked there is not known."),
    ] = {}
    next: NextPage = None


class ReleaseKey(_In, kw_only=True):
    topic: str
    key: Annotated[str | None, Meta(description="Without one, all of the partition.")] = None
    key_base64: bytes | None = None
    partition: Partition | None = None


class Released(_Out):
    released: Annotated[int, Meta(description="In how many partitions.")]


class Replay(_In, kw_only=True):
    """A new group that gets what is said here and nothing else: a time, or offsets [first, last) by partition."""

    topic: str
    from_time: Time | None = None
    to_time: Time | None = None
    offsets: dict[int, tuple[Offset, Offset]] | None = None
    delays: bool = False
    lanes: bool = False
    settings: GroupSettings | UnsetType = UNSET


class Replayed(_Out):
    messages: int


# --- later --------------------------------------------------------------------------------------------------


class ListQuery(Shown):
    limit: Limit = 100
    after: After = ""


class ScheduledMessages(_Out):
    scheduled: Annotated[list[Message], Meta(description="The next one due first.")]
    next: NextPage = None


class Reschedule(_In):
    """One of them. A time that has come means at once."""

    deliver_at: Time | None = None
    delay: Duration | None = None


class CreateSchedule(Content, kw_only=True):
    name: str
    topic: str
    cron: Annotated[str, Meta(description='Five fields, "@hourly" or the like, or "every 90s".')]
    timezone: str = "UTC"


class Schedule(_Out):
    name: str
    topic: str
    cron: str
    timezone: str
    created_at: TimeShown
    due: TimeShown
    pending: Annotated[str, Meta(description="The id of the message that comes next.")]
    key: str | None
    priority: str


class Schedules(_Out):
    schedules: list[Schedule]
    next: NextPage = None


# --- dead letters -------------------------------------------------------------------------------------------


class LettersQuery(Shown):
    group: str | None = None
    ids: Annotated[str | None, Meta(description="Of letters or of messages, with commas between them.")] = None
    key: str | None = None
    reason: Annotated[str | None, Meta(description="A part of it.")] = None
    since: TimeAsked | None = None
    until: TimeAsked | None = None
    with_settled: Annotated[bool, Meta(description="Also those that were redriven or discarded.")] = False
    limit: Limit = 100
    after: After = ""


class Where(_In):
    """Those that fit everything that is given."""

    ids: list[str] | None = None
    key: str | None = None
    key_base64: bytes | None = None
    reason: Annotated[str | None, Meta(description="A part of it.")] = None
    since: Time | None = None
    until: Time | None = None


class Redrive(_In):
    group: str | None = None
    where: Where | None = None
    dry_run: bool = False
    rate: Annotated[float | None, Meta(description="No more than so many a second.")] = None


class Discard(_In):
    group: str | None = None
    where: Where | None = None


class Discarded(_Out):
    discarded: int


class FailedAttempt(_Out):
    attempt: int
    leased_at: TimeShown
    failed_at: TimeShown
    consumer: str
    reason: str


class DeadLetter(_Out):
    id: str
    original: Annotated[str, Meta(description="The id of the message that was given up.")]
    group: str
    reason: str
    attempts: int
    failures: list[FailedAttempt]
    round: Annotated[int, Meta(description="How often it was given up.")]
    published_at: TimeShown
    died_at: TimeShown
    is_settled: bool
    message: Message


class DeadLetters(_Out):
    dead_letters: list[DeadLetter]
    next: NextPage = None


# --- what happened ------------------------------------------------------------------------------------------


class Step(_Out):
    time: TimeShown
    what: str
    group: str | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    until: TimeShown | UnsetType = UNSET
    place: str | UnsetType = UNSET


class Trace(_Out):
    id: str
    steps: list[Step]


class WhyQuery(_In):
    group: str


class Status(_Out):
    status: str
    etcd: Annotated[
        str | UnsetType, Meta(description="unreachable: a node of a cluster goes on without it, and can't be replaced.")
    ] = UNSET


class Node(_Out, kw_only=True):
    """The one that answers has its times; one of a cluster has its addresses, as others reach it, unless it is gone."""

    name: str
    version: str | UnsetType = UNSET
    started_at: TimeShown | UnsetType = UNSET
    now: TimeShown | UnsetType = UNSET
    is_alive: bool = True
    leads: Annotated[int, Meta(description="Partitions that it leads, as far as one may know of their topics.")]
    replicas: Annotated[int, Meta(description="Copies of partitions that it has, those that it leads included.")]
    native: str | UnsetType = UNSET
    http: str | UnsetType = UNSET
    grpc: str | UnsetType = UNSET
    rack: str | UnsetType = UNSET


class Cluster(_Out, kw_only=True):
    mode: Annotated[str, Meta(description="single: one process has all the data. cluster: it is one of some nodes.")]
    node: Annotated[str, Meta(description="The one that answers.")]
    nodes: list[Node]
    topics: int
    partitions: int
    groups: int
    id: Annotated[str | UnsetType, Meta(description="Of a cluster.")] = UNSET
    controller: Annotated[str | UnsetType, Meta(description="The node that elects leaders, if there is one.")] = UNSET
    etcd: Annotated[
        str | UnsetType,
        Meta(
            description="Of a cluster, as the node that answers sees it: reachable, or unreachable: then nothing can "
            "be changed, and a node that fails is not replaced."
        ),
    ] = UNSET
    without_leader: Annotated[int, Meta(description="Partitions that nobody leads at the moment.")]
    under_replicated: Annotated[int, Meta(description="Partitions of which a copy is away, or behind.")]
    under_min_isr: Annotated[
        int,
        Meta(description="Those of them with fewer copies in sync than their topic demands: they take no messages."),
    ]


class PlacementQuery(_In):
    topic: str | None = None
    under_replicated: Annotated[bool, Meta(description="Only those of which a copy is away, or behind.")] = False
    under_min_isr: Annotated[bool, Meta(description="Only those with too few in sync to take messages.")] = False


class PlacedPartition(_Out):
    topic: str
    partition: int
    leader: Annotated[str | None, Meta(description="null while nobody leads it.")]
    epoch: Annotated[int, Meta(description="A larger one is a later leader; 0 without a cluster.")]
    replicas: Annotated[list[str], Meta(description="The nodes that have a copy, the preferred leader first.")]
    in_sync: Annotated[
        list[str],
        Meta(
            description="Those of them that are there, and have all that was acknowledged, by what is in etcd: one "
            "that has died a moment ago, or hangs, is still among them."
        ),
    ]
    min_isr: Annotated[int, Meta(description="With fewer in sync, nothing can be published to it.")]


class Placement(_Out):
    partitions: list[PlacedPartition]
