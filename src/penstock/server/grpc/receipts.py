"""Receipts: what a consumer answers for a message with.

    checksum u32 | lease u64 | offset u64 | partition u32 | topic, UTF-8                         little-endian

The checksum is CRC-32C of the rest, of the group, and of the id of the topic. So a receipt that was cut short, that is
another group's, or that is of a topic which was deleted and made anew, is told from one whose lease has run out. It
protects against mistakes, not against forgery: who may not answer for a group is stopped by its rules.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from crc32c import crc32c

_SUM = struct.Struct("<I")
_PLACE = struct.Struct("<QQI")


class InvalidReceipt(Exception):
    """Nothing that was given out for this group. Told of a single receipt: no caller of the library can meet it."""

    code = "invalid_receipt"

    def __init__(self) -> None:
        super().__init__()
        self.message = "not a receipt that this group was given"
        self.details: dict[str, Any] = {}


class Lease(NamedTuple):
    topic: str
    partition: int
    number: int


class Seal:
    """Of one group, on one topic."""

    def __init__(self, group: str, topic_id: str) -> None:
        self._sum = crc32c(f"{group}/{topic_id}".encode("utf-8", "surrogatepass"))

    def written(self, lease: Lease, offset: int) -> bytes:
        content = _PLACE.pack(lease.number, offset, lease.partition) + lease.topic.encode()
        return _SUM.pack(crc32c(content, self._sum)) + content

    def check(self, receipt: bytes) -> None:
        if _SUM.unpack_from(receipt)[0] != crc32c(receipt[_SUM.size :], self._sum):
            raise InvalidReceipt


def read(receipt: bytes) -> tuple[Lease, int]:
    """The lease and the offset. Whether it was ever given out is the seal's to know."""
    try:
        number, offset, partition = _PLACE.unpack_from(receipt, _SUM.size)
        topic = receipt[_SUM.size + _PLACE.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidReceipt from error
    return Lease(topic, partition, number), offset
