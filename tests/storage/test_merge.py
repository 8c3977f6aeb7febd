from __future__ import annotations

import pytest

from penstock.batch import Batch
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles
from support import frame_of, open_log, rows_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk, clock: ManualClock) -> Log:
    return open_log(MemoryFiles(disk), clock, LogSettings())


def trickle(log: Log, clock: ManualClock, count: int, **options: object) -> None:
    for i in range(count):
        clock.advance_us(1_000)
        message = Message(b"%d" % i, key=b"k%d" % (i % 3), headers=(("n", b"%d" % i),), priority=i % 3 - 1)
        log.append([Frame.of_message(message, now_us=clock.now_us(), **options)])  # type: ignore[arg-type]


def merge(log: Log) -> bool:
    log.roll()
    return merge_small_frames(log, log.segments[0])


def frames_of(log: Log) -> list[Frame]:
    return list(log.scan(log.segments[0]))


def test_single_messages_become_one_frame_with_offsets_times_and_contents_unchanged(
    log: Log, clock: ManualClock
) -> None:
    trickle(log, clock, 300)
    log.sync()
    rows = rows_of(log)
    messages = [m for frame in log.read(0) for m in frame.batch().messages()]
    size = log.size
    assert merge(log)
    assert len(frames_of(log)) == 1
    assert rows_of(log) == rows
    assert [m for frame in log.read(0) for m in frame.batch().messages()] == messages
    assert log.size < size / 2


def test_every_time_still_leads_to_its_message(log: Log, clock: ManualClock) -> None:
    trickle(log, clock, 100)
    first = clock.now_us() - 99_000
    merge(log)
    for i in range(100):
        assert log.offset_at(first + 1_000 * i) == i
        assert log.offset_at(first + 1_000 * i - 1) == i
    assert log.offset_at(first + 1_000 * 100) == 100


def test_a_merged_segment_survives_a_restart_and_a_lost_index(log: Log, disk: MemoryDisk, clock: ManualClock) -> None:
    trickle(log, clock, 100)
    merge(log)
    rows = rows_of(log)
    log.close()
    for name in list(disk.names):
        if name.endswith("index"):
            del disk.names[name]
    again = open_log(MemoryFiles(disk), clock, LogSettings())
    assert rows_of(again) == rows
    assert again.offset_at(rows[40].append_time) == 40


def test_a_segment_is_merged_once(log: Log, clock: ManualClock) -> None:
    trickle(log, clock, 10)
    assert merge(log)
    assert not merge_small_frames(log, log.segments[0])


def test_large_frames_are_left_as_they_are(log: Log, clock: ManualClock) -> None:
    log.append([frame_of(*[b"x" * 100] * 100) for _ in range(5)])
    assert not merge(log)


def test_merged_frames_stay_within_bounds(log: Log, clock: ManualClock) -> None:
    log.append([frame_of(b"x" * 1000) for _ in range(500)])
    merge(log)
    sizes = [len(frame.data) for frame in frames_of(log)]
    assert max(sizes) <= 128 * 1024
    assert len(sizes) < 10


def test_frames_of_different_epochs_codecs_or_producers_stay_apart(log: Log, clock: ManualClock) -> None:
    text = [b"again and again"] * 20
    log.append([frame_of(b"a"), frame_of(b"b")], leader_epoch=1)
    log.append([frame_of(b"c"), frame_of(b"d")], leader_epoch=2)
    log.append([frame_of(*text, codec=1), frame_of(*text, codec=1)], leader_epoch=2)
    log.append([_by(1, 0), _by(1, 1), _by(2, 0), _by(1, 2)], leader_epoch=2)
    merge(log)
    assert [(f.leader_epoch, f.codec, f.producer.id, f.count) for f in frames_of(log)] == [
        (1, 0, 0, 2),
        (2, 0, 0, 2),
        (2, 1, 0, 40),
        (2, 0, 1, 2),
        (2, 0, 2, 1),
        (2, 0, 1, 1),
    ]


def test_a_producers_sequence_stays_readable(log: Log, clock: ManualClock) -> None:
    """Frames of one producer merge while their sequence goes on; a gap starts a new frame."""
    log.append([_by(7, 10), _by(7, 11), _by(7, 12), _by(7, 20), _by(7, 21)])
    merge(log)
    assert [(f.producer.sequence, f.span) for f in frames_of(log)] == [(10, 3), (20, 2)]


def test_readers_in_the_middle_of_a_segment_are_not_disturbed(log: Log, clock: ManualClock) -> None:
    trickle(log, clock, 50)
    log.roll()
    (old, _) = log.segments
    run = log.read(10, bytes_max=1)
    merge(log)
    assert run.next_offset == 11
    assert rows_of(log, run.next_offset)[0].offset == 11
    assert old not in log.segments


def _by(producer: int, sequence: int) -> Frame:
    batch = Batch.from_columns([b"%d" % sequence], now_us=1)
    return Frame.of(batch, producer=Producer(producer, 0, sequence))
