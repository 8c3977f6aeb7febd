"""Receipts: how a consumer refers to one delivered message over HTTP and gRPC.

    mac 16 bytes | lease u64 | offset u64 | partition u32 | topic, UTF-8                         little-endian

The MAC is HMAC-SHA256 of the rest, cut to 16 bytes, under a key of the group that is derived from the broker's secret:
a cluster's nodes share one, and it survives restarts. Only what was given out to the group passes, so an answer to
another receipt says nothing about which topics there are. It does not say who may answer: rights are checked as well.

gRPC sends them as they are, HTTP as base64url.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from penstock.client.transport import Lease

_MAC_BYTES = 16
_PLACE = struct.Struct("<QQI")


class NotAReceipt(ValueError):
    """Not given out to this group. Each listener has an error of its own for it."""


class Place(NamedTuple):
    """One message of a lease."""

    topic: str
    partition: int
    lease: int
    offset: int

    @property
    def in_lease(self) -> Lease:
        return Lease(*self[:3])


def key_of(secret: str, group: str) -> bytes:
    """Return the key that the receipts of this group are authenticated with."""
    return hmac.digest(secret.encode(), b"receipts of " + group.encode("utf-8", "surrogatepass"), "sha256")


def written(place: Place, key: bytes) -> bytes:
    content = _PLACE.pack(place.lease, place.offset, place.partition) + place.topic.encode()
    return _mac(content, key) + content


def read(receipt: bytes, key: bytes) -> Place:
    content = receipt[_MAC_BYTES:]
    if not hmac.compare_digest(receipt[:_MAC_BYTES], _mac(content, key)):
        raise NotAReceipt
    lease, offset, partition = _PLACE.unpack_from(content)
    return Place(content[_PLACE.size :].decode(), partition, lease, offset)


def _mac(content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")[:_MAC_BYTES]
