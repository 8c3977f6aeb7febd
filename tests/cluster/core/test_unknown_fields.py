"""What a newer build has written into a record outlives a change by this one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.broker.catalog import GroupRecord, ReplayRecord, ScheduleRecord, TopicRecord
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.cluster.core import record as records
from penstock.cluster.core import unknown_fields
from penstock.cluster.core.election import elect_unclean, first, reassign
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.message import Message

LIVE = {node: Registered(f"d{node}", f"{node}1") for node in "abc"}
RECORD = first("t", 0, ("a", "b"), 1, LIVE)


def of_newer(data: bytes, *path: str | int) -> bytes:
    """With a field at that place that only a newer build knows."""
    value = within = msgspec.json.decode(data)
    for step in path:
        within = within[step]
    within["newer"] = {"is": [1, "kept"]}
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: replace(record, isr=(*record.isr, Member("c", "dc"))),
        lambda record: replace(record, min_isr=2),
        lambda record: record.elected("b", "b1", record.isr),
        lambda record: record.fenced(1),
        lambda record: elect_unclean(record, "b", LIVE),
        lambda record: reassign(record, ("b", "c"), LIVE),
    ],
)
def test_a_partition_record_keeps_them_whatever_is_changed(change: Any) -> None:
    read = records.decode(of_newer(records.encode(RECORD)))
    changed = change(read)
    written = msgspec.json.decode(records.encode(changed))
    assert written.pop("newer") == {"is": [1, "kept"]}
    assert records.decode(msgspec.json.encode(written)) == replace(changed, unknown=())


def test_a_member_of_the_isr_keeps_them_while_it_is_one() -> None:
    read = records.decode(of_newer(records.encode(RECORD), "isr", 1))
    joined = replace(read, isr=(Member("c", "dc"), *reversed(read.isr)))
    assert [sorted(member) for member in msgspec.json.decode(records.encode(joined))["isr"]] == [
        ["disk", "node"],
        ["disk", "newer", "node"],
        ["disk", "node"],
    ]
    left = replace(joined, isr=(Member("c", "dc"),))
    assert b"newer" not in records.encode(left)


TOPIC = TopicRecord("id", "t", ("p", "q"), TopicSettings(), 1)
GROUP = GroupRecord("g", GroupSettings(), 1, ReplayRecord("id", ((0, 5),)))
SCHEDULE = ScheduleRecord("s", "t", "@daily", "UTC", Message(b"v"), 1, 2)


@pytest.mark.parametrize(
    ("record", "path"),
    [(TOPIC, ()), (TOPIC, ("settings",)), (GROUP, ("settings",)), (GROUP, ("replay",)), (SCHEDULE, ("message",))],
)
def test_records_of_the_catalog_keep_them_also_in_settings(record: msgspec.Struct, path: tuple[str, ...]) -> None:
    newer = of_newer(msgspec.json.encode(record), *path)
    read, unknown = unknown_fields.decode(newer, type(record))
    assert read == record, "this build reads what it knows"
    assert msgspec.json.decode(unknown_fields.encode(read, unknown)) == msgspec.json.decode(newer)


def test_a_record_without_any_is_written_as_it_is() -> None:
    read, unknown = unknown_fields.decode(msgspec.json.encode(TOPIC), TopicRecord)
    assert (read, unknown) == (TOPIC, ())
    assert unknown_fields.encode(read, unknown) == msgspec.json.encode(TOPIC)


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b'{"topic":1}', b"\xff"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        unknown_fields.decode(data, PartitionRecord)
