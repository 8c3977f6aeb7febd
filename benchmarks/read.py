"""How fast does a log give back what it holds, when the page cache has it?

`Log.read` of 1 MiB at a time over a log of frames of 1,000 messages (100 B values, with keys), against os.pread of
the same files with the same size of read. Then the same with the frames decoded: checksum verified and every value
offset looked at. And a log of single-message frames, before and after they are merged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import harness
from harness import Figure, Run, info
from penstock.clock import SystemClock
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.message import Message
from penstock.storage.log import Log
from penstock.storage.merge import merge_small_frames

READ_BYTES = 1 * MIB
Use = Callable[[Frame], object]


def read_all(log: Log, use: Use | None) -> None:
    offset = 0
    while offset < log.end_offset:
        run = log.read(offset, bytes_max=READ_BYTES)
        if use is not None:
            for frame in run:
                use(frame)
        offset = run.next_offset


def touch_columns(frame: Frame) -> None:
    value = frame.batch().value
    assert value is not None
    value.offsets.sum()


def read_raw(path: Path) -> float:
    fds = [os.open(path / name, os.O_RDONLY) for name in sorted(os.listdir(path)) if name.endswith(".log")]
    try:
        return harness.seconds(partial(_pread_all, fds))
    finally:
        for fd in fds:
            os.close(fd)


def _pread_all(fds: list[int]) -> None:
    for fd in fds:
        at = 0
        while data := os.pread(fd, READ_BYTES, at):
            at += len(data)


def timed_read(log: Log, use: Use | None = None) -> float:
    return harness.seconds(partial(read_all, log, use))


def measure(run: Run) -> Iterator[Figure]:
    with run.folder() as path:
        frame = harness.make_frame(1_000)
        harness.build_log(path, frame, run.pick(256 * MIB, 8 * MIB))
        log = harness.open_log(path)
        yield from large_frames(run, path, log)
        log.close()
    with run.folder() as path:
        yield from single_messages(run, path)


def large_frames(run: Run, path: Path, log: Log) -> Iterator[Figure]:
    taken = harness.interleave(
        run.rounds,
        {
            "raw": partial(read_raw, path),
            "frames": partial(timed_read, log),
            "columns": partial(timed_read, log, touch_columns),
            "arrow": partial(timed_read, log, lambda frame: frame.batch().to_arrow()),
            "bytes": partial(timed_read, log, lambda frame: frame.batch().values()),
        },
    )
    raw_rate = harness.ratio(taken["raw"], taken["frames"])
    yield harness.at_least("read of frames / os.pread", raw_rate, "×", 0.5)
    rates = {name: log.end_offset / median(taken[name]) / 1e6 for name in taken}
    yield harness.at_least("read and decoded to columns", rates["columns"], "M messages/s", 20)
    columns_rate = harness.ratio(taken["raw"], taken["columns"])
    yield info("read and decoded to columns / os.pread", columns_rate, "×")
    yield info("read as Arrow record batches", rates["arrow"], "M messages/s")
    yield info("read as Python bytes", rates["bytes"], "M messages/s")
    for label, name in (("os.pread", "raw"), ("read of frames", "frames")):
        yield info(label, log.size / median(taken[name]) / MIB, "MiB/s")


def single_messages(run: Run, path: Path) -> Iterator[Figure]:
    """What a trickle costs its readers, and what merging gives back. Not interleaved: the one follows the other."""
    log = harness.open_log(path)
    now_us = SystemClock().now_us()
    value, key = harness.values(1)[0], harness.keys(1)[0]
    single = Frame.of_message(Message(value, key=key), now_us=now_us)
    for _ in range(run.pick(200, 5)):
        log.append([single] * 1_000)
    log.roll()
    count, size = log.end_offset, log.size
    before = timed_reads(run, log)
    merging = harness.seconds(partial(merge_small_frames, log, log.segments[0]))
    after = timed_reads(run, log)
    yield info("single-message frames, to frames", count / before["frames"] / 1e6, "M messages/s")
    yield info("single-message frames, to columns", count / before["columns"] / 1e6, "M messages/s")
    yield info("merging them", count / merging / 1e6, "M messages/s")
    yield info("merged, to frames", count / after["frames"] / 1e6, "M messages/s")
    yield info("merged, to columns", count / after["columns"] / 1e6, "M messages/s")
    yield info("merged: size / before", log.size / size, "×")
    log.close()


def timed_reads(run: Run, log: Log) -> dict[str, float]:
    taken = harness.interleave(
        run.rounds, {"frames": partial(timed_read, log), "columns": partial(timed_read, log, touch_columns)}
    )
    return {name: median(spent) for name, spent in taken.items()}


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=11)
