"""`spark.readStream.format("penstock")` against a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

import penstock
from broker_process import BrokerProcess
from penstock.archive import Archive
from penstock.client.blocking import Client
from penstock.errors import DataLost, TopicNotFound
from penstock.spark import lag_of
from penstock.spark.asked import asked_by
from penstock.spark.builtin.archive_source import ArchiveStreamReader
from penstock.spark.planning import Range
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.stream import PenstockStreamReader
from spark.pipeline_runs import until_in_time


class Running:
    """A query that is run several times, and goes on from where it was. `seen` is what the last run has read."""

    def __init__(self, spark: SparkSession, address: str, checkpoint: Path) -> None:
        self._spark = spark
        self._address = address
        self._checkpoint = checkpoint
        self._seen: list[str] = []

    def start(self, *, now: bool = False, **options: str) -> StreamingQuery:
        self._seen = []
        stream = self._spark.readStream.format("penstock").option("url", self._address).options(**options)
        frame = stream.load().selectExpr("id", "CAST(value AS STRING) AS text")
        writing = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        return (writing.trigger(availableNow=True) if now else writing).start()

    def _take(self, frame: Any, number: int) -> None:
        self._seen += [row["text"] for row in frame.collect()]

    def read(self, **options: str) -> list[str]:
        """All there is now, by a run that ends."""
        until_in_time(lambda: self.start(now=True, **options).awaitTermination())
        return sorted(self._seen)

    @property
    def seen(self) -> list[str]:
        return sorted(self._seen)


@pytest.fixture
def running(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[Running]:
    yield Running(spark, broker.address, tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()


Reader = Callable[..., PenstockStreamReader]


@pytest.fixture
def reader(broker: BrokerProcess) -> Reader:
    """What Spark talks to on the driver, without Spark."""

    def made(**options: str) -> PenstockStreamReader:
        asked = asked_by({"url": broker.address, "startingOffsets": "earliest", **options}, is_stream=True)
        return PenstockStreamReader(asked, wanted_of("messages", schema_of("messages")))

    return made


def offsets_in(written: dict[str, Any], topic: str) -> dict[str, int]:
    offsets: dict[str, int] = written["topics"][topic]["offsets"]
    return offsets


# --- with Spark ---------------------------------------------------------------------------------------------


def test_each_message_is_read_once_over_several_runs(q: Client, running: Running) -> None:
    q.create_topic("once", 2)
    for number in range(6):
        q.publish("once", f"{number}")
    options = {"subscribe": "once", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    query = running.start(now=True, **options)
    query.awaitTermination()
    assert running.seen == ["0", "1", "2", "3", "4", "5"]
    assert [progress["numInputRows"] for progress in query.recentProgress] == [4, 2]
    assert [lag_of(progress) for progress in query.recentProgress] == [2, 0]
    q.publish("once", "6")
    assert running.read(**options) == ["6"]
    assert running.read(**options) == []


def test_with_available_now_a_topic_that_is_being_written_to_is_read(
    q: Client, running: Running, broker: BrokerProcess
) -> None:
    q.create_topic("live", 1)
    has_begun, is_over = threading.Event(), threading.Event()

    def publish() -> None:
        with penstock.connect(broker.address) as other:
            while not is_over.is_set():
                other.publish("live", "x")
                has_begun.set()

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        assert has_begun.wait(30)
        assert set(running.read(subscribe="live")) <= {"x"}
    finally:
        is_over.set()
        publishing.join()


def test_new_partitions_and_topics_are_picked_up_while_it_runs(q: Client, running: Running) -> None:
    q.create_topic("grows-a", 1)
    q.publish("grows-a", "before")
    query = running.start(subscribePattern="grows-.*")
    query.processAllAvailable()
    q.change_topic("grows-a", partitions=2)
    q.publish("grows-a", "while it runs", partition=0)
    q.publish("grows-a", "in a new partition", partition=1)
    query.processAllAvailable()
    q.create_topic("grows-b", 1)
    q.publish("grows-b", "in a new topic")
    query.processAllAvailable()
    query.stop()
    assert running.seen == ["in a new partition", "in a new topic", "while it runs"]


def test_a_topic_made_again_under_a_running_query_ends_it(q: Client, running: Running) -> None:
    q.create_topic("again", 1)
    query = running.start(subscribe="again", startingOffsets="earliest")
    q.publish("again", "of the first")
    query.processAllAvailable()
    q.delete_topic("again")
    q.create_topic("again", 1)
    q.publish("again", "of the second")
    with pytest.raises(StreamingQueryException, match=r"\[data_lost\] the topic again") as raised:
        query.awaitTermination()
    assert "failOnDataLoss to false" in str(raised.value)
    assert running.seen == ["of the first"]
    assert running.read(subscribe="again", failOnDataLoss="false") == ["of the second"]


def test_a_checkpoint_of_another_topic_is_refused(q: Client, running: Running) -> None:
    for name in ("mine", "yours"):
        q.create_topic(name, 1)
        q.publish(name, name)
    assert running.read(subscribe="mine", startingOffsets="earliest") == ["mine"]
    with pytest.raises(StreamingQueryException, match=r"\[data_lost\] the checkpoint is of .* the topic mine, and"):
        running.read(subscribe="yours")
    assert running.seen == []


def test_a_stream_of_a_topic_that_is_not_there_does_not_begin(running: Running) -> None:
    with pytest.raises(StreamingQueryException, match=r"\[topic_not_found\] there is no topic missing"):
        running.read(subscribe="missing")


# --- on the driver ------------------------------------------------------------------------------------------


def test_where_a_stream_starts(q: Client, reader: Reader) -> None:
    q.create_topic("starts", 2)
    times = [q.publish("starts", f"{number}", partition=0).append_time for number in range(5)]
    starts = {
        "earliest": {"0": 0, "1": 0},
        "latest": {"0": 5, "1": 0},
        '{"starts": {"0": 3, "1": -1}}': {"0": 3, "1": 0},
    }
    for told, offsets in starts.items():
        assert offsets_in(reader(subscribe="starts", startingOffsets=told).initialOffset(), "starts") == offsets
    asked = {"url": "", "assign": '{"starts": [0]}', "startingTimestamp": str(times[0] // 1_000)}
    timed = asked_by({**asked, "url": reader(subscribe="starts")._asked.connecting.url}, is_stream=True)
    found = PenstockStreamReader(timed, wanted_of("messages", schema_of("messages"))).initialOffset()
    assert offsets_in(found, "starts") == {"0": 0}


def test_limits_of_offsets_and_bytes_are_kept_and_all_is_reached(q: Client, reader: Reader) -> None:
    q.create_topic("paced", 2)
    for number in range(12):
        q.publish("paced", b"x" * 1_000, partition=0 if number < 9 else 1)
    by_rows = reader(subscribe="paced", maxOffsetsPerTrigger="4")
    assert by_rows.getDefaultReadLimit() == ReadMaxRows(4)
    start = by_rows.initialOffset()
    assert offsets_in(by_rows.latestOffset(start, ReadMaxRows(4)), "paced") == {"0": 3, "1": 1}
    assert by_rows.reportLatestOffset() == by_rows.latestOffset(start, ReadAllAvailable())
    by_bytes = reader(subscribe="paced", maxBytesPerTrigger="3500")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(3500)
    steps = 0
    place, end = start, by_bytes.latestOffset(start, ReadAllAvailable())
    while place != end:
        after = by_bytes.latestOffset(place, ReadMaxBytes(3500))
        assert 1 <= sum(offsets_in(after, "paced").values()) - sum(offsets_in(place, "paced").values()) <= 3
        place, steps = after, steps + 1
    assert steps >= 4


def test_few_messages_wait_for_more_or_for_their_time(q: Client, reader: Reader) -> None:
    q.create_topic("few", 1)
    q.publish("few", "1")
    patient = reader(subscribe="few", minOffsetsPerTrigger="2", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(2)
    start = patient.initialOffset()
    assert patient.latestOffset(start, limit) == start
    hasty = reader(subscribe="few", minOffsetsPerTrigger="2", maxTriggerDelay="0s")
    assert offsets_in(hasty.latestOffset(start, limit), "few") == {"0": 1}
    q.publish("few", "2")
    assert offsets_in(patient.latestOffset(start, limit), "few") == {"0": 2}
    one_run = reader(subscribe="few", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    one_run.prepareForTriggerAvailableNow()
    assert offsets_in(one_run.latestOffset(start, limit), "few") == {"0": 2}


@pytest.mark.parametrize(("told", "first"), [("earliest", 0), ("latest", 1)])
def test_with_available_now_nothing_that_comes_later_is_read(q: Client, reader: Reader, told: str, first: int) -> None:
    topic = f"now-{told}"
    q.create_topic(topic, 1)
    q.publish(topic, "1")
    options = {"subscribePattern": f"{topic}.*", "startingOffsets": told}
    stream = reader(**options)
    # In this order, as Spark does: what comes between the two is later, too.
    stream.prepareForTriggerAvailableNow()
    q.publish(topic, "2")
    q.change_topic(topic, partitions=2)
    q.create_topic(f"{topic}-too", 1)
    q.publish(f"{topic}-too", "3")
    start = stream.initialOffset()
    assert offsets_in(start, topic) == {"0": first}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert offsets_in(end, topic) == {"0": 1}
    assert list(end["topics"]) == [topic]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    # The next run goes on with it.
    following = reader(**options)
    following.prepareForTriggerAvailableNow()
    after = following.latestOffset(end, ReadAllAvailable())
    assert offsets_in(after, topic) == {"0": 2, "1": 0}
    assert offsets_in(after, f"{topic}-too") == {"0": 1}


def test_with_available_now_what_comes_later_is_not_archived_either(
    q: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    q.create_topic("kept-a", 1)
    q.publish("kept-a", "1")
    Archive.open(tmp_path, create=True)
    asked = asked_by({"url": broker.address, "subscribePattern": "kept-.*"}, is_stream=True)
    stream = ArchiveStreamReader(asked, str(tmp_path))
    stream.prepareForTriggerAvailableNow()
    q.publish("kept-a", "2")
    q.change_topic("kept-a", partitions=2)
    q.create_topic("kept-b", 1)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [offsets_in(each, "kept-a") for each in (start, end)] == [{"0": 0}, {"0": 1}]
    assert list(end["topics"]) == ["kept-a"]


def test_with_available_now_a_stream_that_starts_at_a_time_starts_within_what_it_reads(
    q: Client, broker: BrokerProcess
) -> None:
    q.create_topic("now-timed", 1)
    first = q.publish("now-timed", "1")
    given = {"url": broker.address, "subscribe": "now-timed", "startingOffsetsByTimestampStrategy": "latest"}
    for time, offset in ((first.append_time // 1_000, 0), ("2100-01-01T00:00:00Z", 1)):
        asked = asked_by({**given, "startingTimestamp": str(time)}, is_stream=True)
        stream = PenstockStreamReader(asked, wanted_of("messages", schema_of("messages")))
        fixed = q.topic("now-timed").partitions[0].end_offset
        stream.prepareForTriggerAvailableNow()
        q.publish("now-timed", "more")
        start = stream.initialOffset()
        assert offsets_in(start, "now-timed") == {"0": min(offset * fixed, fixed)}
        assert offsets_in(stream.latestOffset(start, ReadAllAvailable()), "now-timed") == {"0": fixed}


def test_with_available_now_a_topic_that_is_not_there_is_told(q: Client, reader: Reader) -> None:
    stream = reader(subscribe="made-too-late")
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(TopicNotFound, match="there is no topic made-too-late"):
        stream.initialOffset()


def test_a_topic_that_is_deleted_is_a_loss_and_waited_for_without_fail_on_data_loss(
    q: Client, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    q.create_topic("deleted", 1)
    q.publish("deleted", "1")
    strict, lenient = reader(subscribe="deleted"), reader(subscribe="deleted", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    q.delete_topic("deleted")
    with pytest.raises(DataLost, match=r"\[data_lost\] the topic deleted, which this query reads, was deleted"):
        strict.latestOffset(end, ReadAllAvailable())
    assert lenient.latestOffset(end, ReadAllAvailable()) == end
    assert lenient.latestOffset(end, ReadAllAvailable()) == end
    assert [record.message for record in caplog.records if record.name.startswith("penstock")] == [
        "the topic deleted, which this query reads, was deleted; going on, as failOnDataLoss is false"
    ]
    tasks = lenient.partitions(start, end)
    assert [list(lenient.read(task)) for task in tasks] == [[]]
    with pytest.raises(DataLost, match="the topic deleted was deleted while it was to be read"):
        list(strict.read(tasks[0]))
    q.create_topic("deleted", 1)
    q.publish("deleted", "2")
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert [batch["value"].to_pylist() for batch in lenient.read(lenient.partitions(end, after)[0])] == [[b"2"]]


def test_offsets_behind_the_end_are_a_loss(q: Client, reader: Reader) -> None:
    q.create_topic("ahead", 1)
    stream = reader(subscribe="ahead")
    start = stream.initialOffset()
    ahead = json.loads(json.dumps(start).replace('"0": 0', '"0": 7'))
    once = reader(subscribe="ahead")
    once.prepareForTriggerAvailableNow()
    for each in (stream, once):
        with pytest.raises(DataLost, match="is at offset 7, and what is there has 0 to 0"):
            each.latestOffset(ahead, ReadAllAvailable())
    task = stream.partitions(start, ahead)[0]
    assert isinstance(task, Range)
    with pytest.raises(DataLost, match=r"offsets up to 7 .* it ends at 0"):
        list(stream.read(task))
    assert list(reader(subscribe="ahead", failOnDataLoss="false").read(task)) == []
    assert list(reader(subscribe="ahead", failOnDataLoss="false").read(task.part(3, 7))) == []
