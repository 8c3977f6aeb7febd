"""What a user may hand in by mistake gets a typed error that says so; nothing foreign escapes, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.batch import Batch
from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidInput, StorageError
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.storage.merge import merge_small_frames
from penstock.testing import ManualClock, MemoryFiles
from support import fill, frame_of, open_log, values_of

ODD_BATCHES: list[Callable[[], Any]] = [
    lambda: Batch.from_columns(None, now_us=1),
    lambda: Batch.from_columns((b"x" for _ in range(3)), now_us=1),
    lambda: Batch.from_columns([b"a"], now_us=None),  # type: ignore[arg-type]
    lambda: Batch.from_columns([b"a"], now_us=-5),
    lambda: Batch.from_columns([b"a"], now_us=1.5),  # type: ignore[arg-type]
    lambda: Batch.from_columns([b"a"], now_us=TIME_MAX_US + 1),
    lambda: Batch.from_columns([b"a"], timestamps=[1.7], now_us=1),
    lambda: Batch.from_columns([b"a"], timestamps=[True], now_us=1),
    lambda: Batch.from_columns([b"a"], timestamps=np.array([[1]]), now_us=1),
    lambda: Batch.from_columns([b"a"], priorities=[0.5], now_us=1),
    lambda: Batch.from_columns([b"a"], priorities=[True], now_us=1),
    lambda: Batch.from_columns([b"a"], headers=[5], now_us=1),
    lambda: Batch.from_columns([b"a"], headers=np.array([object()]), now_us=1),
    lambda: Batch.from_messages([b"a"], now_us=1),  # type: ignore[list-item]
    lambda: Batch.from_messages([Message(b"a", headers=zip(["h"], [b"v"], strict=True))], now_us=1),  # type: ignore[arg-type]
    lambda: Batch.from_messages([Message(b"a", priority=True)], now_us=1),
    lambda: Batch.from_messages([Message(b"a", priority="x")], now_us=1),  # type: ignore[arg-type]
    lambda: Batch.from_messages([Message(b"a", timestamp=1.5)], now_us=1),  # type: ignore[arg-type]
    lambda: Batch.from_messages([Message(b"a", timestamp=None)], now_us=1),  # type: ignore[arg-type]
    lambda: Batch.from_arrow([1], now_us=1),  # type: ignore[arg-type]
    lambda: Batch.from_columns([b"a"], now_us=1).slice(0, 5),
    lambda: Batch.from_columns([b"a"], now_us=1).slice(-1, 1),
    lambda: Frame.of_message(Message(b"a", deliver_at=1.5), now_us=1),  # type: ignore[arg-type]
    lambda: Frame.of_message(Message(b"a"), now_us=2**80),
    lambda: Frame.of_message(Message(b"a"), now_us=None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", ODD_BATCHES)
def test_odd_messages_and_batches_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_times_of_numpy_and_arrow_mean_what_they_say() -> None:
    expected = 1_767_225_600_000_000
    for unit in ("s", "ms", "us", "ns"):
        for times in (np.array(["2026-01-01"], f"datetime64[{unit}]"), pa.array([expected], pa.timestamp("us"))):
            assert Batch.from_columns([b"a"], timestamps=times, now_us=1).timestamps.tolist() == [expected]


def test_every_other_element_of_an_array_is_as_good_as_any() -> None:
    times = np.arange(1, 9, dtype=np.int64)[::2]
    frame = Frame.of(Batch.from_columns([b"a"] * 4, timestamps=times, deliver_at=times, now_us=1))
    assert [m.timestamp for m in frame.batch().messages()] == [1, 3, 5, 7]


def test_a_timestamp_that_is_not_given_is_now() -> None:
    assert Batch.from_columns([b"a", b"b"], timestamps=[None, 7], now_us=42).timestamps.tolist() == [42, 7]


def test_odd_appends_and_reads_are_refused_and_change_nothing() -> None:
    log = open_log(MemoryFiles())
    values = fill(log, 3)
    size = log.size
    odd: list[Callable[[], Any]] = [
        lambda: log.append([]),
        lambda: log.append([b"x"]),  # type: ignore[list-item]
        lambda: log.append(frame for frame in ()),  # type: ignore[arg-type]
        lambda: log.append([Frame(memoryview(b"short"))]),
        lambda: log.read("0"),  # type: ignore[arg-type]
        lambda: log.read(1.5),  # type: ignore[arg-type]
        lambda: log.truncate(None),  # type: ignore[arg-type]
        lambda: log.delete_prefix("1"),  # type: ignore[arg-type]
        lambda: log.offset_at("now"),  # type: ignore[arg-type]
    ]
    for action in odd:
        with pytest.raises(InvalidInput):
            action()
    assert (log.size, values_of(log)) == (size, values)


@pytest.mark.parametrize("how", ["merged", "compacted"])
def test_frames_that_another_log_has_rewritten_are_refused(how: str) -> None:
    clock = ManualClock()
    source, target = open_log(MemoryFiles(), clock), open_log(MemoryFiles())
    source.append([frame_of(b"1", b"2", b"3", keys=[b"a", b"b", b"a"])])
    clock.advance_us(5)
    source.append([frame_of(b"4", keys=[b"c"])])
    source.roll()
    if how == "merged":
        merge_small_frames(source, source.segments[0])
    else:
        compact(source, now_us=1, tombstone_age_us=1)
    with pytest.raises(InvalidInput):
        target.append(list(source.frames(0)))
    assert target.end_offset == 0


def test_a_log_opens_by_path(tmp_path: Path) -> None:
    for path in (tmp_path / "a", str(tmp_path / "b")):
        log = Log.open(path)
        values = fill(log, 3)
        assert [m.value for frame in log.frames(0) for m in frame.batch().messages()] == values
        log.close()


def test_paths_that_can_not_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "a\0b", "/proc/nowhere/log"):
        with pytest.raises(StorageError):
            DiskFiles(path)


def test_frames_reads_on_to_the_end_and_names_damage_in_a_body(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", settings=open_log(MemoryFiles())._settings)
    values = fill(log, 200)
    assert [m.value for frame in log.frames(50) for m in frame.batch().messages()] == values[50:]
    assert [f.base_offset for f in log.frames(5, until=8)] == [5, 6, 7]
    name = log.segments[1].name
    path = tmp_path / "log" / name
    data = bytearray(path.read_bytes())
    data[64 + 150] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError) as caught:
        list(log.frames(0))
    assert caught.value.details == {"file": name, "position": 64, "offset": log.segments[1].base_offset}
    log.close()
