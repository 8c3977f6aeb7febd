"""Routes about topics: making them, publishing to them, reading them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from penstock.client.admin import shown_topic
from penstock.client.reader import Reader
from penstock.client.requests import FindArchive, FindOffsets, ListTopics, TopicInfo
from penstock.client.rows import StoredMessage
from penstock.clock import rfc3339
from penstock.decoding import json_decoder
from penstock.errors import (
    AlreadyExists,
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveNotFound,
    BatchTooLarge,
    DiskFull,
    Fatal,
    Forbidden,
    InvalidInput,
    InvalidMessage,
    InvalidName,
    InvalidSetting,
    MessagesMissing,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    QuotaExceeded,
    TooManyPartitions,
    TopicNotFound,
)
from penstock.limits import MIB
from penstock.server.access import Operation
from penstock.server.guard import Guarded
from penstock.server.http import shapes
from penstock.server.http.asking import decoded, time_in
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.failures import Failure, failure_of
from penstock.server.http.routes import Route, batch_max, message_max
from penstock.server.http.rows import message_in, stored
from penstock.server.http.settings import settings_in
from penstock.server.turns import in_slices

READ_BYTES_MAX = 4 * MIB
_MESSAGE: msgspec.json.Decoder[shapes.Publish] = json_decoder(shapes.Publish)


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Each message is decoded by itself, so that one that is wrong spoils none of the others."""

    messages: list[Raw]


def _topic(info: TopicInfo) -> shapes.Topic:
    return shapes.Topic(
        name=info.name,
        partitions=info.partitions,
        settings=info.settings,
        created_at=rfc3339(info.created_us),
        scheduled=info.scheduled,
        id=info.id,
        unknown=info.unknown,
    )


# --- topics -------------------------------------------------------------------------------------------------


async def create_topic(desk: Desk, asked: Asked[shapes.CreateTopic, Any]) -> shapes.Topic:
    given = asked.body
    return _topic(await asked.admin.create_topic(given.name, given.partitions, **settings_in(given)))


async def list_topics(desk: Desk, asked: Asked[None, shapes.PageQuery]) -> shapes.Topics:
    page = await asked.page(ListTopics(partial=True))
    return shapes.Topics(topics=[_topic(shown_topic(info)) for info in page.items], next=page.next or None)


async def get_topic(desk: Desk, asked: Asked[None, Any]) -> shapes.Topic:
    return _topic(await asked.admin.topic(asked.path["topic"], partial=True))


async def change_topic(desk: Desk, asked: Asked[shapes.ChangeTopic, Any]) -> shapes.Topic:
    given = asked.body
    return _topic(await asked.admin.change_topic(asked.path["topic"], given.partitions, **settings_in(given)))


async def delete_topic(desk: Desk, asked: Asked[None, Any]) -> None:
    await asked.admin.delete_topic(asked.path["topic"])


async def archived(desk: Desk, asked: Asked[shapes.Archived, Any]) -> shapes.Topic:
    given = asked.body
    return _topic(await asked.admin.archived(asked.path["topic"], given.offsets, topic_id=given.topic_id))


# --- publishing ---------------------------------------------------------------------------------------------


async def publish(desk: Desk, asked: Asked[shapes.Publish, Any]) -> shapes.Published:
    return await published(asked.site, asked.path["topic"], asked.body)


async def published(site: Guarded, topic: str, given: shapes.Publish) -> shapes.Published:
    if len(given.headers or given.headers_base64 or ()) > site.limits.headers_max:
        # Before anything is done with each of them.
        raise BatchTooLarge(f"more than {site.limits.headers_max} headers on a message")
    at = await site.publish(topic, message_in(given, site.now_us()), given.partition, given.acks)
    return shapes.Published(
        id=f"{topic}:{at.partition}:{at.offset}",
        partition=at.partition,
        offset=at.offset,
        timestamp=rfc3339(at.append_time),
    )


