"""Reading the log as it was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from client.meanwhile import after_each_look, publish_after_the_end_was_seen
from penstock.client.client import Client
from penstock.client.requests import FindOffsets
from penstock.clock import rfc3339
from penstock.errors import InvalidInput, LogCorrupt, OffsetOutOfRange, PartitionNotFound, PenstockError, TopicNotFound
from penstock.testing import VirtualClock, VirtualQueue


@pytest.fixture
def filled(queue: VirtualQueue, clock: VirtualClock) -> VirtualQueue:
    """Ten messages, one a minute; one of them delayed, one acknowledged."""
    for number in range(10):
        queue.publish("orders", b"%d" % number, key=f"k{number}", delay="7d" if number == 5 else None)
        clock.advance("1m")
    queue.consumer("w", "orders").poll(1)[0].ack()
    return queue


def values(queue: VirtualQueue, **bounds: Any) -> list[int]:
    return [int(message.value or b"") for message in queue.reader("orders", **bounds)]


def minute(clock: VirtualClock, number: int) -> str:
    return rfc3339(clock.now_us() - (10 - number) * 60_000_000)


def test_everything_is_read_also_what_groups_do_not_see(filled: VirtualQueue) -> None:
    assert values(filled) == list(range(10))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"from_offset": 3}, range(3, 10)),
        ({"to_offset": 3}, range(3)),
        ({"from_offset": 3, "to_offset": 7}, range(3, 7)),
        ({"from_offset": 7, "to_offset": 3}, range(0)),
        ({"from_offset": "earliest", "to_offset": "latest"}, range(10)),
        ({"from_offset": "latest"}, range(0)),
        ({"from_offset": 10}, range(0)),
        ({"to_offset": 100}, range(10)),
        ({"from_offset": {0: 8}}, range(8, 10)),
        ({"partitions": [0]}, range(10)),
        ({"partitions": []}, range(0)),
    ],
)
def test_a_stretch_is_given_by_offsets(filled: VirtualQueue, bounds: dict[str, Any], expected: range) -> None:
    assert values(filled, **bounds) == list(expected)


def test_where_a_reading_ends_is_known_beforehand(filled: VirtualQueue) -> None:
    assert filled.reader("orders", from_offset=2, to_offset=100).offsets() == {0: (2, 10)}


def test_a_stretch_is_given_by_times_of_appending(filled: VirtualQueue, clock: VirtualClock) -> None:
    assert values(filled, from_time=minute(clock, 3), to_time=minute(clock, 7)) == [3, 4, 5, 6]
    assert values(filled, from_time=minute(clock, 3), to_offset=5) == [3, 4]
    assert values(filled, to_time="1970-01-01T00:00:00Z") == []
    assert values(filled, from_time="2100-01-01T00:00:00Z") == []


def test_a_time_that_is_not_over_is_the_end_however_much_is_published_meanwhile(
    filled: VirtualQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_after_the_end_was_seen(filled, "orders", monkeypatch)
    assert filled.reader("orders", from_time="2100-01-01T00:00:00Z").offsets() == {0: (10, 10)}
    assert filled.reader("orders", to_time="2100-01-01T00:00:00Z").offsets() == {0: (0, 11)}
    # Who names an offset means that one.
    with pytest.raises(OffsetOutOfRange, match="has offsets 0 to 12, not 13"):
        filled.reader("orders", from_offset=13).offsets()


def test_partitions_that_are_added_while_it_is_found_out_where_to_read_are_left_out(
    filled: VirtualQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(client: Client, request: FindOffsets) -> None:
        await client.change_topic("orders", partitions=len((await client.topic("orders")).partitions) + 1)

    after_each_look(filled, add, monkeypatch)
    reader = filled.reader("orders", from_time="1970-01-01T00:00:00Z", to_time="2100-01-01T00:00:00Z")
    assert reader.offsets() == {0: (0, 10)}


def test_batches_have_the_columns_of_the_log(filled: VirtualQueue, clock: VirtualClock) -> None:
    with filled.producer("orders") as producer:
        producer.send_batch(pa.table({"value": [b"%d" % number for number in range(10, 20)]}))
    batches = list(filled.reader("orders", from_offset=4, to_offset=15).batches())
    table = pa.Table.from_batches(batches)
    assert table.schema.names[:5] == ["partition", "offset", "append_time", "key", "value"]
    assert table["offset"].to_pylist() == list(range(4, 15))
    assert table["value"].to_pylist() == [b"%d" % number for number in range(4, 15)]
    assert table["partition"].to_pylist() == [0] * 11
    assert [when is not None for when in table["deliver_at"].to_pylist()] == [False, True, *[False] * 9]
    first = table["append_time"][0].as_py()
    assert round(first.timestamp() * 1_000_000) == clock.now_us() - 6 * 60_000_000


def test_partitions_are_read_one_after_the_other(queue: VirtualQueue) -> None:
    queue.create_topic("events", 3)
    for number in range(9):
        queue.publish("events", b"%d" % number, partition=number % 3)
    assert [message.value for message in queue.reader("events")] == [b"%d" % n for n in (0, 3, 6, 1, 4, 7, 2, 5, 8)]
    some = queue.reader("events", partitions=[2, 0], from_offset={2: 1}, to_offset={0: 2})
    assert [message.id for message in some] == ["events:2:1", "events:2:2", "events:0:0", "events:0:1"]
    assert some.offsets() == {2: (1, 3), 0: (0, 2)}


def test_what_is_published_after_the_reading_began_is_not_read(filled: VirtualQueue) -> None:
    reading = iter(filled.reader("orders"))
    next(reading)
    filled.publish("orders", b"10")
    assert len(list(reading)) == 9


def test_a_reader_that_is_left_in_the_middle_does_no_harm(filled: VirtualQueue) -> None:
    for message in filled.reader("orders"):
        assert message.offset == 0
        break
    assert values(filled) == list(range(10))


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda q: list(q.reader("nowhere")), TopicNotFound),
        (lambda q: list(q.reader("orders", from_offset=11)), OffsetOutOfRange),
        (lambda q: list(q.reader("orders", from_offset=-1)), OffsetOutOfRange),
        (lambda q: list(q.reader("orders", partitions=[1])), PartitionNotFound),
        (lambda q: list(q.reader("orders", from_offset={1: 0})), PartitionNotFound),
        (lambda q: q.reader("orders", from_offset="first"), InvalidInput),
        (lambda q: q.reader("orders", to_offset={0: 1.5}), InvalidInput),
        (lambda q: q.reader("orders", from_offset=1, from_time="2020-01-01T00:00:00Z"), InvalidInput),
        (lambda q: q.reader("orders", to_time="yesterday"), InvalidInput),
        (lambda q: q.reader("orders", from_time=7), InvalidInput),
        (lambda q: q.reader("orders", to_offset=-1), OffsetOutOfRange),
        (lambda q: q.reader("orders", partitions=1), InvalidInput),
        (lambda q: q.reader("orders", partitions="01"), InvalidInput),
        (lambda q: list(q.reader("orders", partitions=[True])), PartitionNotFound),
    ],
)
def test_what_can_not_be_read_is_refused(
    filled: VirtualQueue, read: Callable[[Any], object], error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        read(filled)


def test_damage_in_the_log_is_called_damage(filled: VirtualQueue) -> None:
    (directory,) = (partition for partition in filled.disk.directories["partitions"].directories.values())
    (segment,) = (inode for name, inode in directory.directories["messages"].names.items() if name.endswith(".log"))
    at = segment.current.rindex(b"k9")
    segment.current[at] ^= 1
    with pytest.raises(LogCorrupt, match="the frame at offset 9 is damaged"):
        values(filled)
    assert values(filled, to_offset=9) == list(range(9))
