"""Topics to Parquet: with Spark, with retention that waits for it, and with drivers that die at the wrong moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from archive.support import shown
from broker_process import BrokerProcess, broker_process
from cli.support import Run
from penstock.archive import Archive
from penstock.client.blocking import Client
from penstock.errors import DataLost, MessagesMissing
from penstock.spark.builtin.archive import Archiving, prepared, start
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.running import Job, run
from penstock.spark.pipeline.spec import Trigger
from penstock.spark.pipeline.state import State, Store

SOON = {"hours": 0.00001}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that may be ended."""
    with broker_process(tmp_path / "data") as process:
        yield process


class Quiet:
    """A view that is told, and says nothing."""

    def starting(self, state: State) -> None: ...
    def running(self) -> None: ...
    def activity(self, text: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def stopping(self) -> None: ...
    def ended(self, state: State) -> None: ...


def archiving(address: str, where: Path, topics: str | None, **more: Any) -> Archiving:
    return Archiving("archiver", Connecting(address), str(where), topics, **more)


def archived(spark: SparkSession, what: Archiving, checkpoint: Path) -> State:
    """What there is now; as the command does it, in this process."""
    with what.connecting.open() as client:
        archive = prepared(what, client)
        job = Job(what.name, None, lambda session, place: start(session, what, archive, client, place), kind="archive")
        return run(job, Store(checkpoint), Quiet(), spark)


def published(q: Client, topic: str, first: int, end: int) -> None:
    with q.producer(topic) as producer:
        for number in range(first, end):
            headers = {"trace": f"{number}"} if number % 3 else {}
            producer.send(f"value {number}", key=f"{number % 7}", headers=headers, priority=number % 2)


def contents(q: Client, topic: str, **bounds: Any) -> list[tuple[Any, ...]]:
    return sorted(shown(message) for message in q.reader(topic, **bounds))


def retention_ran(q: Client, own: BrokerProcess, gone: str) -> None:
    """A broker that starts looks at all topics soon, one after the other: at `gone` last, by its name."""
    own.kill()
    own.start()
    give_up = time.monotonic() + 30
    while any(part.start_offset < part.end_offset for part in q.topic(gone).partitions):
        assert time.monotonic() < give_up


def test_what_must_be_archived_is_deleted_once_it_is_and_read_from_the_archive_then(
    own: BrokerProcess, spark: SparkSession, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "archive"
    with penstock.connect(own.address) as q:
        q.create_topic("orders", 2, retention=SOON, archive="required")
        q.create_topic("plain", 1)
        q.create_topic("zebras", 1, retention=SOON)
        published(q, "orders", 0, 50)
        q.publish("plain", "first")
        q.publish("zebras", "gone soon")
        everything = contents(q, "orders")
        retention_ran(q, own, "zebras")
        assert contents(q, "orders") == everything

        # The command ends the session it has; it is that of all tests.
        monkeypatch.setattr(SparkSession, "stop", lambda session: None)
        ran = run_command(
            "pipeline", "archive", "--to", where, "--topics", "orders,plain", "--once", "--name", "archiver",
            "--server", own.address, "--state-dir", tmp_path / "state", "--output", "json",
        )  # fmt: skip
        assert ran.code == 0
        ended = ran.rows[-1]
        assert (ended["event"], ended["status"]) == ("ended", "finished")
        # Messages, and not the files that Spark has as rows.
        assert (ended["progress"]["rows"], ended["progress"]["lag"]) == (51, 0)
        assert all(part.archived == part.end_offset for part in q.topic("orders").partitions)
        # Nobody waits for it there.
        assert q.topic("plain").partitions[0].archived == 0

        q.publish("plain", "second")
        q.change_topic("plain", retention=SOON)
        q.publish("zebras", "gone soon")
        retention_ran(q, own, "zebras")
        q.change_topic("plain", retention={"hours": 1})
        assert contents(q, "orders") == []
        published(q, "orders", 50, 60)
        everything += contents(q, "orders")
        assert len(everything) == 60
        assert contents(q, "orders", from_offset=0, archive=where) == sorted(everything)
        printed = run_command(
            "consume", "orders", "--from-snapshot", "2026-01-01", "--include-deleted", "--archive", where,
            "--server", own.address, "--output", "json",
        )  # fmt: skip
        assert sorted(row["value"] for row in printed.rows) == sorted(f"value {number}" for number in range(60))

        # It was deleted before it was archived: that is told, and a gap only if somebody says so.
        q.publish("plain", "third")
        with pytest.raises(DataLost, match="offsets 1 to 2 of partition 0 of plain were deleted before they were"):
            prepared(archiving(own.address, where, "plain"), q)
        lossy = archiving(own.address, where, None, pattern="pl.*", fails_on_loss=False)
        archived(spark, lossy, tmp_path / "state")
        archive, identity = Archive.open(where), q.topic("plain").id
        assert archive.covered(identity) == {0: 3}
        with pytest.raises(MessagesMissing):
            list(archive.read(identity, 0, 0, 3))


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def test_runs_go_on_where_the_archive_ends_whatever_spark_knows_and_small_files_are_merged(
    q: Client, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    where = tmp_path / "archive"
    q.create_topic("often", 1)
    published(q, "often", 0, 12)
    what = archiving(broker.address, where, "often", offsets_max=4, compact_every=3)
    archived(spark, what, tmp_path / "state")
    archive, identity = Archive.open(where), q.topic("often").id
    # Three batches, and one file since the third.
    assert [(entry.first_offset, entry.end_offset) for entry in archive.files()] == [(0, 12)]
    # Nothing new: no commit.
    before = archive.ledger.commit
    archived(spark, what, tmp_path / "state")
    archive.refresh()
    assert archive.ledger.commit == before
    # Another topic beside it, another partition, and a checkpoint that knows nothing of it.
    q.create_topic("other", 1)
    q.change_topic("often", 2)
    published(q, "often", 12, 20)
    published(q, "other", 0, 3)
    archived(spark, archiving(broker.address, where, "often,other", compact_every=None), tmp_path / "anew")
    archive.refresh()
    ends = {part.number: part.end_offset for part in q.topic("often").partitions}
    assert archive.covered(identity) == {number: end for number, end in ends.items() if end}
    assert sum(entry.rows for entry in archive.files(identity)) == 20
    assert contents(q, "often", archive=where) == contents(q, "often")
    assert contents(q, "other", archive=where) == contents(q, "other")


def test_a_topic_that_is_made_again_ends_the_run_and_the_next_one_archives_both_apart(
    q: Client, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    where = tmp_path / "archive"
    old = q.create_topic("again", 1).id
    published(q, "again", 0, 5)
    endless = archiving(broker.address, where, "again", trigger=Trigger())
    (query,) = start(spark, endless, prepared(endless, q), q, str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        q.delete_topic("again")
        new = q.create_topic("again", 1).id
        published(q, "again", 0, 2)
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination()
    finally:
        query.stop()
    assert cause_of(failed.value) in (
        "the topic again was deleted and made again while it was archived. Run this again, and the new one is archived "
        "from its beginning, beside what there is of the old one; to go on with what there is, set the option "
        "failOnDataLoss to false [data_lost]",
        # If it was looked at in between.
        "the topic again, which this query reads, was deleted; to go on with what there is, set the option "
        "failOnDataLoss to false [data_lost]",
    )
    archived(spark, archiving(broker.address, where, "again"), tmp_path / "state")
    archive = Archive.open(where)
    assert archive.topics() == {old: "again", new: "again"}
    assert (archive.covered(old), archive.covered(new)) == ({0: 5}, {0: 2})
    assert contents(q, "again", archive=where) == contents(q, "again")


def test_a_driver_that_dies_around_its_commit_leaves_no_gap_and_no_duplicate(
    q: Client, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    """In a process that may die: see archive_faults.py for when it does."""
    for topic in ("early", "late"):
        q.create_topic(topic, 2, archive="required")
        published(q, topic, 0, 40)
    command = [sys.executable, Path(__file__).with_name("archive_faults.py"), broker.address, tmp_path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(command, env=environment, timeout=560, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr[-3_000:]

    early, late = Archive.open(tmp_path / "early"), Archive.open(tmp_path / "late")
    assert sum(entry.rows for entry in early.files()) == 10
    assert sum(entry.rows for entry in late.files()) == 20
    on_disk = {file.path for file in early.place.files(ending=".parquet")}
    assert len(on_disk - {entry.path for entry in early.files()}) == 2
    assert sum(part.archived for part in q.topic("late").partitions) == 10

    for topic in ("early", "late"):
        what = archiving(broker.address, tmp_path / topic, topic)
        with what.connecting.open() as client:
            archive = prepared(what, client)
            # Told at once, not with the next batch: there may be none.
            covered = archive.covered(q.topic(topic).id)
            assert {part.number: part.archived for part in q.topic(topic).partitions} == covered
            (query,) = start(spark, what, archive, client, str(tmp_path / f"{topic}-checkpoint"))
            query.awaitTermination()
        files = Archive.open(tmp_path / topic).files()
        assert sum(entry.rows for entry in files) == 40
        assert contents(q, topic, archive=tmp_path / topic) == contents(q, topic)
        assert sorted(m.value for m in q.reader(topic, archive=tmp_path / topic)) == sorted(
            b"value %d" % number for number in range(40)
        )
