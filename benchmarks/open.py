"""How long does a log take to open, how much of it is read, and how much memory does it hold?

A log of 2 GiB, frames of 100 messages of 100 B, in segments of the default 128 MiB and, again, in 100 segments.
Opened after a clean close; and after the process that was appending to it was killed with SIGKILL, when only the last
segment may be read in full. Memory is that of fresh processes: with the log open, minus with an empty one open.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from crc32c import crc32c

import harness
from harness import GIB, Figure, Run, info
from penstock.clock import SystemClock
from penstock.limits import KIB, MIB
from penstock.storage.files import Buffer, DiskFiles, File, Mode
from penstock.storage.log import Log, LogSettings
from penstock.storage.segment import SEGMENT_HEADER_BYTES

IN_FRAME = 100
_PROCESSES = multiprocessing.get_context("spawn")


# --- counting what is read ----------------------------------------------------------------------------------


class CountingFiles:
    """A real directory that notes how many bytes are read of each file."""

    def __init__(self, path: Path) -> None:
        self._files = DiskFiles(path)
        self.bytes_read: Counter[str] = Counter()

    def open(self, name: str, mode: Mode) -> File:
        return CountingFile(self._files.open(name, mode), name, self.bytes_read)

    def names(self) -> list[str]:
        return self._files.names()

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, name: str) -> None:
        self._files.remove(name)

    def sync(self) -> None:
        self._files.sync()

    def lock(self) -> None:
        self._files.lock()

    def close(self) -> None:
        self._files.close()


class CountingFile:
    def __init__(self, file: File, name: str, bytes_read: Counter[str]) -> None:
        self._file = file
        self._name = name
        self._bytes_read = bytes_read

    def read_at(self, position: int, length: int) -> bytes:
        data = self._file.read_at(position, length)
        self._bytes_read[self._name] += len(data)
        return data

    def write(self, buffers: Sequence[Buffer]) -> None:
        self._file.write(buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        self._file.write_at(position, data)

    def write_hint(self, position: int, data: Buffer) -> None:
        self._file.write_hint(position, data)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def close(self) -> None:
        self._file.close()


# --- what runs in processes of its own ----------------------------------------------------------------------


def append_until_killed(path: Path, segment_bytes: int, stop_at: int, parent: Connection) -> None:
    """Appends and syncs for ever; tells once the active segment is longer than `stop_at`."""
    log = harness.open_log(path, LogSettings(segment_bytes_max=segment_bytes))
    log.roll()
    first = log.segments[-1]
    frame = harness.make_frame(IN_FRAME)
    has_told = False
    while True:
        # Never into another segment: what is measured is a last segment of about this size.
        if first.size < segment_bytes - 20 * len(frame.data):
            log.append([frame] * 10)
            log.sync()
        if not has_told and first.size > stop_at:
            parent.send(first.size)
            has_told = True


def tell_memory(path: Path, reads: int, parent: Connection) -> None:
    log = harness.open_log(path)
    gc.collect()
    opened = resident_bytes()
    places = random.Random(harness.SEED)
    for _ in range(reads):
        for frame in log.read(places.randrange(log.end_offset), bytes_max=16 * KIB):
            frame.batch().values()
    gc.collect()
    parent.send((opened, resident_bytes()))
    log.close()


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * KIB


def kill_while_appending(path: Path, segment_bytes: int) -> None:
    parent, child = _PROCESSES.Pipe()
    arguments = (path, segment_bytes, segment_bytes // 2, child)
    process = _PROCESSES.Process(target=append_until_killed, args=arguments, daemon=True)
    process.start()
    try:
        # Our copy, so that a child which fails is an EOFError here and not a wait for ever.
        child.close()
        parent.recv()
    finally:
        process.kill()
        process.join()


def memory_of(path: Path, reads: int) -> tuple[int, int]:
    parent, child = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=tell_memory, args=(path, reads, child), daemon=True)
    process.start()
    child.close()
    try:
        opened, after_reads = parent.recv()
    finally:
        process.join()
    return opened, after_reads


# --- figures ------------------------------------------------------------------------------------------------


def measure(run: Run) -> Iterator[Figure]:
    for segment_bytes in (run.pick(128 * MIB, 2 * MIB), run.pick(20 * MIB + 512 * KIB, 512 * KIB)):
        with run.folder() as path:
            frame = harness.make_frame(IN_FRAME)
            harness.build_log(path, frame, run.pick(2 * GIB, 8 * MIB), segment_bytes)
            log = harness.open_log(path)
            label = f"{len(log.segments)} segments"
            log.close()
            yield from cleanly_closed(run, path, label)
            yield from memory(run, path, label)
            yield from killed(run, path, segment_bytes, label)


def timed_open(path: Path, *, from_disk: bool = False) -> float:
    if from_disk:
        harness.drop_from_page_cache(path)
    files = DiskFiles(path)
    logs: list[Log] = []
    spent = harness.seconds(lambda: logs.append(Log.open(files, clock=SystemClock())))
    assert logs[0].recovered_cleanly
    logs[0].close()
    return spent


def read_raw(path: Path) -> float:
    """Every index and every segment's header, from file to memory."""
    names = [path / name for name in os.listdir(path)]
    return harness.seconds(lambda: [_read_start(name) for name in names])


