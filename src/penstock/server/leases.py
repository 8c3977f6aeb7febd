"""What is left of a lease, and answers to single messages of many leases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from pyroaring import BitMap64

from penstock.broker.broker import Broker
from penstock.client.answers import Answer
from penstock.client.transport import Receipt
from penstock.errors import Fatal, Forbidden, GroupNotFound, NotLeased, PenstockError
from penstock.server.guard import Guarded

# What a door calls a message by.
T = TypeVar("T")


class Lease(NamedTuple):
    topic: str
    partition: int
    number: int


def left_of(broker: Broker, group: str, lease: Lease) -> BitMap64:
    """What is not answered for and not over."""
    try:
        groups = broker.topic(lease.topic).partition(lease.partition).groups
    except PenstockError:
        return BitMap64()
    found = groups.state(group).leases.get(lease.number) if groups.has(group) else None
    return BitMap64() if found is None else found.offsets


class Answered(NamedTuple, Generic[T]):
    done: int
    failed: list[tuple[T, PenstockError]]


async def answer_for(
    broker: Broker, site: Guarded, group: str, given: Mapping[Lease, Mapping[int, T]], answer: Answer
) -> Answered[T]:
    """`given` has the messages by lease and offset: the log has one row for each lease, whatever is in it."""
    answers = [_answered(broker, site, group, lease, some, answer) for lease, some in given.items()]
    count = sum(map(len, given.values()))
    failed = [one for some in await asyncio.gather(*answers) for one in some]
    return Answered(count - len(failed), failed)


async def _answered(
    broker: Broker, site: Guarded, group: str, lease: Lease, given: Mapping[int, T], answer: Answer
) -> list[tuple[T, PenstockError]]:
    """Those that failed. What is not in the lease any more fails alone."""
    offsets = BitMap64(given)
    held = offsets & left_of(broker, group, lease)
    failed: list[tuple[T, PenstockError]] = []
    # If none of them is held, the broker says why.
    if held and len(held) < len(offsets):
        not_leased = NotLeased("the message is not in the lease, or was answered for already")
        failed = [(given[offset], not_leased) for offset in offsets - held]
        offsets = held
    try:
        await site.answer(group, Receipt(*lease, offsets), answer)
    except (GroupNotFound, Forbidden, Fatal):
        raise
    except PenstockError as error:
        failed += [(given[offset], error) for offset in offsets]
    return failed