async def publish_batch(desk: Desk, asked: Asked[_Batch, Any]) -> shapes.PublishedBatch:
    """They are written together: those that come to a partition at the same time are one batch there."""
    given = asked.body.messages
    most = asked.site.limits.batch_messages_max
    if not given:
        raise InvalidInput("messages: there is none")
    if len(given) > most:
        raise BatchTooLarge(f"a batch has at most {most} messages, not {len(given)}", messages_max=most)
    results = await in_slices(_published_one(asked.site, asked.path["topic"], raw) for raw in given)
    errors = [one.error for one in results if isinstance(one.error, Failure) and one.error.code == QuotaExceeded.code]
    if len(errors) == len(results):
        # Refused as a whole: the client is to try again, later.
        raise QuotaExceeded(errors[0].message, **errors[0].details)
    return shapes.PublishedBatch(results=results)


async def _published_one(site: Guarded, topic: str, raw: Raw) -> shapes.Result:
    """What is wrong with the topic is wrong with all of them."""
    try:
        at = await published(site, topic, await decoded(bytes(raw), _MESSAGE, site.limits.json_nesting_max))
    except (TopicNotFound, InvalidName, Forbidden, Fatal):
        raise
    except PenstockError as error:
        return shapes.Result(error=failure_of(error))
    return shapes.Result(at.id, at.partition, at.offset, at.timestamp)


# --- reading ------------------------------------------------------------------------------------------------


async def read(desk: Desk, asked: Asked[None, shapes.ReadQuery]) -> shapes.Log:
    query = asked.query
    if query.offset is not None and query.partition is None:
        raise InvalidInput("an offset is one of a partition; say which")
    if query.next is not None and query.partition is not None:
        raise InvalidInput("next goes on in all partitions; one that is named goes on at its offset")
    readers = await _readers(desk, asked)
    # Where it ends without a single message, if nothing is there.
    next_offset = None if query.partition is None else (await readers[0].offsets())[query.partition][0]
    messages: list[shapes.Message] = []
    size = 0
    async for message in _one_after_the_other(readers):
        messages.append(stored(message, query.as_))
        size += message.message.size
        if query.partition is not None:
            next_offset = message.offset + 1
        if len(messages) >= query.limit or size >= READ_BYTES_MAX:
            goes_on = f"{message.partition}:{message.offset + 1}" if query.partition is None else None
            return shapes.Log(messages=messages, next_offset=next_offset, next=goes_on)
    return shapes.Log(messages=messages, next_offset=next_offset, next=None)


async def _readers(desk: Desk, asked: Asked[None, shapes.ReadQuery]) -> list[Reader]:
    """One; with `next`, one for the rest of the partition that was left in the middle, and one for those behind it."""
    query, topic = asked.query, asked.path["topic"]
    from_time, to_time = time_in(query.from_time), time_in(query.to_time)
    if query.include_deleted:
        from penstock.client.replay import Replay

        # Whether there is an archive is for those to know who may read the topic.
        await asked.site.call(FindArchive(topic))
        make: Callable[..., Reader] = partial(Replay, asked.site, topic, archive=await desk.archive(), to_time=to_time)
    else:
        make = partial(Reader, asked.site, topic, to_time=to_time)
    if query.next is None:
        partitions = None if query.partition is None else [query.partition]
        return [make(from_time=from_time, from_offset=query.offset, partitions=partitions)]
    at, offset = map(int, query.next.split(":"))
    count = len(await asked.site.call(FindOffsets(topic, "earliest")))
    rest = make(from_offset={at: offset}, partitions=[at])
    return [rest, make(from_time=from_time, partitions=range(at + 1, count))] if at + 1 < count else [rest]


async def _one_after_the_other(readers: Sequence[Reader]) -> AsyncIterator[StoredMessage]:
    for reader in readers:
        async for message in reader:
            yield message


