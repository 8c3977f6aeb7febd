"""`penstock pipeline run` as a process: killed in the middle, run again, failing, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import penstock
import penstock.spark.pipeline.running as running_module
from broker_process import PENSTOCK, BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import InvalidInput, PipelineFailed, PipelineRunning
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.queries import start
from penstock.spark.pipeline.reading import read
from penstock.spark.pipeline.running import WORKER_LATE, Job, Stop, _advised, run
from penstock.spark.pipeline.session import _defaults, stop_query
from penstock.spark.pipeline.spec import Source, Trigger
from penstock.spark.pipeline.state import State, Store

MESSAGES = 12
# More than there are batches until somebody notices.
WORDS = 60
SIGNALS = 200
SECRET = "pk_not-to-be-told"
PIPELINE = """
name: copy
url: {address}
key: ${{COPY_KEY}}
source:
  topics: {topic}
  decode: json
  schema: n INT
  rows_per_batch: 4
transform:
  sql: SELECT n, n * 2 AS twice FROM {topic}
sink:
  topic: doubled
  key: n
spark:
  spark.sql.shuffle.partitions: 1
"""


class Running:
    """A run whose output is followed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""

    def until(self, **wanted: Any) -> dict[str, Any]:
        """The first event that has all these."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            event: dict[str, Any] = json.loads(line)
            if all(event.get(name) == value for name, value in wanted.items()):
                return event
        assert self.process.stderr is not None
        raise AssertionError(f"it ended without {wanted}: {self.said}{self.process.stderr.read()}")


def late(directory: Path) -> str:
    """A Python that does not answer the first time a stream is started with it, as on a machine that is too busy."""
    python = directory / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *streaming_source_runner*) mkdir "$0.late" 2> /dev/null && exit;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


@contextmanager
def running(file: Path, state: Path, python: str = sys.executable) -> Iterator[Running]:
    command = [PENSTOCK, "pipeline", "run", file, "--master", "local[2]", "--state-dir", state, "-o", "json"]
    environment = {**os.environ, "COPY_KEY": SECRET, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_pipeline_that_is_killed_or_has_no_worker_goes_on_and_writes_each_row_once_until_it_fails(
    q: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    q.create_topic("numbers", 2)
    q.create_topic("doubled", 2)
    for number in range(MESSAGES):
        q.publish("numbers", json.dumps({"n": number}))
    file, store = tmp_path / "copy.yaml", Store(tmp_path / "state")
    file.write_text(PIPELINE.format(address=broker.address, topic="numbers"))

    with running(file, store.directory) as first:
        seen = first.until(event="progress")
        # All that was between two looks is told as one.
        assert seen["rows"] == 4 * seen["batches"]
        assert seen["lag"] == MESSAGES - seen["rows"]
        state = store.get("copy")
        assert (state.status, state.pid) == ("running", first.process.pid)
        with pytest.raises(PipelineRunning, match="the pipeline copy is running already"), store.held("copy"):
            pass
        while store.get("copy").progress is None:
            pass
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait()
    assert store.get("copy").status == "killed"
    assert store.get("copy").progress is not None

    with running(file, store.directory, late(tmp_path)) as second:
        assert second.until(event="retrying")["reason"] in WORKER_LATE
        second.until(event="progress", lag=0)
        q.publish("numbers", "nonsense", key="bad")
        ended = second.until(event="ended")
        assert second.process.wait() == 1
        assert second.process.stderr is not None
        told = second.process.stderr.read()
    written = [json.loads(each.value or b"") for each in q.reader("doubled")]
    assert sorted(row["n"] for row in written) == list(range(MESSAGES))
    assert all(row["twice"] == 2 * row["n"] for row in written)
    assert {each.key for each in q.reader("doubled")} == {str(n).encode() for n in range(MESSAGES)}

    (bad,) = (each.id for each in q.reader("numbers") if each.key == b"bad")
    assert told.startswith(f"error: the message {bad} is not JSON; ")
    assert told.endswith(" [pipeline_failed]\n")
    assert told.count("\n") == 1
    state = store.get("copy")
    assert state.status == ended["status"] == "failed"
    assert state.error is not None
    assert state.error == ended["error"]
    assert state.error in told
    log = Path(state.log).read_text()
    assert "Traceback" in log
    assert SECRET not in second.said + told + log + (store.home("copy") / "state.json").read_text()


@pytest.mark.parametrize("when", ["starting", "running"])
def test_a_pipeline_whose_whole_process_group_is_told_to_end_has_stopped(
    q: Client, broker: BrokerProcess, tmp_path: Path, when: str
) -> None:
    """As `timeout` and service managers do it: Java is told, too, and does not wait for anybody."""
    topic = f"ended_while_{when}"
    for name in (topic, "doubled"):
        q.create_topic(name, 1, exist_ok=True)
    q.publish(topic, json.dumps({"n": 1}))
    file, store = tmp_path / "copy.yaml", Store(tmp_path / "state")
    file.write_text(PIPELINE.format(address=broker.address, topic=topic))
    with running(file, store.directory) as pipeline:
        pipeline.until(event="starting")
        if when == "running":
            pipeline.until(event="progress", batches=1)
        os.killpg(pipeline.process.pid, signal.SIGTERM)
        _, told = pipeline.process.communicate()
        assert (pipeline.process.returncode, told) == (0, "")
    assert store.get("copy").status == "stopped"


class Told:
    """A view that notes what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.activities: list[str] = []

    def starting(self, state: State) -> None:
        self.events.append(state.status)

    def running(self) -> None:
        self.events.append("running")

    def activity(self, text: str) -> None:
        self.activities.append(text)

    def progress(self, progress: Progress) -> None:
        pass

    def retrying(self, reason: str) -> None:
        self.events.append(reason)

    def stopping(self) -> None:
        self.events.append("stopping")

    def ended(self, state: State) -> None:
        self.events.append(state.status)


