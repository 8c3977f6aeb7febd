"""The figures of a report, from frames of messages and lives to rows of its tables.

Spark counts and ranks; what is left is arithmetic over a few rows a topic, and is done here. Percentiles are Spark's
`percentile_approx`: values that really occurred, exact for up to ten thousand of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import sqrt
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from penstock.message import Priority
from penstock.spark.builtin.report_scope import Scope
from penstock.spark.builtin.report_tables import ACCURACY, PERCENTILES, Row, columns_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_US = 1_000_000
# A plot has room for about so many points.
BUCKETS_MAX = 60
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
HOT = 1.5
_SIGMAS = 3
_LANES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}


def time_of(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def is_hot(count: int, even: float) -> bool:
    """Half as much again as its even share, and more than chance would do."""
    return count > HOT * even and count - even > _SIGMAS * sqrt(even)


def bucket_of(first_us: int | None, last_us: int | None) -> int:
    """How many seconds a point of a plot stands for."""
    span_s = ((last_us or 0) - (first_us or 0)) / _SECOND_US
    fitting = (width for width in _WIDTHS_S if span_s / width < BUCKETS_MAX - 1)
    days = int(span_s / _WIDTHS_S[-1] / (BUCKETS_MAX - 1)) + 1
    return next(fitting, days * _WIDTHS_S[-1])


# --- messages -------------------------------------------------------------------------------------------------


def counts_of(messages: DataFrame) -> list[Row]:
    """Of each partition that has messages: what adds up, and when they came."""
    found = messages.groupBy("topic", "partition").agg(
        sf.count("*").alias("messages"),
        sf.min("appended_us").alias("first_us"),
        sf.max("appended_us").alias("last_us"),
        sf.count_if(sf.col("key").isNull()).alias("unkeyed"),
        sf.count_if(sf.col("deliver_us").isNotNull()).alias("delayed"),
        *(sf.count_if(sf.col("priority") == int(lane)).alias(name) for name, lane in _LANES.items()),
    )
    return [row.asDict() for row in found.collect()]


def keyed_of(messages: DataFrame) -> DataFrame:
    """How many messages each key has."""
    keyed = messages.where("key IS NOT NULL").groupBy("topic", "key")
    return keyed.agg(sf.count("*").alias("messages"), sf.max("partition").alias("partition"))


def bucket_for(counts: Sequence[Row]) -> int:
    firsts, lasts = ([row[side] for row in counts] for side in ("first_us", "last_us"))
    return bucket_of(min(firsts, default=None), max(lasts, default=None))


def topics(counts: Sequence[Row], keyed: DataFrame, scope: Scope) -> list[Row]:
    keys = {row["topic"]: row["count"] for row in keyed.groupBy("topic").count().collect()}
    return [
        _topic(topic, [row for row in counts if row["topic"] == topic], keys.get(topic, 0), scope)
        for topic in scope.topics
    ]


def _topic(topic: str, counts: Sequence[Row], keys: int, scope: Scope) -> Row:
    first = min((row["first_us"] for row in counts), default=None)
    last = max((row["last_us"] for row in counts), default=None)
    span_us = (last or 0) - (first or 0)
    sums = {name: sum(row[name] for row in counts) for name in ("messages", "unkeyed", *_LANES, "delayed")}
    row = {
        "topic": topic,
        "partitions": len(scope.of(topic)),
        **sums,
        # n messages have n - 1 gaps between them.
        "messages_per_s": (sums["messages"] - 1) * _SECOND_US / span_us if span_us > 0 else None,
        "first": time_of(first),
        "last": time_of(last),
        "keys": keys,
        "stored_bytes": sum(each.stored_bytes for each in scope.of(topic)),
    }
    return _ordered("topics", row)


def partitions(counts: Sequence[Row], scope: Scope) -> list[Row]:
    messages = {(row["topic"], row["partition"]): row["messages"] for row in counts}
    totals: Counter[str] = Counter()
    for row in counts:
        totals[row["topic"]] += row["messages"]
    sizes = Counter(each.topic for each in scope.stretches)
    found = []
    for each in scope.stretches:
        weight = _weight(messages.get((each.topic, each.partition), 0), totals[each.topic], sizes[each.topic])
        found.append(_ordered("partitions", {**each._asdict(), **weight}))
    return found


def _weight(count: int, total: int, partitions: int) -> Row:
    """Compared with what each partition would have if all had the same."""
    even = total / partitions
    return {
        "messages": count,
        "share": count / total if total else None,
        "times_even": count / even if total else None,
        "is_hot": partitions > 1 and is_hot(count, even),
    }


def keys(keyed: DataFrame, of_topics: Iterable[Row], keys_max: int) -> list[Row]:
    """The most frequent. One is hot if it alone is too much for a partition: more of them would not help."""
    order = Window.partitionBy("topic").orderBy(sf.desc("messages"), sf.asc("key"))
    top = keyed.withColumn("rank", sf.row_number().over(order)).where(sf.col("rank") <= keys_max)
    by_topic = {row["topic"]: row for row in of_topics}
    found = []
    for row in top.orderBy("topic", "rank").collect():
        topic = by_topic[row["topic"]]
        weight = _weight(row["messages"], topic["messages"], topic["partitions"])
        found.append(_ordered("keys", {**row.asDict(), **weight, "key": bytes(row["key"])}))
    return found


def times(messages: DataFrame, bucket_s: int) -> list[Row]:
    counted = messages.groupBy("topic", _bucket(bucket_s)).count().orderBy("topic", "bucket").collect()
    return [
        {
            "topic": row["topic"],
            "time": time_of(row["bucket"] * bucket_s * _SECOND_US),
            "messages": row["count"],
            "messages_per_s": row["count"] / bucket_s,
        }
        for row in counted
    ]


def _bucket(bucket_s: int) -> Column:
    return sf.expr(f"appended_us DIV {bucket_s * _SECOND_US}").alias("bucket")


# --- groups ---------------------------------------------------------------------------------------------------


def _spans(of: str) -> list[Column]:
    percentiles = sf.percentile_approx(f"{of}_us", list(PERCENTILES.values()), ACCURACY)
    return [percentiles.alias(of), sf.max(f"{of}_us").alias(f"{of}_max_us")]


def _taken_apart(row: Row, of: str) -> Row:
    found = row.pop(of) or [None] * len(PERCENTILES)
    return {**row, **{f"{of}_{name}_us": value for name, value in zip(PERCENTILES, found, strict=True)}}


def groups(lives: DataFrame, started: Sequence[tuple[str, str]], scope: Scope) -> list[Row]:
    """`started` are topics and groups of which it is known that they were there, maybe without a message."""
    is_open, is_gone = sf.col("is_open"), sf.col("is_gone")
    unknown_again = sf.greatest(sf.col("unknown") - 1, sf.lit(0))
    found = lives.groupBy("topic", "group").agg(
        sf.count_if("is_delivered").alias("messages"),
        sf.count_if("is_acknowledged").alias("acknowledged"),
        *(sf.sum(name).alias(name) for name in ("deliveries", "nacks", "lease_expiries")),
        sf.sum(sf.col("again") + unknown_again).alias("redeliveries"),
        *(sf.count_if(sf.col(name) > 0).alias(name) for name in ("given_up", "dead_letters", "expired")),
        sf.count_if(is_open & ~is_gone).alias("unacknowledged"),
        sf.min(sf.when(is_open, sf.col("due_us"))).alias("oldest_us"),
        sf.count_if(is_gone & sf.col("is_delivered")).alias("gone"),
        sf.count_if(is_open & is_gone).alias("gone_unacknowledged"),
        *_spans("latency"),
        *_spans("processing"),
    )
    told = {(row["topic"], row["group"]): row.asDict() for row in found.collect()}
    names = sorted({*told, *started, *scope.lags})
    return [_group(*name, told.get(name, {}), scope.lags.get(name)) for name in names]


_GROUP_COUNTS = (
    "messages",
    "deliveries",
    "acknowledged",
    "redeliveries",
    "nacks",
    "lease_expiries",
    "given_up",
    "dead_letters",
    "expired",
    "unacknowledged",
    "gone",
    "gone_unacknowledged",
)


def _group(topic: str, group: str, told: Row, lag: int | None) -> Row:
    row: Row = {"latency": None, "processing": None, "latency_max_us": None, "processing_max_us": None, **told}
    row = _taken_apart(_taken_apart(row, "latency"), "processing")
    row |= {name: row.get(name) or 0 for name in _GROUP_COUNTS}
    row |= {
        "topic": topic,
        "group": group,
        "redelivery_rate": _rate(row["redeliveries"], row["messages"]),
        "nack_rate": _rate(row["nacks"], row["deliveries"]),
        "lease_expiry_rate": _rate(row["lease_expiries"], row["deliveries"]),
        "dead_letter_rate": _rate(row["dead_letters"], row["messages"]),
        "oldest_unacknowledged": time_of(row.get("oldest_us")),
        "lag": lag,
    }
    return _ordered("groups", row)


def _rate(count: int, of: int) -> float | None:
    return count / of if of else None


def group_times(lives: DataFrame, bucket_s: int) -> list[Row]:
    """By when messages were appended: how long took what was published then?"""
    answered = lives.where("latency_us IS NOT NULL")
    found = answered.groupBy("topic", "group", _bucket(bucket_s)).agg(
        sf.count("*").alias("acknowledged"), *_spans("latency")
    )
    rows = []
    for row in found.orderBy("topic", "group", "bucket").collect():
        told = _taken_apart(row.asDict(), "latency")
        rows.append(_ordered("group_times", {**told, "time": time_of(told["bucket"] * bucket_s * _SECOND_US)}))
    return rows


def _ordered(table: str, row: Mapping[str, Any]) -> Row:
    return {name: row[name] for name in columns_of(table)}