_TOPIC_EXAMPLE = {
    "name": "orders",
    "partitions": [{"number": 0, "start_offset": 0, "end_offset": 3, "bytes": 312}],
    "settings": {"retention": {"hours": 168, "bytes": None}, "cleanup": "delete", "max_delay": "365d"},
    "created_at": "2026-01-14T15:00:00.000000Z",
    "scheduled": 0,
    "id": "5f0c9a1e4b7d4c0f8a3d2e6b1c9f7a50",
}
_MESSAGE_EXAMPLE = {
    "id": "orders:0:41",
    "topic": "orders",
    "partition": 0,
    "offset": 41,
    "key": "user-1",
    "value": "b3JkZXIgMQ==",
    "headers": {"source": "web"},
    "timestamp": "2026-01-14T15:00:00.000000Z",
    "append_time": "2026-01-14T15:00:00.000120Z",
    "priority": "normal",
}
_PUBLISHED_EXAMPLE = {
    "id": "orders:0:41",
    "partition": 0,
    "offset": 41,
    "timestamp": "2026-01-14T15:00:00.000120Z",
}

ROUTES = (
    Route(
        "POST",
        "/v1/topics",
        create_topic,
        "Make a topic, with 6 partitions unless told otherwise.",
        body=shapes.CreateTopic,
        reply=shapes.Topic,
        status=201,
        errors=(AlreadyExists, InvalidName, InvalidSetting, TooManyPartitions),
        example={"name": "orders", "partitions": 6, "retention": {"hours": 168}},
        reply_example=_TOPIC_EXAMPLE,
    ),
    Route("GET", "/v1/topics", list_topics, "Topics, by name.", query=shapes.PageQuery, reply=shapes.Topics),
    Route(
        "GET",
        "/v1/topics/{topic}",
        get_topic,
        "One topic: its partitions, with the offsets they hold, and its settings.",
        reply=shapes.Topic,
        errors=(TopicNotFound,),
        reply_example=_TOPIC_EXAMPLE,
    ),
    Route(
        "PATCH",
        "/v1/topics/{topic}",
        change_topic,
        "Change settings, or add partitions: keys spread differently from then on.",
        body=shapes.ChangeTopic,
        reply=shapes.Topic,
        errors=(TopicNotFound, InvalidSetting, TooManyPartitions),
        example={"partitions": 12, "retention": {"hours": 24}},
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}",
        delete_topic,
        "Delete a topic, with all its messages.",
        status=204,
        errors=(TopicNotFound,),
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/archived",
        archived,
        "Tell that everything below these offsets is in an archive, and may be deleted when its time has come.",
        body=shapes.Archived,
        reply=shapes.Topic,
        errors=(TopicNotFound, PartitionNotFound, OffsetOutOfRange, ArchiveConflict),
        example={"offsets": {"0": 42}},
        reply_example=_TOPIC_EXAMPLE,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/publish",
        publish,
        "Publish a message. It is on disk when this is answered (or written, with durability: interval).",
        body=shapes.Publish,
        reply=shapes.Published,
        errors=(TopicNotFound, PartitionNotFound, InvalidMessage, BatchTooLarge, DiskFull),
        example={"key": "user-1", "text": "order 1", "headers": {"source": "web"}, "delay": "30m", "priority": "high"},
        reply_example=_PUBLISHED_EXAMPLE,
        body_max=message_max,
        needs=Operation.PUBLISH,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/publish/batch",
        publish_batch,
        "Publish many messages, with a result for each of them. Those that are not refused are on disk (or written, "
        "with durability: interval).",
        body=_Batch,
        described=shapes.PublishBatch,
        reply=shapes.PublishedBatch,
        errors=(TopicNotFound, BatchTooLarge, DiskFull),
        example={"messages": [{"key": "user-1", "text": "order 1"}, {"key": "user-2", "json": {"order": 2}}]},
        reply_example={"results": [_PUBLISHED_EXAMPLE]},
        body_max=batch_max,
        needs=Operation.PUBLISH,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/messages",
        read,
        "Read the log as it was written, delayed messages too. No group is involved.",
        query=shapes.ReadQuery,
        reply=shapes.Log,
        errors=(TopicNotFound, PartitionNotFound, OffsetOutOfRange, ArchiveNotFound, MessagesMissing, ArchiveCorrupt),
        reply_example={"messages": [_MESSAGE_EXAMPLE], "next_offset": 42, "next": None},
    ),
)
