"""Receipts: what a consumer answers for a message with, at doors that give messages out one by one.

    checksum u32 | lease u64 | offset u64 | partition u32 | topic, UTF-8                         little-endian

The checksum is CRC-32C of the rest, begun with a seal. So a receipt that was cut short or mistyped, or has the seal of
others, is told from one whose lease has run out. It protects against mistakes, not against forgery: a lease is good for
its own group only, its number can't be guessed, and who may not answer for a group is stopped by its rules.

gRPC gives them out as they are, HTTP as text and with no seal.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.client.transport import Lease

_SUM = struct.Struct("<I")
_PLACE = struct.Struct("<QQI")
NO_SEAL = 0


class NotAReceipt(ValueError):
    """Nothing that was given out. Each door has words of its own for it."""


class Place(NamedTuple):
    """One message of a lease."""

    topic: str
    partition: int
    lease: int
    offset: int

    @property
    def in_lease(self) -> Lease:
        return Lease(*self[:3])


def seal_of(group: str, topic_id: str) -> int:
    """Of one group, on one topic: another one, if that is deleted and made anew."""
    return crc32c(f"{group}/{topic_id}".encode("utf-8", "surrogatepass"))


def written(place: Place, seal: int) -> bytes:
    content = _PLACE.pack(place.lease, place.offset, place.partition) + place.topic.encode()
    return _SUM.pack(crc32c(content, seal)) + content


def read(receipt: bytes) -> Place:
    """NotAReceipt if it can't be one. Whether it was ever given out is for `check` to say."""
    try:
        lease, offset, partition = _PLACE.unpack_from(receipt, _SUM.size)
        topic = receipt[_SUM.size + _PLACE.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise NotAReceipt from error
    return Place(topic, partition, lease, offset)


def check(receipt: bytes, seal: int) -> None:
    """NotAReceipt if it has another seal. It is one that could be read."""
    if _SUM.unpack_from(receipt)[0] != crc32c(receipt[_SUM.size :], seal):
        raise NotAReceipt
