"""Frames of a leader's log, copied to a follower's."""

from __future__ import annotations

import struct
from threading import Event, Thread

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import Batch
from penstock.errors import (
    ChecksumMismatch,
    DiskFull,
    FrameTruncated,
    InvalidFrame,
    InvalidInput,
    LogDiverged,
    LogFollows,
    PenstockError,
    UnknownMagic,
)
from penstock.frame import CONTROL, MERGED, SPARSE, Frame, Producer, head_seed
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.epochs import Epoch
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.replicated import append_replicated, copies
from penstock.testing import FaultyFiles, ManualClock, MemoryFiles, Operation
from replicas import agree, all_frames, catch_up, fetch, rows_by_offset
from support import SMALL_SEGMENTS, fill, frame_of, open_log, values_of

HEADER = 88


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leader(clock: ManualClock) -> Log:
    return open_log(MemoryFiles(), clock)


@pytest.fixture
def follower(clock: ManualClock) -> Log:
    return open_log(MemoryFiles(), clock)


def run_of(log: Log, offset: int = 0, bytes_max: int = 1 << 20) -> bytes:
    return bytes(copies(log, offset, bytes_max=bytes_max).data)


def take(follower: Log, leader: Log, run: bytes) -> int:
    return append_replicated(follower, run, source_id=leader.log_id)


def state_of(log: Log) -> tuple[object, ...]:
    return log.end_offset, log.size, log.lineage, [segment.base_offset for segment in log.segments]


# --- copying ------------------------------------------------------------------------------------------------


def test_a_copy_keeps_offset_time_epoch_and_payload_and_is_a_frame_of_its_own_log(
    leader: Log, follower: Log, clock: ManualClock
) -> None:
    leader.append_epoch_start(3)
    leader.append([frame_of(b"a", b"b", keys=[b"k", None], codec=2)])
    clock.advance_us(50)
    leader.append([Frame.of_message(Message(b"c"), now_us=1, producer=Producer(9, 1, 4))])
    clock.advance_us(1_000_000)
    assert take(follower, leader, run_of(leader)) == 4
    assert follower.synced_offset == 0
    follower.sync()
    for ours, theirs in zip(all_frames(follower), all_frames(leader), strict=True):
        assert ours.facts() == theirs.facts()
        assert ours.data[32:] == theirs.data[32:]
        assert ours.data[4:8] != theirs.data[4:8]
        assert crc32c(ours.data[8:HEADER], head_seed(follower.log_id)) == struct.unpack_from("<I", ours.data, 4)[0]
    assert follower.lineage == leader.lineage == (Epoch(3, 0),)
    assert rows_by_offset(follower) == rows_by_offset(leader)


def test_a_copy_survives_a_clean_end_and_a_kill(leader: Log, clock: ManualClock) -> None:
    files = MemoryFiles()
    follower = open_log(files, clock)
    leader.append_epoch_start(1)
    fill(leader, 100)
    catch_up(follower, leader)
    rows = rows_by_offset(follower)
    follower.close()
    follower = open_log(MemoryFiles(files.disk), clock)
    assert (rows_by_offset(follower), follower.lineage) == (rows, leader.lineage)
    follower = open_log(MemoryFiles(files.disk.after_kill()), clock)
    assert (rows_by_offset(follower), follower.lineage) == (rows, leader.lineage)


def test_a_frame_that_was_merged_meanwhile_is_cut_where_the_follower_ends(
    leader: Log, follower: Log, clock: ManualClock
) -> None:
    leader.append_epoch_start(1)
    for i in range(30):
        leader.append([Frame.of_message(Message(b"%d" % i), now_us=1, producer=Producer(5, 0, i))])
        clock.advance_us(10)
    leader.sync()
    while follower.end_offset < 11:
        fetch(follower, leader, 1)
    leader.roll()
    assert merge_small_frames(leader, leader.segments[0])
    before = follower.end_offset
    catch_up(follower, leader)
    assert rows_by_offset(follower) == rows_by_offset(leader)
    [cut] = [frame for frame in all_frames(follower) if frame.base_offset == before]
    assert cut.flags & MERGED
    assert cut.producer == Producer(5, 0, before - 1), "(producer, sequence) is found where it was"
    assert cut.append_time == all_frames(leader)[-1].append_time


