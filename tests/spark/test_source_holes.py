"""Retention takes what is around a delayed message: who was to read that hears of it, and archives don't claim it.

In all of them the broker was killed and started again behind it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.archive import Archive
from penstock.client.blocking import Client
from penstock.errors import ArchiveConflict, DataLost, MessagesMissing
from penstock.spark.asked import asked_by
from penstock.spark.batch import PenstockReader
from penstock.spark.builtin.archive import Archiving, Batches, prepared
from penstock.spark.builtin.archive_task import archive_task
from penstock.spark.connecting import Connecting
from penstock.spark.offsets import Place, read_back, written
from penstock.spark.planning import Range
from penstock.spark.reading import read as read_task
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.stream import PenstockStreamReader
from penstock.spark.tables import Held, Messages

# [0, 10) is read or archived in time, 10 is for later, [11, 30) goes, and 30 comes behind it.
SOON, HOLE, END = 10, 30, 31
LOST = r"\[data_lost\] .*offsets 10 to 30 of partition 0 of t"


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("thinned")) as process:
        with penstock.connect(process.address) as q:
            q.create_topic("t", 1)
            for number in range(SOON):
                q.publish("t", f"{number}")
            q.publish("t", "later", delay="30d")
            for number in range(SOON + 1, HOLE):
                q.publish("t", f"{number}")
            forget(q, process)
            # By the same producer, of which the broker knows only what is left.
            q.publish("t", "30")
        yield process


def forget(q: Client, process: BrokerProcess) -> None:
    """Retention takes what there is: a broker that starts looks at it soon."""
    q.change_topic("t", retention={"hours": 0.00001})
    process.kill()
    process.start()
    give_up = time.monotonic() + 30
    while q.topic("t").partitions[0].whole_from < HOLE:
        assert time.monotonic() < give_up
    q.change_topic("t", retention={"hours": 1})
    process.kill()
    process.start()


@pytest.fixture
def q(thinned: BrokerProcess) -> Iterator[Client]:
    with penstock.connect(thinned.address) as client:
        yield client


def stream_of(broker: BrokerProcess, **options: str) -> PenstockStreamReader:
    asked = asked_by({"url": broker.address, "subscribe": "t", **options}, is_stream=True)
    return PenstockStreamReader(asked, wanted_of("messages", schema_of("messages")))


def at(q: Client, offset: int) -> dict[str, Any]:
    return written({"t": Place(q.topic("t").id, {0: offset})}, "messages")


def offsets_in(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def read(stream: PenstockStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [offset for task in stream.partitions(start, end) for offset in offsets_in(stream.read(task))]


def test_the_hole_is_told_after_a_restart(q: Client) -> None:
    part = q.topic("t").partitions[0]
    assert (part.start_offset, part.whole_from, part.end_offset) == (0, HOLE, END)
    assert [message.offset for message in q.reader("t")] == [10, 30]
    with pytest.raises(MessagesMissing, match="offsets 0 to 30"):
        list(q.reader("t", whole=True))


def test_a_query_whose_next_message_is_gone_fails_or_goes_on_as_it_was_asked(
    thinned: BrokerProcess, q: Client, spark: SparkSession, tmp_path: Path
) -> None:
    """By way of a checkpoint: that of a query that had read the first ten."""
    seen: list[int] = []
    place = tmp_path / "checkpoint"

    def run(**options: str) -> None:
        stream = spark.readStream.format("penstock").schema("offset BIGINT").options(**options)
        frame = stream.option("url", thinned.address).option("subscribe", "t").load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(r["offset"] for r in batch.collect()))
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(place)).start()
        query.awaitTermination()

    run(startingOffsets="earliest", maxOffsetsPerTrigger="31")
    assert seen == [10, 30], "what was gone before the query came is not its loss"
    _set_back(place, q, SOON)
    seen.clear()
    with pytest.raises(StreamingQueryException, match=LOST):
        run()
    assert seen == []
    run(failOnDataLoss="false")
    assert seen == [10, 30]


def _set_back(checkpoint: Path, q: Client, offset: int) -> None:
    """The one batch was one that ended there."""
    (log,) = (path for path in (checkpoint / "offsets").iterdir() if path.name == "0")
    *head, _ = log.read_text().splitlines()
    log.write_text("\n".join([*head, json.dumps(at(q, offset), separators=(",", ":"))]))
    for checksum in (checkpoint / "offsets").glob(".*.crc"):
        checksum.unlink()


def test_the_driver_and_the_task_each_see_it(thinned: BrokerProcess, q: Client) -> None:
    start, end = at(q, SOON), at(q, END)
    strict, lenient = stream_of(thinned), stream_of(thinned, failOnDataLoss="false")
    with pytest.raises(DataLost, match=LOST):
        strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match=LOST):
        read(strict, start, end)
    assert lenient.latestOffset(start, ReadAllAvailable()) == end
    assert read(lenient, start, end) == [10, 30]
    assert read(strict, at(q, HOLE), end) == [30]


def test_what_was_gone_before_a_query_began_is_remembered_until_it_is_passed(thinned: BrokerProcess, q: Client) -> None:
    stream = stream_of(thinned, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    start = stream.initialOffset()
    assert start["topics"]["t"] == {"id": q.topic("t").id, "offsets": {"0": 0}, "holes": {"0": HOLE}}
    middle = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert read_back(middle, "messages")["t"] == Place(q.topic("t").id, {0: 12}, {0: HOLE})
    assert read(stream, start, middle) == [10]
    end = stream_of(thinned).latestOffset(middle, ReadAllAvailable())
    assert end == at(q, END)
    assert read(stream_of(thinned), middle, end) == [30]


def test_a_batch_from_the_earliest_reads_what_there_is_and_one_from_an_offset_in_the_hole_is_refused(
    thinned: BrokerProcess,
) -> None:
    def offsets(**options: str) -> list[int]:
        asked = asked_by({"url": thinned.address, "subscribe": "t", **options}, is_stream=False)
        reader = PenstockReader(asked, wanted_of("messages", schema_of("messages")))
        return [offset for task in reader.partitions() for offset in offsets_in(reader.read(task))]

    assert offsets() == [10, 30]
    assert offsets(startingTimestamp="0", endingOffsets='{"t": {"0": 20}}') == [10]
    wanted = {"startingOffsets": '{"t": {"0": 10}}'}
    with pytest.raises(DataLost, match=r"says offset 10, .* up to 30, retention has left single messages"):
        offsets(**wanted)
    assert offsets(**wanted, failOnDataLoss="false") == [10, 30]


def archiving(broker: BrokerProcess, where: Path, **more: Any) -> Archiving:
    return Archiving("archiver", Connecting(broker.address), str(where), "t", **more)


def test_an_archive_does_not_claim_what_was_gone_before_it_came(
    thinned: BrokerProcess, q: Client, tmp_path: Path
) -> None:
    what, lossy = archiving(thinned, tmp_path), archiving(thinned, tmp_path, fails_on_loss=False)
    with pytest.raises(DataLost, match="of offsets 0 to 30 of partition 0 of t retention has left single messages"):
        prepared(what, q)
    archive = prepared(lossy, q)
    task = Range("t", q.topic("t").id, 0, SOON, END)
    with pytest.raises(DataLost, match="offsets 11 to 30 of partition 0 of t were deleted before they were archived"):
        archive_task(what.asked(), str(tmp_path), task)
    assert list(tmp_path.rglob("*.parquet")) == []

    entries = archive_task(lossy.asked(), str(tmp_path), task)
    assert [(each.first_offset, each.end_offset, each.rows) for each in entries] == [(10, 11, 1), (30, 31, 1)]
    with pytest.raises(ArchiveConflict, match="would leave a gap"):
        Batches(what, archive, q)._commit(entries)
    Batches(lossy, archive, q)._commit(entries)
    with pytest.raises(MessagesMissing, match="offsets 11 to 30"):
        list(q.reader("t", archive=tmp_path, from_offset={0: SOON}))


def test_a_task_that_ends_in_the_hole_leaves_it_open(thinned: BrokerProcess, q: Client, tmp_path: Path) -> None:
    lossy = archiving(thinned, tmp_path, fails_on_loss=False)
    Archive.open(tmp_path, create=True)
    (entry,) = archive_task(lossy.asked(), str(tmp_path), Range("t", q.topic("t").id, 0, SOON, 20))
    assert (entry.first_offset, entry.end_offset, entry.rows) == (10, 11, 1)


class Compacted(Messages):
    """Nothing of it was taken out by retention."""

    def held(self, client: Client, info: Any) -> list[Held]:
        return [held._replace(whole_from=0) for held in super().held(client, info)]


def test_offsets_without_messages_that_retention_did_not_take_are_no_loss(thinned: BrokerProcess, q: Client) -> None:
    asked = asked_by({"url": thinned.address, "subscribe": "t"}, is_stream=False)
    task = Range("t", q.topic("t").id, 0, SOON, END)
    wanted = wanted_of("messages", schema_of("messages"))
    with pytest.raises(DataLost):
        offsets_in(read_task(asked, wanted, task))

    class Asked:
        log = Compacted()
        connecting, losses = asked.connecting, asked.losses

    assert offsets_in(read_task(Asked(), wanted, task)) == [10, 30]  # type: ignore[arg-type]
