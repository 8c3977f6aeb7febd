"""Which offset became which: runs against a table of every single message."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.client.placing import Placed
from penstock.spark.builtin.mirror_runs import Numbered, Numbering, Run, grown, joined, translated


def test_stretches_without_gaps_are_one() -> None:
    numbering = Numbering()
    for some, first in (([40, 41], 0), ([42], 2), ([44, 45, 50], 3), ([51], 9)):
        numbering.add(np.array(some, np.int64), np.arange(first, first + len(some)))
    assert numbering.stretches == [Numbered(0, 3, 40), Numbered(3, 2, 44), Numbered(5, 1, 50), Numbered(9, 1, 51)]


def test_a_batch_that_is_told_again_changes_nothing() -> None:
    runs = [Run(40, 7, 3), Run(44, 10, 2)]
    grown(runs, [Run(40, 7, 3), Run(44, 10, 2)])
    grown(runs, [Run(45, 11, 4)])
    assert runs == [Run(40, 7, 3), Run(44, 10, 5)]


def test_nothing_mirrored_is_nowhere() -> None:
    assert translated([], 7) is None


@pytest.mark.parametrize("seed", range(30))
def test_every_offset_is_translated_to_the_first_message_at_it_or_behind_it(seed: int) -> None:
    dice = random.Random(seed)
    sources, targets = ascending(dice, 60), ascending(dice, 60)
    runs: list[Run] = []
    first = 0
    while first < len(sources):
        count = dice.randint(1, 20)
        some, there = sources[first : first + count], targets[first : first + count]
        numbering = Numbering()
        numbering.add(np.array(some, np.int64), np.arange(len(some)))
        placed = [Placed(number, 1, offset) for number, offset in enumerate(there)]
        told = list(joined(numbering.stretches, placed))
        for _ in range(dice.randint(1, 2)):
            grown(runs, told)
        first += count
    assert sum(run.messages for run in runs) == len(sources)
    for offset in range(sources[-1] + 3):
        wanted = next((t for s, t in zip(sources, targets, strict=True) if s >= offset), targets[-1] + 1)
        assert translated(runs, offset) == wanted, seed


def ascending(dice: random.Random, count: int) -> list[int]:
    return sorted(dice.sample(range(count * 2), count))


def test_messages_whose_place_is_not_known_any_more_are_left_out() -> None:
    numbered = [Numbered(0, 10, 100)]
    assert list(joined(numbered, [Placed(4, 3, 50), Placed(8, 5, 60)])) == [Run(104, 50, 3), Run(108, 60, 2)]
