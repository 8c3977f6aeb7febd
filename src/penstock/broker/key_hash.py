"""Telling keys apart by a 64-bit hash, of all keys of a batch at a time.

Two keys that share a hash wait for each other needlessly, and nothing worse. The seed is Python's own,
another one in every process, and nothing that is written depends on it: nobody can make keys that do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch, bits

Hashes = npt.NDArray[np.uint64]

# A message without a key waits for nobody.
NO_KEY = 0
_WORD = 8
# Keys longer than this are rare; what is behind it is hashed one key at a time.
_TOGETHER_MAX = 64
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(hash(b"penstock") & 0xFFFFFFFFFFFFFFFF)
_SHIFT = np.uint64(29)
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_WORD + 1)], np.uint64)


def key_hashes(batch: Batch) -> Hashes:
    """Of the keys of all messages, eight bytes of each at a time; 0 for no key. `hash_of` is the same for one."""
    if batch.key is None:
        return np.zeros(batch.count, np.uint64)
    column = batch.key
    ends = column.offsets[batch.start : batch.start + batch.count + 1].astype(np.int64)
    first = int(ends[0])
    data = np.zeros(int(ends[-1]) - first + _WORD, np.uint8)
    data[:-_WORD] = np.frombuffer(column.data, np.uint8)[first : int(ends[-1])]
    # At every byte a word begins, so that keys of any length can be picked from one array.
    words = np.ndarray((len(data) - _WORD + 1,), np.dtype("<u8"), buffer=data.data, strides=(1,))
    starts, lengths = ends[:-1] - first, np.diff(ends)
    hashes = _SEED ^ lengths.astype(np.uint64)
    rows = np.flatnonzero(lengths > 0)
    for at in range(0, _TOGETHER_MAX, _WORD):
        word = words[starts[rows] + at] & _MASKS[np.minimum(lengths[rows] - at, _WORD)]
        mixed = (hashes[rows] ^ word) * _PRIME
        hashes[rows] = mixed ^ (mixed >> _SHIFT)
        rows = rows[lengths[rows] > at + _WORD]
        if not len(rows):
            break
    for row in rows.tolist():
        rest = data[starts[row] + _TOGETHER_MAX : starts[row] + lengths[row]].tobytes()
        hashes[row] = _mix(int(hashes[row]), rest)
    hashes[hashes == NO_KEY] = 1
    if column.validity is not None:
        hashes[~bits(column.validity, batch.start, batch.count)] = NO_KEY
    return hashes


def hash_of(key: bytes) -> int:
    return _mix(int(_SEED) ^ len(key), key) or 1


def _mix(state: int, data: bytes) -> int:
    for at in range(0, len(data), _WORD):
        word = int.from_bytes(data[at : at + _WORD], "little")
        mixed = ((state ^ word) * int(_PRIME)) & 0xFFFFFFFFFFFFFFFF
        state = mixed ^ (mixed >> int(_SHIFT))
    return state
