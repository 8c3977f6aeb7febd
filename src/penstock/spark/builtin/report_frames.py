"""Messages, and the lives they had in groups, as frames of Spark's.

Of messages, the columns that figures are made of are read, and no others: values stay where they are. Times are
microseconds since 1970 from here on, so that no time zone has a say.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock.spark.builtin.report_scope import Asked, Scope
from penstock.spark.tables import DELIVERIES, MESSAGES

_MESSAGES = (
    "topic STRING, partition INT, offset BIGINT, append_time TIMESTAMP, key BINARY, priority INT, deliver_at TIMESTAMP"
)
_EVENTS = (
    "topic STRING, partition INT, event_offset BIGINT, time TIMESTAMP, event STRING, group STRING, offset BIGINT, "
    "lease STRING, attempt INT, until TIMESTAMP"
)
_STRETCHES = "topic STRING, partition INT, start BIGINT, first BIGINT, end BIGINT, reaches_back BOOLEAN"

MESSAGE = ["topic", "partition", "offset"]
_DELIVERED = ("DELIVERED", "REDELIVERED")
_SETTLED = ("ACKNOWLEDGED", "EXHAUSTED", "EXPIRED", "PASSED_OVER")
_LET_GO = ("GROUP_MOVED", "GROUP_DELETED")


def messages_of(spark: SparkSession, asked: Asked, scope: Scope) -> DataFrame:
    frame = _read(spark, asked, scope, MESSAGES, _MESSAGES)
    return frame.select(
        *MESSAGE,
        "key",
        "priority",
        sf.unix_micros("append_time").alias("appended_us"),
        sf.unix_micros("deliver_at").alias("deliver_us"),
    )


def events_of(spark: SparkSession, asked: Asked, scope: Scope) -> DataFrame:
    frame = _read(spark, asked, scope, DELIVERIES, _EVENTS)
    times = {"time_us": sf.unix_micros("time"), "until_us": sf.unix_micros("until")}
    return frame.withColumns(times).drop("time", "until")


def _read(spark: SparkSession, asked: Asked, scope: Scope, table: str, schema: str) -> DataFrame:
    options = {**asked.connecting.options(), **scope.options(table)}
    return spark.read.format("penstock").schema(schema).options(**options).load()


def moves_of(events: DataFrame) -> DataFrame:
    """Where each group last started, was moved or deleted: whatever it held before, it let go."""
    moves = events.where(sf.col("event").isin(*_LET_GO))
    return moves.groupBy("topic", "partition", "group").agg(sf.max("event_offset").alias("let_go_at"))


def lives_of(messages: DataFrame, events: DataFrame, moves: DataFrame, asked: Asked, scope: Scope) -> DataFrame:
    """One row for each message and group that had to do with it."""
    placed = _of_the_period(events, asked, scope)
    lives = _told(placed.where("group IS NOT NULL"))
    lives = lives.join(sf.broadcast(moves), ["topic", "partition", "group"], "left")
    lives = lives.join(_moved(placed), MESSAGE, "left")
    lives = lives.join(messages.select(*MESSAGE, "appended_us", "deliver_us"), MESSAGE, "left")
    due = sf.greatest("appended_us", sf.coalesce("moved_us", "deliver_us"), "replay_us")
    lives = lives.withColumn("due_us", sf.when(sf.col("appended_us").isNotNull(), due))
    return lives.select(
        "topic",
        "group",
        "appended_us",
        "due_us",
        *(_at_least_0(sf.col(name)).alias(name) for name in _counts()),
        _at_least_0(sf.col("acked_us") - sf.col("due_us")).alias("latency_us"),
        _at_least_0(sf.col("acked_us") - sf.col("given_us")).alias("processing_us"),
        sf.col("acked_us").isNotNull().alias("is_acknowledged"),
        _is_delivered().alias("is_delivered"),
        _is_open().alias("is_open"),
        sf.col("appended_us").isNull().alias("is_gone"),
    )


def _of_the_period(events: DataFrame, asked: Asked, scope: Scope) -> DataFrame:
    """What happened to messages that are looked at; and to those that are gone, if they may have been among them."""
    rows = [
        (each.topic, each.partition, each.start, each.first, each.end, each.reaches_back) for each in scope.stretches
    ]
    stretches = events.sparkSession.createDataFrame(rows, _STRETCHES)
    before = (
        sf.col("reaches_back") & (sf.col("offset") < sf.col("start")) & (sf.col("time_us") >= (asked.since_us or 0))
    )
    if asked.until_us is not None and any(each.start >= each.end for each in scope.stretches):
        events = events.join(sf.broadcast(_early(events, asked.until_us)), ["topic", "partition"], "left")
        # A log that starts behind the period does not tell which of those that are gone were of it.
        is_early = (sf.col("start") < sf.col("end")) | (sf.col("offset") < sf.col("early_end"))
        before &= sf.coalesce(is_early, sf.lit(False))
    within = (sf.col("offset") < sf.col("end")) & ((sf.col("offset") >= sf.col("first")) | before)
    placed = events.join(sf.broadcast(stretches), ["topic", "partition"]).where(within)
    # Lives are told lease by lease first, then as a whole, and put beside messages: all of it by message.
    return placed.drop("start", "first", "end", "reaches_back", "early_end").repartition(*MESSAGE)


def _early(events: DataFrame, until_us: int) -> DataFrame:
    """Of each partition, behind the last message that was delivered before a time: all up to there are older."""
    early = events.where(_on(*_DELIVERED) & (sf.col("time_us") < until_us))
    return early.groupBy("topic", "partition").agg((sf.max("offset") + 1).alias("early_end"))


def _moved(placed: DataFrame) -> DataFrame:
    """When messages that were rescheduled are due."""
    rescheduled = placed.where("event = 'RESCHEDULED'")
    return rescheduled.groupBy(*MESSAGE).agg(sf.max_by("until_us", "event_offset").alias("moved_us"))


def _on(*events: str) -> Column:
    return sf.col("event").isin(*events)


def _counts() -> dict[str, Column]:
    """What was given back unseen does not count, as the broker does not count it."""
    delivery, back, unknown = _on(*_DELIVERED), _on("GIVEN_BACK"), sf.col("attempt").isNull()
    return {
        "deliveries": sf.count_if(delivery) - sf.count_if(back),
        "again": sf.count_if(_on("REDELIVERED")) - sf.count_if(back & (sf.col("attempt") > 1)),
        "unknown": sf.count_if(delivery & unknown) - sf.count_if(back & unknown),
        "nacks": sf.count_if(_on("NACKED")),
        "lease_expiries": sf.count_if(_on("LEASE_EXPIRED")),
        "given_up": sf.count_if(_on("EXHAUSTED")),
        "dead_letters": sf.count_if(_on("DEAD_LETTERED")),
        "expired": sf.count_if(_on("EXPIRED")),
    }


def _latest() -> dict[str, Column]:
    """Where in the log something was said last, or until when."""

    def last(name: str, *events: str) -> Column:
        return sf.max(sf.when(_on(*events), sf.col(name)))

    return {
        "tried_at": last("event_offset", *_DELIVERED, "NACKED", "LEASE_EXPIRED"),
        "settled_at": last("event_offset", *_SETTLED),
        "redriven_at": last("event_offset", "REDRIVEN"),
        "replay_us": last("until_us", "REPLAYED"),
    }


def _told(events: DataFrame) -> DataFrame:
    """Of each message and group. An acknowledgement belongs to the delivery with the same lease."""
    counts, latest = _counts(), _latest()
    by_lease = events.groupBy(*MESSAGE, "group", "lease").agg(
        *(column.alias(name) for name, column in {**counts, **latest}.items()),
        sf.min(sf.when(_on(*_DELIVERED), sf.col("time_us"))).alias("given_us"),
        sf.min(sf.when(_on("ACKNOWLEDGED"), sf.col("time_us"))).alias("acked_us"),
    )
    return by_lease.groupBy(*MESSAGE, "group").agg(
        *(sf.sum(name).alias(name) for name in counts),
        *(sf.max(name).alias(name) for name in latest),
        sf.min_by("given_us", "acked_us").alias("given_us"),
        sf.min("acked_us").alias("acked_us"),
    )


def _at_least_0(column: Column) -> Column:
    """A clock that was set back makes no time run backwards; null stays null."""
    return sf.when(column < 0, sf.lit(0).cast("bigint")).otherwise(column)


def _is_delivered() -> Column:
    """Told, or to be concluded where the log of deliveries was shortened in between."""
    answers = sf.col("nacks") + sf.col("lease_expiries") + sf.col("given_up")
    return (sf.col("deliveries") > 0) | sf.col("acked_us").isNotNull() | (answers > 0)


def _is_open() -> Column:
    """Delivered, let go by nobody, and not settled since."""
    settled = sf.col("settled_at")
    is_held = sf.col("tried_at") > sf.coalesce("let_go_at", sf.lit(-1))
    is_unsettled = (
        settled.isNull() | (settled < sf.col("tried_at")) | (settled < sf.coalesce("redriven_at", sf.lit(-1)))
    )
    return sf.coalesce(is_held & is_unsettled & (sf.col("deliveries") > 0), sf.lit(False))
