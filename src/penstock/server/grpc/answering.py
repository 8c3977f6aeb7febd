"""What consumers say of messages they were given: receipts to leases, one answer for each lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.transport import Lease, Receipt
from penstock.errors import PenstockError
from penstock.server import receipts
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.failures import failure_of
from penstock.server.leases import RECEIPTS_AT_ONCE, answer_for
from penstock.server.receipts import NotAReceipt

Said = pb.AckRequest | pb.NackRequest | pb.RejectRequest | pb.ReleaseRequest | pb.ExtendRequest

# Told of a single receipt: no caller of the library can meet it.
_INVALID = pb.Failure(code="invalid_receipt", message="not a receipt that this group was given")


def answer_in(said: Said) -> Answer:
    match said:
        case pb.AckRequest():
            return Ack()
        case pb.NackRequest():
            return Nack(said.reason, said.delay_us if said.HasField("delay_us") else None)
        case pb.RejectRequest():
            return Reject(said.reason)
        case pb.ReleaseRequest():
            return Release()
        case pb.ExtendRequest():
            return Extend(said.visibility_us if said.HasField("visibility_us") else None)


async def answered(call: Call, group: str, said: Said) -> pb.AnswerReply:
    # Rights come first, also if there is nothing to answer for.
    call.site.check_consuming(group)
    by_lease, failed = await _sorted(call.desk, group, said.receipts)
    done, refused = await answer_for(call.desk.site, call.site, group, by_lease, answer_in(said))
    return pb.AnswerReply(done=done, failed=failed + [_not_answered(receipt, error) for receipt, error in refused])


async def _sorted(
    desk: Desk, group: str, given: Sequence[bytes]
) -> tuple[dict[Lease, dict[int, bytes]], list[pb.NotAnswered]]:
    """By lease and offset; and those that are none of this group's."""
    by_lease: dict[Lease, dict[int, bytes]] = {}
    failed, key = [], desk.receipt_key(group)
    for turn, receipt in enumerate(given, 1):
        if turn % RECEIPTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            place = receipts.read(receipt, key)
        except NotAReceipt:
            failed.append(pb.NotAnswered(receipt=receipt, failure=_INVALID))
        else:
            by_lease.setdefault(place.in_lease, {})[place.offset] = receipt
    return by_lease, failed


def _not_answered(receipt: bytes, error: PenstockError) -> pb.NotAnswered:
    return pb.NotAnswered(receipt=receipt, failure=failure_of(error))


async def give_back(desk: Desk, group: str, leases: Sequence[Lease], answer: Answer) -> None:
    """What is left of them, without anybody having asked for it."""
    for lease, offsets in zip(leases, await desk.site.left(group, leases), strict=True):
        if offsets:
            await desk.site.answer(group, Receipt(*lease, offsets.copy()), answer)
