"""What consumers say of messages they were given: receipts to leases, one answer for each lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap64

from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.transport import Receipt
from penstock.errors import Fatal, Forbidden, GroupNotFound, NotLeased, PenstockError
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc import receipts
from penstock.server.grpc.calls import Call
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.failures import Told, failure_of
from penstock.server.grpc.receipts import InvalidReceipt, Lease

Said = pb.AckRequest | pb.NackRequest | pb.RejectRequest | pb.ReleaseRequest | pb.ExtendRequest


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
    """The log has one row for each lease, whatever is in it."""
    # Also if there is nothing to answer for: who may not know of the group hears nothing of its receipts, or topics.
    call.site.check_consuming(group)
    by_lease, failed = _sorted(call.desk, group, said.receipts)
    count = sum(map(len, by_lease.values()))
    answer = answer_in(said)
    answers = [_answered_lease(call, group, lease, given, answer) for lease, given in by_lease.items()]
    refused = [one for some in await asyncio.gather(*answers) for one in some]
    return pb.AnswerReply(done=count - len(refused), failed=failed + refused)


def _sorted(
    desk: Desk, group: str, given: Sequence[bytes]
) -> tuple[dict[Lease, dict[int, bytes]], list[pb.NotAnswered]]:
    """By lease and offset; and those that are none of this group's."""
    by_lease: dict[Lease, dict[int, bytes]] = {}
    failed = []
    for receipt in given:
        try:
            lease, offset = receipts.read(receipt)
            desk.seal(group, lease.topic).check(receipt)
        except (InvalidReceipt, PenstockError) as error:
            failed.append(_not_answered(receipt, error))
        else:
            by_lease.setdefault(lease, {})[offset] = receipt
    return by_lease, failed


async def _answered_lease(
    call: Call, group: str, lease: Lease, given: dict[int, bytes], answer: Answer
) -> list[pb.NotAnswered]:
    """Those that failed. What is not in the lease any more fails alone."""
    offsets = BitMap64(given)
    held = offsets & call.desk.leased(group, lease)
    failed = []
    # If none of them is held, the broker says why.
    if held and len(held) < len(offsets):
        error = NotLeased("the message is not in the lease, or was answered for already")
        failed = [_not_answered(given[offset], error) for offset in offsets - held]
        offsets = held
    try:
        await call.site.answer(group, Receipt(*lease, offsets), answer)
    except (GroupNotFound, Forbidden, Fatal):
        raise
    except PenstockError as error:
        failed += [_not_answered(given[offset], error) for offset in offsets]
    return failed


def _not_answered(receipt: bytes, error: Told) -> pb.NotAnswered:
    return pb.NotAnswered(receipt=receipt, failure=failure_of(error))


async def give_back(desk: Desk, group: str, leases: Sequence[Lease], answer: Answer) -> None:
    """What is left of them, without anybody having asked for it."""
    for lease in leases:
        offsets = desk.leased(group, lease)
        if offsets:
            await desk.site.answer(group, Receipt(*lease, offsets.copy()), answer)
