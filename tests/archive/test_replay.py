"""What retention deleted is read from the archive, and the rest from the log: no gap, no duplicate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from archive.support import archive_topic, shown
from client.meanwhile import publish_after_the_end_was_seen
from penstock.archive import Archive, compact, vacuum
from penstock.archive.reading import footer_crc
from penstock.client.rows import LOG_SCHEMA
from penstock.errors import (
    ArchiveCorrupt,
    ArchiveNotFound,
    InvalidInput,
    MessagesMissing,
    OffsetOutOfRange,
    PartitionNotFound,
)
from penstock.testing import VirtualQueue

HOUR_US = 3_600_000_000
Shown = tuple[object, ...]


@pytest.fixture
def q() -> Iterator[VirtualQueue]:
    with VirtualQueue() as q:
        yield q


def _published(q: VirtualQueue, count: int, start: int = 0, **fields: Any) -> None:
    for number in range(start, start + count):
        q.publish("t", f"value {number}", key=f"key {number % 3}", **fields)
        q.clock.advance_us(1_000)


def _log(q: VirtualQueue, **bounds: Any) -> list[Shown]:
    return [shown(message) for message in q.reader("t", **bounds)]


def _deleted(q: VirtualQueue, hours: int = 3) -> None:
    """Time passes, and with it what may be deleted."""
    q.clock.advance_us(hours * HOUR_US)


def test_replay_has_all_that_was_ever_published(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 2, retention={"hours": 1})
    _published(q, 20, headers={"source": "web"}, priority="high", ttl="7d")
    q.publish("t", None, key="gone")
    everything = _log(q)
    archive_topic(q, "t", tmp_path)
    _deleted(q)
    assert _log(q) == []
    assert sorted(_log(q, archive=tmp_path)) == sorted(everything)
    _published(q, 10, 20)
    archive_topic(q, "t", tmp_path, 1)
    _published(q, 10, 30)
    found = _log(q, archive=tmp_path)
    assert found == _log(q, archive=str(tmp_path)) == _log(q, archive=tmp_path.as_uri())
    # Partition by partition, and each of them in the order of its offsets.
    assert sorted(found) == sorted(everything + _log(q))
    assert len(found) == 41


def test_the_columns_are_those_of_the_log(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 5, headers={"a": "b"})
    before = pa.Table.from_batches(q.reader("t").batches())
    archive_topic(q, "t", tmp_path)
    _deleted(q)
    _published(q, 2, 5)
    after = pa.Table.from_batches(q.reader("t", archive=tmp_path).batches())
    assert after.schema == LOG_SCHEMA
    assert after.slice(0, 5).equals(before)
    some = pa.Table.from_batches(q.reader("t", archive=tmp_path, columns=["value"]).batches())
    assert some.schema.names == ["partition", "offset", "append_time", "value"]
    assert some.column("offset").to_pylist() == list(range(7))


def test_bounds_by_time_and_by_offset_on_either_side_of_the_boundary(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 10)
    archive_topic(q, "t", tmp_path)
    _deleted(q)
    _published(q, 10, 10)
    everything = _log(q, archive=tmp_path)
    times = [each[1] for each in everything]
    assert len(everything) == 20
    for first in (0, 4, 9, 10, 15):
        for last in (0, 5, 10, 12, 20):
            wanted = everything[first:last]
            to_time = times[last] if last < 20 else None
            assert _log(q, archive=tmp_path, from_time=times[first], to_time=to_time) == wanted, (first, last)
            assert _log(q, archive=tmp_path, from_offset=first, to_offset=last) == wanted, (first, last)
    reader = q.reader("t", archive=tmp_path, from_time=times[4], to_time=times[12])
    assert reader.offsets() == {0: (4, 12)}
    assert _log(q, archive=tmp_path, from_offset="latest") == []
    with pytest.raises(OffsetOutOfRange):
        _log(q, archive=tmp_path, from_offset=21)
    with pytest.raises(PartitionNotFound):
        _log(q, archive=tmp_path, partitions=[1])


def test_a_time_that_is_not_over_is_the_end_however_much_is_published_meanwhile(
    q: VirtualQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 10)
    archive_topic(q, "t", tmp_path)
    _deleted(q)
    # The log has nothing now, and what comes while it is looked at is older than the time that is asked for.
    publish_after_the_end_was_seen(q, "t", monkeypatch)
    late = "2100-01-01T00:00:00Z"
    assert q.reader("t", archive=tmp_path, from_time=late).offsets() == {0: (10, 10)}
    assert q.reader("t", whole=True, from_time=late).offsets() == {0: (11, 11)}
    assert q.reader("t", archive=tmp_path, to_time=late).offsets() == {0: (0, 12)}
    with pytest.raises(OffsetOutOfRange, match="has offsets up to 13, not 14"):
        q.reader("t", archive=tmp_path, from_offset=14).offsets()


def test_what_compaction_took_out_of_the_middle_is_there_as_well(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, cleanup="compact", archive="required")
    _published(q, 12)
    q.clock.advance_us(25 * HOUR_US)
    _published(q, 3, 12)
    everything = _log(q)
    archive_topic(q, "t", tmp_path)
    q.clock.advance_us(30 * HOUR_US)
    _published(q, 1, 15)
    q.clock.advance_us(30 * HOUR_US)
    assert len(_log(q)) < 12
    found = _log(q, archive=tmp_path)
    assert found[:15] == everything
    assert len(found) == 16


def test_a_log_that_loses_its_beginning_while_the_archive_is_read(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1}, archive="required")
    _published(q, 10)
    archive_topic(q, "t", tmp_path)
    _published(q, 10, 10)
    everything = _log(q)
    reading = iter(q.reader("t", archive=tmp_path))
    found = [shown(next(reading))]
    # Archived after the reader had looked where the archive ends, and deleted then.
    archive_topic(q, "t", tmp_path, 1)
    _deleted(q)
    assert q.topic("t").partitions[0].start_offset == 20
    found += [shown(message) for message in reading]
    assert found == everything


def test_what_was_deleted_without_being_archived_is_missed_and_not_passed_over(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 10)
    archive_topic(q, "t", tmp_path, told=False)
    _published(q, 5, 10)
    reading = iter(q.reader("t", archive=tmp_path))
    found = [next(reading).offset]
    _deleted(q)
    with pytest.raises(MessagesMissing, match="offsets 10 to 15 of t partition 0") as missed:
        for message in reading:
            found.append(message.offset)
    assert found == list(range(10))
    assert missed.value.details == {"topic": "t", "partition": 0, "first": 10, "end": 15}
    _published(q, 5, 15)
    # From now on it is known before anything is read.
    cases: list[dict[str, Any]] = [{}, {"from_offset": 3}, {"from_offset": 10}, {"from_time": 1_700_000_000_000_000}]
    for bounds in cases:
        with pytest.raises(MessagesMissing, match="offsets 10 to 15"):
            q.reader("t", archive=tmp_path, **bounds).offsets()
    assert [message.offset for message in q.reader("t", archive=tmp_path, to_offset=10)] == list(range(10))
    assert [message.offset for message in q.reader("t", archive=tmp_path, from_offset=15)] == list(range(15, 20))


def test_an_archive_that_began_late_says_what_it_can_not_know(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    began_us = q.clock.now_us()
    _published(q, 5)
    _deleted(q)
    _published(q, 5, 5)
    archive_topic(q, "t", tmp_path)
    _deleted(q)
    _published(q, 5, 10)
    with pytest.raises(MessagesMissing, match="offsets 0 to 5"):
        _log(q, archive=tmp_path, from_time=began_us)
    everything = _log(q, archive=tmp_path)
    assert [each[0] for each in everything] == [f"t:0:{number}" for number in range(5, 15)]
    # Behind a message that is older, nothing older can be missing.
    after: Any = everything[1][1]
    assert _log(q, archive=tmp_path, from_time=after) == everything[1:]


def test_without_an_archive_a_whole_reader_says_what_is_missing(q: VirtualQueue) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    began_us = q.clock.now_us()
    _published(q, 5)
    assert len(_log(q, from_time=began_us, whole=True)) == 5
    _deleted(q)
    _published(q, 5, 5)
    # As a reader does today, it starts with what is left.
    assert len(_log(q, from_time=began_us)) == 5
    with pytest.raises(MessagesMissing, match=r"offsets 0 to 5 of t partition 0 are missing: they were deleted"):
        _log(q, from_time=began_us, whole=True)
    later: Any = _log(q)[2][1]
    assert len(_log(q, from_time=later, whole=True)) == 3
    with pytest.raises(MessagesMissing):
        _log(q, from_offset=3, whole=True)
    with pytest.raises(InvalidInput, match="whole is True or False"):
        q.reader("t", whole="yes")  # type: ignore[arg-type]


def test_a_topic_that_was_made_anew_has_nothing_in_the_archive(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 5)
    archive_topic(q, "t", tmp_path)
    q.delete_topic("t")
    q.create_topic("t", 1, retention={"hours": 1})
    _published(q, 3)
    assert len(_log(q, archive=tmp_path)) == 3
    _deleted(q)
    _published(q, 1)
    with pytest.raises(MessagesMissing, match="of a topic of that name that was deleted"):
        _log(q, archive=tmp_path, from_offset=0)


def test_an_archive_that_is_not_there_is_not_found(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1)
    with pytest.raises(ArchiveNotFound, match="nowhere"):
        _log(q, archive=tmp_path / "nowhere")
    with pytest.raises(ArchiveNotFound, match="does not say where its archive is"):
        _log(q, archive=True)


def test_a_damaged_file_ends_the_replay_with_its_name(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1)
    _published(q, 5)
    (entry,) = archive_topic(q, "t", tmp_path).files()
    data = bytearray((tmp_path / entry.path).read_bytes())
    data[len(data) // 3] ^= 0xFF
    (tmp_path / entry.path).write_bytes(data)
    with pytest.raises(ArchiveCorrupt, match=entry.path):
        _log(q, archive=tmp_path)


def test_messages_of_a_file_without_some_columns_have_nothing_there(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1)
    _published(q, 3, headers={"a": "b"}, priority="low")
    archive = archive_topic(q, "t", tmp_path / "whole", told=False)
    (entry,) = archive.files()
    path = tmp_path / "old" / entry.path
    Archive.open(tmp_path / "old", create=True)
    path.parent.mkdir(parents=True)
    table = parquet.ParquetFile(tmp_path / "whole" / entry.path).read()
    parquet.write_table(table.drop_columns(["headers", "priority", "timestamp", "expires_at", "topic"]), path)
    with pa.OSFile(str(path)) as file:
        entry = msgspec.structs.replace(entry, bytes=file.size(), footer_crc=footer_crc(file))
    Archive.open(tmp_path / "old").commit("w", 0, [entry])
    found = list(q.reader("t", archive=tmp_path / "old"))
    assert [(m.key, m.value, m.headers, m.priority, m.expires_at) for m in found] == [
        (b"key %d" % number, b"value %d" % number, (), 0, 0) for number in range(3)
    ]
    # When it was made is not known; it can't have been later than when it was stored.
    assert all(m.timestamp <= m.append_time for m in found)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happened_in_between_replay_is_what_was_published(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with VirtualQueue() as q:
        q.create_topic("t", 2, retention={"hours": 2}, archive="required", cleanup=random.choice(["delete", "compact"]))
        published: dict[str, Shown] = {}
        batch = 0
        for _ in range(40):
            match random.choice(["publish", "publish", "archive", "wait", "compact", "restart"]):
                case "publish":
                    for _ in range(random.randrange(1, 8)):
                        key, value = f"k{random.randrange(4)}", f"{random.random()}"
                        stored = q.publish("t", value, key=key, delay=random.choice([None, "6h"]))
                        published[stored.id] = (key.encode(), value.encode(), stored.append_time)
                        q.clock.advance_us(random.randrange(3) * 1_000_000)
                case "archive":
                    archive_topic(q, "t", tmp_path, batch, most=random.choice([3, 1_000]))
                    batch += 1
                case "wait":
                    q.clock.advance_us(random.choice([1, 5, 30]) * HOUR_US)
                case "compact" if batch:
                    compact(Archive.open(tmp_path))
                    vacuum(Archive.open(tmp_path), grace="0s")
                case "restart":
                    q.restart()
        Archive.open(tmp_path, create=True)
        found = {m.id: (m.key, m.value, m.append_time) for m in q.reader("t", archive=tmp_path)}
        assert found == published, f"seed {seed}"
        if published:
            since: Any = random.choice([row[2] for row in published.values()])
            later = [m.id for m in q.reader("t", archive=tmp_path, from_time=since)]
            assert sorted(later) == sorted(i for i, row in published.items() if row[2] >= since), f"seed {seed}"
