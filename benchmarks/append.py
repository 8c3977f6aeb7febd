"""How close do appends of ready frames come to writing the same bytes to a file?

Frames of 1,000 messages with keys and values of 100 B; one sync for each 8 MiB, into segments of 128 MiB. The limit
is os.write of 8 MiB at a time, with os.fdatasync after each. What the log adds to it: stamping each frame, two
buffers a frame instead of one write, the indexes, the mark after each sync, and starting new segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import harness
from harness import Figure, Run, info
from penstock.codec import LZ4, NONE, ZSTD
from penstock.frame import Frame
from penstock.limits import MIB

Groups = list[list[Frame]]


def append(run: Run, groups: Groups, *, frame_by_frame: bool = False) -> float:
    with run.folder() as path:
        log = harness.open_log(path)
        spent = harness.seconds(partial(_append_all, log, groups, frame_by_frame))
        log.close()
    return spent


def _append_all(log: harness.Log, groups: Groups, frame_by_frame: bool) -> None:
    for group in groups:
        if frame_by_frame:
            for frame in group:
                log.append([frame])
        else:
            log.append(group)
        log.sync()


def raw(path: Path, groups: Sequence[Sequence[memoryview | bytes]]) -> float:
    return harness.write_raw(path / "raw", groups)


def measure(run: Run) -> Iterator[Figure]:
    frame = harness.make_frame(1_000)
    groups = harness.groups_of(frame, run.pick(256 * MIB, 16 * MIB))
    size = sum(len(frame.data) for group in groups for frame in group)
    joined = b"".join(frame.data for frame in groups[0])
    taken = harness.interleave(
        run.rounds,
        {
            "raw": partial(raw, run.directory, [[joined]] * len(groups)),
            "raw by frame": partial(raw, run.directory, [[frame.data for frame in group] for group in groups]),
            "groups": partial(append, run, groups),
            "frames": partial(append, run, groups, frame_by_frame=True),
        },
    )
    groups_rate = harness.ratio(taken["raw"], taken["groups"])
    frames_rate = harness.ratio(taken["raw"], taken["frames"])
    yield harness.at_least("append 8 MiB at a time / os.write of 8 MiB", groups_rate, "×", 0.6)
    yield harness.at_least("append frame by frame / os.write of 8 MiB", frames_rate, "×", 0.6)
    by_frame = harness.ratio(taken["raw by frame"], taken["frames"])
    yield info("append frame by frame / os.write of each frame", by_frame, "×")
    for label, name in (
        ("os.write of 8 MiB", "raw"),
        ("os.write of each frame", "raw by frame"),
        ("append 8 MiB at a time", "groups"),
        ("append frame by frame", "frames"),
    ):
        yield info(label, size / median(taken[name]) / MIB, "MiB/s")
    yield info("os.write of 8 MiB: slowest round / fastest", harness.unrest(taken["raw"]), "×")
    messages = 1_000 * sum(map(len, groups))
    yield info("messages appended 8 MiB at a time", messages / median(taken["groups"]) / 1e6, "M messages/s")
    yield from compressed(run, messages)


def compressed(run: Run, messages: int) -> Iterator[Figure]:
    """The same number of messages each time, so what compression saves is time on the disk."""
    codecs = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
    frames = {name: harness.make_frame(1_000, codec) for name, codec in codecs.items()}
    groups = {name: harness.groups_of(frame, messages // 1_000 * len(frame.data)) for name, frame in frames.items()}
    taken = harness.interleave(run.rounds, {name: partial(append, run, groups[name]) for name in codecs})
    for name in ("lz4", "zstd"):
        count = 1_000 * sum(map(len, groups[name]))
        yield info(f"{name} frames: size / uncompressed", len(frames[name].data) / len(frames["none"].data), "×")
        yield info(f"{name} frames, compressed before", count / median(taken[name]) / 1e6, "M messages/s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=11)
