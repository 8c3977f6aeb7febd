"""Rates from successive reads: the module of the page, with times that are given to it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")

RUN = """async (reads) => {
  const page = document.querySelector("script[type=module]").src;
  const { Meter } = await import(page.replace("page.js", "meter.js"));
  const meter = new Meter();
  let topic = null;
  for (const read of reads) {
    if (read === "pause") {
      meter.pause();
      continue;
    }
    const { at, ends, lag, name = "orders", unknown = [] } = read;
    topic = { name, partitions: ends.map((end_offset, number) => ({ number, end_offset })), unknown };
    meter.add([topic], lag === undefined ? [] : [{ name: "billing", lag: { [name]: [lag] } }], at * 1000);
  }
  return {
    topic: meter.topic(topic.name),
    partitions: topic.partitions.map((part) => meter.partition(topic.name, part.number)),
    group: meter.group("billing"),
    hot: [...meter.hot(topic)],
    points: meter.points.map((point) => [point.published, point.done]),
  };
}"""


@pytest.fixture
def meter(page: Any) -> Any:
    return lambda *reads: page.evaluate(RUN, list(reads))


def test_one_read_is_no_rate(meter: Any) -> None:
    found = meter({"at": 0, "ends": [5], "lag": 5})
    assert (found["topic"], found["group"], found["hot"], found["points"]) == (None, None, [], [[None, None]])


def test_what_was_published_and_is_not_behind_has_been_done(meter: Any) -> None:
    found = meter({"at": 0, "ends": [100], "lag": 10}, {"at": 2, "ends": [140], "lag": 40})
    assert (found["topic"], found["group"]) == (20, 5)
    assert found["points"][-1] == [20, 5]


def test_a_rate_is_that_of_the_last_seconds(meter: Any) -> None:
    found = meter(*({"at": 2 * n, "ends": [1000 if n else 0]} for n in range(11)))
    assert found["topic"] == 0


def test_a_hot_partition_has_three_times_the_average(meter: Any) -> None:
    ends = [60, 10, 10, 0, 0, 40]
    found = meter({"at": 0, "ends": [0] * 6}, {"at": 2, "ends": ends})
    assert found["partitions"] == [end / 2 for end in ends]
    assert found["hot"] == [0]


@pytest.mark.parametrize("ends", [[10, 10, 10], [20, 0], [0, 0, 0]])
def test_a_topic_without_a_hot_partition(meter: Any, ends: list[int]) -> None:
    assert meter({"at": 0, "ends": [0] * len(ends)}, {"at": 2, "ends": ends})["hot"] == []


def test_reads_that_are_too_near_are_not_compared(meter: Any) -> None:
    found = meter({"at": 0, "ends": [0]}, {"at": 2, "ends": [20]}, {"at": 2.1, "ends": [29]}, {"at": 4, "ends": [40]})
    assert [published for published, _ in found["points"]] == [None, 10, 10]


def test_what_is_made_anew_or_was_not_looked_at_starts_again(meter: Any) -> None:
    anew = meter({"at": 0, "ends": [500]}, {"at": 2, "ends": [600]}, {"at": 4, "ends": [3]})
    assert (anew["topic"], anew["points"][-1]) == (None, [None, None])
    hidden = meter({"at": 0, "ends": [0]}, {"at": 2, "ends": [9]}, "pause", {"at": 900, "ends": [9000]})
    assert (hidden["topic"], hidden["points"][-1]) == (None, [None, None])
    moved_back = meter({"at": 0, "ends": [9], "lag": 0}, {"at": 2, "ends": [9], "lag": 9})
    assert moved_back["group"] is None


def test_dead_letters_are_not_counted_as_published(meter: Any) -> None:
    found = meter({"at": 0, "ends": [0], "name": "orders.dlq"}, {"at": 2, "ends": [8], "name": "orders.dlq"})
    assert (found["topic"], found["points"][-1][0]) == (4, None)


def test_what_has_a_leader_again_is_not_taken_for_new(meter: Any) -> None:
    reads = [
        {"at": 0, "ends": [1000, 7], "lag": 0},
        {"at": 2, "ends": [7], "unknown": [0], "lag": None},
        {"at": 4, "ends": [1000, 7], "lag": 0},
    ]
    found = meter(*reads)
    assert (found["topic"], found["group"]) == (None, None)
    assert found["points"] == [[None, None]] * 3
    found = meter(*reads, {"at": 6, "ends": [1002, 9], "lag": 2})
    assert (found["topic"], found["group"]) == (2, 1)
