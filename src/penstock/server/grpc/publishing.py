"""Publishing: one message, a batch, or batch after batch."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.acks import ALL, check_waited
from penstock.errors import BatchTooLarge, Fatal, InvalidInput, PenstockError
from penstock.frame import Frame
from penstock.partitioner import partition_of
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods
from penstock.server.grpc.failures import failure_of
from penstock.server.grpc.replies import Replies, until_first
from penstock.server.grpc.rows import batch_in, message_in


async def publish(call: Call, request: pb.PublishRequest) -> pb.PublishReply:
    acks, message = _acks(request), message_in(request.message, call.site.now_us())
    at = await call.site.publish(request.topic, message, _partition(request), acks)
    return pb.PublishReply(
        id=f"{request.topic}:{at.partition}:{at.offset}",
        partition=at.partition,
        offset=at.offset,
        append_time_us=at.append_time,
    )


async def publish_batch(
    call: Call, request: pb.PublishBatchRequest, turn: asyncio.Lock | None = None
) -> pb.PublishBatchReply:
    """One frame for each partition, written at the same time. Those with the same `turn` begin in their order."""
    async with turn or asyncio.Lock():
        partitions = call.desk.partitions(request.topic) or await call.desk.found_partitions(request.topic)
        chosen, acks = _chosen(call, request, partitions), _acks(request)
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(chosen):
            rows.setdefault(number, []).append(row)
        now_us, limits = call.site.now_us(), call.site.limits
        frames = []
        for some in rows.values():
            batch = await batch_in([request.messages[row] for row in some], now_us)
            frames.append(Frame.of(batch, limits=limits))
        # Tasks even if it is only one: those of a stream are stored in the order in which they were made.
        storing = [
            asyncio.ensure_future(call.site.publish_frame(request.topic, number, frame, acks))
            for number, frame in zip(rows, frames, strict=True)
        ]
    offsets = [0] * len(chosen)
    # All of them, also if one fails: nobody shall still be writing when the error is told.
    stored = await asyncio.gather(*storing, return_exceptions=True)
    for some, at in zip(rows.values(), stored, strict=True):
        if isinstance(at, BaseException):
            raise at
        for delta, row in enumerate(some):
            offsets[row] = at.offset + delta
    return pb.PublishBatchReply(partitions=chosen, offsets=offsets)


def _chosen(call: Call, request: pb.PublishBatchRequest, partitions: int) -> list[int]:
    """The partition of each message. By rows, which they are here: to take columns apart again takes ten times as long
    for a hundred of them."""
    messages, most = request.messages, call.site.limits.batch_messages_max
    if not messages:
        raise InvalidInput("messages: there is none")
    if len(messages) > most:
        raise BatchTooLarge(f"a batch has at most {most} messages, not {len(messages)}", messages_max=most)
    partition = _partition(request)
    if partition is not None:
        return [partition] * len(messages)
    unkeyed = call.desk.next_turn(request.topic, partitions)
    return [partition_of(one.key, partitions) if one.HasField("key") else unkeyed for one in messages]


async def publish_stream(call: Call) -> None:
    with call.desk.intake.stream(call.context) as account:
        replies = Replies(call.context.write, account)
        try:
            await _publish_all(call, replies)
        finally:
            replies.end()


async def _publish_all(call: Call, replies: Replies) -> None:
    async def stop() -> None:
        await call.desk.over()
        await replies.told()
        call.desk.check()

    begin = partial(_published, call, asyncio.Lock())
    await until_first(replies.take(call.context.read, begin), replies.tell(), stop())


async def _published(call: Call, turn: asyncio.Lock, request: pb.PublishBatchRequest) -> pb.PublishBatchReply:
    """One that fails spoils none of the others."""
    try:
        return await publish_batch(call, request, turn)
    except Fatal:
        raise
    except PenstockError as error:
        return pb.PublishBatchReply(failure=failure_of(error))


def _partition(request: pb.PublishRequest | pb.PublishBatchRequest) -> int | None:
    return request.partition if request.HasField("partition") else None


def _acks(request: pb.PublishRequest | pb.PublishBatchRequest) -> str:
    if not request.HasField("acks"):
        return ALL
    check_waited(request.acks)
    return request.acks


METHODS: Methods = {
    "Publish": publish,
    "PublishBatch": publish_batch,
    "PublishStream": publish_stream,
}
