"""An inspection finds all the damage there is, says where, tells it from what a crash leaves, and touches nothing."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from test_power_loss import run_seed

from penstock.codec import LZ4, ZSTD
from penstock.errors import PenstockError
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.files import DiskFiles, Files
from penstock.storage.inspect import FINDINGS_PER_SEGMENT_MAX, frames, inspect, messages
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.recovery import Recovered, recover
from penstock.storage.report import Finding, Kind, Report, Role, State
from penstock.testing import FaultyFiles, ManualClock, Operation
from support import SMALL_SEGMENTS, fill, frame_of, open_log, values_of

FRAMES_AT = 64


def closed_log(path: Path, count: int = 100) -> Path:
    """Frames of 224 bytes, 18 to a segment: 0, 18, 36, 54, 72, 90."""
    log = open_log(DiskFiles(path))
    fill(log, count)
    log.close()
    return path


def killed_log(path: Path, *tail: Frame) -> Path:
    """As it is when the process is gone: five messages synced, and `tail` written but not."""
    log = open_log(DiskFiles(path / "running"))
    fill(log, 5)
    if tail:
        log.append(tail)
    shutil.copytree(path / "running", path / "killed")
    log.close()
    return path / "killed"


def look(path: Path, **options: bool | int) -> Report:
    """Inspects; whatever is found, the files are as they were."""
    before = contents(path)
    report = inspect(DiskFiles(path, create=False), **options)
    assert contents(path) == before
    assert report is not None
    return report


def damage(report: Report) -> list[Finding]:
    assert report.is_healthy == (Kind.DAMAGE not in kinds(report))
    return [finding for finding in report.findings if finding.kind is Kind.DAMAGE]


def kinds(report: Report) -> list[Kind]:
    return [finding.kind for finding in report.findings]


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def put_behind_the_frames(path: Path, tail: bytes) -> None:
    """Of a killed log, in the place of its room."""
    with segment(path, 0).open("r+b") as file:
        file.truncate(FRAMES_AT + 5 * 224)
        file.seek(0, os.SEEK_END)
        file.write(tail)


def segment(path: Path, base: int) -> Path:
    return path / f"{base:020d}.log"


def opens_and_reads(path: Path) -> bool:
    """What the log itself makes of it, tried on a copy."""
    copy = path.with_name(path.name + "-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    try:
        log = open_log(DiskFiles(copy))
    except PenstockError:
        return False
    try:
        values_of(log)
    except PenstockError:
        return False
    finally:
        log.close()
    return True


# --- healthy logs -------------------------------------------------------------------------------------------


def test_inspect_describes_a_healthy_log_segment_by_segment(tmp_path: Path) -> None:
    report = look(closed_log(tmp_path / "log"))
    assert report.is_healthy
    assert report.findings == []
    assert (report.manifest, report.mark) == (State.OK, State.OK)
    assert (report.start_offset, report.end_offset) == (0, 100)
    assert [s.base_offset for s in report.segments] == [0, 18, 36, 54, 72, 90]
    assert [s.end_offset for s in report.segments] == [18, 36, 54, 72, 90, 100]
    assert [s.role for s in report.segments] == [Role.SEALED] * 5 + [Role.ACTIVE]
    assert sum(s.messages for s in report.segments) == 100
    first = report.segments[0].as_dict()
    assert first["bytes"] == segment(tmp_path / "log", 0).stat().st_size
    assert first["first_append_time"] == "2023-11-14T22:13:20.000000Z"
    assert first["min_timestamp"] == "1970-01-01T00:00:00.001000Z"
    assert (first["codecs"], first["index"], first["generation"], first["compacted"]) == (["none"], "ok", 0, False)


def test_a_log_without_messages_is_healthy(tmp_path: Path) -> None:
    open_log(DiskFiles(tmp_path)).close()
    report = look(tmp_path)
    assert report.findings == []
    assert (report.start_offset, report.end_offset) == (0, 0)
    assert [(s.frames, s.messages) for s in report.segments] == [(0, 0)]


def test_a_manifest_alone_is_a_log_that_lost_its_segments(tmp_path: Path) -> None:
    closed_log(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "new", ignore=shutil.ignore_patterns("*.*", "synced"))
    report = look(tmp_path / "new")
    assert [found.sentence for found in damage(report)] == ["every segment is missing"]
    assert report.segments == []


def test_a_last_segment_that_is_missing_with_the_mark_is_named_by_its_index(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    segment(path, 90).unlink()
    (path / "synced").unlink()
    (found,) = damage(look(path))
    assert (found.offset, found.file) == (90, "00000000000000000090.log")


@pytest.mark.parametrize("name", ["notes.txt", "1.log", "log", "00000000000000000000.index"])
def test_a_directory_without_manifest_and_segments_is_no_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    assert inspect(DiskFiles(tmp_path)) is None
    assert list(frames(DiskFiles(tmp_path))) == []


def test_inspect_takes_no_lock_and_works_while_the_log_is_open(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    log = open_log(DiskFiles(tmp_path))
    fill(log, 30)
    assert inspect(files) is not None
    assert look(tmp_path).findings == []
    log.close()
    assert look(tmp_path).is_healthy
    open_log(DiskFiles(tmp_path)).close()


def test_a_log_in_use_never_seems_damaged(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(DiskFiles(tmp_path), clock)
    fill(log, 30)

    def work() -> None:
        for i in range(12):
            fill(log, 40, start=i)
            clock.advance_us(1_000)
            merge_small_frames(log, log.segments[-2])
            if i % 4 == 3:
                compact(log, now_us=clock.now_us(), tombstone_age_us=1)
                log.delete_prefix(log.segments[1].base_offset)

    writer = Thread(target=work)
    writer.start()
    while writer.is_alive():
        report = inspect(DiskFiles(tmp_path))
        assert report is not None
        assert damage(report) == []
    writer.join()
    log.close()
    assert look(tmp_path).findings == []


def test_without_verification_bodies_are_not_read(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    flip(segment(path, 0), FRAMES_AT + 150)
    assert look(path, verify=False).is_healthy
    flip(segment(path, 0), FRAMES_AT + 10)
    assert len(damage(look(path, verify=False))) == 1


def test_progress_adds_up_to_the_bytes_of_the_segments(tmp_path: Path) -> None:
    closed_log(tmp_path)
    told: list[int] = []
    inspect(DiskFiles(tmp_path), progress=told.append)
    assert sum(told) == sum(file.stat().st_size - FRAMES_AT for file in tmp_path.glob("*.log"))


# --- damaged frames -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 5, 10, 40, 87])
@pytest.mark.parametrize(("base", "frame"), [(0, 0), (0, 17), (36, 9), (90, 0), (90, 9)])
def test_inspect_names_the_segment_and_offset_of_a_flipped_bit_in_a_header(
    tmp_path: Path, base: int, frame: int, at: int
) -> None:
    path = closed_log(tmp_path / "log")
    position = FRAMES_AT + 224 * frame
    flip(segment(path, base), position + at)
    report = look(path)
    (found,) = damage(report)
    assert (found.file, found.position, found.offset) == (segment(path, base).name, position, base + frame)
    assert f"at byte {position}, offset {base + frame}: " in found.sentence
    assert sum(s.messages for s in report.segments) == 99
    assert not opens_and_reads(path)


@pytest.mark.parametrize("at", [88, 150, 223])
@pytest.mark.parametrize(("base", "frame"), [(0, 0), (36, 9), (90, 9)])
def test_inspect_names_the_segment_and_offset_of_a_flipped_bit_in_a_body(
    tmp_path: Path, base: int, frame: int, at: int
) -> None:
    path = closed_log(tmp_path / "log")
    position = FRAMES_AT + 224 * frame
    flip(segment(path, base), position + at)
    (found,) = damage(look(path))
    assert (found.file, found.position, found.offset) == (segment(path, base).name, position, base + frame)
    assert "the body does not match its checksum" in found.sentence
    assert not opens_and_reads(path)


def test_inspect_shows_every_damaged_place_of_a_file(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    bad = [0, 1, 5, 9, 17]
    for frame in bad:
        flip(segment(path, 18), FRAMES_AT + 224 * frame + (20 if frame % 2 else 200))
    flip(segment(path, 90), FRAMES_AT + 100)
    report = look(path)
    # Two damaged headers or a damaged header behind a damaged body are still told apart.
    assert [found.offset for found in damage(report)] == [18 + frame for frame in bad] + [90]
    assert [s.messages for s in report.segments] == [18, 13, 18, 18, 18, 9]


def test_the_places_listed_for_one_segment_are_bounded(tmp_path: Path) -> None:
    log = open_log(DiskFiles(tmp_path), settings=LogSettings())
    count = FINDINGS_PER_SEGMENT_MAX + 5
    fill(log, count, size=10)
    log.close()
    data = bytearray(segment(tmp_path, 0).read_bytes())
    size = (len(data) - FRAMES_AT) // count
    data[FRAMES_AT + size - 1 :: size] = b"\1" * count
    segment(tmp_path, 0).write_bytes(data)
    found = damage(look(tmp_path))
    assert len(found) == FINDINGS_PER_SEGMENT_MAX + 1
    assert "5 more damaged places" in found[-1].sentence


def test_a_stretch_of_zeros_is_one_damage_that_ends_at_the_next_whole_frame(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    data = bytearray(segment(path, 0).read_bytes())
    data[400:1000] = bytes(600)
    segment(path, 0).write_bytes(data)
    body, stretch = damage(look(path))
    assert (body.position, body.offset) == (288, 1)
    assert (stretch.position, stretch.offset) == (512, 2)
    assert "readable again at byte 1184, offset 5" in stretch.sentence


def test_frames_in_the_wrong_order_are_damage(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    data = segment(path, 0).read_bytes()
    one, two = data[64:288], data[288:512]
    segment(path, 0).write_bytes(data[:64] + two + one + data[512:])
    report = look(path)
    assert "offset 1 where 0 was due" in damage(report)[0].sentence
    assert report.segments[0].messages == 18
    # An open that trusts the index does not look at the order of frames.
    (path / f"{0:020d}.index").unlink()
    assert not opens_and_reads(path)


def test_a_frame_of_a_later_version_is_refused_also_at_the_end(tmp_path: Path) -> None:
    path = killed_log(tmp_path, frame_of(b"tail"))
    data = bytearray(segment(path, 0).read_bytes())
    data[FRAMES_AT + 5 * 224 + 3] = 2
    segment(path, 0).write_bytes(data)
    (found,) = damage(look(path))
    assert "frame version 2" in found.sentence
    assert not opens_and_reads(path)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_damage_in_a_compressed_frame_is_found_without_decompressing_it(tmp_path: Path, codec: int) -> None:
    log = open_log(DiskFiles(tmp_path))
    log.append([frame_of(*[b"the same again"] * 100, codec=codec)])
    log.sync()
    log.close()
    report = look(tmp_path)
    assert report.findings == []
    assert report.segments[0].codecs == {"lz4" if codec == LZ4 else "zstd"}
    assert report.segments[0].messages == 100
    flip(segment(tmp_path, 0), FRAMES_AT + 100)
    (found,) = damage(look(tmp_path))
    assert "offsets 0 to 99" in found.sentence


# --- torn tails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("room", [1, 64, 256, 70_000])
def test_room_at_the_end_of_the_active_segment_is_no_finding(tmp_path: Path, room: int, verify: bool) -> None:
    path = killed_log(tmp_path)
    put_behind_the_frames(path, bytes(room))
    report = look(path, verify=verify)
    assert report.findings == []
    assert (report.end_offset, report.segments[0].size) == (5, FRAMES_AT + 5 * 224)
    assert len(list(frames(DiskFiles(path), verify=verify))) == 5
    assert opens_and_reads(path)


def test_zeros_at_the_end_of_a_sealed_segment_are_damage(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    with segment(path, 18).open("ab") as file:
        file.write(bytes(256))
    (found,) = damage(look(path))
    assert (found.file, found.position) == (f"{18:020d}.log", FRAMES_AT + 18 * 224)
    assert not opens_and_reads(path)


def test_zeros_where_the_last_frame_had_been_synced_are_damage(tmp_path: Path) -> None:
    path = killed_log(tmp_path)
    with segment(path, 0).open("r+b") as file:
        file.seek(FRAMES_AT + 4 * 224)
        file.write(bytes(224))
    (found,) = damage(look(path))
    assert (found.position, found.offset) == (FRAMES_AT + 4 * 224, 4)
    assert not opens_and_reads(path)


@pytest.mark.parametrize("size", [10, 3000, 100_000])
def test_what_comes_into_the_room_of_a_log_in_use_is_no_finding(tmp_path: Path, size: int) -> None:
    """Between two reads of a look, and though the file may have become longer or shorter than it was at first."""
    log = open_log(DiskFiles(tmp_path), settings=LogSettings())
    fill(log, 5)
    reads_left = 0

    def before(operation: Operation) -> None:
        nonlocal reads_left
        if operation.kind == "read" and operation.name.endswith(".log"):
            reads_left -= 1
            if reads_left < 0:
                log.append([frame_of(b"x" * size)])
                log.sync()

    for reads in range(7):
        reads_left = reads
        report = inspect(FaultyFiles(DiskFiles(tmp_path), before))
        assert report is not None
        assert report.findings == []
    log.close()


@pytest.mark.parametrize(
    ("tail", "torn"), [(b"garbage!" * 50, 400), (b"PNS\x01" + b"\0" * 200, 4), (b"P", 1), (b"\0" * 4096 + b"P", 4097)]
)
def test_a_torn_tail_is_told_from_damage(tmp_path: Path, tail: bytes, torn: int) -> None:
    path = killed_log(tmp_path)
    put_behind_the_frames(path, tail)
    report = look(path)
    assert f"the last {torn} bytes" in report.findings[0].sentence
    assert report.is_healthy
    (found,) = report.findings
    assert (found.kind, found.position, found.offset) == (Kind.TORN_TAIL, FRAMES_AT + 5 * 224, 5)
    assert report.end_offset == 5
    assert opens_and_reads(path)


def test_frames_behind_a_torn_one_go_with_it(tmp_path: Path) -> None:
    path = killed_log(tmp_path, frame_of(b"torn"), frame_of(b"whole"))
    flip(segment(path, 0), FRAMES_AT + 5 * 224 + 90)
    report = look(path)
    assert kinds(report) == [Kind.TORN_TAIL]
    assert report.end_offset == 5
    assert report.segments[0].messages == 5


def test_a_frame_that_was_not_synced_is_no_torn_tail_if_it_is_whole(tmp_path: Path) -> None:
    report = look(killed_log(tmp_path, frame_of(b"whole")))
    assert report.findings == []
    assert report.end_offset == 6


def test_damage_and_a_torn_tail_in_one_segment_are_told_apart(tmp_path: Path) -> None:
    path = killed_log(tmp_path, frame_of(b"torn"))
    flip(segment(path, 0), FRAMES_AT + 224 + 90)
    flip(segment(path, 0), FRAMES_AT + 5 * 224 + 90)
    report = look(path)
    assert kinds(report) == [Kind.DAMAGE, Kind.TORN_TAIL]
    assert [found.offset for found in report.findings] == [1, 5]


def test_a_later_frame_that_saw_the_damaged_place_synced_is_believed_without_a_mark(tmp_path: Path) -> None:
    path = killed_log(tmp_path, frame_of(b"tail"))
    (path / "synced").unlink()
    flip(segment(path, 0), FRAMES_AT + 4 * 224 + 90)
    report = look(path)
    assert kinds(report) == [Kind.REBUILT, Kind.DAMAGE]
    assert not opens_and_reads(path)


def test_a_torn_creation_of_the_last_segment_is_a_leftover(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    segment(path, 100).write_bytes(bytes(64))
    report = look(path)
    assert kinds(report) == [Kind.LEFTOVER]
    assert [s.role for s in report.segments[-2:]] == [Role.ACTIVE, Role.LEFTOVER]
    assert opens_and_reads(path)


# --- files that are cut short, missing or swapped -----------------------------------------------------------


@pytest.mark.parametrize("base", [0, 36, 90])
@pytest.mark.parametrize("size", [0, 10, 64, 64 + 224, 64 + 300, 64 + 224 + 224])
def test_a_truncated_segment_is_damage(tmp_path: Path, base: int, size: int) -> None:
    path = closed_log(tmp_path / "log")
    os.truncate(segment(path, base), size)
    found = damage(look(path))
    assert found[0].file == segment(path, base).name
    assert found[0].offset == base + max(size - 64, 0) // 224
    assert not opens_and_reads(path)


@pytest.mark.parametrize("base", [0, 18, 54, 90])
def test_a_missing_segment_is_damage(tmp_path: Path, base: int) -> None:
    path = closed_log(tmp_path / "log")
    segment(path, base).unlink()
    report = look(path)
    (found,) = damage(report)
    assert found.offset == base
    assert "missing" in found.sentence
    assert set(kinds(report)) == {Kind.DAMAGE, Kind.LEFTOVER}
    assert not opens_and_reads(path)


def test_all_missing_segments_are_named(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    for base in (0, 36, 90):
        segment(path, base).unlink()
    assert sorted(found.offset or 0 for found in damage(look(path))) == [0, 36, 90]


def test_segments_swapped_between_two_logs_are_named(tmp_path: Path) -> None:
    one, two = closed_log(tmp_path / "one"), closed_log(tmp_path / "two")
    kept = segment(one, 36).read_bytes()
    segment(one, 36).write_bytes(segment(two, 36).read_bytes())
    segment(two, 36).write_bytes(kept)
    for path in (one, two):
        report = look(path)
        (found,) = damage(report)
        assert found.sentence == f"{segment(path, 36).name} belongs to another log"
        assert report.segments[2].role is Role.FOREIGN
        assert not opens_and_reads(path)


def test_a_renamed_segment_is_named(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    shutil.copy(segment(path, 18), segment(path, 36))
    (found,) = damage(look(path))
    assert "is the segment of offset 18, renamed" in found.sentence


def test_the_frames_of_a_segment_whose_header_is_damaged_are_still_walked(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    flip(segment(path, 36), 20)
    report = look(path)
    (found,) = damage(report)
    assert (found.file, found.position) == (segment(path, 36).name, 0)
    assert report.segments[2].messages == 18


# --- manifest, mark, indexes, leftovers ---------------------------------------------------------------------


@pytest.mark.parametrize(("harm", "state"), [(lambda f: flip(f, 30), "damaged"), (Path.unlink, "missing")])
def test_without_its_manifest_a_log_is_damaged_but_its_segments_are_walked(
    tmp_path: Path, harm: Callable[[Path], None], state: str
) -> None:
    path = closed_log(tmp_path / "log")
    log_id = look(path).log_id
    harm(path / "manifest")
    report = look(path)
    (found,) = damage(report)
    assert found.file == "manifest"
    assert (report.manifest, report.log_id, report.start_offset) == (state, log_id, None)
    assert sum(s.messages for s in report.segments) == 100


@pytest.mark.parametrize(("harm", "state"), [(lambda f: flip(f, 30), "damaged"), (Path.unlink, "missing")])
def test_a_mark_that_is_no_use_is_made_anew(tmp_path: Path, harm: Callable[[Path], None], state: str) -> None:
    path = closed_log(tmp_path / "log")
    harm(path / "synced")
    report = look(path)
    assert (kinds(report), report.mark) == ([Kind.REBUILT], state)
    assert opens_and_reads(path)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("base", [0, 90])
def test_a_damaged_index_is_named_and_is_not_damage_of_the_log(tmp_path: Path, base: int, suffix: str) -> None:
    path = closed_log(tmp_path / "log")
    flip(path / f"{base:020d}.{suffix}", 70)
    report = look(path)
    (found,) = report.findings
    assert (found.kind, found.file) == (Kind.REBUILT, f"{base:020d}.{suffix}")
    assert [s.index for s in report.segments if s.base_offset == base] == [State.DAMAGED]
    assert opens_and_reads(path)


def test_a_sealed_segment_without_its_index_or_with_that_of_another_is_told(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    (path / f"{0:020d}.index").unlink()
    shutil.copy(path / f"{18:020d}.timeindex", path / f"{36:020d}.timeindex")
    report = look(path)
    assert kinds(report) == [Kind.REBUILT, Kind.REBUILT]
    assert [s.index for s in report.segments[:3]] == [State.MISSING, State.OK, State.STALE]
    assert opens_and_reads(path)


def test_the_index_of_a_log_in_use_is_stale_and_that_is_no_finding(tmp_path: Path) -> None:
    closed_log(tmp_path)
    log = open_log(DiskFiles(tmp_path))
    fill(log, 1)
    report = look(tmp_path)
    assert (report.segments[-1].index, report.findings) == (State.STALE, [])
    log.close()


def test_a_rewrite_that_was_not_finished_is_a_leftover(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    (path / f"{18:020d}.log.rewrite").write_bytes(b"half")
    assert [(f.kind, f.file) for f in look(path).findings] == [(Kind.LEFTOVER, f"{18:020d}.log.rewrite")]


def test_segments_below_the_start_offset_are_leftovers(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    old = segment(path, 0).read_bytes()
    log = open_log(DiskFiles(path))
    log.delete_prefix(20)
    log.close()
    segment(path, 0).write_bytes(old)
    report = look(path)
    assert [(f.kind, f.offset) for f in report.findings] == [(Kind.LEFTOVER, 0)]
    assert (report.start_offset, report.segments[0].role) == (20, Role.LEFTOVER)
    assert opens_and_reads(path)


# --- rewritten segments -------------------------------------------------------------------------------------


def compacted_log(path: Path) -> Path:
    clock = ManualClock()
    log = open_log(DiskFiles(path), clock)
    fill(log, 100)
    log.close()
    # Larger segments from now on, so that the small ones become one.
    log = open_log(DiskFiles(path), clock, LogSettings())
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    log.close()
    return path


def test_a_compacted_log_is_healthy_and_says_so(tmp_path: Path) -> None:
    report = look(compacted_log(tmp_path))
    assert report.findings == []
    first = report.segments[0]
    assert first.is_compacted
    assert first.header is not None
    assert (first.header.generation, first.base_offset, first.end_offset) == (1, 0, 90)
    assert first.messages < 90


def test_a_merged_segment_is_healthy_and_holds_fewer_frames(tmp_path: Path) -> None:
    log = open_log(DiskFiles(tmp_path))
    fill(log, 100)
    assert merge_small_frames(log, log.segments[1])
    log.close()
    report = look(tmp_path)
    assert report.findings == []
    assert [(s.frames, s.messages) for s in report.segments[:3]] == [(18, 18), (1, 18), (18, 18)]


def test_segments_that_a_rewritten_one_replaces_are_leftovers(tmp_path: Path) -> None:
    old = segment(closed_log(tmp_path / "log"), 36).read_bytes()
    log = open_log(DiskFiles(tmp_path / "log"))
    log_id = log.log_id
    log.close()
    path = tmp_path / "compacted"
    clock = ManualClock()
    log = Log.open(DiskFiles(path), clock=clock, settings=SMALL_SEGMENTS, new_log_id=lambda: log_id)
    fill(log, 100)
    log.close()
    log = open_log(DiskFiles(path), clock, LogSettings())
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    log.close()
    segment(path, 36).write_bytes(old)
    report = look(path)
    assert [(f.kind, f.offset) for f in report.findings] == [(Kind.LEFTOVER, 36)]
    assert opens_and_reads(path)


def test_a_compacted_segment_that_lost_its_end_is_damage(tmp_path: Path) -> None:
    path = compacted_log(tmp_path / "log")
    os.truncate(segment(path, 0), FRAMES_AT)
    (found,) = damage(look(path))
    assert (found.file, found.position) == (segment(path, 0).name, FRAMES_AT)
    assert not opens_and_reads(path)


# --- any damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_what_inspect_calls_damage_is_what_the_log_refuses(tmp_path: Path, seed: int) -> None:
    """One random harm to one file of a log that was closed, killed or compacted."""
    random = Random(seed)
    makers = (lambda: closed_log(tmp_path / "log", 40), lambda: killed_log(tmp_path), lambda: compacted_log(tmp_path))
    path = random.choice(makers)()
    file = random.choice(sorted(file for file in path.iterdir() if file.is_file()))
    size = file.stat().st_size
    harm = random.choice(["flip", "flip", "truncate", "remove", "zero"])
    if harm == "flip":
        flip(file, random.randrange(size))
    elif harm == "truncate":
        os.truncate(file, random.randrange(size))
    elif harm == "remove":
        file.unlink()
    else:
        at = random.randrange(size)
        data = file.read_bytes()
        file.write_bytes((data[:at] + bytes(512) + data[at + 512 :])[:size])
    report = look(path)
    assert report.is_healthy == opens_and_reads(path), f"seed {seed}: {harm} of {file.name}: {report.findings}"


@pytest.mark.parametrize("seed", range(2))
def test_no_power_loss_leaves_what_inspect_calls_damage(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of every recovery of a simulated workload; and the end it foretells is the one recovery finds."""
    looks = Counter[str]()

    def recover_after_a_look(files: Files) -> Recovered | None:
        # A look must not count as an operation that the simulation may cut short.
        report = inspect(files._inner if isinstance(files, FaultyFiles) else files)
        recovered = recover(files)
        if report is not None and recovered is not None and recovered.segments:
            assert damage(report) == []
            assert report.end_offset == recovered.segments[-1].next_offset
            looks.update(kinds(report))
        return recovered

    monkeypatch.setattr("penstock.storage.log.recover", recover_after_a_look)
    run_seed(seed, Counter())
    assert {Kind.TORN_TAIL, Kind.REBUILT} <= set(looks)