class Ended:
    """A query that has done everything, with nothing to report."""

    isActive = False  # noqa: N815
    lastProgress = None  # noqa: N815

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("reason", WORKER_LATE)
def test_a_query_whose_worker_was_late_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str
) -> None:
    monkeypatch.setattr(running_module, "_RETRY_S", 0.0)
    failures = [PySparkException(reason)]

    def begin(_session: SparkSession, _checkpoint: str) -> list[StreamingQuery]:
        if failures:
            raise failures.pop()
        return [cast(StreamingQuery, Ended())]

    view = Told()
    state = run(Job("late", None, begin), Store(tmp_path), view, cast(SparkSession, object()))
    assert (state.status, view.events) == ("finished", ["starting", reason, "running", "finished"])


class Disturbing(Told):
    """When it has done the first word, the broker is gone until that is noticed, and brings more of them; after the
    next batch it is told to stop. With nothing to do, only the driver asks for the broker, and notices at once."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self._broker = broker

    def progress(self, progress: Progress) -> None:
        if "retrying" in self.events:
            signal.raise_signal(signal.SIGTERM)
        elif progress.rows and progress.lag == 0 and self._broker.process.poll() is None:
            self._broker.kill()

    def retrying(self, reason: str) -> None:
        assert reason.endswith("[connection_lost]") or reason in WORKER_LATE
        if "retrying" not in self.events and reason not in WORKER_LATE:
            self.events.append("retrying")
            self._broker.start()
            publish_words(self._broker, 1, WORDS)


def publish_words(broker: BrokerProcess, first: int, last: int) -> None:
    with penstock.connect(broker.address) as q, q.producer("words") as producer:
        for number in range(first, last):
            producer.send(str(number))


def test_it_waits_for_its_broker_and_a_signal_stops_it_and_what_is_left_is_done_next_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    with broker_process(tmp_path / "data") as broker:
        _disturbed(spark, broker, tmp_path)


def _disturbed(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    with penstock.connect(broker.address) as q:
        q.create_topic("words", 1)
        q.create_topic("same-words", 1)
    publish_words(broker, 0, 1)
    file, store = tmp_path / "words.yaml", Store(tmp_path / "state")
    file.write_text(
        f"{{name: words, url: '{broker.address}', source: {{topics: words, decode: text, rows_per_batch: 1}},"
        "sink: {topic: same-words, encode: text}}"
    )
    pipeline = read(file)
    job = Job("words", file, lambda session, checkpoint: start(session, pipeline, checkpoint))
    first = Disturbing(broker)
    before = signal.getsignal(signal.SIGTERM)
    stopped = run(job, store, first, spark)
    assert signal.getsignal(signal.SIGTERM) is before
    assert first.events[:3] == ["starting", "running", "retrying"]
    assert first.activities
    assert first.events[-2:] == ["stopping", "stopped"]
    assert stopped.progress is not None
    assert 1 <= stopped.progress.rows < WORDS
    assert store.get("words").status == "stopped"

    rest = replace(pipeline, trigger=Trigger(available_now=True), sources=(at_once(pipeline.sources[0]),))
    job = Job("words", file, lambda session, checkpoint: start(session, rest, checkpoint))
    assert run(job, store, Told(), spark).status == "finished"
    with penstock.connect(broker.address) as q:
        assert [each.value for each in q.reader("same-words")] == [str(number).encode() for number in range(WORDS)]


def at_once(source: Source) -> Source:
    return replace(source, options={name: each for name, each in source.options.items() if "PerTrigger" not in name})


def never(session: SparkSession, checkpoint: str) -> NoReturn:
    raise AssertionError("it was told to stop before")


class Ending(Told):
    """Whoever reads what it prints tells it to end when it has begun, and again when it has ended."""

    def starting(self, state: State) -> None:
        super().starting(state)
        signal.raise_signal(signal.SIGTERM)

    def ended(self, state: State) -> None:
        super().ended(state)
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_at_the_very_beginning_or_end_leaves_it_stopped_without_a_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, view = Store(tmp_path), Ending()
    assert run(Job("short", None, never), store, view, spark).status == "stopped"
    assert view.events == ["starting", "stopped"]
    assert store.get("short").status == "stopped"


def test_a_second_signal_does_not_wait_until_spark_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def opened(*_: object, **__: object) -> NoReturn:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it was waited for")

    monkeypatch.setattr(running_module, "open_session", opened)
    store, view = Store(tmp_path), Told()
    assert run(Job("impatient", None, never), store, view).status == "stopped"
    assert view.events == ["starting", "stopped"]


def test_nobody_is_warned_that_java_has_ended_before_its_session() -> None:
    """As PySpark does, to whoever has told all of them to end."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with running_module._quietly():
            warnings.warn("Unable to cleanly shutdown Spark JVM process.", RuntimeWarning, stacklevel=1)
            raise Py4JNetworkError("it has ended")
    assert told == []


