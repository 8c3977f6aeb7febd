"""Receipts that were given out stay good: their bytes, and their text, do not change."""

from __future__ import annotations

import pytest

from penstock.server import receipts
from penstock.server.http import receipts as texts
from penstock.server.receipts import NotAReceipt, Place, key_of

PLACE = Place("orders", partition=1, lease=2, offset=3)
KEY = key_of("secret", "g")
GIVEN = bytes.fromhex("791c50050c01c91a981b914bf905512c 0200000000000000 0300000000000000 01000000 6f7264657273")


def test_a_receipt_has_the_bytes_that_it_always_had() -> None:
    assert receipts.written(PLACE, KEY) == GIVEN
    assert receipts.read(GIVEN, KEY) == PLACE


def test_a_receipt_of_http_is_the_text_that_it_always_was() -> None:
    place, key = Place("orders", partition=1, lease=0x0D1A3DC085000001, offset=0), key_of("secret", "billing")
    assert texts.written(place, key) == texts.EXAMPLE
    assert texts.read(texts.EXAMPLE, key) == place


@pytest.mark.parametrize("key", [b"", key_of("secret", "h"), key_of("another", "g")])
def test_a_receipt_is_good_for_one_group_of_one_broker(key: bytes) -> None:
    with pytest.raises(NotAReceipt):
        receipts.read(GIVEN, key)


@pytest.mark.parametrize("at", range(len(GIVEN)))
def test_no_byte_of_a_receipt_can_be_changed(at: int) -> None:
    forged = GIVEN[:at] + bytes([GIVEN[at] ^ 1]) + GIVEN[at + 1 :]
    with pytest.raises(NotAReceipt):
        receipts.read(forged, KEY)


@pytest.mark.parametrize("receipt", [b"", b"x", GIVEN[:15], GIVEN[:23], GIVEN[:-1], GIVEN + b"x"])
def test_what_can_t_be_a_receipt_is_not_read(receipt: bytes) -> None:
    with pytest.raises(NotAReceipt):
        receipts.read(receipt, KEY)
