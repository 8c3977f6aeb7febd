"""The parts of the archive pipeline by themselves: tasks that are repeated or fail, places that can't be, bad input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from archive.support import written
from broker_process import BrokerProcess
from cli.support import Run
from penstock.archive import Archive, FileEntry
from penstock.client.blocking import Client
from penstock.errors import ArchiveConflict, DataLost, OffsetOutOfRange, TopicNotFound
from penstock.spark.asked import Asked
from penstock.spark.builtin.archive import Archiving, Batches, prepared
from penstock.spark.builtin.archive_task import archive_task
from penstock.spark.builtin.archive_tidying import Tidying
from penstock.spark.connecting import Connecting
from penstock.spark.planning import Range
from penstock.spark.tables import Messages

MESSAGES = 9


@pytest.fixture
def topic(q: Client, request: pytest.FixtureRequest) -> str:
    name = "t-" + request.node.name.replace("[", "-").replace("]", "")[:80]
    q.create_topic(name, 1)
    for number in range(MESSAGES):
        q.publish(name, f"value {number}")
    return name


def archiving(broker: BrokerProcess, where: Path, topics: str, **more: Any) -> Archiving:
    return Archiving("archiver", Connecting(broker.address), str(where), topics, **more)


def task_of(q: Client, topic: str) -> Range:
    return Range(topic, q.topic(topic).id, 0, 0, MESSAGES)


class Collected:
    """Rows of tasks, as the driver gets them."""

    def __init__(self, entries: list[FileEntry]) -> None:
        self._entries = entries

    def collect(self) -> list[dict[str, str]]:
        return [{"entry": msgspec.json.encode(entry).decode()} for entry in self._entries]


class Failing(Messages):
    """A log whose reading fails behind the first rows."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.topics_read = 0

    def batches(self, client: Client, *where: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        self.topics_read += 1
        if self.topics_read > 1:
            yield from super().batches(client, *where, **more)
            return
        topic, partition, start, end, columns = where
        yield from super().batches(client, topic, partition, start, min(end, start + 4), columns)
        raise self._error


class AskedOf(Asked):
    """What a task is asked, with another log."""

    instead: Messages

    @property
    def log(self) -> Messages:
        return self.instead


def asked_of(what: Archiving, log: Messages) -> AskedOf:
    asked = AskedOf(*what.asked())
    asked.instead = log
    return asked


def test_a_task_that_is_done_twice_counts_once(q: Client, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    what = archiving(broker, tmp_path, topic)
    archive = prepared(what, q)
    first, second = (archive_task(what.asked(), str(tmp_path), task_of(q, topic)) for _ in range(2))
    assert first[0].path != second[0].path
    Batches(what, archive, q).commit(Collected(second), 0)
    # One who was thought dead, and has the same to commit.
    with pytest.raises(ArchiveConflict, match=r"\[archive_conflict\] .* are there already"):
        Batches(what, Archive.open(tmp_path), q).commit(Collected(first), 0)
    archive.refresh()
    assert archive.files() == second


def test_a_task_that_fails_leaves_nothing_and_one_that_loses_messages_leaves_a_gap(
    q: Client, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    what = archiving(broker, tmp_path, topic)
    prepared(what, q)
    with pytest.raises(RuntimeError, match="broken"):
        archive_task(asked_of(what, Failing(RuntimeError("broken"))), str(tmp_path), task_of(q, topic))
    lost = OffsetOutOfRange("retention was faster", start=6, end=MESSAGES)
    with pytest.raises(DataLost, match=r"offsets 4 to 6 of partition 0 .* were deleted before they were archived"):
        archive_task(asked_of(what, Failing(lost)), str(tmp_path), task_of(q, topic))
    assert list(tmp_path.rglob("*.parquet")) == []

    lossy = archiving(broker, tmp_path, topic, fails_on_loss=False)
    entries = archive_task(asked_of(lossy, Failing(lost)), str(tmp_path), task_of(q, topic))
    assert [(entry.first_offset, entry.end_offset, entry.rows) for entry in entries] == [(0, 4, 4), (6, 9, 3)]
    archive = Archive.open(tmp_path)
    with pytest.raises(ArchiveConflict, match="would leave a gap"):
        Batches(what, archive, q)._commit(entries)
    Batches(lossy, archive, q)._commit(entries)
    assert archive.covered(q.topic(topic).id) == {0: MESSAGES}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_goes_away_under_a_task_is_not_archived(
    q: Client, broker: BrokerProcess, topic: str, tmp_path: Path, is_made_again: bool
) -> None:
    what, task = archiving(broker, tmp_path, topic), task_of(q, topic)
    prepared(what, q)
    q.delete_topic(topic)
    if is_made_again:
        q.create_topic(topic, 1)
    told = "deleted and made again" if is_made_again else "was deleted while"
    with pytest.raises(DataLost, match=told):
        archive_task(what.asked(), str(tmp_path), task)
    lossy = archiving(broker, tmp_path, topic, fails_on_loss=False)
    assert archive_task(lossy.asked(), str(tmp_path), task) == []
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_log_that_is_shorter_than_the_archive_is_refused(
    q: Client, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    identity = q.topic(topic).id
    archive = Archive.open(tmp_path, create=True)
    archive.commit("before", 0, written(tmp_path, 0, MESSAGES + 1, topic_id=identity))
    with pytest.raises(ArchiveConflict, match=f"archived up to offset {MESSAGES + 1} .* its log ends at {MESSAGES}"):
        prepared(archiving(broker, tmp_path, topic), q)
    with pytest.raises(DataLost, match=f"and it ends at {MESSAGES}: was the broker set back"):
        archive_task(
            archiving(broker, tmp_path, topic).asked(), str(tmp_path), Range(topic, identity, 0, 0, MESSAGES + 1)
        )


def test_a_topic_that_is_not_there_is_told_before_anything_is_made(
    q: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    where = tmp_path / "archive"
    with pytest.raises(TopicNotFound, match="there is no topic nowhere"):
        prepared(archiving(broker, where, "nowhere"), q)
    assert not where.exists()


def test_tidying_leaves_files_for_another_time_and_removes_what_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive.open(tmp_path, create=True)
    for batch in range(4):
        for partition in range(2):
            entries = written(tmp_path, batch * 10, batch * 10 + 10, partition=partition)
            archive.commit("w", batch * 2 + partition, entries)
    Tidying(archive, files_min=5).tidy()
    assert len(archive.files()) == 8
    monkeypatch.setattr("penstock.spark.builtin.archive_tidying.SECONDS_MAX", -1.0)
    Tidying(archive, files_min=4).tidy()
    assert len(archive.files()) == 8
    monkeypatch.undo()
    Tidying(archive, files_min=4).tidy()
    assert len(archive.files()) == 2
    # They are there for a day, for whoever is reading them.
    assert len(list(tmp_path.rglob("*.parquet"))) == 10


def test_what_a_dead_task_left_is_removed_some_time_also_if_there_is_nothing_to_merge(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path, create=True)
    (left,) = written(tmp_path, 0, 10)
    os.utime(tmp_path / left.path, (0, 0))

    def job(batch: int) -> None:
        """One that runs for a moment."""
        tidying = Tidying(Archive.open(tmp_path), files_min=1_000)
        archive.commit("w", batch, [])
        tidying.tidy()

    for batch in range(63):
        job(batch)
    assert (tmp_path / left.path).exists()
    job(63)
    assert not (tmp_path / left.path).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which topics is said by --topics or by --pattern"),
        (["--topics", "a", "--pattern", "b"], "which topics is said by --topics or by --pattern"),
        (["--topics", "a", "--every", "10ms"], "--every is 1s or longer, not 10ms"),
        (["--topics", "a", "--every", "soon"], "--every: "),
        (["--topics", "a", "--name", "a/b"], "--name has letters, digits, dots, _ and -, not 'a/b'"),
        (["--topics", "a,,b"], "the option subscribe is names of topics with commas between them"),
        (["--pattern", "("], "the option subscribePattern is a regular expression"),
        (["--topics", "a", "--conf", "x"], "--conf is name=value"),
    ],
)
def test_what_can_not_be_archived_is_told_in_a_line(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    where = tmp_path / "archive"
    ran = Run(capsys)("pipeline", "archive", "--to", where, "--server", broker.address, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not where.exists()