def test_a_frame_with_gaps_is_cut_too(leader: Log, follower: Log, clock: ManualClock) -> None:
    leader.append_epoch_start(1)
    leader.append([frame_of(*(b"%d" % i for i in range(20)), keys=[b"k%d" % (i % 7) for i in range(20)])])
    leader.append([frame_of(*(b"new", b"new"), keys=[b"k0", b"k6"])])
    leader.roll()
    compact(leader, now_us=clock.now_us(), tombstone_age_us=1)
    for end in range(1, leader.end_offset):
        one = open_log(MemoryFiles(), clock)
        one.reset(end, epoch=Epoch(1, 0))
        catch_up(one, leader)
        theirs = {offset: row for offset, row in rows_by_offset(leader).items() if offset >= end}
        assert rows_by_offset(one) == theirs
        assert one.lineage == (Epoch(1, 0),)
        # And again from that one to another.
        other = open_log(MemoryFiles(), clock)
        other.reset(end, epoch=Epoch(1, 0))
        catch_up(other, one)
        assert rows_by_offset(other) == theirs


def test_a_control_frame_stays_one_when_it_is_cut(leader: Log, clock: ManualClock) -> None:
    batch = Batch.from_columns([b"%d" % i for i in range(9)], now_us=1)
    leader.append([Frame.of(batch, is_control=True)])
    follower = open_log(MemoryFiles(), clock)
    follower.reset(4)
    catch_up(follower, leader)
    [frame] = all_frames(follower)
    assert (frame.flags, frame.base_offset, frame.count) == (CONTROL, 4, 5)
    follower.truncate(7)
    [frame] = all_frames(follower)
    assert (frame.flags, frame.base_offset, frame.count) == (CONTROL, 4, 3)


def test_what_the_leader_has_lost_to_compaction_is_a_hole_of_the_epoch_before(
    leader: Log, follower: Log, clock: ManualClock
) -> None:
    leader.append_epoch_start(1)
    leader.append([frame_of(b"stays")])
    leader.append([frame_of(b"old", b"old", b"old", keys=[b"k"] * 3)])
    leader.append_epoch_start(2)
    leader.append([frame_of(b"new", keys=[b"k"])])
    leader.roll()
    compact(leader, now_us=clock.now_us(), tombstone_age_us=1)
    lineage = leader.lineage
    assert lineage == (Epoch(1, 0), Epoch(2, 5))
    catch_up(follower, leader)
    assert follower.lineage == lineage
    holes = [(frame.base_offset, frame.span, frame.leader_epoch) for frame in all_frames(follower) if not frame.count]
    assert holes == [(0, 1, 1), (2, 3, 1), (5, 1, 2)]
    assert values_of(follower) == [b"stays", b"new"]


def test_a_gap_at_the_end_of_the_leaders_log_is_copied_as_well(leader: Log, follower: Log, clock: ManualClock) -> None:
    leader.append([frame_of(b"stays"), frame_of(None, None, keys=[b"a", b"b"])])
    leader.roll()
    clock.advance_us(100)
    compact(leader, now_us=clock.now_us(), tombstone_age_us=1)
    assert [frame.base_offset for frame in all_frames(leader)] == [0]
    run = copies(leader, 0)
    assert append_replicated(follower, run.data, source_id=leader.log_id, next_offset=run.next_offset) == 1
    run = copies(leader, 1)
    assert (len(run), run.next_offset) == (0, 3)
    assert append_replicated(follower, run.data, source_id=leader.log_id, next_offset=run.next_offset) == 3
    follower.sync()
    assert follower.synced_offset == 3


