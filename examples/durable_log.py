"""A log on disk, from its first message to its first damaged byte. Run it with `make examples`.

A child process writes messages and says which ones are safe; it is killed with SIGKILL while it writes. What it
called safe must be there when the log is opened again. Everything happens in a temporary directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.batch import Batch
from penstock.clock import SystemClock, rfc3339
from penstock.errors import ChecksumMismatch, LogCorrupt
from penstock.frame import Frame
from penstock.limits import KIB
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.retention import Retention, apply_retention

CLOCK = SystemClock()
SETTINGS = LogSettings(segment_bytes_max=32 * KIB)
KILL_AFTER_MESSAGES = 3_020
BATCH_MESSAGES = 50
SINGLES_BETWEEN_BATCHES = 50
SENSORS = 10


# --- what the child does ------------------------------------------------------------------------------------


def reading(number: int) -> Message:
    """Message `number` is always the same, so that anybody can check it. Every second one has a key."""
    key = b"sensor-%d" % (number // 2 % SENSORS) if number % 2 else None
    return Message(b"reading %06d of a sensor in the field" % number, key=key)


def write_for_ever(directory: str) -> None:
    """Appends, syncs, and only then says so: one line "first next" for each frame that is on disk."""
    log = Log.open(DiskFiles(directory), clock=CLOCK, settings=SETTINGS)
    while True:
        for _ in range(SINGLES_BETWEEN_BATCHES):
            append(log, 1)
        append(log, BATCH_MESSAGES)


def append(log: Log, count: int) -> None:
    first = log.end_offset
    now_us = CLOCK.now_us()
    if count == 1:
        frame = Frame.of_message(reading(first), now_us=now_us)
    else:
        frame = Frame.of(Batch.from_messages(map(reading, range(first, first + count)), now_us))
    log.append([frame])
    log.sync()
    print(first, first + count, flush=True)


# --- what you see -------------------------------------------------------------------------------------------


def main() -> None:
    directory = tempfile.mkdtemp(prefix="penstock-demo-")
    try:
        show(directory)
    finally:
        shutil.rmtree(directory)


def show(directory: str) -> None:
    acknowledged = kill_a_writer(directory)
    tear_the_tail(directory)
    log = recover(directory, acknowledged)
    read_back(log)
    merge(log)
    compact_by_key(log)
    retain(log)
    log.close()
    damaged = flip_one_byte(directory)
    inspect(directory)
    meet_the_damage(directory, damaged)


def kill_a_writer(directory: str) -> int:
    title("A child process writes messages, alone and in batches, and is killed with SIGKILL")
    child = subprocess.Popen([sys.executable, __file__, "write", directory], stdout=subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = frames = 0
    with child.stdout:
        for line in child.stdout:
            # A line cut off by the kill was not said; the lines still in the pipe were.
            if line.endswith(b"\n"):
                acknowledged = int(line.split()[1])
                frames += 1
            if acknowledged >= KILL_AFTER_MESSAGES:
                child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    say(f"acknowledged before it died: {acknowledged} messages in {frames} frames, each synced first")
    return acknowledged


def tear_the_tail(directory: str) -> None:
    title("A power cut may also leave half a frame behind the last whole one; put one there by hand")
    active = max(Path(directory).glob("*.log"))
    half = bytes(Frame.of_message(reading(0), now_us=CLOCK.now_us()).data[:100])
    # Behind the last frame the file has room for more, zeros; frames are multiples of eight bytes.
    end = -(-len(active.read_bytes().rstrip(b"\0")) // 8) * 8
    with active.open("r+b") as file:
        file.seek(end)
        file.write(half)
    say(f"{len(half)} bytes of a frame that nobody finished, behind the last one of {active.name}")


def recover(directory: str, acknowledged: int) -> Log:
    title("Open the log again")
    log = Log.open(DiskFiles(directory), clock=CLOCK, settings=SETTINGS)
    for note in log.recovery_notes:
        say(f"recovery: {note}")
    found = 0
    for frame in frames_of(log):
        for message in frame.batch().messages():
            expected = reading(found)
            assert (message.value, message.key) == (expected.value, expected.key), f"offset {found} differs"
            found += 1
    assert found >= acknowledged, f"{acknowledged - found} acknowledged messages are lost"
    say(f"all {acknowledged} acknowledged messages are there, each with its own content")
    say(f"and {found - acknowledged} more, written but not acknowledged when the child died")
    return log


def read_back(log: Log) -> None:
    title("Read from an offset, and from a time")
    (frame, *_) = log.read(1_234, count_max=1)
    row = 1_234 - frame.base_offset
    say(f"offset 1234: {frame.batch().values()[row]!r}")
    time = frame.append_time
    offset = log.offset_at(time)
    (frame, *_) = log.read(offset, count_max=1)
    say(f"first message at or after {rfc3339(time)}: offset {offset}")
    assert frame.append_time >= time
    assert log.offset_at(CLOCK.now_us() + 1) == log.end_offset


def merge(log: Log) -> None:
    title("Merge the small frames of sealed segments; offsets and contents stay")
    log.roll()
    before = list(frames_of(log))
    size = log.size
    for segment in log.segments[:-1]:
        merge_small_frames(log, segment)
    after = list(frames_of(log))
    assert rows(before) == rows(after)
    say(f"{len(before)} frames became {len(after)}, {size} bytes became {log.size}")


def compact_by_key(log: Log) -> None:
    title("Compact: of every key only the newest message stays; messages without a key stay")
    before = rows(frames_of(log))
    gained = compact(log, now_us=CLOCK.now_us(), tombstone_age_us=1)
    after = rows(frames_of(log))
    newest = {message.key: offset for offset, message in before if message.key is not None}
    expected = [(o, m) for o, m in before if m.key is None or newest[m.key] == o]
    assert after == expected
    say(f"{len(before)} messages became {len(after)}, {len(newest)} of them with a key; {gained} bytes gained")
    say("the messages that stay keep their offsets: " + ", ".join(str(offset) for offset, _ in after[:4]) + ", …")


def retain(log: Log) -> None:
    title("Retention: keep about 64 KiB, remove whole segments from the oldest on")
    segments = len(log.segments)
    start = apply_retention(log, Retention(bytes_max=64 * KIB), now_us=CLOCK.now_us())
    say(f"{segments} segments became {len(log.segments)}; the log now starts at offset {start}")
    assert log.start_offset == start > 0


def flip_one_byte(directory: str) -> int:
    title("Flip one bit in a sealed segment, behind the log's back")
    segment = min(Path(directory).glob("*.log"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"reading")
    data[at] ^= 1
    segment.write_bytes(data)
    say(f"byte {at} of {segment.name}")
    return int(segment.stem)


def inspect(directory: str) -> None:
    title(f"penstock log inspect {directory}")
    sys.stdout.flush()
    penstock = Path(sys.executable).with_name("penstock")
    result = subprocess.run([penstock, "log", "inspect", directory], check=False)
    say(f"exit code {result.returncode}")
    assert result.returncode == 1


def meet_the_damage(directory: str, base_offset: int) -> None:
    title("Reading the damaged frame raises a typed error; the rest of the log can still be read")
    log = Log.open(DiskFiles(directory), clock=CLOCK, settings=SETTINGS)
    segment = next(s for s in log.segments if s.base_offset == base_offset)
    (frame, *_) = log.read(max(base_offset, log.start_offset), count_max=1)
    try:
        frame.batch()
    except ChecksumMismatch as error:
        say(f"decoding it: {type(error).__name__}, code {error.code!r}: {error.message}")
    try:
        list(log.scan(segment))
    except LogCorrupt as error:
        say(f"scanning it: {type(error).__name__}, code {error.code!r}: {error.message}")
    healthy = sum(len(f.batch()) for f in frames_of(log, segment.next_offset))
    say(f"{healthy} messages from offset {segment.next_offset} on are as they were")
    log.close()


def frames_of(log: Log, offset: int | None = None) -> list[Frame]:
    frames: list[Frame] = []
    offset = log.start_offset if offset is None else offset
    while offset < log.end_offset:
        run = log.read(offset)
        frames += run
        offset = run.next_offset
    return frames


def rows(frames: list[Frame]) -> list[tuple[int, Message]]:
    found: list[tuple[int, Message]] = []
    for frame in frames:
        batch = frame.batch()
        found += zip(frame.offsets(batch).tolist(), batch.messages(), strict=True)
    return found


def title(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"  {text}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        try:
            write_for_ever(sys.argv[2])
        except BrokenPipeError:
            # The demo itself was interrupted; nobody listens any more.
            os._exit(1)
    else:
        main()
