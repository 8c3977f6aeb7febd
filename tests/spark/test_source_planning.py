"""What is read next, in how many tasks, and what Spark keeps of it."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from penstock.client.blocking import Client
from penstock.errors import DataLost, InvalidInput, UnknownFormat
from penstock.spark.asked import Cut
from penstock.spark.filters import Where
from penstock.spark.losses import Losses
from penstock.spark.offsets import Place, read_back, written
from penstock.spark.pacing import allotted, within_bytes
from penstock.spark.planning import Range, cut, ranges_between
from penstock.spark.subscription import Subscription
from penstock.spark.tables import LOGS

NOBODY = cast(Client, None)
BOTH = Subscription("subscribe is 'a,b'", "messages", ("a", "b"))


def shown(ranges: list[Range]) -> list[tuple[Any, ...]]:
    return [each.value for each in ranges]


# --- tasks --------------------------------------------------------------------------------------------------


def test_without_a_wish_each_partition_is_one_task_and_empty_ones_are_none() -> None:
    ranges = [Range("a", "i", 0, 5, 10), Range("a", "i", 1, 3, 3)]
    assert shown(cut(ranges, Cut())) == [("a", 0, 5, 10)]


def test_long_ranges_are_cut_into_more_tasks_in_proportion() -> None:
    parts = cut([Range("a", "i", 0, 0, 900), Range("a", "i", 1, 0, 100)], Cut(tasks_min=10))
    assert shown(parts)[-1] == ("a", 1, 0, 100)
    assert len(parts) == 10
    assert [start for _, _, start, _ in shown(parts)[:-1]] == list(range(0, 900, 100))


def test_no_task_is_longer_than_allowed_and_none_is_empty() -> None:
    assert shown(cut([Range("a", "i", 0, 10, 15)], Cut(offsets_max=2))) == [
        ("a", 0, 10, 11),
        ("a", 0, 11, 13),
        ("a", 0, 13, 15),
    ]
    assert len(cut([Range("a", "i", 0, 0, 3)], Cut(tasks_min=100))) == 3


def test_fewer_tasks_than_partitions_are_not_made() -> None:
    assert len(cut([Range("a", "i", number, 0, 9) for number in range(4)], Cut(tasks_min=2))) == 4


# --- pace ---------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_in_proportion_and_used_up() -> None:
    waiting = {("a", 0): 900, ("a", 1): 90, ("a", 2): 10}
    assert allotted(waiting, 100) == {("a", 0): 90, ("a", 1): 9, ("a", 2): 1}
    assert sum(allotted(waiting, 7).values()) == 7
    assert allotted(waiting, 1_000) == waiting


def test_a_partition_where_little_waits_has_its_turn_in_every_micro_batch() -> None:
    assert allotted({("a", 0): 1_000_000, ("a", 1): 1}, 10) == {("a", 0): 9, ("a", 1): 1}
    many = {("a", 0): 1_000, **{("a", number): 1 for number in range(1, 10)}}
    assert allotted(many, 12) == {**many, ("a", 0): 3}
    # A limit below the number of partitions is passed by, rather than that one of them is never read.
    assert set(allotted(many, 4).values()) == {1}


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_the_limit_and_nowhere_more_than_waits(seed: int) -> None:
    dice = random.Random(seed)
    waiting = {("a", number): dice.choice((1, 2, 7, 400, 10**9)) for number in range(dice.randint(1, 30))}
    most = dice.randint(len(waiting), sum(waiting.values()))
    shares = allotted(waiting, most)
    assert sum(shares.values()) == most
    assert all(1 <= shares[each] <= count for each, count in waiting.items())


def test_bytes_are_translated_by_what_messages_take_on_average() -> None:
    waiting = {("a", 0): 100, ("a", 1): 100}
    sizes = {("a", 0): 10.0, ("a", 1): 30.0}
    assert within_bytes(waiting, sizes, 2_000) == 100
    assert within_bytes(waiting, sizes, 4_000) == 200
    assert within_bytes(waiting, sizes, 1) == 1


# --- checkpoints --------------------------------------------------------------------------------------------


def test_a_place_is_read_back_from_json_and_is_the_same_text_every_time() -> None:
    places = {"b": Place("2", {1: 4, 0: 3}), "a": Place("1", {10: 0, 9: 7})}
    text = json.dumps(written(places, "messages"))
    assert read_back(json.loads(text), "messages") == places
    assert text == json.dumps(written(dict(reversed(places.items())), "messages"))


@pytest.mark.parametrize(
    ("checkpoint", "kind", "told"),
    [
        ({"orders": {"0": 5}}, InvalidInput, "not one of a query that reads format penstock"),
        ({"version": 2}, UnknownFormat, "has version 2, and this Penstock knows 1"),
        (written({}, "deliveries"), InvalidInput, "reads deliveries, and this one reads messages"),
        (5, InvalidInput, "not one of a query that reads format penstock"),
        ([1], InvalidInput, "not one of a query that reads format penstock"),
        (None, InvalidInput, "not one of a query that reads format penstock"),
        ("x", InvalidInput, "not one of a query that reads format penstock"),
    ],
)
def test_a_foreign_checkpoint_is_told(checkpoint: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        read_back(checkpoint, "messages")


def test_a_micro_batch_reads_from_one_place_to_the_next_and_new_partitions_from_their_beginning() -> None:
    start = {"a": Place("1", {0: 5, 1: 2})}
    end = {"a": Place("1", {0: 9, 1: 2, 2: 3}), "b": Place("2", {0: 1})}
    ranges = ranges_between(start, end, BOTH, Losses(True))
    assert shown(ranges) == [("a", 0, 5, 9), ("a", 2, 0, 3), ("b", 0, 0, 1)]


def test_a_topic_of_another_id_or_that_is_not_subscribed_to_is_a_loss() -> None:
    start, end = {"a": Place("1", {0: 5})}, {"a": Place("2", {0: 9})}
    with pytest.raises(DataLost, match="deleted and made again"):
        ranges_between(start, end, BOTH, Losses(True))
    assert shown(ranges_between(start, end, BOTH, Losses(False))) == [("a", 0, 0, 9)]
    foreign = {"c": Place("1", {0: 5})}
    with pytest.raises(DataLost, match="the topic c, and this one does not"):
        ranges_between(foreign, foreign, BOTH, Losses(True))
    assert ranges_between({}, foreign, BOTH, Losses(False)) == []


# --- filters ------------------------------------------------------------------------------------------------


def narrowed(*filters: Filter, log: str = "messages") -> tuple[list[tuple[Any, ...]], int]:
    where = Where(LOGS[log])
    left = where.push(filters)
    ranges = [Range(topic, "i", number, 0, 10) for topic in ("a", "b") for number in (0, 1)]
    return shown(where.narrowed(NOBODY, ranges)), len(left)


@pytest.mark.parametrize(
    ("given", "first", "end"),
    [
        (EqualTo(("offset",), 4), 4, 5),
        (EqualNullSafe(("offset",), 4), 4, 5),
        (GreaterThan(("offset",), 4), 5, 10),
        (GreaterThanOrEqual(("offset",), 4), 4, 10),
        (LessThan(("offset",), 4), 0, 4),
        (LessThanOrEqual(("offset",), 4), 0, 5),
        (GreaterThan(("offset",), -9), 0, 10),
    ],
)
def test_offsets_bound_what_is_read(given: Filter, first: int, end: int) -> None:
    assert narrowed(given, EqualTo(("topic",), "a"), EqualTo(("partition",), 1)) == ([("a", 1, first, end)], 0)


def test_topics_and_partitions_choose_what_is_read() -> None:
    assert narrowed(In(("topic",), ("b", "c")), In(("partition",), (1, 7))) == ([("b", 1, 0, 10)], 0)
    assert narrowed(LessThan(("partition",), 1), IsNotNull(("offset",))) == ([("a", 0, 0, 10), ("b", 0, 0, 10)], 0)
    assert narrowed(GreaterThan(("offset",), 20)) == ([], 0)


def test_an_id_is_a_place_and_looked_at_again() -> None:
    assert narrowed(EqualTo(("id",), "b:1:7")) == ([("b", 1, 7, 8)], 1)
    assert len(narrowed(EqualTo(("id",), "nonsense"))[0]) == 4


@pytest.mark.parametrize(
    "given",
    [
        Not(EqualTo(("partition",), 1)),
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        IsNull(("offset",)),
        GreaterThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
        EqualNullSafe(("topic",), None),
        In(("partition",), (1, None)),
        # Beyond what can be asked for: nothing was appended then.
        GreaterThanOrEqual(("append_time",), datetime(1, 1, 1, tzinfo=UTC)),
        LessThan(("append_time",), datetime(1, 1, 1, tzinfo=UTC)),
        EqualTo(("append_time",), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        LessThanOrEqual(("append_time",), datetime.max.replace(tzinfo=UTC)),
        GreaterThan(("append_time",), datetime.max.replace(tzinfo=UTC)),
        EqualTo(("id",), "a:0:" + "9" * 5_000),
    ],
)
def test_what_is_not_about_places_is_left_to_spark(given: Filter) -> None:
    ranges, left = narrowed(given)
    assert len(ranges) == 4
    assert left == 1


def test_in_the_deliveries_a_place_is_an_event_offset() -> None:
    assert narrowed(EqualTo(("event_offset",), 4), EqualTo(("topic",), "a"), log="deliveries")[1] == 0
    ranges, left = narrowed(EqualTo(("offset",), 4), IsNotNull(("offset",)), log="deliveries")
    assert (len(ranges), left) == (4, 2)
