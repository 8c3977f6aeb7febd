"""Messages as the proto has them, from and to those of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec

from penstock.batch import Batch
from penstock.broker.ids import MessageId
from penstock.client.rows import StoredMessage
from penstock.client.transport import Delivery
from penstock.client.words import MessageFields, message_of
from penstock.clock import Instant
from penstock.errors import InvalidMessage
from penstock.message import Message
from penstock.server import receipts
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.parcels import rows_of
from penstock.server.receipts import Place

# Messages with headers or times, of a batch: 3 ms.
_ROWS_AT_ONCE = 100

# --- in -----------------------------------------------------------------------------------------------------


def message_in(given: pb.NewMessage, now_us: int) -> Message:
    fields: MessageFields = {}
    if given.HasField("key"):
        fields["key"] = given.key
    if given.headers:
        fields["headers"] = [(header.name, header.value) for header in given.headers]
    if given.delay_us:
        fields["delay"] = timedelta(microseconds=given.delay_us)
    if given.deliver_at_us:
        fields["deliver_at"] = given.deliver_at_us
    if given.ttl_us:
        fields["ttl"] = timedelta(microseconds=given.ttl_us)
    if given.timestamp_us:
        fields["timestamp"] = given.timestamp_us
    if given.priority:
        fields["priority"] = int(given.priority)
    if given.tombstone and given.value:
        raise InvalidMessage("a tombstone is a message without a value", field="tombstone")
    return message_of(None if given.tombstone else given.value, now_us, fields)


async def batch_in(given: Sequence[pb.NewMessage], now_us: int) -> Batch:
    """Those with nothing but a value and a key are columns at once. Of the others a few at a time: they take long."""
    if any(map(_is_special, given)):
        parts = []
        for at in range(0, len(given), _ROWS_AT_ONCE):
            rows = given[at : at + _ROWS_AT_ONCE]
            parts.append(Batch.from_messages([message_in(one, now_us) for one in rows], now_us))
            if len(given) > _ROWS_AT_ONCE:
                await asyncio.sleep(0)
        return Batch.concat(parts)
    keys = [one.key if one.HasField("key") else None for one in given]
    return Batch.from_columns([one.value for one in given], keys=keys, now_us=now_us)


def _is_special(one: pb.NewMessage) -> bool:
    return bool(
        one.tombstone
        or one.priority
        or one.delay_us
        or one.deliver_at_us
        or one.ttl_us
        or one.timestamp_us
        or one.headers
    )


# --- out ----------------------------------------------------------------------------------------------------


def shown(topic: str, partition: int, offset: int, append_time: int, message: Message) -> pb.StoredMessage:
    return pb.StoredMessage(
        id=f"{topic}:{partition}:{offset}",
        topic=topic,
        partition=partition,
        offset=offset,
        value=message.value,
        key=message.key,
        headers=_headers(message),
        priority=_priority(message),
        timestamp_us=message.timestamp,
        append_time_us=append_time,
        deliver_at_us=message.deliver_at,
        expires_at_us=message.expires_at,
        tombstone=message.value is None,
    )


def stored(one: StoredMessage) -> pb.StoredMessage:
    return shown(one.topic, one.partition, one.offset, one.append_time, one.message)


def by_id(id: str, append_time: int, message: Message) -> pb.StoredMessage:
    return shown(*MessageId.parse(id), append_time, message)


def to_come(id: str, deliver_at: int, message: Message) -> pb.StoredMessage:
    """One that waits for its time, which may have been changed since it was published."""
    return by_id(id, 0, msgspec.structs.replace(message, deliver_at=deliver_at))


def new(message: Message) -> pb.NewMessage:
    """As whoever published it handed it in."""
    return pb.NewMessage(
        value=message.value,
        key=message.key,
        headers=_headers(message),
        priority=_priority(message),
        timestamp_us=message.timestamp,
        tombstone=message.value is None,
    )


def received(delivery: Delivery, key: bytes, now: Instant) -> Iterator[pb.ReceivedMessage]:
    topic, partition, lease, offsets = delivery.receipt
    for offset, append_time, message in rows_of(delivery.frames, offsets):
        yield pb.ReceivedMessage(
            message=shown(topic, partition, offset, append_time, message),
            attempt=delivery.attempts.get(offset, 1),
            receipt=receipts.written(Place(topic, partition, lease, offset), key),
            deadline_us=now.to_wall(delivery.deadline_us),
        )


def _headers(message: Message) -> list[pb.Header]:
    return [pb.Header(name=name, value=value) for name, value in message.headers]


def _priority(message: Message) -> pb.Priority:
    return pb.Priority.Name(message.priority)  # type: ignore[return-value]
