"""Receipts as text: base64url, without padding, of those in `server/receipts.py`."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from penstock.server import receipts
from penstock.server.http.failures import InvalidReceipt
from penstock.server.receipts import Place

EXAMPLE = "u6ES3EbIFH-UPb5wasxW2wEAAIXAPRoNAAAAAAAAAAABAAAAb3JkZXJz"
# Of a topic whose name has 200 characters, and more.
LENGTH_MAX = 400


def written(place: Place, key: bytes) -> str:
    return urlsafe_b64encode(receipts.written(place, key)).rstrip(b"=").decode()


def read(receipt: str, key: bytes) -> Place:
    """InvalidReceipt if it was not given out under this key."""
    try:
        place = receipts.read(urlsafe_b64decode(receipt[:LENGTH_MAX] + "=" * (-len(receipt) % 4)), key)
    except ValueError as error:
        raise _invalid(receipt) from error
    # Written back, because base64 ignores what it does not know.
    if written(place, key) != receipt:
        raise _invalid(receipt)
    return place


def _invalid(receipt: str) -> InvalidReceipt:
    return InvalidReceipt(
        f"{receipt[:50]!r} is not a receipt of this group. Send the field `receipt` of a message as its poll returned "
        "it, to the group that polled"
    )
