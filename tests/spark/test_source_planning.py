"""What is read next, in how many tasks, and what Spark keeps of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from penstock.errors import DataLost, InvalidInput, UnknownFormat
from penstock.spark.asked import Cut
from penstock.spark.losses import Losses
from penstock.spark.offsets import Place, read_back, written
from penstock.spark.pacing import allotted, within_bytes
from penstock.spark.planning import Range, cut, ranges_between
from penstock.spark.subscription import Subscription

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
