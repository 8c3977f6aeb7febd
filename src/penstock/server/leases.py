"""Answers to single messages of many leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from pyroaring import BitMap64

from penstock.client.answers import Answer
from penstock.client.transport import Lease, Receipt
from penstock.errors import Fatal, Forbidden, GroupNotFound, LeaseError, NotLeased, PenstockError
from penstock.server.guard import Guarded
from penstock.server.site import Site
from penstock.server.turns import in_slices

# Receipts that are read without a break: a millisecond.
RECEIPTS_AT_ONCE = 200
# What a door calls a message by.
T = TypeVar("T")


class Answered(NamedTuple, Generic[T]):
    done: int
    failed: list[tuple[T, PenstockError]]


async def answer_for(
    site: Site, guarded: Guarded, group: str, given: Mapping[Lease, Mapping[int, T]], answer: Answer
) -> Answered[T]:
    """`given` has the messages by lease and offset: the log has one row for each lease, whatever is in it."""
    answers = await in_slices(_answered(site, guarded, group, lease, some, answer) for lease, some in given.items())
    count = sum(map(len, given.values()))
    failed = [one for some in answers for one in some]
    return Answered(count - len(failed), failed)


async def _answered(
    site: Site, guarded: Guarded, group: str, lease: Lease, given: Mapping[int, T], answer: Answer
) -> list[tuple[T, PenstockError]]:
    """Those that failed. What is not in the lease any more fails alone: nothing is done of an answer that is refused,
    so the rest is said again."""
    offsets, failed = BitMap64(given), list[tuple[T, PenstockError]]()
    while True:
        try:
            await guarded.answer(group, Receipt(*lease, offsets), answer)
            return failed
        except (GroupNotFound, Forbidden, Fatal):
            raise
        except PenstockError as error:
            held = offsets & (await site.left(group, [lease]))[0] if isinstance(error, LeaseError) else BitMap64()
            if not held or len(held) == len(offsets):
                return failed + [(given[offset], error) for offset in offsets.to_array()]
        not_leased = NotLeased("the message is not in the lease, or was answered already. Answer each delivery once")
        failed += [(given[offset], not_leased) for offset in (offsets - held).to_array()]
        offsets = held
