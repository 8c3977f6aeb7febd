"""What recovery makes of files that are not as a crash leaves them: damage is noticed, named and never deleted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.errors import LogCorrupt, PenstockError, SyncFailed, UnknownFormat
from penstock.frame import Frame, stamp
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.segment import SEGMENT_HEADER_BYTES, scan
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from support import fill, frame_of, open_log, values_of


def closed_log(count: int = 100) -> tuple[MemoryDisk, list[bytes]]:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    values = fill(log, count)
    log.close()
    return disk, values


def killed_log(count: int = 100) -> tuple[MemoryDisk, list[bytes]]:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    values = fill(log, count)
    return disk.after_kill(), values


def put_at_the_end(disk: MemoryDisk, tail: bytes) -> None:
    """Behind the last frame, in the place of room that may be there. Frames end at a multiple of 8."""
    active = disk.names[segments_of(disk)[-1]].current
    del active[(len(active.rstrip(b"\0")) + 7) // 8 * 8 :]
    active.extend(tail)


def segments_of(disk: MemoryDisk) -> list[str]:
    return sorted(name for name in disk.names if name.endswith(".log"))


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: bytes(inode.current) for name, inode in disk.names.items()}


def refused(disk: MemoryDisk) -> LogCorrupt:
    """The log is refused, and refusing it removed or changed no segment."""
    before = {name: data for name, data in contents(disk).items() if name.endswith(".log")}
    with pytest.raises(LogCorrupt) as caught:
        open_log(MemoryFiles(disk))
    assert {name: data for name, data in contents(disk).items() if name.endswith(".log")} == before
    assert caught.value.details["file"]
    return caught.value


# --- what a failed sync has left ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_lost_is_not_taken_for_synced_after_a_restart(seed: int) -> None:
    """The operating system shows it until the power fails, and no later sync writes it."""
    disk = MemoryDisk()
    fails = False

    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("Input/output error")) if fails and operation.kind == "sync" else None

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    values = fill(log, 10)
    log.append([frame_of(b"never synced")])
    fails = True
    with pytest.raises(SyncFailed):
        log.sync()
    disk = disk.after_kill()
    log = open_log(MemoryFiles(disk))
    log.append([frame_of(b"acknowledged")])
    log.sync()
    log = open_log(MemoryFiles(disk.after_power_loss(Random(seed))))
    assert values_of(log) == [*values, b"acknowledged"]


# --- the active segment: torn tail or damage ----------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 100, 5000])
@pytest.mark.parametrize(
    ("tail", "torn"), [(b"garbage!" * 50, 400), (b"PNS\x01" + b"\0" * 200, 4), (b"P", 1), (b"\0" * 4096 + b"P", 4097)]
)
def test_a_torn_tail_is_cut_and_noted(tail: bytes, torn: int, room: int) -> None:
    disk, values = killed_log()
    put_at_the_end(disk, tail + bytes(room))
    log = open_log(MemoryFiles(disk))
    assert not log.recovered_cleanly
    assert any(f"cut a torn tail of {torn} bytes" in note for note in log.recovery_notes)
    assert values_of(log) == values
    assert log.append([frame_of(b"next")]).base_offsets == [len(values)]


@pytest.mark.parametrize("room", [1, 7, 4096, 5 << 20])
def test_zeros_behind_the_last_frame_are_room_and_go_without_a_word(room: int) -> None:
    disk, values = killed_log()
    put_at_the_end(disk, bytes(room))
    log = open_log(MemoryFiles(disk))
    assert not log.recovered_cleanly
    assert not any("cut" in note or "torn" in note for note in log.recovery_notes)
    assert len(disk.names[segments_of(disk)[-1]].durable) == log.segments[-1].size
    assert values_of(log) == values
    assert log.append([frame_of(b"next")]).base_offsets == [len(values)]


def test_zeros_where_a_frame_had_been_synced_are_damage() -> None:
    disk, _ = killed_log()
    active = disk.names[segments_of(disk)[-1]].current
    frame_size = len(frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data)
    end = len(active.rstrip(b"\0")) // 8 * 8 + 8
    active[end - frame_size : end] = bytes(frame_size)
    assert refused(disk).details["offset"] == 99


def test_zeros_behind_the_frames_of_a_sealed_segment_are_damage() -> None:
    disk, _ = killed_log()
    sealed = segments_of(disk)[0]
    size = len(disk.names[sealed].current)
    disk.names[sealed].current.extend(bytes(64))
    error = refused(disk)
    assert (error.details["file"], error.details["position"]) == (sealed, size)


def test_a_frame_that_was_written_but_not_synced_is_kept_if_it_is_whole() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 3)
    log.append([frame_of(b"not synced")])
    assert values_of(open_log(MemoryFiles(disk.after_kill())))[-1] == b"not synced"


def test_a_frame_that_was_not_synced_and_is_damaged_is_cut() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    values = fill(log, 3)
    log.append([frame_of(b"not synced")])
    log.append([frame_of(b"nor this one")])
    disk = disk.after_kill()
    disk.names[segments_of(disk)[-1]].current[log.segments[-1].size - 200] ^= 1
    assert values_of(open_log(MemoryFiles(disk))) == values


@pytest.mark.parametrize("frame", [0, 40, 99])
@pytest.mark.parametrize("at", [0, 5, 10, 40, 90, 130])
def test_a_flipped_bit_in_what_had_been_synced_is_damage_even_in_the_last_frame(frame: int, at: int) -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk), settings=LogSettings())
    fill(log, 100)
    position = 64 + frame * len(frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data)
    disk = disk.after_kill()
    disk.names[segments_of(disk)[-1]].current[position + at] ^= 1
    with pytest.raises((LogCorrupt, UnknownFormat)) as caught:
        open_log(MemoryFiles(disk), settings=LogSettings())
    assert caught.value.details["position"] == position


def test_without_the_mark_later_frames_still_vouch_for_earlier_ones() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    for i in range(3):
        log.append([frame_of(b"%d" % i)])
        log.sync()
    disk = disk.after_kill()
    del disk.names["synced"]
    active = disk.names[segments_of(disk)[-1]]
    active.current[64 + 100] ^= 1
    error = refused(disk)
    assert error.details["position"] == 64
    assert error.details["offset"] == 0


def test_an_active_segment_shorter_than_what_had_been_synced_is_damage() -> None:
    for disk, _ in (killed_log(), closed_log()):
        name = segments_of(disk)[-1]
        put_at_the_end(disk, b"")
        size = len(disk.names[name].current)
        frame_size = len(frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data)
        del disk.names[name].current[size - frame_size :]
        assert refused(disk).details["file"] == name


@pytest.mark.parametrize("offset", [0, 1 << 40])
def test_a_frame_inside_a_payload_does_not_vouch_for_anything(offset: int) -> None:
    """Somebody publishes frames as values; the frame that holds them is torn; that is still only a torn tail."""
    stolen = b""
    for synced in range(64, 2000, 200):
        inner = frame_of(b"stolen")
        stolen += stamp(inner, offset + synced, 1, 0, synced, seed=0) + bytes(inner.data[36:])
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk), settings=LogSettings())
    values = fill(log, 2)
    log.append([Frame.of_message(Message(b"12345678" + stolen), now_us=1)])
    disk = disk.after_kill()
    del disk.names[segments_of(disk)[0]].current[log.size - 100 :]
    log = open_log(MemoryFiles(disk), settings=LogSettings())
    assert values_of(log) == values


# --- indexes, mark and manifest -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "flipped", "cut", "empty", "other segment's"])
def test_an_index_that_is_wrong_is_rebuilt_and_noted(suffix: str, harm: str) -> None:
    disk, values = closed_log()
    first, second = segments_of(disk)[:2]
    name = first.replace(".log", suffix)
    if harm == "missing":
        del disk.names[name]
    elif harm == "flipped":
        disk.names[name].current[70] ^= 1
    elif harm == "cut":
        del disk.names[name].current[-4:]
    elif harm == "empty":
        disk.names[name].current.clear()
    else:
        disk.names[name].current[:] = disk.names[second.replace(".log", suffix)].current
    log = open_log(MemoryFiles(disk))
    assert log.recovery_notes == [f"rebuilt the indexes of {first}"]
    assert values_of(log) == values
    assert values_of(log, 5) == values[5:]
    log.close()
    assert open_log(MemoryFiles(disk)).recovery_notes == []


@pytest.mark.parametrize("harm", ["missing", "flipped"])
def test_a_mark_that_is_wrong_is_made_anew_and_noted(harm: str) -> None:
    disk, values = closed_log()
    if harm == "missing":
        del disk.names["synced"]
    else:
        disk.names["synced"].current[30] ^= 1
    log = open_log(MemoryFiles(disk))
    assert log.recovery_notes == ["the mark was missing or damaged and is made anew"]
    assert values_of(log) == values
    log.close()
    assert open_log(MemoryFiles(disk)).recovery_notes == []


def test_a_missing_or_damaged_manifest_is_refused() -> None:
    disk, _ = closed_log()
    manifest = bytes(disk.names["manifest"].current)
    for position in range(4, len(manifest)):
        disk.names["manifest"].current[:] = manifest
        disk.names["manifest"].current[position] ^= 1
        assert refused(disk).details["file"] == "manifest"
    disk.names["manifest"].current[:] = manifest[:-1]
    assert refused(disk).details["file"] == "manifest"
    del disk.names["manifest"]
    assert refused(disk).details["file"] == "manifest"


@pytest.mark.parametrize("name", ["manifest", "segment", "frame"])
def test_files_of_a_later_version_are_refused_and_left_alone(name: str) -> None:
    disk, _ = killed_log()
    inode = disk.names["manifest" if name == "manifest" else segments_of(disk)[-1]]
    inode.current[67 if name == "frame" else 3] = 2
    before = contents(disk)
    with pytest.raises(UnknownFormat):
        open_log(MemoryFiles(disk))
    assert contents(disk) == before


# --- missing, swapped and foreign files ---------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1, 3, -1])
@pytest.mark.parametrize("state", [closed_log, killed_log])
def test_a_missing_segment_is_noticed(state: Callable[[], tuple[MemoryDisk, list[bytes]]], which: int) -> None:
    disk, _ = state()
    assert len(segments_of(disk)) > 4
    missing = segments_of(disk)[which]
    del disk.names[missing]
    assert refused(disk).details["file"] == missing or which == 0


def test_every_segment_missing_is_noticed() -> None:
    disk, _ = closed_log()
    for name in segments_of(disk):
        del disk.names[name]
    refused(disk)


def test_nothing_left_but_the_mark_or_the_manifest_is_noticed() -> None:
    disk, _ = closed_log()
    names = dict(disk.names)
    disk.names = {"manifest": names["manifest"]}
    assert "every segment is missing" in refused(disk).message
    disk.names = {"synced": names["synced"]}
    assert refused(disk).details["file"] == "manifest"
    disk.names = {"synced": names["synced"], "manifest": names["manifest"]}
    disk.names["synced"].current[20] ^= 1
    assert "every segment is missing" in refused(disk).message


def test_the_last_segment_and_the_mark_missing_is_noticed_by_the_index_that_is_left() -> None:
    disk, _ = closed_log()
    last = segments_of(disk)[-1]
    del disk.names[last], disk.names["synced"]
    before = contents(disk)
    assert refused(disk).details["file"] == last
    assert contents(disk) == before


def test_a_log_whose_making_was_cut_short_is_made_anew() -> None:
    steps = 0

    def before(operation: Operation) -> None:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise KeyboardInterrupt

    for stop_at in range(1, 40):
        steps = 0
        disk = MemoryDisk()
        try:
            open_log(FaultyFiles(MemoryFiles(disk), before))
        except KeyboardInterrupt:
            log = open_log(MemoryFiles(disk.after_kill()))
            values = fill(log, 3)
            assert values_of(log) == values
        else:
            assert stop_at > 10
            return
    raise AssertionError("it never ends")


def test_a_start_offset_without_segments_is_noticed() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 50)
    log.delete_prefix(50)
    log.close()
    disk.names = {"manifest": disk.names["manifest"]}
    assert "every segment is missing" in refused(disk).message


def test_a_rewritten_segment_that_was_appended_to_survives_the_loss_of_its_index() -> None:
    """A crash in a truncation may leave a rewritten segment as the last one; it then takes new messages."""
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk), settings=LogSettings())
    fill(log, 10)
    log.roll()
    merge_small_frames(log, log.segments[0])
    fill(log, 5, start=10)
    removed: list[Operation] = []

    def before(operation: Operation) -> None:
        removed.append(operation)
        if operation.kind == "create":
            raise KeyboardInterrupt

    disk = disk.after_kill()
    log = open_log(FaultyFiles(MemoryFiles(disk), before), settings=LogSettings())
    with pytest.raises(KeyboardInterrupt):
        log.truncate(10)
    disk = disk.after_kill()
    log = open_log(MemoryFiles(disk), settings=LogSettings())
    assert segments_of(disk) == ["00000000000000000000.log"]
    values = values_of(log) + fill(log, 10, start=20)
    log.roll()
    log.close()
    for name in [name for name in disk.names if name.endswith("index")]:
        del disk.names[name]
    assert values_of(open_log(MemoryFiles(disk), settings=LogSettings())) == values


def test_swapped_frames_in_a_sealed_segment_are_noticed_when_they_are_read() -> None:
    disk, _ = closed_log()
    size = len(frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data)
    data = disk.names[segments_of(disk)[0]].current
    data[64 : 64 + size], data[64 + size : 64 + 2 * size] = data[64 + size : 64 + 2 * size], data[64 : 64 + size]
    log = open_log(MemoryFiles(disk))
    with pytest.raises(LogCorrupt, match="offset 0 behind 2"):
        log.read(0)


def test_swapped_segments_are_noticed() -> None:
    disk, _ = closed_log()
    first, second = segments_of(disk)[:2]
    disk.names[first], disk.names[second] = disk.names[second], disk.names[first]
    assert "renamed" in refused(disk).message


def test_a_segment_of_another_log_is_noticed() -> None:
    disk, _ = closed_log()
    other, _ = closed_log()
    name = segments_of(disk)[1]
    disk.names[name] = other.names[name]
    assert "another log" in refused(disk).message


def test_a_sealed_segment_with_a_cut_or_longer_tail_is_noticed() -> None:
    for change in (lambda data: data.extend(b"\0" * 8), lambda data: data.__delitem__(slice(-8, None))):
        disk, _ = closed_log()
        change(disk.names[segments_of(disk)[1]].current)
        assert refused(disk).details["file"] == segments_of(disk)[1]


def test_files_that_are_not_ours_are_left_alone() -> None:
    disk, values = closed_log()
    files = MemoryFiles(disk)
    for name in ("notes.txt", "1.log", "0000000000000000000x.log", "backup.index", "notes.rewrite", "٠" * 20 + ".log"):
        files.open(name, "create").write([b"mine"])
    log = open_log(MemoryFiles(disk))
    assert values_of(log) == values
    assert contents(disk)["1.log"] == b"mine"
    assert {"notes.txt", "1.log", "0000000000000000000x.log", "backup.index"} <= set(disk.names)


# --- what is read at open -----------------------------------------------------------------------------------


def reads_at_open(disk: MemoryDisk) -> dict[str, int]:
    """How often each file is read while the log opens."""
    reads: dict[str, int] = {}

    def before(operation: Operation) -> None:
        if operation.kind == "read":
            reads[operation.name] = reads.get(operation.name, 0) + 1

    open_log(FaultyFiles(MemoryFiles(disk), before))
    return reads


def test_opening_a_closed_log_reads_no_segment_beyond_its_header() -> None:
    disk, _ = closed_log()
    reads = reads_at_open(disk)
    assert {name: times for name, times in reads.items() if name.endswith(".log")} == dict.fromkeys(
        segments_of(disk), 1
    )


def test_opening_a_killed_log_reads_the_last_segment_only() -> None:
    disk, _ = killed_log()
    reads = reads_at_open(disk)
    more_than_header = [name for name, times in reads.items() if name.endswith(".log") and times > 1]
    assert more_than_header == segments_of(disk)[-1:]


# --- a corpus of damage -------------------------------------------------------------------------------------


def varied_log() -> tuple[MemoryDisk, dict[int, bytes | None]]:
    """Every kind of file and frame: plain, compressed, merged, compacted, with a start offset above zero."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(MemoryFiles(disk), clock)
    fill(log, 60)
    log.delete_prefix(20)
    for codec in (1, 2):
        log.append([frame_of(*[b"again and again"] * 30, keys=[b"z%d" % codec] * 30, codec=codec)])
    fill(log, 40, start=100)
    compact(log, now_us=clock.now_us(), tombstone_age_us=10**12)
    fill(log, 60, start=200)
    for segment in log.segments[:-1]:
        merge_small_frames(log, segment)
    fill(log, 5, start=300)
    log.close()
    log = open_log(MemoryFiles(disk), clock)
    rows = dict(checked_rows(log))
    log.close()
    assert len(segments_of(disk)) >= 4
    return disk, rows


