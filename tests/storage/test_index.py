from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.index import OFFSETS_MAGIC, TIMES_MAGIC, Coverage, SparseIndex

COVERAGE = Coverage(b"0123456789abcdef", 10, 2, 5_000, 99, 1_234)
keys = st.lists(st.integers(0, 50), max_size=20).map(sorted)


def index_of(sorted_keys: list[int]) -> SparseIndex:
    index = SparseIndex()
    for i, key in enumerate(sorted_keys):
        index.add(key, 64 + 8 * i)
    return index


@given(keys, st.integers(-1, 51))
def test_at_or_before_is_the_last_entry_not_beyond_the_key(sorted_keys: list[int], key: int) -> None:
    expected = [64 + 8 * i for i, k in enumerate(sorted_keys) if k <= key]
    assert index_of(sorted_keys).at_or_before(key) == (expected[-1] if expected else None)


@given(keys, st.integers(-1, 51))
def test_at_or_after_is_the_first_entry_not_below_the_key(sorted_keys: list[int], key: int) -> None:
    expected = [64 + 8 * i for i, k in enumerate(sorted_keys) if k >= key]
    assert index_of(sorted_keys).at_or_after(key) == (expected[0] if expected else None)


@given(keys, st.integers(-1, 51))
def test_before_is_the_last_entry_below_the_key(sorted_keys: list[int], key: int) -> None:
    expected = [64 + 8 * i for i, k in enumerate(sorted_keys) if k < key]
    assert index_of(sorted_keys).before(key) == (expected[-1] if expected else None)


@given(keys, st.integers(-1, 51), st.integers(1, 4))
def test_the_nearest_is_not_beyond_the_key_and_exact_among_the_last(every: list[int], key: int, interval: int) -> None:
    index = SparseIndex()
    for i, each in enumerate(every):
        index.appended(each, 64 + 8 * i)
        if i % interval == 0:
            index.add(each, 64 + 8 * i)
    exact = [64 + 8 * i for i, each in enumerate(every) if each <= key]
    found = index.nearest(key)
    if not exact:
        assert found is None
    elif exact[-1] >= 64 + 8 * (len(every) - 8):
        assert found == exact[-1]
    else:
        assert found == index.at_or_before(key)
    assert index.cut(64 + 8 * len(every)).recent == ()


@given(keys, st.integers(-1, 51), st.integers(1, 5), st.integers(1, 4))
def test_among_frames_that_were_appended_at_once_the_nearest_is_no_further_than_the_index(
    every: list[int], key: int, together: int, interval: int
) -> None:
    index = SparseIndex()
    for i, each in enumerate(every):
        if i % together == 0:
            index.appended(each, 64 + 8 * i)
        if i % interval == 0:
            index.add(each, 64 + 8 * i)
    found, entry = index.nearest(key), index.at_or_before(key)
    exact = max((64 + 8 * i for i, each in enumerate(every) if each <= key), default=None)
    assert (found is None) == (exact is None)
    if found is not None and exact is not None:
        assert (entry or 0) <= found <= exact


@given(keys)
def test_an_index_is_read_as_it_was_written(sorted_keys: list[int]) -> None:
    decoded = SparseIndex.decode(OFFSETS_MAGIC, index_of(sorted_keys).encode(OFFSETS_MAGIC, COVERAGE))
    assert decoded is not None
    index, coverage = decoded
    assert list(index.keys) == sorted_keys
    assert list(index.positions) == [64 + 8 * i for i in range(len(sorted_keys))]
    assert coverage == COVERAGE


def test_any_flipped_bit_or_lost_byte_is_noticed() -> None:
    data = index_of([1, 2, 3]).encode(OFFSETS_MAGIC, COVERAGE)
    for position in range(len(data)):
        for bit in range(8):
            harmed = bytearray(data)
            harmed[position] ^= 1 << bit
            assert SparseIndex.decode(OFFSETS_MAGIC, bytes(harmed)) is None
        assert SparseIndex.decode(OFFSETS_MAGIC, data[:position]) is None
    assert SparseIndex.decode(OFFSETS_MAGIC, data + b"\0") is None


def test_one_kind_of_index_is_not_taken_for_the_other() -> None:
    assert SparseIndex.decode(TIMES_MAGIC, index_of([1]).encode(OFFSETS_MAGIC, COVERAGE)) is None


def test_cutting_leaves_the_old_index_to_its_readers() -> None:
    index = index_of([1, 2, 3])
    shorter = index.cut(72)
    assert list(shorter.keys) == [1]
    assert list(index.keys) == [1, 2, 3]
