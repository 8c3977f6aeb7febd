"""How users write messages, and what of it is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.client.words import message_of, names_of, where
from penstock.errors import InvalidInput, InvalidMessage
from penstock.message import Message, Priority

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


@pytest.mark.parametrize(
    ("value", "fields", "message"),
    [
        (b"x", {}, Message(b"x")),
        ("grüße", {}, Message("grüße".encode())),
        (bytearray(b"x"), {}, Message(b"x")),
        (memoryview(b"x"), {}, Message(b"x")),
        (None, {"key": "k"}, Message(None, b"k")),
        (b"", {"key": b"\xff"}, Message(b"", b"\xff")),
        (b"x", {"headers": {"a": "1", "b": b"2"}}, Message(b"x", headers=(("a", b"1"), ("b", b"2")))),
        (b"x", {"headers": [("a", "1"), ("a", "2")]}, Message(b"x", headers=(("a", b"1"), ("a", b"2")))),
        (b"x", {"headers": None}, Message(b"x")),
        (b"x", {"delay": "30s"}, Message(b"x", deliver_at=NOW + 30 * SECOND)),
        (b"x", {"delay": timedelta(seconds=1)}, Message(b"x", deliver_at=NOW + SECOND)),
        (b"x", {"delay": "0s"}, Message(b"x")),
        (b"x", {"deliver_at": "2023-11-14T22:13:21Z"}, Message(b"x", deliver_at=NOW + SECOND)),
        (b"x", {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, Message(b"x", deliver_at=1_893_456_000 * SECOND)),
        (b"x", {"ttl": "1s"}, Message(b"x", expires_at=NOW + SECOND)),
        (
            b"x",
            {"ttl": "2s", "delay": "1s"},
            Message(b"x", deliver_at=NOW + SECOND, expires_at=NOW + 2 * SECOND),
        ),
        (b"x", {"priority": "high"}, Message(b"x", priority=1)),
        (b"x", {"priority": "normal"}, Message(b"x")),
        (b"x", {"priority": Priority.LOW}, Message(b"x", priority=-1)),
        (b"x", {"timestamp": "1970-01-01T00:00:01Z"}, Message(b"x", timestamp=SECOND)),
    ],
)
def test_a_message_is_made_of_what_users_write(value: Any, fields: Any, message: Message) -> None:
    assert message_of(value, NOW, fields) == message


@pytest.mark.parametrize(
    ("value", "fields", "part_of_the_sentence"),
    [
        ({"id": 1}, {}, "value must be bytes or text, not dict"),
        (1, {}, "value must be bytes or text, not int"),
        ("\ud800", {}, "can't be written as UTF-8"),
        (b"x", {"key": 7}, "key must be bytes or text, not int"),
        (b"x", {"headers": "a=1"}, "headers must be a mapping or pairs"),
        (b"x", {"headers": 3}, "headers must be a mapping or pairs"),
        (b"x", {"headers": {1: b"x"}}, "the name of a header must be text, not int"),
        (b"x", {"headers": {"a": None}}, "header 'a' must be bytes or text, not None"),
        (b"x", {"headers": {"a": 1.5}}, "header 'a' must be bytes or text, not float"),
        (b"x", {"delay": 30}, "a duration needs its unit"),
        (b"x", {"delay": "soon"}, "a duration is written as"),
        (b"x", {"delay": "1s", "deliver_at": "2030-01-01T00:00:00Z"}, "a delay or a deliver_at, not both"),
        (b"x", {"deliver_at": "tomorrow"}, "a time is written as"),
        (b"x", {"deliver_at": datetime(2030, 1, 1)}, "needs a time zone"),
        (b"x", {"ttl": "0s"}, "would be over before the message is due"),
        (b"x", {"ttl": "1s", "delay": "1s"}, "would be over before the message is due"),
        (b"x", {"expires_at": "1970-01-01T00:00:00Z"}, "expires_at can't be 1970-01-01T00:00:00Z exactly"),
        (b"x", {"timestamp": "1970-01-01T00:00:00Z"}, "timestamp can't be 1970-01-01T00:00:00Z exactly"),
        (b"x", {"priority": "urgent"}, "priority is high, normal or low, not 'urgent'"),
        (b"x", {"priority": 2}, "priority is high, normal or low, not 2"),
        (b"x", {"priority": True}, "priority is high, normal or low, not True"),
        (b"x", {"priority": None}, "priority is high, normal or low, not None"),
        (b"x", {"prio": "high"}, "a message has no 'prio'; it may have key, headers"),
    ],
)
def test_what_can_not_be_understood_is_refused_with_a_sentence(
    value: Any, fields: Any, part_of_the_sentence: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        message_of(value, NOW, fields)
    assert part_of_the_sentence in refused.value.message


def test_one_name_stands_for_itself() -> None:
    assert names_of("orders") == ("orders",)
    assert names_of(["orders", "returns"]) == ("orders", "returns")
    with pytest.raises(InvalidInput, match="topics are a name or a list of names, not int"):
        names_of(3)  # type: ignore[arg-type]


def test_a_filter_of_dead_letters_is_written_like_everything_else() -> None:
    meant = where(group="g", ids="t.dlq:0:1", key="k", reason="bad", since="1970-01-01T00:00:01Z")
    assert (meant.group, meant.ids, meant.key, meant.reason_contains) == ("g", ("t.dlq:0:1",), b"k", "bad")
    assert (meant.since_us, meant.until_us) == (SECOND, None)
    with pytest.raises(InvalidMessage):
        where(key=1)  # type: ignore[arg-type]
