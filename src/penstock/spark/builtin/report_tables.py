"""What a report consists of: a few tables, the same in Parquet, in JSON and on the page. docs/guides/report.md explains
every column.

Durations are in microseconds. What can't be known is null: a latency if nothing was acknowledged, a rate of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Row = dict[str, Any]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
# Of ranks: with 10,000, a percentile is off by at most a ten thousandth of the values, and exact up to as many.
ACCURACY = 10_000

_SPANS = ", ".join(f"{{0}}_{name}_us BIGINT" for name in (*PERCENTILES, "max"))

# As Spark writes them down.
TABLES = {
    "topics": (
        "topic STRING, partitions INT, messages BIGINT, messages_per_s DOUBLE, first TIMESTAMP, last TIMESTAMP, "
        "keys BIGINT, unkeyed BIGINT, high BIGINT, normal BIGINT, low BIGINT, delayed BIGINT, stored_bytes BIGINT"
    ),
    "groups": (
        "topic STRING, group STRING, messages BIGINT, deliveries BIGINT, acknowledged BIGINT, "
        f"{_SPANS.format('latency')}, {_SPANS.format('processing')}, "
        "redeliveries BIGINT, redelivery_rate DOUBLE, nacks BIGINT, nack_rate DOUBLE, "
        "lease_expiries BIGINT, lease_expiry_rate DOUBLE, "
        "given_up BIGINT, dead_letters BIGINT, dead_letter_rate DOUBLE, expired BIGINT, "
        "unacknowledged BIGINT, oldest_unacknowledged TIMESTAMP, gone BIGINT, gone_unacknowledged BIGINT, lag BIGINT"
    ),
    "partitions": (
        "topic STRING, partition INT, messages BIGINT, share DOUBLE, times_even DOUBLE, is_hot BOOLEAN, "
        "stored_bytes BIGINT"
    ),
    "keys": (
        "topic STRING, rank INT, key BINARY, partition INT, messages BIGINT, share DOUBLE, times_even DOUBLE, "
        "is_hot BOOLEAN"
    ),
    "times": "topic STRING, time TIMESTAMP, messages BIGINT, messages_per_s DOUBLE",
    "group_times": (f"topic STRING, group STRING, time TIMESTAMP, acknowledged BIGINT, {_SPANS.format('latency')}"),
}


def columns_of(table: str) -> list[str]:
    return [column.split()[0] for column in TABLES[table].split(", ")]


@dataclass(frozen=True)
class Report:
    """`tables` has all of `TABLES`. `since` and `until` bound when messages were appended; None is no bound."""

    url: str
    made: datetime
    since: datetime | None
    until: datetime | None
    bucket_s: int
    tables: Mapping[str, Sequence[Row]]

    def of(self, table: str, topic: str, group: str | None = None) -> list[Row]:
        found = [row for row in self.tables[table] if row["topic"] == topic]
        return found if group is None else [row for row in found if row["group"] == group]