# --- one segment, frames, messages --------------------------------------------------------------------------


def test_one_segment_can_be_inspected_alone(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    flip(segment(path, 0), FRAMES_AT + 100)
    flip(segment(path, 36), FRAMES_AT + 100)
    flip(path / f"{36:020d}.index", 70)
    report = look(path, only=36)
    assert [s.base_offset for s in report.segments] == [36]
    assert {found.file for found in report.findings} == {f"{36:020d}.log", f"{36:020d}.index"}


def test_frames_are_listed_with_all_their_header_says(tmp_path: Path) -> None:
    log = open_log(DiskFiles(tmp_path))
    message = Message(b"v", deliver_at=5, priority=1)
    log.append([Frame.of_message(message, now_us=1_000, producer=Producer(7, 2, 30))], leader_epoch=3)
    log.append([frame_of(*[b"abcdef"] * 50, codec=ZSTD)])
    log.sync()
    one, two = [report.as_dict() for report in frames(DiskFiles(tmp_path))]
    assert one == {
        "file": f"{0:020d}.log",
        "position": 64,
        "bytes": two["position"] - 64,
        "checksum": "ok",
        "damage": None,
        "base_offset": 0,
        "count": 1,
        "span": 1,
        "codec": "none",
        "flags": ["delays", "high"],
        "leader_epoch": 3,
        "append_time": "2023-11-14T22:13:20.000000Z",
        "min_timestamp": "1970-01-01T00:00:00.001000Z",
        "max_timestamp": "1970-01-01T00:00:00.001000Z",
        "producer": {"id": 7, "epoch": 2, "sequence": 30},
    }

    assert (two["base_offset"], two["count"], two["codec"], two["producer"]) == (1, 50, "zstd", None)
    log.close()


def test_frames_are_listed_from_an_offset_on_over_segments_and_damage(tmp_path: Path) -> None:
    path = closed_log(tmp_path / "log")
    flip(segment(path, 18), FRAMES_AT + 20)
    flip(segment(path, 18), FRAMES_AT + 224 + 100)
    listed = list(frames(DiskFiles(path), from_offset=17))
    assert [report.offset for report in listed] == list(range(17, 100))
    assert [report.checksum for report in listed[:4]] == ["ok", "bad", "bad", "ok"]
    assert listed[1].piece.frame is None
    assert [report.offset for report in frames(DiskFiles(path), only=36)] == list(range(36, 54))
    assert {report.checksum for report in frames(DiskFiles(path), only=36, verify=False)} == {"unchecked"}


def test_messages_of_a_frame_keep_their_offsets_also_when_compacted(tmp_path: Path) -> None:
    path = compacted_log(tmp_path / "log")
    reports = [message for report in frames(DiskFiles(path)) for message in messages(report.piece.frame)]
    log = open_log(DiskFiles(path))
    assert [report.message.value for report in reports] == values_of(log)
    assert [report.offset for report in reports][-10:] == list(range(90, 100))
    log.close()
