"""Receipts as text: base64url, without padding, of those in `server/receipts.py`, which have no seal here."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from penstock.server import receipts
from penstock.server.http.failures import InvalidReceipt
from penstock.server.receipts import NO_SEAL, Place

EXAMPLE = "gkBRJAEAAIXAPRoNAAAAAAAAAAABAAAAb3JkZXJz"
# Of a topic whose name has 200 characters, and more.
LENGTH_MAX = 400


def written(place: Place) -> str:
    return urlsafe_b64encode(receipts.written(place, NO_SEAL)).rstrip(b"=").decode()


def read(receipt: str) -> Place:
    """InvalidReceipt if it is none of ours."""
    try:
        data = urlsafe_b64decode(receipt[:LENGTH_MAX] + "=" * (-len(receipt) % 4))
        place = receipts.read(data)
        receipts.check(data, NO_SEAL)
    except ValueError as error:
        raise _invalid(receipt) from error
    # Written back, because base64 ignores what it does not know.
    if written(place) != receipt:
        raise _invalid(receipt)
    return place


def _invalid(receipt: str) -> InvalidReceipt:
    return InvalidReceipt(
        f"{receipt[:50]!r} is not a receipt. Send the field `receipt` of a message as the poll returned it"
    )
