"""What a report makes of lives that are hard to bring about: told as events, and counted by Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from penstock.spark.builtin import report_figures as figures
from penstock.spark.builtin import report_frames as frames
from penstock.spark.builtin.report_scope import Asked, Scope, Stretch
from penstock.spark.builtin.report_tables import Row
from penstock.spark.connecting import Connecting

MESSAGES = "topic STRING, partition INT, offset BIGINT, key BINARY, priority INT, appended_us BIGINT, deliver_us BIGINT"
EVENTS = (
    "topic STRING, partition INT, event_offset BIGINT, event STRING, group STRING, offset BIGINT, lease STRING, "
    "attempt INT, time_us BIGINT, until_us BIGINT"
)
# Events of each group, in order: what, to which message, when, lease, attempt, until.
LIVES: dict[str, list[tuple[str, int | None, int, str | None, int | None, int | None]]] = {
    # The lease ran out twice; the second time it was the last.
    "expiring": [
        ("DELIVERED", 10, 1_000, "a", 1, None),
        ("LEASE_EXPIRED", 10, 2_000, "a", 1, None),
        ("REDELIVERED", 10, 3_000, "b", 2, None),
        ("EXHAUSTED", 10, 4_000, "b", 2, None),
        ("DEAD_LETTERED", 10, 4_100, None, None, None),
    ],
    # Acknowledged, and after a seek once more: the first counts. The other one was let go, and never came again.
    "sought": [
        ("DELIVERED", 10, 1_000, "a", 1, None),
        ("DELIVERED", 11, 1_000, "a", 1, None),
        ("ACKNOWLEDGED", 10, 1_500, "a", 1, None),
        ("GROUP_MOVED", None, 5_000, None, None, None),
        ("DELIVERED", 10, 6_000, "b", 1, None),
        ("ACKNOWLEDGED", 10, 9_000, "b", 1, None),
    ],
    # A dead letter that came again, and is open.
    "redriven": [
        ("DELIVERED", 10, 1_000, "a", 1, None),
        ("EXHAUSTED", 10, 1_100, "a", 1, None),
        ("DEAD_LETTERED", 10, 1_200, None, None, None),
        ("REDRIVEN", 10, 2_000, None, None, 2_000),
    ],
    # Given back unseen, then done.
    "closing": [
        ("DELIVERED", 10, 1_000, "a", 1, None),
        ("GIVEN_BACK", 10, 1_100, "a", 1, None),
        ("DELIVERED", 10, 2_000, "b", 1, None),
        ("ACKNOWLEDGED", 10, 2_400, "b", 1, None),
        ("DELIVERED", 11, 2_500, "c", 1, None),
        ("GIVEN_BACK", 11, 2_600, "c", 1, None),
    ],
    # 3 and 4 are gone from the log, one of them undone; 99 is not of the period.
    "forgetful": [
        ("DELIVERED", 3, 100, "a", 1, None),
        ("ACKNOWLEDGED", 3, 150, "a", 1, None),
        ("DELIVERED", 4, 100, "a", 1, None),
        ("DELIVERED", 99, 9_000, "b", 1, None),
    ],
    # The log was cut before: neither the first delivery of 10, nor which attempts those of 11 were, is known.
    "shortened": [
        ("ACKNOWLEDGED", 10, 1_500, "z", None, None),
        ("DELIVERED", 11, 2_000, "a", None, None),
        ("NACKED", 11, 2_100, "a", None, 2_200),
        ("DELIVERED", 11, 2_200, "b", None, None),
        ("ACKNOWLEDGED", 11, 2_500, "b", None, None),
    ],
    # 12 was due at 8,000 for all, and by its replay at 9,000 for this group.
    "replayed": [
        ("GROUP_MOVED", None, 500, None, None, None),
        ("REPLAYED", 12, 600, None, None, 9_000),
        ("DELIVERED", 12, 9_100, "a", 1, None),
        ("ACKNOWLEDGED", 12, 9_250, "a", 1, None),
    ],
    # By a clock that was set back, it was done before it was there.
    "backwards": [
        ("DELIVERED", 12, 8_100, "a", 1, None),
        ("ACKNOWLEDGED", 12, 7_000, "a", 1, None),
    ],
    "idle": [("GROUP_MOVED", None, 100, None, None, None)],
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> dict[str, Row]:
    messages = [("t", 0, 10, None, 0, 900, None), ("t", 0, 11, None, 0, 950, None), ("t", 0, 12, None, 0, 960, 7_000)]
    told = [(group, each) for group, life in LIVES.items() for each in life]
    events = [
        ("t", 0, number, what, group, offset, lease, attempt, at, until)
        for number, (group, (what, offset, at, lease, attempt, until)) in enumerate(told)
    ]
    events.append(("t", 0, 1_000, "RESCHEDULED", None, 12, None, None, 970, 8_000))
    asked, scope = (
        Asked(Connecting("penstock://nowhere"), ["t"]),
        Scope([Stretch("t", 0, 10, 10, 20, 0, 2_000, 64)], {}),
    )
    all_events = spark.createDataFrame(events, EVENTS)
    moves = frames.moves_of(all_events)
    lives = frames.lives_of(spark.createDataFrame(messages, MESSAGES), all_events, moves, asked, scope)
    return {row["group"]: row for row in figures.groups(lives, [("t", "idle")], scope)}


def only(row: Row) -> Row:
    """What is not 0 or null."""
    boring = ("topic", "group", "lag", "messages", "deliveries")
    names = (name for name in row if not name.endswith(("_p50_us", "_p90_us", "_p99_us", "_p999_us", "_rate")))
    return {name: row[name] for name in names if row[name] and name not in boring}


def at(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)


@pytest.mark.parametrize(
    ("group", "messages", "deliveries", "expected"),
    [
        ("expiring", 1, 2, {"redeliveries": 1, "lease_expiries": 1, "given_up": 1, "dead_letters": 1}),
        ("sought", 2, 3, {"acknowledged": 1, "latency_max_us": 600, "processing_max_us": 500}),
        ("redriven", 1, 1, {"given_up": 1, "dead_letters": 1, "unacknowledged": 1, "oldest_unacknowledged": at(900)}),
        ("closing", 1, 1, {"acknowledged": 1, "latency_max_us": 1_500, "processing_max_us": 400}),
        ("forgetful", 2, 2, {"acknowledged": 1, "processing_max_us": 50, "gone": 2, "gone_unacknowledged": 1}),
        (
            "shortened",
            2,
            2,
            {"acknowledged": 2, "latency_max_us": 1_550, "processing_max_us": 300, "nacks": 1, "redeliveries": 1},
        ),
        ("replayed", 1, 1, {"acknowledged": 1, "latency_max_us": 250, "processing_max_us": 150}),
        ("backwards", 1, 1, {"acknowledged": 1}),
        ("idle", 0, 0, {}),
    ],
)
def test_a_life_is_counted_as_it_was(
    rows: dict[str, Row], group: str, messages: int, deliveries: int, expected: Row
) -> None:
    row = rows[group]
    assert (row["messages"], row["deliveries"]) == (messages, deliveries)
    assert only(row) == expected


def test_what_nothing_is_known_of_is_null(rows: dict[str, Row]) -> None:
    idle, expiring, backwards = rows["idle"], rows["expiring"], rows["backwards"]
    assert [idle[name] for name in ("redelivery_rate", "nack_rate", "dead_letter_rate", "latency_p99_us", "lag")] == [
        None
    ] * 5
    assert (expiring["latency_p50_us"], expiring["lease_expiry_rate"], expiring["dead_letter_rate"]) == (None, 0.5, 1.0)
    assert (backwards["latency_p50_us"], backwards["processing_max_us"]) == (0, 0)


@pytest.mark.parametrize(
    ("span_s", "width_s"), [(0, 1), (58, 1), (59, 2), (3_600, 120), (86_400, 1_800), (365 * 86_400, 7 * 86_400)]
)
def test_a_plot_has_at_most_sixty_points(span_s: int, width_s: int) -> None:
    assert figures.bucket_of(1_000_000, 1_000_000 + span_s * 1_000_000) == width_s
    assert span_s // width_s + 2 <= figures.BUCKETS_MAX + 1


@pytest.mark.parametrize(
    ("count", "even", "is_hot"), [(3, 1.3, False), (30, 20, False), (34, 20, True), (160, 100, True)]
)
def test_hot_is_more_than_half_as_much_again_and_more_than_chance(count: int, even: float, is_hot: bool) -> None:
    assert figures.is_hot(count, even) is is_hot


def test_of_messages_that_are_gone_those_from_behind_the_period_are_not_counted(spark: SparkSession) -> None:
    """The log starts at 10 by now; the period ended at 2,000, when 3 had been delivered."""
    told = [("DELIVERED", 3, 100), ("DELIVERED", 2, 1_900), ("ACKNOWLEDGED", 3, 3_000), ("DELIVERED", 7, 5_000)]
    events = spark.createDataFrame(
        [("t", 0, at, event, "g", offset, f"{offset}", 1, time, None) for at, (event, offset, time) in enumerate(told)],
        EVENTS,
    )
    asked = Asked(Connecting("penstock://nowhere"), ["t"], until_us=2_000)
    scope = Scope([Stretch("t", 0, 10, 10, 10, 0, len(told), 0)], {})
    found = frames._of_the_period(events, asked, scope).select("offset", "event").collect()
    assert sorted(map(tuple, found)) == [(2, "DELIVERED"), (3, "ACKNOWLEDGED"), (3, "DELIVERED")]
