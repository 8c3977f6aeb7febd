"""Queries run to their end: progress is told, signals stop them after the batch they are in, failures are explained.

Made for pipelines from files and for the built-in ones alike: what differs is a `Job`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import AttemptDiffers, PenstockError, PipelineFailed
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.progress import Meter, Progress
from penstock.spark.pipeline.session import check_spark, open_session, stop_query
from penstock.spark.pipeline.state import Kind, State, Status, Store, now_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_LOOK_S = 0.2
_LOOK_WHILE_STOPPING_S = 0.02
_STATE_EVERY_S = 1.0
# Spark's workers have to answer within 10 s of their start. On a busy machine some don't: we come last. The second is
# what Spark gives as the cause of the first, if it gives one.
WORKER_LATE = ("Python worker failed to connect back.", "Timed out while waiting for the Python worker to connect back")
# What a broker that is restarted, or has too much to do, makes queries fail with: they go on from their checkpoint.
_PASSING = ("[connection_lost]", "[overloaded]", *WORKER_LATE)
_RETRY_S = 1.0
_RETRY_FOR_S = 120.0


class View(Protocol):
    """Who is told."""

    def starting(self, state: State) -> None: ...
    def running(self) -> None: ...
    def activity(self, text: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def retrying(self, reason: str) -> None: ...
    def stopping(self) -> None: ...
    def ended(self, state: State) -> None: ...


@dataclass(frozen=True)
class Job:
    """`start` returns the queries, the one whose progress is shown first; it is told where its checkpoint is."""

    name: str
    file: Path | None
    start: Callable[[SparkSession, str], Sequence[StreamingQuery]]
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    # None: in the directory of its state.
    checkpoint: str | None = None
    needs_avro: bool = False
    needs_delta: bool = False
    kind: Kind = "file"


def run(job: Job, store: Store, view: View, spark: SparkSession | None = None) -> State:
    """Until it is finished or stopped. PipelineFailed, and a state that says so, if it fails.

    With `spark`, a session that is there already and stays; otherwise with one of its own. To be called in the main
    thread, which is where signals come to.
    """
    check_spark()
    with store.held(job.name) as home:
        log = home / "log.txt"
        checkpoint = job.checkpoint or str(home / "checkpoint")
        file = "" if job.file is None else str(job.file)
        store.check_kind(job.name, job.kind)
        state = State(job.name, file, "starting", os.getpid(), now_us(), job.master, checkpoint, str(log))
        state.kind = job.kind
        # Before anybody is told that it has begun, and until its end is written: a signal is never what ends it.
        with _stopped_by_signals() as stop:
            return _run_to_end(job, state, store, view, stop, spark)


def _run_to_end(job: Job, state: State, store: Store, view: View, stop: Stop, spark: SparkSession | None) -> State:
    try:
        store.put(state)
        view.starting(state)
        status = _run(job, state, store, view, stop, spark)
    except SystemExit:
        # Whoever read what we print has stopped.
        _end(store, view, state, "stopped")
        raise
    except KeyboardInterrupt:
        # While Spark starts: by Spark's own Ctrl-C, or by a second signal.
        status = "stopped"
    except Exception as error:
        if not stop.is_asked:
            _end(store, view, state, "failed", error.message if isinstance(error, PenstockError) else cause_of(error))
            raise
        _note(Path(state.log), error)
        status = "stopped"
    _end(store, view, state, status)
    return state


def _end(store: Store, view: View, state: State, status: Status, error: str | None = None) -> None:
    state.status, state.error, state.ended_us = status, error, now_us()
    store.put(state)
    view.ended(state)


def _run(job: Job, state: State, store: Store, view: View, stop: Stop, given: SparkSession | None) -> Status:
    if stop.wait(0):
        return "stopped"
    with _session(job, Path(state.log), stop, given) as spark:
        meter, patience = Meter(), Patience()
        while not stop.wait(0):
            try:
                return _run_once(job, spark, state, store, view, stop, meter)
            except PipelineFailed as error:
                if stop.is_asked:
                    # It may have been for the whole process group, as service managers do it: neither Java nor its
                    # workers wait for the end of a batch, and each fails in its own way. The batch is done again the
                    # next time; if something is wrong with it, that is told then.
                    if "log" not in error.details:
                        _note(Path(state.log), error)
                    return "stopped"
                if not error.message.endswith(_PASSING) or not patience.lasts(meter.progress.batches):
                    raise
                view.retrying(error.message)
                stop.wait(_RETRY_S)
        return "stopped"


def _run_once(
    job: Job, spark: SparkSession, state: State, store: Store, view: View, stop: Stop, meter: Meter
) -> Status:
    log = Path(state.log)
    with _explained(log):
        queries = job.start(spark, state.checkpoint)
    state.status = "running"
    store.put(state)
    view.running()
    try:
        with _explained(log):
            return _follow(queries, state, store, view, stop, meter)
    finally:
        for query in queries:
            with _quietly():
                # In a hurry it was tried already, and the session goes now.
                if not stop.is_urgent:
                    stop_query(query, stop)


class Patience:
    """With what passes, as a broker that is away: it is waited for, from the last batch on, as long as the sink waits
    for a broker, too."""

    def __init__(self) -> None:
        self._batches = -1
        self._until_s = 0.0

    def lasts(self, batches: int) -> bool:
        if batches != self._batches:
            self._batches, self._until_s = batches, monotonic() + _RETRY_FOR_S
        return monotonic() < self._until_s


@contextmanager
def _session(job: Job, log: Path, stop: Stop, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    conf = {**job.conf, "spark.master": job.master}
    try:
        with stop.interrupting():
            spark = open_session(job.name, conf, log, needs_avro=job.needs_avro, needs_delta=job.needs_delta)
    finally:
        # Spark has installed one of its own for Ctrl-C.
        stop.install()
    try:
        yield spark
    finally:
        with _quietly():
            spark.stop()


class Stop:
    """Asked for by a signal; by a second one at once.

    A signal comes in the middle of whatever this thread does, also of `wait`: what it does takes no lock that this
    thread may have.
    """

    def __init__(self) -> None:
        self.is_asked = self.is_urgent = False
        self._news: SimpleQueue[None] = SimpleQueue()
        self._is_interrupting = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.is_urgent = self.is_asked
        self.is_asked = True
        self._news.put(None)
        if self.is_urgent and self._is_interrupting:
            raise KeyboardInterrupt

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """What is done meanwhile is not waited for when the second one comes."""
        self._is_interrupting = True
        try:
            yield
        finally:
            self._is_interrupting = False

    def wait(self, seconds: float) -> bool:
        with suppress(Empty):
            if not self.is_asked:
                self._news.get(timeout=seconds)
        return self.is_asked


@contextmanager
def _stopped_by_signals() -> Iterator[Stop]:
    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop.install()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(
    queries: Sequence[StreamingQuery], state: State, store: Store, view: View, stop: Stop, meter: Meter
) -> Status:
    told_s = 0.0
    activity = ""

    def look() -> None:
        nonlocal told_s, activity
        is_waiting = not meter.progress.batches and queries[0].isActive
        if is_waiting and (now := _activity(queries[0])) != activity:
            # The first batch may take minutes: the user sees that something is going on.
            activity = now
            view.activity(now)
        if _take(meter, queries[0]):
            state.progress = meter.progress
            view.progress(meter.progress)
            if not told_s or monotonic() - told_s >= _STATE_EVERY_S:
                told_s = monotonic()
                store.put(state)

    while True:
        are_active = [query.isActive for query in queries]
        look()
        for query in queries:
            if not query.isActive and (error := query.exception()) is not None:
                raise error
        if not any(are_active):
            return "finished"
        if stop.wait(_LOOK_S):
            view.stopping()
            _finish_batches(queries, stop, look)
            return "stopped"


def _activity(query: StreamingQuery) -> str:
    """What Spark says it is doing, without the name of its class: "Getting offsets from org.apache.spark…"."""
    return str(query.status["message"]).partition(" from org.")[0]


def _take(meter: Meter, query: StreamingQuery) -> bool:
    """Also what was between two looks."""
    last = query.lastProgress
    if last is None or not meter.is_news(_report(last)):
        return False
    news = [meter.take(_report(each)) for each in query.recentProgress]
    return any(news)


def _report(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def _finish_batches(queries: Sequence[StreamingQuery], stop: Stop, look: Callable[[], None]) -> None:
    """The batch that each is in is finished; the next may have begun, and is done again when the pipeline goes on."""
    marks = {query.id: _mark(query) for query in queries}
    pause = threading.Event()
    while not stop.is_urgent and any(_is_in_batch(query, marks[query.id]) for query in queries):
        pause.wait(_LOOK_WHILE_STOPPING_S)
    for query in queries:
        stop_query(query, stop)
    look()


def _mark(query: StreamingQuery) -> Any:
    last = query.lastProgress
    return None if last is None else (last.batchId, last.timestamp)


def _is_in_batch(query: StreamingQuery, mark: Any) -> bool:
    return bool(query.isActive and query.status["isTriggerActive"] and _mark(query) == mark)


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    """Whatever Spark raises becomes a sentence here, and goes to the log as a whole."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        _note(log, error)
        raise PipelineFailed(_advised(cause_of(error)), log=str(log)) from error


def _advised(cause: str) -> str:
    """What Spark's sink says of streams, in the words of a pipeline's file."""
    told, code, _ = cause.rpartition(f" [{AttemptDiffers.code}]")
    if not code:
        return cause
    return (
        f"{told}. In a pipeline: a batch that failed may be written in part, and is done again from the same messages. "
        "Take back what was changed in the file since, but for what mends the failure; or go on by another name (or "
        f"checkpoint), with starting where this batch begins{code}"
    )


def _note(log: Path, error: Exception) -> None:
    with log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)


@contextmanager
def _quietly() -> Iterator[None]:
    """For what is done at the end: that a JVM is gone already is told by what it was needed for. PySpark warns."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        yield
