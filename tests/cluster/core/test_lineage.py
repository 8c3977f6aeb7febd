"""Which epoch wrote which offsets."""

from __future__ import annotations

import pytest

from penstock.cluster.core.lineage import Lineage


def lineage() -> Lineage:
    return Lineage([(1, 0), (3, 10), (4, 25)])


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    assert lineage().end_of(1, 30) == (1, 10)
    assert lineage().end_of(3, 30) == (3, 25)
    assert lineage().end_of(4, 30) == (4, 30)


def test_for_an_epoch_that_is_not_here_the_largest_before_it_counts() -> None:
    assert lineage().end_of(2, 30) == (1, 10)
    assert lineage().end_of(9, 30) == (4, 30)
    assert lineage().end_of(0, 30) == (0, 0)
    assert Lineage().end_of(5, 0) == (0, 0)


def test_more_of_the_last_epoch_is_no_news() -> None:
    it = lineage()
    it.add(4, 28)
    assert it.entries == [(1, 0), (3, 10), (4, 25)]
    assert it.last == 4


def test_an_epoch_never_comes_after_a_later_one() -> None:
    with pytest.raises(AssertionError):
        lineage().add(2, 30)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (30, [(1, 0), (3, 10), (4, 25)]),
        (26, [(1, 0), (3, 10), (4, 25)]),
        (25, [(1, 0), (3, 10)]),
        (10, [(1, 0)]),
        (0, []),
    ],
)
def test_a_cut_takes_epochs_that_begin_there_or_later(offset: int, left: list[tuple[int, int]]) -> None:
    it = lineage()
    it.cut(offset)
    assert it.entries == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, [(1, 0), (3, 10), (4, 25)]),
        (5, [(1, 0), (3, 10), (4, 25)]),
        (10, [(1, 0), (3, 10), (4, 25)]),
        (11, [(3, 10), (4, 25)]),
        (24, [(3, 10), (4, 25)]),
        (30, [(4, 25)]),
    ],
)
def test_a_trim_takes_epochs_but_the_last_one_before_it(start: int, left: list[tuple[int, int]]) -> None:
    it = lineage()
    it.trim(start)
    assert it.entries == left


def test_an_epoch_may_follow_one_that_was_trimmed_away() -> None:
    it = lineage()
    it.trim(30)
    it.add(5, 30)
    assert it.end_of(4, 31) == (4, 30)
    assert it.end_of(5, 31) == (5, 31)


def test_a_stretch_has_the_epochs_that_lie_in_it() -> None:
    assert lineage().within(0, 30) == ((1, 0), (3, 10), (4, 25))
    assert lineage().within(12, 25) == ((3, 12),)
    assert lineage().within(9, 26) == ((1, 9), (3, 10), (4, 25))
    assert lineage().within(12, 12) == ()
