"""How a running query does, from what Spark reports after each micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

# `observe` of each source is called so, with the source's name behind it.
OBSERVED = "decoded "
# `observe` of a query whose rows are no messages is called so, and has as `messages` how many they stand for.
MESSAGES = "penstock messages"


class Progress(msgspec.Struct):
    """`rows`, `bad_rows` and `batches` are those of the run; the others are of the last batch.

    `lag` is how many messages were behind it in the topics when it was planned; None if that was in an earlier run.
    `state_rows` is what aggregations and joins keep.
    """

    time: str = ""
    batch: int | None = None
    batches: int = 0
    rows: int = 0
    bad_rows: int = 0
    batch_rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: int = 0
    lag: int | None = 0
    state_rows: int = 0
    watermark: str | None = None


class Meter:
    """Adds up."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._seen: tuple[str, int] | None = None

    def is_news(self, report: Mapping[str, Any]) -> bool:
        return self._seen is None or _mark(report) > self._seen

    def take(self, report: Mapping[str, Any]) -> bool:
        """Whether it is news. Spark reports also when there was nothing to do: with the batch it waits to begin."""
        if not self.is_news(report):
            return False
        self._seen = _mark(report)
        now = self.progress
        observed = report.get("observedMetrics") or {}
        rows = int((observed[MESSAGES]["messages"] if MESSAGES in observed else report.get("numInputRows")) or 0)
        durations = report.get("durationMs") or {}
        is_batch = "addBatch" in durations
        now.time = str(report["timestamp"])
        now.lag = lag_of(report)
        if is_batch:
            now.batch = int(report["batchId"])
            now.batches += 1
            now.rows += rows
            now.bad_rows += _bad_rows(observed)
            now.batch_ms = int(durations.get("triggerExecution") or 0)
            now.batch_rows = rows
            now.rows_per_s = rows / max(now.batch_ms, 1) * 1_000
            now.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in report.get("stateOperators") or ())
            now.watermark = (report.get("eventTime") or {}).get("watermark")
        else:
            now.rows_per_s = 0.0
        return True


def _mark(report: Mapping[str, Any]) -> tuple[str, int]:
    return str(report["timestamp"]), int(report["batchId"])


def _bad_rows(observed: Mapping[str, Any]) -> int:
    return sum(int(each["bad"] or 0) for name, each in observed.items() if name.startswith(OBSERVED))


def lag_of(progress: Any) -> int | None:
    """Messages behind the last micro-batch of a query: of `query.lastProgress`, or of its JSON as a dict.

    None if Spark does not report it: before the first micro-batch, and of one that is done again.
    """
    if progress is None:
        return None
    report = progress if isinstance(progress, dict) else json.loads(progress.json)
    lags = [_lag(source) for source in report.get("sources") or ()]
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def _lag(source: Mapping[str, Any]) -> int | None:
    """What the source says it has seen, less what it was told to read. Of one that is done again it says nothing."""
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if end and not latest:
        return None
    return sum(max(0, at - end.get(partition, 0)) for partition, at in latest.items())


def _offsets(told: Any) -> dict[tuple[str, str], int]:
    """By topic and partition."""
    try:
        offset = json.loads(told) if isinstance(told, str) else told
        topics = offset["topics"].items()
        return {(topic, number): int(at) for topic, each in topics for number, at in each["offsets"].items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return {}