def checked_rows(log: Log) -> list[tuple[int, bytes | None]]:
    """Everything in the log, every byte of it checked, as `inspect` does."""
    rows: list[tuple[int, bytes | None]] = []
    files = log._files
    for segment in log.segments:
        file = files.open(segment.name, "read")
        for _, frame in scan(segment, file):
            batch = frame.batch()
            rows += zip(frame.offsets(batch).tolist(), batch.values(), strict=True)
    return rows


def harmed(disk: MemoryDisk, random: Random) -> tuple[MemoryDisk, str]:
    """A copy with one thing wrong, and what."""
    copy = disk.copy()
    # The spare manifest holds nothing: it may be as it likes.
    name = random.choice(sorted(copy.names.keys() - {"manifest.new"}))
    data = copy.names[name].current
    kind = random.choice(("flip", "flip", "flip", "cut", "zero", "missing"))
    if kind == "flip":
        position = random.randrange(len(data))
        data[position] ^= 1 << random.randrange(8)
        return copy, f"bit flipped in {name} at {position}"
    if kind == "cut":
        size = random.randrange(len(data))
        del data[size:]
        return copy, f"{name} cut to {size}"
    if kind == "zero":
        start = random.randrange(len(data))
        zeroed = data[start : start + 512]
        data[start : start + 512] = bytes(len(zeroed))
        if not any(zeroed):
            return harmed(disk, random)
        return copy, f"{name} zeroed at {start}"
    del copy.names[name]
    return copy, f"{name} missing"


