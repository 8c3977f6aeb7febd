"""Receipts: what a consumer answers for a message with.

    base64url of:  checksum u32 | lease u64 | offset u64 | partition u32 | topic, UTF-8      little-endian, no padding

The checksum (CRC-32C of the rest) tells a receipt that was cut short or mistyped from one whose lease has run out. It
protects against mistakes, not against forgery: a lease is good for its own group only, and its number can't be guessed.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from typing import NamedTuple

from crc32c import crc32c

from penstock.server.http.failures import InvalidReceipt

_SUM = struct.Struct("<I")
_PLACE = struct.Struct("<QQI")
EXAMPLE = "gkBRJAEAAIXAPRoNAAAAAAAAAAABAAAAb3JkZXJz"
# Of a topic whose name has 200 characters, and more.
LENGTH_MAX = 400


class Place(NamedTuple):
    """One message of a lease."""

    topic: str
    partition: int
    lease: int
    offset: int


def written(place: Place) -> str:
    content = _PLACE.pack(place.lease, place.offset, place.partition) + place.topic.encode()
    return urlsafe_b64encode(_SUM.pack(crc32c(content)) + content).rstrip(b"=").decode()


def read(receipt: str) -> Place:
    """InvalidReceipt if it is none of ours."""
    try:
        data = urlsafe_b64decode(receipt[:LENGTH_MAX] + "=" * (-len(receipt) % 4))
        (checksum,) = _SUM.unpack_from(data)
        content = data[_SUM.size :]
        lease, offset, partition = _PLACE.unpack_from(content)
        topic = content[_PLACE.size :].decode()
    except (NotBase64, ValueError, struct.error) as error:
        raise _invalid(receipt) from error
    place = Place(topic, partition, lease, offset)
    # Written back, because base64 ignores what it does not know.
    if checksum != crc32c(content) or written(place) != receipt:
        raise _invalid(receipt)
    return place


def _invalid(receipt: str) -> InvalidReceipt:
    return InvalidReceipt(f"not a receipt that was given out: {receipt[:50]!r}")
