"""What is found wrong before archiving starts, and what happens between two archivers; without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive.support import archive_topic
from penstock.archive import Archive
from penstock.errors import ArchiveConflict
from penstock.spark.builtin.archive import Archiving, prepared
from penstock.spark.connecting import Connecting
from penstock.testing import VirtualQueue

HOUR_US = 3_600_000_000


@pytest.fixture
def q() -> Iterator[VirtualQueue]:
    with VirtualQueue() as q:
        yield q


def archiving(where: Path, topics: str = "t", *, refills: bool = False) -> Archiving:
    return Archiving("archiver", Connecting("penstock://unused"), str(where), topics, refills=refills)


def test_an_archive_that_was_lost_is_told_and_what_the_broker_still_has_is_kept_for_a_new_one(
    q: VirtualQueue, tmp_path: Path
) -> None:
    q.create_topic("t", 2, retention={"hours": 1}, archive="required")
    q.create_topic("others", 1)
    for number in range(10):
        q.publish("t", f"{number}", partition=0)
    archive_topic(q, "t", tmp_path / "a")
    archive_topic(q, "others", tmp_path / "a", 1, told=False)
    prepared(archiving(tmp_path / "a", "t,others"), q)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(
        ArchiveConflict, match=r"partition 0 of t is archived up to offset 10, and .* up to 0: .*--refill"
    ) as raised:
        prepared(archiving(tmp_path / "a"), q)
    assert (raised.value.details["told"], raised.value.details["covered"]) == (10, 0)
    # It is refused until somebody decides, also in the archive that was just made.
    with pytest.raises(ArchiveConflict):
        prepared(archiving(tmp_path / "a"), q)

    prepared(archiving(tmp_path / "a", refills=True), q)
    q.clock.advance_us(5 * HOUR_US)
    assert (q.topic("t").partitions[0].start_offset, q.topic("t").partitions[0].archived) == (0, 0)
    archive_topic(q, "t", tmp_path / "a")
    prepared(archiving(tmp_path / "a"), q)
    q.clock.advance_us(HOUR_US)
    assert (q.topic("t").partitions[0].start_offset, q.topic("t").partitions[0].archived) == (10, 10)


def test_an_archive_that_was_set_back_is_told(q: VirtualQueue, tmp_path: Path) -> None:
    q.create_topic("t", 1, archive="required")
    q.publish("t", "1")
    archive_topic(q, "t", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    q.publish("t", "2")
    archive_topic(q, "t", tmp_path / "a", 1)
    with pytest.raises(ArchiveConflict, match=r"up to offset 2, and .* up to 1"):
        prepared(archiving(tmp_path / "copy"), q)
    prepared(archiving(tmp_path / "copy", refills=True), q)
    assert q.topic("t").partitions[0].archived == 1
    assert Archive.open(tmp_path / "copy").covered(q.topic("t").id) == {0: 1}
