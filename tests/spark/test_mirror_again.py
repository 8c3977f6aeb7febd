"""Which messages of a task were stored before, against a model: real rows, and a log that may have lost some."""

from __future__ import annotations

import random
from typing import cast

import numpy as np
import pytest

from penstock.batch import Batch
from penstock.client.blocking import IdentifiedWriter
from penstock.client.comparing import Given
from penstock.client.placing import Kept, Placed
from penstock.errors import AttemptDiffers
from penstock.spark.builtin.mirror_again import Again

NOW_US = 1_000


def batch_of(values: list[int], times: list[int] | None = None, now_us: int = NOW_US) -> Batch:
    return Batch.from_columns([b"%d" % value for value in values], timestamps=times or [5] * len(values), now_us=now_us)


class There:
    """What was stored, and which of it the log has kept."""

    topic = "copy"

    def __init__(self, stored: Batch, kept: list[int]) -> None:
        self._stored = stored
        self._kept = kept

    def kept(self, partition: int, place: Placed) -> list[Kept]:
        numbers = np.array([each for each in self._kept if 0 <= each - place.number < place.messages], np.int64)
        return [Kept(numbers, self._stored.rows(numbers).to_arrow())] if len(numbers) else []


def again(stored: Batch, kept: list[int] | None = None, frame: int = 3) -> Again:
    places = [Placed(first, min(frame, stored.count - first), first) for first in range(0, stored.count, frame)]
    there = There(stored, list(range(stored.count)) if kept is None else kept)
    return Again(cast(IdentifiedWriter, there), 0, places, stored.count)


def numbers_of(found: Again, batch: Batch, size: int) -> list[int | None]:
    """Of each message, as it is put in batches of `size`; None for those that are new."""
    numbers: list[int | None] = []
    for first in range(0, batch.count, size):
        part = batch.slice(first, min(first + size, batch.count))
        some = found.numbers(Given(part, NOW_US)).tolist()
        numbers += [*some, *[None] * (part.count - len(some))]
    return numbers


@pytest.mark.parametrize("seed", range(60))
def test_each_message_has_the_number_it_was_stored_by_or_is_new(seed: int) -> None:
    dice = random.Random(seed)
    before = list(range(dice.randint(1, 20)))
    source = [*before, *range(100, 100 + dice.randint(0, 8))]
    gone = set(dice.sample(source, dice.randint(0, len(source) - 1))) if seed % 4 else set()
    left = [each for each in source if each not in gone]
    found = again(batch_of(before), frame=dice.randint(1, 7))
    expected = [each if each < 100 else None for each in left]
    assert numbers_of(found, batch_of(left), dice.randint(1, 9)) == expected


def test_messages_that_are_the_same_are_counted() -> None:
    # 7 is a key that was compacted away, 1 is said again and again.
    assert numbers_of(again(batch_of([1, 1, 1])), batch_of([1, 1, 1, 1, 1]), 2) == [0, 1, 2, None, None]
    assert numbers_of(again(batch_of([7, 1, 1, 1])), batch_of([1, 1, 1, 1, 1]), 2) == [1, 2, 3, None, None]
    assert numbers_of(again(batch_of([1, 1, 7])), batch_of([1, 1, 1]), 2) == [0, 1, None]


def test_a_time_that_was_made_up_is_not_looked_at() -> None:
    stored = batch_of([1, 2, 3, 4], [0, 5, 0, 5], now_us=700)
    assert numbers_of(again(stored), batch_of([1, 2, 3, 4, 5], [0, 5, 0, 5, 0]), 5) == [0, 1, 2, 3, None]
    assert numbers_of(again(stored), batch_of([3, 4, 3], [0, 5, 0]), 5) == [2, 3, None]
    assert numbers_of(again(stored), batch_of([3, 4, 5], [0, 6, 0]), 5) == [2, None, None]


@pytest.mark.parametrize("kept", [[], [0], [4], [1, 2, 4], [0, 1, 2, 3]])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_what_the_target_has_not_kept_is_trusted_if_the_rest_is_what_it_should_be(kept: list[int], size: int) -> None:
    found = again(batch_of([1, 2, 3, 4, 5]), kept)
    assert numbers_of(found, batch_of([1, 2, 3, 4, 5, 6]), size) == [0, 1, 2, 3, 4, None]


@pytest.mark.parametrize(("kept", "left"), [([4], [2, 3, 4, 5, 6]), ([0, 1, 2], [2, 6]), ([0, 2, 4], [1, 2, 4, 5])])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_if_both_have_lost_messages_nobody_can_tell(kept: list[int], left: list[int], size: int) -> None:
    found = again(batch_of([1, 2, 3, 4, 5]), kept)
    with pytest.raises(AttemptDiffers, match=r"copied to partition 0 of copy .* another --checkpoint") as caught:
        numbers_of(found, batch_of(left), size)
    assert caught.value.details["topic"] == "copy"
