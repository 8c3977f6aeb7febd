"""A broker keeps what must be archived until somebody says that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from broker_process import broker_process
from penstock.client.requests import PartitionInfo
from penstock.errors import ArchiveConflict, InvalidInput, InvalidSetting, OffsetOutOfRange, PartitionNotFound
from penstock.testing import VirtualQueue

HOUR_US = 3_600_000_000


@pytest.fixture
def q() -> Iterator[VirtualQueue]:
    with VirtualQueue() as q:
        yield q


def _published(q: VirtualQueue, count: int, size: int = 10) -> None:
    for number in range(count):
        q.publish("t", b"%d" % number + b"x" * size, key=b"k")


def _part(q: VirtualQueue) -> PartitionInfo:
    return q.topic("t").partitions[0]


def test_retention_by_age_waits_for_the_archive(q: VirtualQueue) -> None:
    q.create_topic("t", 1, retention={"hours": 1}, archive="required")
    _published(q, 10)
    q.clock.advance_us(5 * HOUR_US)
    assert (_part(q).start_offset, _part(q).archived) == (0, 0)
    info = q.archived("t", {0: 10})
    assert info.partitions[0].archived == 10
    q.clock.advance_us(HOUR_US)
    assert _part(q).start_offset == 10


def test_retention_by_bytes_waits_as_well_and_takes_what_is_archived(q: VirtualQueue) -> None:
    q.create_topic("t", 1, retention={"bytes": 4_000}, archive="required")
    for _ in range(6):
        _published(q, 20, 200)
        q.clock.advance_us(61_000_000)
    assert _part(q).start_offset == 0
    q.archived("t", {0: 50})
    q.clock.advance_us(61_000_000)
    # Whole segments: that of message 50 stays.
    assert _part(q).start_offset == 40
    q.change_topic("t", archive="none")
    q.clock.advance_us(61_000_000)
    assert _part(q).start_offset > 50


def test_compaction_waits_for_the_archive(q: VirtualQueue) -> None:
    q.create_topic("t", 1, cleanup="compact", archive="required")
    _published(q, 10)
    q.clock.advance_us(30 * HOUR_US)
    _published(q, 1)
    q.clock.advance_us(30 * HOUR_US)
    assert len(list(q.reader("t"))) == 11
    q.archived("t", {0: 11})
    _published(q, 1)
    q.clock.advance_us(HOUR_US)
    assert len(list(q.reader("t"))) < 4


def test_what_was_archived_stays_so_and_survives_a_restart(q: VirtualQueue) -> None:
    identity = q.create_topic("t", 2, archive="required").id
    for _ in range(10):
        q.publish("t", "x", partition=0)
        q.publish("t", "x", partition=1)
    q.archived("t", {0: 7}, topic_id=identity)
    q.archived("t", {0: 5, 1: 3}, topic_id=identity)
    q.restart()
    assert [part.archived for part in q.topic("t").partitions] == [7, 3]
    q.change_topic("t", 3)
    assert [part.archived for part in q.topic("t").partitions] == [7, 3, 0]
    q.archived("t", {})
    assert [part.archived for part in q.topic("t").partitions] == [7, 3, 0]


def test_what_was_archived_is_taken_back_only_if_somebody_says_so(q: VirtualQueue) -> None:
    q.create_topic("t", 1, retention={"hours": 1}, archive="required")
    _published(q, 10)
    q.archived("t", {0: 10})
    assert q.archived("t", {0: 4}).partitions[0].archived == 10
    assert q.archived("t", {}, lowers=True).partitions[0].archived == 10
    assert q.archived("t", {0: 0}, lowers=True).partitions[0].archived == 0
    q.restart()
    q.clock.advance_us(5 * HOUR_US)
    assert (_part(q).start_offset, _part(q).archived) == (0, 0)


def test_what_can_not_be_is_refused_and_changes_nothing(q: VirtualQueue) -> None:
    old = q.create_topic("t", 1)
    q.publish("t", "x")
    with pytest.raises(OffsetOutOfRange, match="can't be archived up to 2"):
        q.archived("t", {0: 2})
    with pytest.raises(OffsetOutOfRange):
        q.archived("t", {0: -1})
    with pytest.raises(PartitionNotFound):
        q.archived("t", {0: 1, 1: 0})
    with pytest.raises(InvalidInput, match="numbers by partition"):
        q.archived("t", [1])  # type: ignore[arg-type]
    q.delete_topic("t")
    q.create_topic("t", 1)
    q.publish("t", "x")
    with pytest.raises(ArchiveConflict, match="made again"):
        q.archived("t", {0: 1}, topic_id=old.id)
    assert _part(q).archived == 0
    with pytest.raises(InvalidSetting, match="archive is none or required, not 'maybe'"):
        q.create_topic("other", archive="maybe")


def test_an_answer_outlives_a_broker_that_is_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        with penstock.connect(broker.address) as q:
            identity = q.create_topic("t", 1, archive="required").id
            for _ in range(5):
                q.publish("t", "x")
            for told in (2, 4):
                q.archived("t", {0: told}, topic_id=identity)
            broker.kill()
            broker.start()
            assert q.topic("t").partitions[0].archived == 4
            assert q.topic("t").settings["archive"] == "required"
            q.archived("t", {0: 5}, topic_id=identity)
            broker.kill()
        broker.start()
        with penstock.connect(broker.address) as q:
            assert q.topic("t").partitions[0].archived == 5
