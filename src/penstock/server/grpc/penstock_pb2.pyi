from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]

class Edge(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_UNSPECIFIED: _ClassVar[Edge]
    EDGE_EARLIEST: _ClassVar[Edge]
    EDGE_LATEST: _ClassVar[Edge]
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
PRIORITY_LOW: Priority
EDGE_UNSPECIFIED: Edge
EDGE_EARLIEST: Edge
EDGE_LATEST: Edge

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("value", "key", "headers", "priority", "delay_us", "deliver_at_us", "ttl_us", "timestamp_us", "tombstone")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_US_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    priority: Priority
    delay_us: int
    deliver_at_us: int
    ttl_us: int
    timestamp_us: int
    tombstone: bool
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., priority: _Optional[_Union[Priority, str]] = ..., delay_us: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., ttl_us: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., tombstone: _Optional[bool] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("id", "topic", "partition", "offset", "value", "key", "headers", "priority", "timestamp_us", "append_time_us", "deliver_at_us", "expires_at_us", "tombstone")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    priority: Priority
    timestamp_us: int
    append_time_us: int
    deliver_at_us: int
    expires_at_us: int
    tombstone: bool
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., priority: _Optional[_Union[Priority, str]] = ..., timestamp_us: _Optional[int] = ..., append_time_us: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ..., tombstone: _Optional[bool] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "details_json")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    details_json: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., details_json: _Optional[str] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topic", "message", "partition", "acks")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message: NewMessage
    partition: int
    acks: str
    def __init__(self, topic: _Optional[str] = ..., message: _Optional[_Union[NewMessage, _Mapping]] = ..., partition: _Optional[int] = ..., acks: _Optional[str] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("id", "partition", "offset", "append_time_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    partition: int
    offset: int
    append_time_us: int
    def __init__(self, id: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., append_time_us: _Optional[int] = ...) -> None: ...

class PublishBatchRequest(_message.Message):
    __slots__ = ("topic", "messages", "partition", "acks")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    partition: int
    acks: str
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., partition: _Optional[int] = ..., acks: _Optional[str] = ...) -> None: ...

class PublishBatchReply(_message.Message):
    __slots__ = ("partitions", "offsets", "failure")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ReceivedMessage(_message.Message):
    __slots__ = ("message", "attempt", "receipt", "deadline_us")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    message: StoredMessage
    attempt: int
    receipt: bytes
    deadline_us: int
    def __init__(self, message: _Optional[_Union[StoredMessage, _Mapping]] = ..., attempt: _Optional[int] = ..., receipt: _Optional[bytes] = ..., deadline_us: _Optional[int] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("group", "consumer", "topics", "max_messages", "wait_us", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    max_messages: int
    wait_us: int
    settings: GroupSettings
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., max_messages: _Optional[int] = ..., wait_us: _Optional[int] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class PollReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ReceivedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ReceivedMessage, _Mapping]]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("subscribe", "credit", "ack", "nack", "reject", "release", "extend")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscription
    credit: Credit
    ack: AckRequest
    nack: NackRequest
    reject: RejectRequest
    release: ReleaseRequest
    extend: ExtendRequest
    def __init__(self, subscribe: _Optional[_Union[Subscription, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., ack: _Optional[_Union[AckRequest, _Mapping]] = ..., nack: _Optional[_Union[NackRequest, _Mapping]] = ..., reject: _Optional[_Union[RejectRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., extend: _Optional[_Union[ExtendRequest, _Mapping]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("group", "consumer", "topics", "credit", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    credit: int
    settings: GroupSettings
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., credit: _Optional[int] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class SubscribeReply(_message.Message):
    __slots__ = ("subscribed", "delivered", "answered")
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    subscribed: Subscribed
    delivered: PollReply
    answered: AnswerReply
    def __init__(self, subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., delivered: _Optional[_Union[PollReply, _Mapping]] = ..., answered: _Optional[_Union[AnswerReply, _Mapping]] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("group", "receipts", "reason", "delay_us")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELAY_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    reason: str
    delay_us: int
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ..., reason: _Optional[str] = ..., delay_us: _Optional[int] = ...) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("group", "receipts", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    reason: str
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("group", "receipts", "visibility_us")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    visibility_us: int
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ..., visibility_us: _Optional[int] = ...) -> None: ...

class AnswerReply(_message.Message):
    __slots__ = ("done", "failed")
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    done: int
    failed: _containers.RepeatedCompositeFieldContainer[NotAnswered]
    def __init__(self, done: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[NotAnswered, _Mapping]]] = ...) -> None: ...

class NotAnswered(_message.Message):
    __slots__ = ("receipt", "failure")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    failure: Failure
    def __init__(self, receipt: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "consumer")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: str
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("retention_age_us", "retention_bytes", "cleanup", "tombstone_age_us", "max_delay_us", "dead_letters", "archive", "durability", "sync_interval_us", "replicas", "min_isr")
    RETENTION_AGE_US_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_AGE_US_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_US_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    SYNC_INTERVAL_US_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MIN_ISR_FIELD_NUMBER: _ClassVar[int]
    retention_age_us: int
    retention_bytes: int
    cleanup: str
    tombstone_age_us: int
    max_delay_us: int
    dead_letters: bool
    archive: str
    durability: str
    sync_interval_us: int
    replicas: int
    min_isr: int
    def __init__(self, retention_age_us: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., cleanup: _Optional[str] = ..., tombstone_age_us: _Optional[int] = ..., max_delay_us: _Optional[int] = ..., dead_letters: _Optional[bool] = ..., archive: _Optional[str] = ..., durability: _Optional[str] = ..., sync_interval_us: _Optional[int] = ..., replicas: _Optional[int] = ..., min_isr: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "partitions", "settings", "created_us", "scheduled", "id", "unknown")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    settings: TopicSettings
    created_us: int
    scheduled: int
    id: str
    unknown: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., created_us: _Optional[int] = ..., scheduled: _Optional[int] = ..., id: _Optional[str] = ..., unknown: _Optional[_Iterable[int]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("number", "start_offset", "end_offset", "bytes", "archived", "whole_from")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FROM_FIELD_NUMBER: _ClassVar[int]
    number: int
    start_offset: int
    end_offset: int
    bytes: int
    archived: int
    whole_from: int
    def __init__(self, number: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., archived: _Optional[int] = ..., whole_from: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTopicsReply(_message.Message):
    __slots__ = ("topics", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next: str
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ArchivedRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "offsets")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class FindOffsetsRequest(_message.Message):
    __slots__ = ("topic", "edge", "time_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    topic: str
    edge: Edge
    time_us: int
    def __init__(self, topic: _Optional[str] = ..., edge: _Optional[_Union[Edge, str]] = ..., time_us: _Optional[int] = ...) -> None: ...

class FindOffsetsReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("start", "visibility_us", "max_retries", "backoff_initial_us", "backoff_factor", "backoff_max_us", "backoff_jitter", "ordering", "on_poison", "assignment", "lanes", "max_in_flight", "session_us")
    START_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_US_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_INITIAL_US_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FACTOR_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_US_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_JITTER_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    ON_POISON_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SESSION_US_FIELD_NUMBER: _ClassVar[int]
    start: str
    visibility_us: int
    max_retries: int
    backoff_initial_us: int
    backoff_factor: float
    backoff_max_us: int
    backoff_jitter: float
    ordering: str
    on_poison: str
    assignment: str
    lanes: str
    max_in_flight: int
    session_us: int
    def __init__(self, start: _Optional[str] = ..., visibility_us: _Optional[int] = ..., max_retries: _Optional[int] = ..., backoff_initial_us: _Optional[int] = ..., backoff_factor: _Optional[float] = ..., backoff_max_us: _Optional[int] = ..., backoff_jitter: _Optional[float] = ..., ordering: _Optional[str] = ..., on_poison: _Optional[str] = ..., assignment: _Optional[str] = ..., lanes: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., session_us: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "settings", "created_us", "lag", "members", "is_replay")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    IS_REPLAY_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: GroupSettings
    created_us: int
    lag: _containers.RepeatedCompositeFieldContainer[Lag]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    is_replay: bool
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., created_us: _Optional[int] = ..., lag: _Optional[_Iterable[_Union[Lag, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., is_replay: _Optional[bool] = ...) -> None: ...

class Lag(_message.Message):
    __slots__ = ("topic", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[int]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("consumer", "assigned")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    assigned: _containers.RepeatedCompositeFieldContainer[Assigned]
    def __init__(self, consumer: _Optional[str] = ..., assigned: _Optional[_Iterable[_Union[Assigned, _Mapping]]] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: GroupSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups", "next")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    next: str
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: GroupSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("group", "topic", "edge", "time_us", "offset", "partition")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    edge: Edge
    time_us: int
    offset: int
    partition: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., edge: _Optional[_Union[Edge, str]] = ..., time_us: _Optional[int] = ..., offset: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class SeekReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplayRequest(_message.Message):
    __slots__ = ("topic", "group", "from_us", "to_us", "offsets", "delays", "lanes", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    TO_US_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELAYS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    from_us: int
    to_us: int
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    delays: bool
    lanes: bool
    settings: GroupSettings
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., from_us: _Optional[int] = ..., to_us: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., delays: _Optional[bool] = ..., lanes: _Optional[bool] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("partition", "first", "last")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first: int
    last: int
    def __init__(self, partition: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class ReplayReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListParkedKeysRequest(_message.Message):
    __slots__ = ("group", "after", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    after: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListParkedKeysReply(_message.Message):
    __slots__ = ("keys", "next")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ParkedKey]
    next: str
    def __init__(self, keys: _Optional[_Iterable[_Union[ParkedKey, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class ParkedKey(_message.Message):
    __slots__ = ("topic", "partition", "key", "offset", "since_us", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    key: bytes
    offset: int
    since_us: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., key: _Optional[bytes] = ..., offset: _Optional[int] = ..., since_us: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseKeyRequest(_message.Message):
    __slots__ = ("group", "topic", "key", "partition")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    key: bytes
    partition: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., key: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class ReleaseKeyReply(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class TraceMessageRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("id", "steps")
    ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, id: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("time_us", "what", "group", "consumer", "attempt", "reason", "until_us", "place")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    what: str
    group: str
    consumer: str
    attempt: int
    reason: str
    until_us: int
    place: str
    def __init__(self, time_us: _Optional[int] = ..., what: _Optional[str] = ..., group: _Optional[str] = ..., consumer: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., until_us: _Optional[int] = ..., place: _Optional[str] = ...) -> None: ...

class WhyMessageRequest(_message.Message):
    __slots__ = ("id", "group")
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    id: str
    group: str
    def __init__(self, id: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class Why(_message.Message):
    __slots__ = ("code", "answer")
    CODE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    code: str
    answer: str
    def __init__(self, code: _Optional[str] = ..., answer: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topic", "partition", "from_offset", "from_time_us", "to_offset", "to_time_us", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_US_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_TIME_US_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    from_offset: int
    from_time_us: int
    to_offset: int
    to_time_us: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., from_offset: _Optional[int] = ..., from_time_us: _Optional[int] = ..., to_offset: _Optional[int] = ..., to_time_us: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListScheduledRequest(_message.Message):
    __slots__ = ("topic", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetScheduledRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelScheduledRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelScheduledReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RescheduleRequest(_message.Message):
    __slots__ = ("id", "deliver_at_us", "delay_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    DELAY_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    deliver_at_us: int
    delay_us: int
    def __init__(self, id: _Optional[str] = ..., deliver_at_us: _Optional[int] = ..., delay_us: _Optional[int] = ...) -> None: ...

class RescheduleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateScheduleRequest(_message.Message):
    __slots__ = ("name", "topic", "cron", "timezone", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    cron: str
    timezone: str
    message: NewMessage
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., message: _Optional[_Union[NewMessage, _Mapping]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "topic", "cron", "timezone", "message", "created_us", "due_us", "pending")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    cron: str
    timezone: str
    message: NewMessage
    created_us: int
    due_us: int
    pending: str
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., message: _Optional[_Union[NewMessage, _Mapping]] = ..., created_us: _Optional[int] = ..., due_us: _Optional[int] = ..., pending: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchedulesReply(_message.Message):
    __slots__ = ("schedules", "next")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    next: str
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteScheduleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Where(_message.Message):
    __slots__ = ("group", "ids", "key", "reason_contains", "since_us", "until_us")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    key: bytes
    reason_contains: str
    since_us: int
    until_us: int
    def __init__(self, group: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., key: _Optional[bytes] = ..., reason_contains: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "where", "with_settled", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    WITH_SETTLED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    where: Where
    with_settled: bool
    limit: int
    def __init__(self, topic: _Optional[str] = ..., where: _Optional[_Union[Where, _Mapping]] = ..., with_settled: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "group", "reason", "attempts", "failures", "round", "died_us", "is_settled", "original")
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIED_US_FIELD_NUMBER: _ClassVar[int]
    IS_SETTLED_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_FIELD_NUMBER: _ClassVar[int]
    id: str
    group: str
    reason: str
    attempts: int
    failures: _containers.RepeatedCompositeFieldContainer[FailedAttempt]
    round: int
    died_us: int
    is_settled: bool
    original: StoredMessage
    def __init__(self, id: _Optional[str] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., attempts: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[FailedAttempt, _Mapping]]] = ..., round: _Optional[int] = ..., died_us: _Optional[int] = ..., is_settled: _Optional[bool] = ..., original: _Optional[_Union[StoredMessage, _Mapping]] = ...) -> None: ...

class FailedAttempt(_message.Message):
    __slots__ = ("attempt", "leased_us", "failed_us", "consumer", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASED_US_FIELD_NUMBER: _ClassVar[int]
    FAILED_US_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    leased_us: int
    failed_us: int
    consumer: str
    reason: str
    def __init__(self, attempt: _Optional[int] = ..., leased_us: _Optional[int] = ..., failed_us: _Optional[int] = ..., consumer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetDeadLetterRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("topic", "where", "dry_run", "rate")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    where: Where
    dry_run: bool
    rate: float
    def __init__(self, topic: _Optional[str] = ..., where: _Optional[_Union[Where, _Mapping]] = ..., dry_run: _Optional[bool] = ..., rate: _Optional[float] = ...) -> None: ...

class RedriveReply(_message.Message):
    __slots__ = ("in_place", "copied", "refused", "already")
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_FIELD_NUMBER: _ClassVar[int]
    in_place: _containers.RepeatedScalarFieldContainer[str]
    copied: _containers.RepeatedScalarFieldContainer[str]
    refused: _containers.RepeatedScalarFieldContainer[str]
    already: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, in_place: _Optional[_Iterable[str]] = ..., copied: _Optional[_Iterable[str]] = ..., refused: _Optional[_Iterable[str]] = ..., already: _Optional[_Iterable[str]] = ...) -> None: ...

class DiscardRequest(_message.Message):
    __slots__ = ("topic", "where")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    where: Where
    def __init__(self, topic: _Optional[str] = ..., where: _Optional[_Union[Where, _Mapping]] = ...) -> None: ...

class DiscardReply(_message.Message):
    __slots__ = ("discarded",)
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    discarded: int
    def __init__(self, discarded: _Optional[int] = ...) -> None: ...