def test_no_signal_finds_a_lock_that_the_waiting_thread_has() -> None:
    """It comes between any two steps of `wait`."""
    stops = [Stop()]
    before = signal.signal(signal.SIGVTALRM, lambda number, frame: stops[-1]._on_signal(number, frame))
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        while len(stops) < SIGNALS:
            if stops[-1].wait(0):
                stops.append(Stop())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Failing(Told):
    """It is told to stop when its first batch is done, and the next one fails before it notices."""

    def __init__(self, q: Client) -> None:
        super().__init__()
        self._q = q
        self.queries: Sequence[StreamingQuery] = ()

    def progress(self, progress: Progress) -> None:
        if progress.rows and self.queries[0].isActive:
            signal.raise_signal(signal.SIGTERM)
            self._q.publish("faulty", "nonsense")
            with suppress(StreamingQueryException):
                self.queries[0].awaitTermination()


def test_what_fails_when_it_is_told_to_stop_has_stopped_and_fails_the_next_time(
    q: Client, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    """With its whole process group, Java and each of its workers are told to stop, too, and fail in some way."""
    for name in ("faulty", "doubled"):
        q.create_topic(name, 1, exist_ok=True)
    q.publish("faulty", json.dumps({"n": 1}))
    file, store, view = tmp_path / "copy.yaml", Store(tmp_path / "state"), Failing(q)
    file.write_text(PIPELINE.format(address=broker.address, topic="faulty").replace("${COPY_KEY}", "none"))
    pipeline = read(file)

    def begin(session: SparkSession, checkpoint: str) -> Sequence[StreamingQuery]:
        view.queries = start(session, pipeline, checkpoint)
        return view.queries

    job = Job("faulty", file, begin)
    assert run(job, store, view, spark).status == "stopped"
    assert view.events == ["starting", "running", "stopped"]
    with pytest.raises(PipelineFailed, match="is not JSON"):
        run(job, store, Told(), spark)


def test_a_signal_that_ends_java_too_has_stopped_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    def die(session: SparkSession, checkpoint: str) -> NoReturn:
        raise Py4JNetworkError("Answer from Java side is empty")

    def die_of_the_signal(session: SparkSession, checkpoint: str) -> NoReturn:
        signal.raise_signal(signal.SIGTERM)
        die(session, checkpoint)

    store = Store(tmp_path)
    assert run(Job("mortal", None, die_of_the_signal), store, Told(), spark).status == "stopped"
    with pytest.raises(PipelineFailed, match="Spark's Java process has ended"):
        run(Job("mortal", None, die), store, Told(), spark)
    assert store.get("mortal").status == "failed"


def test_a_second_signal_does_not_wait_for_a_batch_that_is_in_python(spark: SparkSession, tmp_path: Path) -> None:
    may_end, ended = threading.Event(), threading.Event()
    queries: list[StreamingQuery] = []

    def hold(rows: DataFrame, batch: int) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(each)
        may_end.wait()
        ended.set()

    def begin(session: SparkSession, checkpoint: str) -> Sequence[StreamingQuery]:
        frame = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        queries.append(frame.writeStream.foreachBatch(hold).option("checkpointLocation", checkpoint).start())
        return queries

    # As sessions of its own have it.
    spark.conf.set("spark.sql.streaming.stopTimeout", _defaults("local[2]")["spark.sql.streaming.stopTimeout"])
    try:
        assert run(Job("holding", None, begin), Store(tmp_path), Told(), spark).status == "stopped"
        assert not ended.is_set()
    finally:
        spark.conf.unset("spark.sql.streaming.stopTimeout")
        may_end.set()
        with suppress(StreamingQueryException):
            queries[0].awaitTermination()


class Holding:
    """A query that Spark gives up waiting for, twice."""

    def __init__(self, error: str = "java.util.concurrent.TimeoutException: Stream Execution thread …") -> None:
        self.error = error
        self.tries = 0

    def stop(self) -> None:
        self.tries += 1
        if self.tries < 3:
            raise RuntimeError(self.error)


def test_a_query_that_may_be_started_again_is_waited_for_unless_it_is_urgent() -> None:
    stop, patient, urgent, lost = Stop(), Holding(), Holding(), Holding("Answer from Java side is empty")
    stop_query(patient, stop)
    stop_query(Holding())
    with pytest.raises(RuntimeError, match="Answer from Java"):
        stop_query(lost, stop)
    stop.is_urgent = True
    stop_query(urgent, stop)
    assert (patient.tries, urgent.tries, lost.tries) == (3, 1, 1)


def test_what_is_passed_over_since_it_was_told_to_stop_is_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    def refuse(session: SparkSession, checkpoint: str) -> NoReturn:
        signal.raise_signal(signal.SIGTERM)
        raise kind("it is wrong at its root")

    store = Store(tmp_path)
    for kind in (InvalidInput, PipelineFailed, OSError):
        state = run(Job(kind.__name__.lower(), None, refuse), store, Told(), spark)
        assert state.status == "stopped"
        told = Path(state.log).read_text()
        assert told.count(f"{kind.__name__}: it is wrong at its root") == 1


def test_what_to_do_about_a_batch_that_was_changed_is_told_in_the_words_of_a_pipelines_file() -> None:
    told = _advised("the rows are others: use another writeId [attempt_differs]")
    assert told.startswith("the rows are others: use another writeId. In a pipeline: ")
    assert told.endswith("with starting where this batch begins [attempt_differs]")
    assert _advised("a is null [invalid_input]") == "a is null [invalid_input]"
