"""Routes of consumers: answering for messages, with their receipts."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker.names import check_name
from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.transport import Lease
from penstock.errors import GroupNotFound
from penstock.server.access import Operation
from penstock.server.http import receipts, shapes
from penstock.server.http.asking import us_of
from penstock.server.http.desk import AnyAsked, Asked, Desk
from penstock.server.http.failures import Error, InvalidReceipt, failure_of
from penstock.server.http.routes import Route
from penstock.server.leases import RECEIPTS_AT_ONCE, answer_for


async def ack(desk: Desk, asked: Asked[shapes.Ack, Any]) -> shapes.Answered:
    return await _answered(desk, asked, asked.body.receipts, Ack())


async def nack(desk: Desk, asked: Asked[shapes.Nack, Any]) -> shapes.Answered:
    answer = Nack(asked.body.reason, us_of("delay", asked.body.delay))
    return await _answered(desk, asked, asked.body.receipts, answer)


async def reject(desk: Desk, asked: Asked[shapes.Reject, Any]) -> shapes.Answered:
    return await _answered(desk, asked, asked.body.receipts, Reject(asked.body.reason))


async def release(desk: Desk, asked: Asked[shapes.Ack, Any]) -> shapes.Answered:
    return await _answered(desk, asked, asked.body.receipts, Release())


async def extend(desk: Desk, asked: Asked[shapes.Extend, Any]) -> shapes.Answered:
    answer = Extend(us_of("visibility", asked.body.visibility))
    return await _answered(desk, asked, asked.body.receipts, answer)


async def _answered(desk: Desk, asked: AnyAsked, given: list[str], answer: Answer) -> shapes.Answered:
    check_name("group", asked.path["group"])
    # Rights come first, also if there is nothing to answer for.
    asked.site.check_consuming(asked.path["group"])
    key = desk.receipt_key(asked.path["group"])
    invalid: list[shapes.NotAnswered] = []
    by_lease: dict[Lease, dict[int, str]] = {}
    for turn, text in enumerate(given, 1):
        if turn % RECEIPTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            place = receipts.read(text, key)
        except InvalidReceipt as error:
            invalid.append(_failed(text, error))
        else:
            by_lease.setdefault(place.in_lease, {})[place.offset] = text
    done, failed = await answer_for(desk.site, asked.site, asked.path["group"], by_lease, answer)
    desk.waiting.answered(asked.path["group"])
    return shapes.Answered(done=done, failed=invalid + [_failed(text, error) for text, error in failed])


def _failed(receipt: str, error: Error) -> shapes.NotAnswered:
    failure = failure_of(error)
    return shapes.NotAnswered(receipt=receipt, code=failure.code, message=failure.message)


_ANSWERED_EXAMPLE = {
    "done": 1,
    "failed": [{"receipt": "oops", "code": "invalid_receipt", "message": "'oops' is not a receipt of this group. …"}],
}


def _answering(name: str, act: Any, summary: str, body: type, **more: Any) -> Route:
    return Route(
        "POST",
        f"/v1/groups/{{group}}/{name}",
        act,
        summary,
        body=body,
        reply=shapes.Answered,
        errors=(GroupNotFound,),
        example={"receipts": [receipts.EXAMPLE], **more},
        reply_example=_ANSWERED_EXAMPLE,
        needs=Operation.CONSUME,
    )


ROUTES = (
    _answering("ack", ack, "Done: these never come to this group again. On disk when this is answered.", shapes.Ack),
    _answering(
        "nack",
        nack,
        "To be tried again: after the delay, or by the group's back-off.",
        shapes.Nack,
        delay="10s",
        reason="busy",
    ),
    _answering(
        "reject", reject, "Never to be tried again: dead letters at once.", shapes.Reject, reason="not a number"
    ),
    _answering("release", release, "Given back unseen: this delivery does not count.", shapes.Ack),
    _answering("extend", extend, "More time, for all that was leased together.", shapes.Extend, visibility="1m"),
)
