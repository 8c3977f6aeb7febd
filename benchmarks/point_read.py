"""How long does it take to find one message by offset or by time, and does the size of the log matter?

A log of 2 GiB in 100 segments and one of 200 MiB with segments of the same size, both in the page cache; frames of
100 messages of 100 B. A read loads 16 KiB from the offset on, verifies the frame and takes the message's value out
of it; a read by time asks for the offset first. The limit is os.pread of the 32 KiB such a read loads at most.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import harness
from harness import GIB, Figure, Run, info
from penstock.frame import Frame
from penstock.limits import KIB, MIB
from penstock.storage.cache import SegmentCache
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log

IN_FRAME = 100
READ_BYTES = 16 * KIB
VALUES = harness.values(IN_FRAME)


def read_by_offset(log: Log, offset: int) -> None:
    for frame in log.read(offset, bytes_max=READ_BYTES):
        if frame.next_offset > offset:
            found = message_value(frame, offset - frame.base_offset)
            assert found == VALUES[offset % IN_FRAME]
            return
    raise AssertionError(f"offset {offset} was not found")


def message_value(frame: Frame, row: int) -> bytes:
    value = frame.batch().value
    assert value is not None
    return bytes(value.data[value.offsets[row] : value.offsets[row + 1]])


def read_by_time(log: Log, time_us: int) -> None:
    read_by_offset(log, log.offset_at(time_us))


class Latency(NamedTuple):
    p50: float
    p99: float


def latency(read: Callable[[int], object], targets: list[int]) -> Latency:
    """In microseconds."""
    spent = []
    for target in targets:
        started = time.perf_counter_ns()
        read(target)
        spent.append((time.perf_counter_ns() - started) / 1_000)
    spent.sort()
    return Latency(harness.percentile(spent, 0.5), harness.percentile(spent, 0.99))


class Subject:
    """A log and where to read in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.random = random.Random(harness.SEED)
        self.log = harness.open_log(path)
        self.first_time = next(iter(self.log.read(0))).append_time
        self.last_time = self.log.segments[-1].last_append_time
        self.fds = [os.open(path / segment.name, os.O_RDONLY) for segment in self.log.segments]

    def offsets(self, count: int) -> list[int]:
        return [self.random.randrange(self.log.end_offset) for _ in range(count)]

    def times(self, count: int) -> list[int]:
        return [self.random.randint(self.first_time, self.last_time) for _ in range(count)]

    def by_offset(self, count: int) -> Latency:
        return latency(partial(read_by_offset, self.log), self.offsets(count))

    def by_time(self, count: int) -> Latency:
        return latency(partial(read_by_time, self.log), self.times(count))

    def raw(self, count: int) -> Latency:
        segments = self.log.segments[:-1] or self.log.segments
        places = [(self.random.randrange(len(segments)), self.random.randrange(segments[0].size)) for _ in range(count)]
        return latency(lambda i: os.pread(self.fds[places[i][0]], 2 * READ_BYTES, places[i][1]), range(count))

    def close(self) -> None:
        self.log.close()
        for fd in self.fds:
            os.close(fd)


def measure(run: Run) -> Iterator[Figure]:
    segment_bytes = run.pick(20 * MIB + 512 * KIB, 512 * KIB)
    frame = harness.make_frame(IN_FRAME)
    with run.folder() as large_path, run.folder() as small_path:
        large_bytes = run.pick(2 * GIB, 8 * MIB)
        harness.build_log(large_path, frame, large_bytes, segment_bytes)
        harness.build_log(small_path, frame, large_bytes // 10, segment_bytes)
        large, small = Subject(large_path), Subject(small_path)
        yield info("large log: size", large.log.size / MIB, "MiB")
        yield info("large log: segments", len(large.log.segments), "")
        yield from warm(run, large, small)
        large.close()
        small.close()
        yield from opening_a_segment(run, large_path)
        yield from cold(run, large_path)


def warm(run: Run, large: Subject, small: Subject) -> Iterator[Figure]:
    count = run.pick(2_000, 50)
    contenders = {
        "offset": large.by_offset,
        "offset, small": small.by_offset,
        "time": large.by_time,
        "time, small": small.by_time,
        "raw": large.raw,
        "raw, small": small.raw,
    }
    # Every segment is opened once before; opening one is a figure of its own.
    large.by_offset(run.pick(5_000, 50))
    small.by_offset(run.pick(5_000, 50))
    taken: dict[str, list[Latency]] = {name: [] for name in contenders}

    def contend(name: str) -> float:
        taken[name].append(contenders[name](count))
        return 0.0

    harness.interleave(run.rounds, {name: partial(contend, name) for name in contenders})
    counted = {name: latencies[1:] for name, latencies in taken.items()}
    for name in ("offset", "time"):
        ours, theirs = counted[name], counted[f"{name}, small"]
        p99 = median(each.p99 for each in ours)
        yield harness.at_most(f"by {name}: p99", p99 / 1_000, "ms", 1)
        yield info(f"by {name}: p50", median(each.p50 for each in ours), "µs")
        for which in ("p50", "p99"):
            growth = harness.ratio([getattr(a, which) for a in ours], [getattr(b, which) for b in theirs])
            yield harness.at_most(f"by {name}: {which} / same in a tenth of the log", growth, "×", 2)
    over_raw = harness.ratio([each.p50 for each in counted["offset"]], [each.p50 for each in counted["raw"]])
    yield info("by offset: p50 / os.pread of 32 KiB", over_raw, "×")
    # The control: where this is far from 1, it is the machine that treats the two differently, not the log.
    control = harness.ratio([each.p99 for each in counted["raw"]], [each.p99 for each in counted["raw, small"]])
    yield info("os.pread of 32 KiB: p99 / same in a tenth of the log", control, "×")
    yield info("os.pread of 32 KiB: p50", median(each.p50 for each in counted["raw"]), "µs")


def opening_a_segment(run: Run, path: Path) -> Iterator[Figure]:
    """What a read costs more when its segment is not among those held open."""
    subject = Subject(path)
    files, cache = DiskFiles(path), SegmentCache(segments_max=1)
    sealed = subject.log.segments[:-1]
    # Neighbours take turns, so none is still open when its turn comes again.
    order = [i % len(sealed) for i in range(run.pick(2_000, 50))]
    found = latency(lambda i: cache.open(files, sealed[i]), order)
    yield info("opening a sealed segment: p50", found.p50, "µs")
    yield info("opening a sealed segment: p99", found.p99, "µs")
    subject.close()


def cold(run: Run, path: Path) -> Iterator[Figure]:
    subject = Subject(path)
    subject.by_offset(run.pick(5_000, 50))
    harness.drop_from_page_cache(path)
    found = subject.by_offset(run.pick(1_000, 50))
    yield info("by offset, from disk: p50", found.p50, "µs")
    yield info("by offset, from disk: p99", found.p99 / 1_000, "ms")
    subject.close()


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=15)
