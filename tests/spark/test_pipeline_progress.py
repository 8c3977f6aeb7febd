"""How a query does, from Spark's reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.spark import lag_of
from penstock.spark.pipeline.progress import Meter


def at(*offsets: int) -> str:
    return json.dumps({"topics": {"orders": {"offsets": {str(number): at for number, at in enumerate(offsets)}}}})


def lag(*sources: dict[str, Any]) -> int | None:
    meter = Meter()
    meter.take({"timestamp": "2026-01-14T15:00:00.000Z", "batchId": 3, "sources": sources})
    return meter.progress.lag


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([{"latestOffset": at(10, 20), "endOffset": at(4, 20)}], 6),
        ([{"latestOffset": at(10, 20), "endOffset": at(10, 20)}] * 2, 0),
        # Planned by an earlier run: the source was not asked.
        ([{"latestOffset": None, "endOffset": at(4, 20)}], None),
        ([{"latestOffset": at(10), "endOffset": at(4)}, {"latestOffset": None, "endOffset": at(4)}], None),
        # Nothing of ours.
        ([{"latestOffset": None, "endOffset": 7}], 0),
    ],
)
def test_lag_is_what_was_there_when_a_batch_was_planned_if_that_is_known(
    sources: list[dict[str, Any]], expected: int | None
) -> None:
    assert lag(*sources) == lag_of({"sources": sources}) == expected


def test_a_query_without_a_micro_batch_has_no_lag_yet() -> None:
    """`lastProgress` is None then."""
    assert lag_of(None) is None
