"""Routes of consumers: taking messages, by polls or a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import msgspec
from pyroaring import BitMap64

from penstock.client.answers import Release
from penstock.client.settings import group_settings, in_users_words
from penstock.client.transport import Delivery, Lease, Receipt
from penstock.client.words import names_of
from penstock.errors import (
    Forbidden,
    GroupNotFound,
    InvalidName,
    Overloaded,
    PenstockError,
    SettingsConflict,
    TopicNotFound,
    Unauthenticated,
)
from penstock.limits import MIB
from penstock.server.access import Operation
from penstock.server.http import receipts, shapes
from penstock.server.http.asking import us_of
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.routes import Route
from penstock.server.http.rows import received
from penstock.server.http.settings import settings_in
from penstock.server.parcels import rows_of

POLL_BYTES_MAX = 4 * MIB
KEEP_ALIVE_S = 15.0
STREAM_AT_ONCE_MAX = 100
# A lease that runs out makes room as well, and rings no bell.
_LOOK_AGAIN_S = 1.0


async def poll(desk: Desk, asked: Asked[shapes.Poll, shapes.Shown]) -> shapes.Polled:
    group, given = asked.path["group"], asked.body
    topics = names_of(given.topics)
    wait_us = us_of("wait", given.wait) or 0
    visibility_us = us_of("visibility", given.visibility)

    async def take() -> Sequence[Delivery]:
        with in_users_words():
            wanted = group_settings(settings_in(given.settings))
            await asked.site.join(group, given.consumer, topics, wanted)
        return await asked.site.poll(
            group,
            given.consumer,
            topics,
            count=given.max,
            bytes_max=POLL_BYTES_MAX,
            wait_us=wait_us,
            visibility_us=visibility_us,
        )

    # To join, and to find a leader, may take long as well: a client that is gone by then is given nothing.
    with desk.waiting.member(group, given.consumer) if wait_us else nullcontext():
        outcome, is_gone = await desk.waiting.until_gone(asked.receive, take())
    polled = outcome or []
    if is_gone:
        await _give_back_all(desk, group, polled)
        polled = []
    return shapes.Polled(messages=await _told(desk, group, polled, asked.query.as_))


async def _told(desk: Desk, group: str, polled: Sequence[Delivery], as_: str | None) -> list[shapes.Received]:
    """As much as fits into one answer. The rest is given back: frames that are compressed may hold a lot."""
    messages: list[shapes.Received] = []
    size, key = 0, desk.receipt_key(group)
    for delivery in polled:
        untold = BitMap64()
        for row in rows_of(delivery.frames, delivery.receipt.offsets):
            if size < POLL_BYTES_MAX:
                messages.append(received(delivery, row, as_, key))
                size += row[2].size
            else:
                untold.add(row[0])
        if untold:
            await _give_back(desk, group, delivery.receipt._replace(offsets=untold))
    return messages


async def _give_back(desk: Desk, group: str, receipt: Receipt) -> None:
    """Nobody has seen them. If it fails, they come back when their time is up."""
    with suppress(PenstockError):
        await desk.site.answer(group, receipt, Release())


async def _give_back_all(desk: Desk, group: str, polled: Sequence[Delivery]) -> None:
    """Leased in the moment in which the client went."""
    for delivery in polled:
        await _give_back(desk, group, delivery.receipt)


async def stream(desk: Desk, asked: Asked[None, shapes.StreamQuery]) -> AsyncGenerator[bytes, None]:
    """What can be refused is refused here, before the first event."""
    group, query = asked.path["group"], asked.query
    topics = query.topics.split(",")
    us_of("visibility", query.visibility)
    desk.waiting.check()
    await asked.site.join(group, query.consumer, topics, {})
    return _events(desk, asked, topics)


async def _events(desk: Desk, asked: Asked[None, shapes.StreamQuery], topics: list[str]) -> AsyncGenerator[bytes, None]:
    group, query = asked.path["group"], asked.query
    # How many there are in each, at most.
    held: dict[Lease, int] = {}
    polling = partial(
        asked.site.poll,
        group,
        query.consumer,
        topics,
        bytes_max=POLL_BYTES_MAX,
        wait_us=round(KEEP_ALIVE_S * 1e6),
        visibility_us=us_of("visibility", query.visibility),
    )
    with desk.waiting.member(group, query.consumer), desk.waiting.bell(group) as bell:
        yield b"retry: 1000\n\n"
        while not desk.waiting.is_over:
            bell.clear()
            room = query.max_in_flight - sum(held.values())
            if room < STREAM_AT_ONCE_MAX:
                room = query.max_in_flight - await _in_flight(desk, group, held)
            try:
                # Whether it may is asked again each time.
                await asked.site.join(group, query.consumer, topics, {})
                taking = polling(count=min(room, STREAM_AT_ONCE_MAX)) if room > 0 else _room(bell)
                outcome, is_gone = await desk.waiting.until_gone(asked.receive, taking)
            except (Forbidden, Unauthenticated):
                # Its partitions go to others now, not when its session is over.
                await desk.site.leave(group, query.consumer)
                raise
            polled = outcome or []
            if is_gone:
                await _give_back_all(desk, group, polled)
                return
            for receipt in (delivery.receipt for delivery in polled):
                lease = Lease(*receipt[:3])
                held[lease] = held.get(lease, 0) + len(receipt.offsets)
            yield b"".join(map(_event, await _told(desk, group, polled, query.as_))) or b": still here\n\n"
            if asked.site.memory is not None:
                asked.site.memory.release()


async def _room(bell: asyncio.Event) -> list[Delivery]:
    """Until there may be some."""
    with suppress(TimeoutError):
        await asyncio.wait_for(bell.wait(), _LOOK_AGAIN_S)
    return []


def _event(message: shapes.Received) -> bytes:
    return b"id: %s\nevent: message\ndata: %s\n\n" % (message.id.encode(), msgspec.json.encode(message))


async def _in_flight(desk: Desk, group: str, held: dict[Lease, int]) -> int:
    """Of the leases of a stream, what is not answered for and not over."""
    left = await desk.site.left(group, list(held))
    counts = {lease: len(offsets) for lease, offsets in zip(held, left, strict=True) if offsets}
    held.clear()
    held.update(counts)
    return sum(counts.values())


async def leave(desk: Desk, asked: Asked[None, Any]) -> None:
    await asked.site.leave(asked.path["group"], asked.path["consumer"])


_RECEIVED_EXAMPLE = {
    "id": "orders:0:41",
    "topic": "orders",
    "partition": 0,
    "offset": 41,
    "key": "user-1",
    "value": "b3JkZXIgMQ==",
    "headers": {},
    "timestamp": "2026-01-14T15:00:00.000000Z",
    "append_time": "2026-01-14T15:00:00.000120Z",
    "priority": "normal",
    "attempt": 1,
    "receipt": receipts.EXAMPLE,
}
ROUTES = (
    Route(
        "POST",
        "/v1/groups/{group}/poll",
        poll,
        "Take messages for a while: they are yours until they are answered for, or their time is up.",
        body=shapes.Poll,
        query=shapes.Shown,
        reply=shapes.Polled,
        errors=(TopicNotFound, InvalidName, SettingsConflict, Overloaded),
        example={"topics": ["orders"], "consumer": "worker-1", "max": 10, "wait": "20s"},
        needs=Operation.CONSUME,
        reply_example={"messages": [_RECEIVED_EXAMPLE]},
    ),
    Route(
        "POST",
        "/v1/groups/{group}/stream",
        stream,
        "Messages as they come, as server-sent events named `message` whose data is a message as in a poll. "
        "They are answered for as always.",
        query=shapes.StreamQuery,
        reply=shapes.Received,
        errors=(TopicNotFound, InvalidName, Overloaded),
        reply_example=_RECEIVED_EXAMPLE,
        is_stream=True,
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}/members/{consumer}",
        leave,
        "Leave the group at once: the partitions go to the others. What is silent for a session leaves by itself.",
        status=204,
        errors=(GroupNotFound,),
    ),
)
