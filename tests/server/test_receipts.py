"""Receipts that were given out stay good: their bytes, and their text, do not change."""

from __future__ import annotations

import pytest

from penstock.server import receipts
from penstock.server.http import receipts as texts
from penstock.server.receipts import NO_SEAL, NotAReceipt, Place, seal_of

PLACE = Place("orders", partition=1, lease=2, offset=3)
SEALED = bytes.fromhex("a4a272e2 0200000000000000 0300000000000000 01000000 6f7264657273")


def test_a_receipt_has_the_bytes_that_it_always_had() -> None:
    assert receipts.written(PLACE, seal_of("g", "topic-id")) == SEALED
    assert receipts.read(SEALED) == PLACE
    receipts.check(SEALED, seal_of("g", "topic-id"))


def test_a_receipt_of_http_is_the_text_that_it_always_was() -> None:
    place = Place("orders", partition=1, lease=0x0D1A3DC085000001, offset=0)
    assert texts.written(place) == texts.EXAMPLE
    assert texts.read(texts.EXAMPLE) == place


@pytest.mark.parametrize("seal", [NO_SEAL, seal_of("h", "topic-id"), seal_of("g", "another")])
def test_a_seal_is_good_for_one_group_and_one_topic(seal: int) -> None:
    with pytest.raises(NotAReceipt):
        receipts.check(SEALED, seal)


@pytest.mark.parametrize("receipt", [b"", b"x", SEALED[:23], SEALED[:-1] + b"\xff"])
def test_what_can_t_be_a_receipt_is_not_read(receipt: bytes) -> None:
    with pytest.raises(NotAReceipt):
        receipts.read(receipt)
