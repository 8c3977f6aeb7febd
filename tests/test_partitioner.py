from __future__ import annotations

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import Batch
from penstock.partitioner import key_hashes, partition_of, partitions_of, split

keys = st.lists(st.none() | st.binary(max_size=100), min_size=1, max_size=40)


def test_the_hash_is_crc_32c_as_everybody_computes_it() -> None:
    """The check value of the catalogue of CRC algorithms, and examples for other languages to compare with."""
    batch = Batch.from_columns([b""] * 4, keys=[b"123456789", b"", b"user-1", b"user-2"], now_us=1)
    assert batch.key is not None
    assert key_hashes(batch.key, 0, 4).tolist() == [0xE3069283, 0, 0x14CCC4AC, 0x079C3758]
    assert [partition_of(key, 6) for key in (b"user-1", b"user-2", b"")] == [0x14CCC4AC % 6, 0x079C3758 % 6, 0]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=40), st.data())
def test_hashing_together_is_hashing_one_by_one(given_keys: list[bytes], data: st.DataObject) -> None:
    batch = Batch.from_columns([b""] * len(given_keys), keys=given_keys, now_us=1)
    assert batch.key is not None
    start = data.draw(st.integers(0, len(given_keys) - 1))
    expected = [crc32c(key) for key in given_keys[start:]]
    assert key_hashes(batch.key, start, len(given_keys) - start).tolist() == expected


@given(keys, st.integers(1, 12), st.data())
def test_a_key_goes_where_it_always_goes_and_the_rest_goes_together(
    given_keys: list[bytes | None], partitions: int, data: st.DataObject
) -> None:
    unkeyed = data.draw(st.integers(0, partitions - 1))
    batch = Batch.from_columns([b"v"] * len(given_keys), keys=given_keys, now_us=1)
    start = data.draw(st.integers(0, len(given_keys) - 1))
    chosen = partitions_of(batch.slice(start, len(given_keys)), partitions, unkeyed)
    expected = [unkeyed if key is None else partition_of(key, partitions) for key in given_keys[start:]]
    assert chosen.tolist() == (expected if partitions > 1 else [unkeyed] * len(expected))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_split_keeps_every_row_once_and_in_order(chosen: list[int]) -> None:
    values = [b"%d" % i for i in range(len(chosen))]
    batch = Batch.from_columns(values, keys=[b"k%d" % p for p in chosen], now_us=1)
    parts = split(batch, np.array(chosen))
    assert [number for number, _, _ in parts] == sorted(set(chosen))
    for number, rows, part in parts:
        assert rows.tolist() == [i for i, p in enumerate(chosen) if p == number]
        assert part.values() == [values[i] for i in rows]
        assert part.offset_delta is None
