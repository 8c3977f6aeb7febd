"""Marks on keys, beside a dict that does the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.key_marks import KeyMarks, Marked

# Few, and many that want the same place in a small table; 0 is no key.
SOME = st.sampled_from([*range(6), *(number << 32 for number in range(1, 40)), 2**64 - 1])
KEYS = st.lists(SOME, max_size=60)
STEPS = st.lists(st.tuples(st.sampled_from(["mark", "unmark", "unmark those"]), KEYS, st.sampled_from([1, 2, 4, 128])))


def array(keys: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array(keys, np.uint64)


@given(STEPS)
def test_marks_are_kept_as_a_dict_would(steps: list[tuple[str, list[int], int]]) -> None:
    marks, model = KeyMarks(), dict[int, int]()
    together: list[tuple[Marked, list[int]]] = []
    for step, keys, mark in steps:
        if step == "mark":
            together.append((marks.mark(array(keys), mark), [key for key in keys if key]))
            model.update((key, model.get(key, 0) | mark) for key in keys if key)
            continue
        if step == "unmark those" and together:
            marked, keys = together.pop()
            left = marks.unmark(marked, mark)
        else:
            left = marks.unmark(array(keys), mark)
        model.update((key, model.get(key, 0) & ~mark) for key in keys)
        assert left.tolist() == [model.get(key, 0) for key in keys]
    known = [*model, 0, 77, 77 << 32]
    assert marks.of(array(known)).tolist() == [model.get(key, 0) for key in known]
    for mark in (1, 2, 4, 128):
        assert marks.marked(mark) == {key for key, has in model.items() if has & mark}


def test_keys_that_come_and_go_take_no_more_room_than_those_that_are_there() -> None:
    marks = KeyMarks()
    dice = np.random.default_rng(1)
    for _ in range(200):
        some = dice.integers(1, 2**63, 1_000, np.uint64)
        marks.unmark(marks.mark(some, 1), 1)
    assert marks.marked(1) == set()
    assert marks.places <= 32_768


def test_a_lease_is_found_again_after_the_table_grew() -> None:
    marks = KeyMarks()
    few = marks.mark(array([1, 2, 3]), 1)
    marks.mark(np.arange(1, 100_000, dtype=np.uint64), 2)
    assert marks.unmark(array([1, 2, 3]), 2).tolist() == [1, 1, 1]
    assert marks.unmark(few, 1).tolist() == [0, 0, 0]
    assert marks.marked(1) == set()
    assert len(marks.marked(2)) == 99_996
