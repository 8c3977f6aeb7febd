"""The partition record, and its JSON."""

from __future__ import annotations

import pytest

from penstock.cluster.core.record import Member, PartitionRecord, decode, encode
from penstock.errors import InvalidInput

RECORD = PartitionRecord(
    topic="t1",
    number=2,
    replicas=("a", "b", "c"),
    min_isr=2,
    isr=(Member("a", "da"), Member("b", "db")),
    leader="a",
    incarnation="a1",
    epoch=7,
    target=("b", "c", "d"),
    leaving=("e",),
    unclean=(3,),
)


def test_it_comes_back_from_json_as_it_was() -> None:
    assert decode(encode(RECORD)) == RECORD


def test_what_is_usual_is_left_out_of_the_json() -> None:
    plain = PartitionRecord("t1", 0, ("a",), 1, (Member("a", "da"),), "a", "a1", 1)
    assert encode(plain) == (
        b'{"topic":"t1","number":0,"replicas":["a"],"min_isr":1,"isr":[{"node":"a","disk":"da"}],'
        b'"leader":"a","incarnation":"a1","epoch":1}'
    )


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"topic":"t1","number":"2","replicas":[],"min_isr":1}', b"\xff"]
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="no partition record"):
        decode(data)


def test_a_node_is_in_sync_with_its_disk_only() -> None:
    assert RECORD.is_in_sync("a", "da")
    assert not RECORD.is_in_sync("a", "other")
    assert not RECORD.is_in_sync("c", "dc")


def test_those_that_come_and_those_that_leave_have_copies_too() -> None:
    assert RECORD.hosting == ("a", "b", "c", "d", "e")
    assert all(RECORD.hosts(node) for node in RECORD.hosting)
    assert not RECORD.hosts("f")