def test_no_damage_goes_unnoticed(scale: float, request: pytest.FixtureRequest) -> None:
    """One thing wrong in one file: an error that names it, or a note; and never a wrong or missing message."""
    disk, rows = varied_log()
    only = request.config.getoption("--seed")
    for seed in [only] if only is not None else range(int(300 * scale)):
        copy, harm = harmed(disk, Random(seed))
        hint = f"seed {seed}: {harm}; replay: pytest {__file__} -k unnoticed --seed {seed}"
        segments = {name: data for name, data in contents(copy).items() if name.endswith(".log")}
        try:
            log = open_log(MemoryFiles(copy))
            noted = bool(log.recovery_notes)
            found = dict(checked_rows(log))
        except PenstockError as error:
            assert isinstance(error, LogCorrupt | UnknownFormat), hint
            # What is missing at the front is named by its neighbour: its own name is not known any more.
            assert error.details["file"] in harm or "missing before" in error.message, f"{error.message}; {hint}"
            after = {name: data for name, data in contents(copy).items() if name.endswith(".log")}
            assert after == segments, f"a refused log was changed; {hint}"
            continue
        assert noted, f"not noticed; {hint}"
        assert found == rows, hint


def test_a_header_is_as_long_as_it_says() -> None:
    disk, _ = closed_log(1)
    assert len(disk.names[segments_of(disk)[0]].current) == SEGMENT_HEADER_BYTES + len(
        frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data
    )