def _read_start(name: Path) -> bytes:
    fd = os.open(name, os.O_RDONLY)
    try:
        length = SEGMENT_HEADER_BYTES if name.suffix == ".log" else os.fstat(fd).st_size
        return os.pread(fd, length, 0)
    finally:
        os.close(fd)


def cleanly_closed(run: Run, path: Path, label: str) -> Iterator[Figure]:
    taken = harness.interleave(
        run.rounds,
        {
            "open": partial(timed_open, path),
            "from disk": partial(timed_open, path, from_disk=True),
            "raw": partial(read_raw, path),
        },
    )
    yield harness.at_most(f"{label}: open after a clean close", 1_000 * median(taken["open"]), "ms", 300)
    yield info(f"{label}: the same, files not in the page cache", 1_000 * median(taken["from disk"]), "ms")
    over_raw = harness.ratio(taken["open"], taken["raw"])
    yield info(f"{label}: open / reading indexes and headers with os", over_raw, "×")


def memory(run: Run, path: Path, label: str) -> Iterator[Figure]:
    opened, after_reads = [], []
    for _ in range(run.pick(5, 1)):
        with run.folder() as empty:
            base, _ = memory_of(empty, 0)
        with_log, with_reads = memory_of(path, run.pick(1_000, 50))
        opened.append(with_log - base)
        after_reads.append(with_reads - base)
    yield harness.at_most(f"{label}: memory over an empty log", median(opened) / MIB, "MiB", 20)
    yield harness.at_most(f"{label}: the same after 1,000 random reads", median(after_reads) / MIB, "MiB", 20)


def killed(run: Run, path: Path, segment_bytes: int, label: str) -> Iterator[Figure]:
    shares, times, limits = [], [], []
    index_bytes = 0
    for _ in range(run.pick(5, 1)):
        kill_while_appending(path, segment_bytes)
        limits.append(scan_raw(max(path.glob("*.log"))))
        files = CountingFiles(path)
        logs: list[Log] = []
        times.append(harness.seconds(lambda files=files, logs=logs: logs.append(_open(files))))
        log = logs[0]
        assert not log.recovered_cleanly
        index_bytes = sum(n for name, n in files.bytes_read.items() if name.endswith("index"))
        shares.append((files.bytes_read.total() - index_bytes) / log.segments[-1].size)
        log.close()
    yield harness.at_most(f"{label}: read after SIGKILL / last segment", max(shares), "×", 1.1)
    yield info(f"{label}: index bytes read besides", index_bytes / MIB, "MiB")
    yield info(f"{label}: open after SIGKILL", 1_000 * median(times), "ms")
    yield info(f"{label}: open after SIGKILL / read and CRC of the last segment", harness.ratio(times, limits), "×")


def _open(files: CountingFiles) -> Log:
    return Log.open(files, clock=SystemClock())


def scan_raw(name: Path) -> float:
    fd = os.open(name, os.O_RDONLY)
    try:
        return harness.seconds(partial(_read_with_crc, fd))
    finally:
        os.close(fd)


def _read_with_crc(fd: int) -> None:
    at = 0
    while data := os.pread(fd, 4 * MIB, at):
        crc32c(data)
        at += len(data)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=7)