def test_merged_compacted_and_compressed_frames_pass_from_replica_to_replica(leader: Log, clock: ManualClock) -> None:
    leader.append_epoch_start(1)
    for i in range(40):
        key = b"k%d" % (i % 5) if i % 3 else b"alone %d" % i
        leader.append([frame_of(b"x" * 60, keys=[key], codec=i // 15)])
        clock.advance_us(10)
    leader.append([Frame.of(Batch.from_columns([b"snapshot"], now_us=1), is_control=True)])
    leader.roll()
    chain = [leader]
    for _ in range(3):
        compact(chain[-1], now_us=clock.now_us(), tombstone_age_us=1)
        for segment in chain[-1].segments[:-1]:
            merge_small_frames(chain[-1], segment)
        chain.append(open_log(MemoryFiles(), clock))
        catch_up(chain[-1], chain[-2])
        chain[-1].roll()
        assert rows_by_offset(chain[-1]) == rows_by_offset(leader)
    assert any(frame.flags & SPARSE for frame in all_frames(chain[1]))


def test_frames_are_split_over_segments_and_runs_as_the_follower_likes(leader: Log, clock: ManualClock) -> None:
    fill(leader, 200)
    follower = open_log(MemoryFiles(), clock, LogSettings(segment_bytes_max=8192))
    at = 0
    while at < 200:
        run = copies(leader, at, bytes_max=1500)
        at = append_replicated(follower, run.data, source_id=leader.log_id)
    assert len(follower.segments) > 2
    assert rows_by_offset(follower) == rows_by_offset(leader)


# --- what comes twice, or does not fit ----------------------------------------------------------------------


def test_a_run_that_came_before_changes_nothing(leader: Log, follower: Log) -> None:
    leader.append_epoch_start(1)
    fill(leader, 10)
    run = run_of(leader)
    take(follower, leader, run)
    before = state_of(follower)
    assert take(follower, leader, run) == 11
    assert state_of(follower) == before
    follower.delete_prefix(5)
    assert take(follower, leader, run) == 11


def test_other_messages_under_the_same_offsets_are_refused(leader: Log, follower: Log) -> None:
    leader.append_epoch_start(1)
    fill(leader, 5)
    catch_up(follower, leader)
    # Another leader, at another epoch, whose run overlaps ours.
    leader.truncate(3)
    leader.append_epoch_start(2)
    fill(leader, 10)
    before = state_of(follower)
    for offset in (0, 3, 5):
        with pytest.raises(LogDiverged, match="epoch 2"):
            take(follower, leader, run_of(leader, offset))
    assert state_of(follower) == before
    agree(follower, leader)
    assert follower.end_offset == 3
    catch_up(follower, leader)
    assert follower.lineage == (Epoch(1, 0), Epoch(2, 3))


def test_an_older_epoch_is_refused(leader: Log, follower: Log) -> None:
    leader.append_epoch_start(1)
    fill(leader, 5)
    follower.append_epoch_start(2)
    with pytest.raises(LogDiverged, match="epoch 1"):
        take(follower, leader, run_of(leader, 1))
    assert follower.end_offset == 1


def test_an_append_time_before_our_last_is_refused(leader: Log, clock: ManualClock) -> None:
    leader.append([frame_of(b"a")])
    leader.append([frame_of(b"b")])
    later = open_log(MemoryFiles(), ManualClock(clock.now_us() + 1))
    later.append([frame_of(b"of a later time")])
    with pytest.raises(LogDiverged, match="appended before"):
        take(later, leader, run_of(leader, 1))


def test_after_a_truncation_the_time_of_what_is_gone_does_not_count(leader: Log, clock: ManualClock) -> None:
    files = MemoryFiles()
    later = ManualClock(clock.now_us())
    follower = Log.open(files, clock=later, settings=SMALL_SEGMENTS)
    leader.append_epoch_start(1)
    catch_up(follower, leader)
    follower.append_epoch_start(2)
    later.advance_us(1_000_000)
    follower.append([frame_of(b"never replicated")])
    leader.append_epoch_start(3)
    catch_up(follower, leader)
    assert follower.lineage == leader.lineage
    follower.close()
    assert open_log(MemoryFiles(files.disk)).last_append_time == leader.last_append_time


def test_a_log_that_was_emptied_goes_on_behind_its_last_time(clock: ManualClock) -> None:
    """Also after a crash, and with a clock that is behind: its followers may still have what it has not."""
    files = MemoryFiles()
    leader, follower = open_log(files, clock), open_log(MemoryFiles(), clock)
    leader.append_epoch_start(1)
    fill(leader, 3)
    catch_up(follower, leader)
    leader.delete_prefix(4)
    behind = ManualClock(clock.now_us() - 1_000_000)
    leader = open_log(MemoryFiles(files.disk.after_kill()), behind)
    leader.append_epoch_start(2)
    catch_up(follower, leader)
    assert follower.start_offset == 0
    assert follower.lineage == (Epoch(1, 0), Epoch(2, 4))


# --- what comes from outside --------------------------------------------------------------------------------


def test_frames_of_another_log_than_the_leaders_are_refused(leader: Log, follower: Log) -> None:
    fill(leader, 3)
    with pytest.raises(ChecksumMismatch, match="not of the log"):
        append_replicated(follower, run_of(leader), source_id=bytes(16))
    assert follower.end_offset == 0


def test_a_run_that_breaks_off_is_refused_as_a_whole(leader: Log, follower: Log) -> None:
    fill(leader, 3)
    run = run_of(leader)
    for size in (len(run) - 1, len(run) - 8, len(run) - 200, 87, 1):
        with pytest.raises(FrameTruncated):
            take(follower, leader, run[:size])
        assert follower.end_offset == 0
    with pytest.raises(UnknownMagic):
        take(follower, leader, run + bytes(HEADER))
    assert take(follower, leader, b"") == 0


def test_every_flipped_bit_is_noticed(leader: Log, follower: Log) -> None:
    leader.append([frame_of(b"a", b"b", keys=[b"k", b"l"]), frame_of(b"c")])
    run = run_of(leader)
    for at in range(len(run)):
        bad = bytearray(run)
        bad[at] ^= 1 << at % 8
        with pytest.raises(InvalidFrame):
            take(follower, leader, bytes(bad))
    assert follower.size == 64


def _with(leader: Log, frame: Frame, position: int, form: str, value: int) -> bytes:
    """A frame with other bytes in its header, and checksums that are right."""
    data = bytearray(frame.data)
    struct.pack_into(form, data, position, value)
    struct.pack_into("<I", data, 32, crc32c(data[36:]))
    struct.pack_into("<I", data, 4, crc32c(data[8:HEADER], head_seed(leader.log_id)))
    return bytes(data)


@pytest.mark.parametrize(
    ("position", "form", "value"),
    [
        (8, "<q", -1),
        (8, "<q", 1 << 62),
        (16, "<q", -1),
        (16, "<q", 1 << 62),
        (36, "<I", 1 << 31),
        (40, "<I", 7),
        (44, "<I", 3),
        (44, "<I", 0),
        (48, "<I", 0),
        (48, "<I", 7),
        (52, "<H", 1 << 9),
        (54, "<B", 9),
        (55, "<B", 1),
        (56, "<q", -1),
        (72, "<q", -1),
        (80, "<i", -1),
        (86, "<H", 1),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(
    leader: Log, follower: Log, position: int, form: str, value: int
) -> None:
    leader.append([frame_of(b"a", b"b")])
    [frame] = all_frames(leader)
    assert take(follower, leader, _with(leader, frame, 24, "<I", 0)) == 2
    follower.truncate(0)
    with pytest.raises(InvalidFrame):
        take(follower, leader, _with(leader, frame, position, form, value))
    assert follower.end_offset == 0


@pytest.mark.parametrize(("position", "form"), [(24, "<I"), (16, "<q"), (8, "<q")])
def test_epochs_times_and_offsets_that_run_backwards_within_a_run_are_refused(
    leader: Log, follower: Log, position: int, form: str
) -> None:
    leader.append_epoch_start(5)
    leader.append([frame_of(b"a", b"b")])
    start, frame = all_frames(leader)
    for value in (0, 4):
        run = bytes(start.data) + _with(leader, frame, position, form, 0 if position == 8 else value)
        with pytest.raises(InvalidFrame):
            take(follower, leader, run)
    assert follower.end_offset == 0


@given(st.binary(max_size=300), st.integers(0, 2))
def test_only_typed_errors_come_of_any_bytes(data: bytes, prefix: int) -> None:
    follower = open_log(MemoryFiles())
    with pytest.raises(PenstockError):
        append_replicated(follower, [b"", b"PNS\x01", b"PNS\x02"][prefix] + data + b"x", source_id=bytes(16))
    assert follower.end_offset == 0


def test_next_offset_must_be_an_offset(follower: Log) -> None:
    for wrong in ("7", 1.0, 1 << 63):
        with pytest.raises(InvalidInput):
            append_replicated(follower, b"", source_id=bytes(16), next_offset=wrong)  # type: ignore[arg-type]
    assert append_replicated(follower, b"", source_id=bytes(16), next_offset=-1) == 0


def test_a_gap_of_more_offsets_than_a_frame_can_span_is_filled_by_several(follower: Log) -> None:
    end = (1 << 33) + 5
    assert append_replicated(follower, b"", source_id=bytes(16), next_offset=end) == end
    assert [frame.span for frame in all_frames(follower)] == [(1 << 32) - 1, (1 << 32) - 1, 7]


# --- roles --------------------------------------------------------------------------------------------------


def test_a_log_that_follows_takes_no_messages_of_its_own_until_it_leads(leader: Log, follower: Log) -> None:
    leader.append_epoch_start(1)
    catch_up(follower, leader)
    with pytest.raises(LogFollows):
        follower.append([frame_of(b"of a leader that was")])
    with pytest.raises(InvalidInput, match="does not follow"):
        follower.append_epoch_start(1)
    follower.append_epoch_start(2)
    assert follower.append([frame_of(b"mine")]).base_offsets == [2]
    assert all_frames(follower)[-1].leader_epoch == 2


def test_a_full_disk_leaves_all_or_nothing_of_a_run(leader: Log, clock: ManualClock) -> None:
    leader.append_epoch_start(1)
    fill(leader, 20)
    room = 0

    def before(operation: Operation) -> None:
        nonlocal room
        if operation.kind == "write":
            room -= 1
            if room < 0:
                raise DiskFull("no space left")

    for room in range(6):
        left = room
        files = MemoryFiles()
        room = 1 << 30
        follower = Log.open(FaultyFiles(files, before), clock=clock, settings=SMALL_SEGMENTS)
        room = left
        try:
            take(follower, leader, run_of(leader))
        except DiskFull:
            assert (follower.end_offset, follower.lineage) == (0, ())
        room = 1 << 30
        catch_up(follower, leader)
        assert (follower.lineage, rows_by_offset(follower)) == (leader.lineage, rows_by_offset(leader))


# --- while others are at it ---------------------------------------------------------------------------------


def test_a_follower_copies_while_its_leader_appends_rolls_merges_and_retains(clock: ManualClock) -> None:
    leader, follower = open_log(MemoryFiles(), clock), open_log(MemoryFiles(), clock)
    leader.append_epoch_start(1)
    failed: list[BaseException] = []

    def lead() -> None:
        try:
            for i in range(600):
                leader.append([frame_of(b"%d" % i, b"x" * 40)])
                if i % 5 == 0:
                    leader.sync()
                if i % 50 == 0:
                    leader.roll()
                    for segment in leader.segments[:-1]:
                        merge_small_frames(leader, segment)
                if i == 400:
                    leader.delete_prefix(follower.synced_offset)
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=lead)
    thread.start()
    sizes = [1, 700, 3000, 20_000]
    while thread.is_alive() or follower.end_offset < leader.end_offset:
        fetch(follower, leader, sizes[follower.end_offset % 4])
        follower.sync()
    thread.join()
    assert not failed
    rows = rows_by_offset(follower)
    assert len(rows) == 1200
    assert {offset: rows[offset] for offset in rows_by_offset(leader)} == rows_by_offset(leader)


def test_reading_while_the_log_is_truncated_and_reset_gives_what_was_or_what_is(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    failed: list[BaseException] = []

    def change() -> None:
        try:
            for turn in range(1, 60):
                if turn == 2:
                    is_read.wait(60)
                log.append_epoch_start(turn)
                for _ in range(20):
                    log.append([frame_of(b"%d" % turn * 30)])
                log.sync()
                log.truncate(max(log.start_offset, log.end_offset - 15))
                if turn % 20 == 0:
                    log.reset(log.end_offset + 7)
        except BaseException as error:
            failed.append(error)

    is_read = Event()
    thread = Thread(target=change)
    thread.start()
    seen = 0
    while thread.is_alive():
        try:
            for frame in copies(log, log.start_offset, bytes_max=3000):
                assert not frame.count or frame.batch().values() == [b"%d" % frame.leader_epoch * 30] * frame.count
                seen += 1
                is_read.set()
        except InvalidInput:
            # The start had moved.
            pass
    thread.join()
    assert not failed
    assert seen


# --- following the leader's retention -----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 5, 7, 12, 13, 20])
def test_a_start_within_the_active_segment_within_a_hole_or_at_the_end(
    leader: Log, clock: ManualClock, offset: int
) -> None:
    files = MemoryFiles()
    follower = open_log(files, clock)
    leader.append([frame_of(*[b"a"] * 5)])
    catch_up(follower, leader)
    # Offsets 5 to 11 are a hole.
    append_replicated(follower, b"", source_id=leader.log_id, next_offset=12)
    follower.append_epoch_start(1)
    follower.append([frame_of(*[b"b"] * 7)])
    follower.sync()
    rows = rows_by_offset(follower)
    follower.delete_prefix(offset)
    kept = {at: row for at, row in rows.items() if at >= offset}
    for log in (follower, open_log(MemoryFiles(files.disk.after_kill()), clock)):
        assert (log.start_offset, log.end_offset) == (offset, 20)
        assert rows_by_offset(log) == kept
        assert log.last_epoch == 1
        assert values_of(log) == [value for _, (_, value, _) in kept.values()]


def test_what_the_leader_thinned_out_is_told_to_followers(leader: Log, clock: ManualClock) -> None:
    files = MemoryFiles()
    follower = open_log(files, clock)
    fill(leader, 10)
    catch_up(follower, leader)
    follower.note_whole_from(6)
    follower.note_whole_from(4)
    assert follower.whole_from == 6
    follower.note_whole_from(60)
    assert follower.whole_from == 10
    assert open_log(MemoryFiles(files.disk.after_kill()), clock).whole_from == 10
