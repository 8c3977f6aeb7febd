"""Taking messages by polls, and answering for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap64

from penstock.client.answers import Release
from penstock.client.transport import Delivery, Lease, Receipt
from penstock.client.words import count_of
from penstock.clock import Instant
from penstock.limits import MIB
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.answering import Said, answered
from penstock.server.grpc.calls import Call
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.rows import received
from penstock.server.grpc.settings import settings_in

MESSAGES_DEFAULT, MESSAGES_MAX = 100, 10_000
# gRPC's clients take 4 MiB unless they are told otherwise. A poll may go beyond this by one message.
POLL_BYTES_MAX = 2 * MIB


async def poll(call: Call, request: pb.PollRequest) -> pb.PollReply:
    count = count_of("max_messages", request.max_messages or MESSAGES_DEFAULT, MESSAGES_MAX)
    group, consumer, topics = request.group, request.consumer, list(request.topics)
    await call.site.join(group, consumer, topics, settings_in(request.settings))
    try:
        with call.desk.polling(), call.desk.members.waiting(group, consumer):
            deliveries = await call.site.poll(
                group, consumer, topics, count=count, bytes_max=POLL_BYTES_MAX, wait_us=request.wait_us
            )
    except asyncio.CancelledError:
        if not call.desk.is_over:
            raise
        return pb.PollReply()
    messages, left = fitting(call.desk, group, deliveries)
    for receipt in left:
        call.desk.do(call.desk.site.answer(group, receipt, Release()))
    return pb.PollReply(messages=messages)


def fitting(desk: Desk, group: str, deliveries: Sequence[Delivery]) -> tuple[list[pb.ReceivedMessage], list[Receipt]]:
    """As much as fits into one reply, and what does not: frames that are compressed may hold more than one can say."""
    messages: list[pb.ReceivedMessage] = []
    left: list[Receipt] = []
    size, now = 0, Instant(desk.site.now_us(), desk.site.monotonic_us())
    key = desk.receipt_key(group)
    for delivery in deliveries:
        untold = BitMap64()
        for one in received(delivery, key, now):
            if size < POLL_BYTES_MAX:
                messages.append(one)
                size += one.ByteSize()
            else:
                untold.add(one.message.offset)
        if untold:
            left.append(delivery.receipt._replace(offsets=untold))
    return messages, left


def leases_of(deliveries: Sequence[Delivery]) -> list[Lease]:
    return [Lease(*delivery.receipt[:3]) for delivery in deliveries]


async def answer(call: Call, request: Said) -> pb.AnswerReply:
    return await answered(call, request.group, request)


async def leave(call: Call, request: pb.LeaveRequest) -> pb.LeaveReply:
    await call.site.leave(request.group, request.consumer)
    return pb.LeaveReply()
