"""A log that tells of messages before they are on disk loses power: it loses only what was not synced, and no offset
that anybody was told of ever names another message.

A seeded workload over a disk in memory: appends that count as told at once, syncs, rolls, changes between `sync_within`
and back, deletions, clean ends and kills. Ahead of every operation on the disk the state is kept; from each, kills and
power losses are rolled, and some recoveries are cut short by another one, or find no room on the disk.

Replay one seed: pytest tests/simulation/test_interval_power_loss.py --seed N
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.batch import Batch
from penstock.errors import DiskFull, LogCorrupt
from penstock.frame import Frame
from penstock.storage.files import Files
from penstock.storage.log import Appended, Log, LogSettings
from penstock.storage.manifest import read_manifest
from penstock.storage.merge import merge_small_frames
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation

STATES = 4_000
SETTINGS = LogSettings(segment_bytes_max=4096)
STEPS = 25
LOSSES_PER_STATE = 4
SECOND_US = 1_000_000


class PowerLoss(BaseException):
    """Not an error of ours: nothing may catch it."""


@dataclass
class Told:
    """What was ever appended, by offset, and which of it must be there if the power is lost now."""

    values: dict[int, bytes | None] = field(default_factory=dict)
    on_disk: set[int] = field(default_factory=set)
    # Somebody may have heard of offsets below this.
    until: int = 0
    start: int = 0

    def copy(self) -> Told:
        return Told(dict(self.values), set(self.on_disk), self.until, self.start)


@dataclass
class Moment:
    disk: MemoryDisk
    told: Told
    operation: Operation
    during: str


class Workload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.told = Told()
        self.moments: list[Moment] = []
        self.during = "open"
        self.count = 0
        self.log = self.open()

    def open(self) -> Log:
        log = open_log(FaultyFiles(MemoryFiles(self.disk), before=self.keep), self.clock)
        log.sync_within(SECOND_US)
        return log

    def keep(self, operation: Operation) -> None:
        if operation.kind not in ("read", "open"):
            self.moments.append(Moment(self.disk.copy(), self.told.copy(), operation, self.during))

    def run(self) -> list[Moment]:
        steps = [self.append] * 8 + [self.sync] * 2 + [self.change] * 2
        steps += [self.roll, self.delete_prefix, self.merge, self.reopen]
        for _ in range(STEPS):
            step = self.random.choice(steps)
            self.during = step.__name__
            step()
            self.clock.advance_us(self.random.choice((0, 1_000, -5_000)))
        self.during = "close"
        self.log.close()
        self.settle()
        self.keep(Operation("end", ""))
        return self.moments

    def settle(self) -> None:
        """Everything so far is on disk, and may have been told."""
        self.told.on_disk = {offset for offset in self.told.values if offset >= self.told.start}
        self.told.until = max(self.told.until, self.log.end_offset)

    def append(self) -> None:
        values = [
            b"%d" % (self.count + i) * self.random.choice((1, 20, 200)) for i in range(self.random.choice((1, 9)))
        ]
        self.count += len(values)
        first = self.log.end_offset
        self.told.values.update({first + i: value for i, value in enumerate(values)})
        segments = len(self.log.segments)
        self.log.append([Frame.of(Batch.from_columns(values, now_us=1))])
        if len(self.log.segments) > segments:
            self.told.on_disk |= {offset for offset in self.told.values if self.told.start <= offset < first}
        self.told.until = max(self.told.until, self.log.committed_offset)

    def sync(self) -> None:
        self.log.sync()
        self.settle()

    def roll(self) -> None:
        self.log.roll()
        self.settle()

    def change(self) -> None:
        self.log.sync_within(self.random.choice((None, SECOND_US)))
        self.settle()

    def delete_prefix(self) -> None:
        self.told.start = offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.told.on_disk = {one for one in self.told.on_disk if one >= offset}
        self.log.delete_prefix(offset)

    def merge(self) -> None:
        for segment in self.log.segments[:-1]:
            merge_small_frames(self.log, segment)

    def reopen(self) -> None:
        if self.random.random() < 0.5:
            self.log.close()
        else:
            self.disk.is_locked = False
        self.log = self.open()
        self.settle()


def open_log(files: Files, clock: ManualClock | None = None) -> Log:
    return Log.open(files, clock=clock or ManualClock(), settings=SETTINGS, new_log_id=lambda: bytes(16))


def read_all(log: Log) -> dict[int, bytes | None]:
    rows: dict[int, bytes | None] = {}
    for frame in log.frames(log.start_offset):
        batch = frame.batch()
        for offset, value in zip(frame.offsets(batch).tolist(), batch.values(), strict=True):
            assert offset not in rows, f"offset {offset} twice"
            if offset >= log.start_offset:
                rows[offset] = value
    assert list(rows) == sorted(rows)
    return rows


def check(disk: MemoryDisk, told: Told, *, is_kill: bool) -> int:
    """How many were lost."""
    log = open_log(MemoryFiles(disk))
    rows = read_all(log)
    for offset, value in rows.items():
        assert told.values.get(offset) == value, f"offset {offset} named another message"
    gone = {offset for offset in told.values if offset >= log.start_offset} - set(rows)
    lost = {offset for offset in gone if offset < told.until}
    assert not lost & told.on_disk, f"lost although it had been synced: {sorted(lost & told.on_disk)}"
    assert not (is_kill and lost), f"lost by a kill: {sorted(lost)}"
    assert not gone or min(gone) > max(rows, default=-1), f"lost from the middle: {sorted(gone)}"
    assert log.end_offset >= told.until, f"ends at {log.end_offset}, and had told of {told.until}"
    log.sync_within(SECOND_US)
    (offset,) = log.append([Frame.of(Batch.from_columns([b"after"], now_us=1))]).base_offsets
    assert offset >= told.until
    rows[offset] = b"after"
    assert read_all(log) == rows
    log.close()
    again = open_log(MemoryFiles(disk))
    assert again.recovered_cleanly
    assert again.end_offset == offset + 1, "a clean end leaves a hole"
    assert read_all(again) == rows
    return len(lost)


def cut_recovery_short(disk: MemoryDisk, random: Random) -> MemoryDisk:
    left = random.randint(0, 20)

    def before(operation: Operation) -> None:
        nonlocal left
        left -= operation.kind not in ("read", "open")
        if left < 0:
            raise PowerLoss

    try:
        open_log(FaultyFiles(MemoryFiles(disk), before)).sync_within(None if random.random() < 0.5 else SECOND_US)
    except PowerLoss:
        pass
    return disk.after_power_loss(random)


def recover_without_room(disk: MemoryDisk, told: Told, random: Random) -> MemoryDisk:
    """What is left after a life that began on a full disk. In some there is room again later."""
    is_full = True

    def before(operation: Operation) -> Fault | None:
        is_it = is_full and operation.name.endswith(".log") and operation.kind in ("write", "write_at")
        return Fault(DiskFull("no space left"), written=random.choice((0, 8, 100))) if is_it else None

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    log.sync_within(random.choice((None, SECOND_US)))
    assert log.end_offset >= told.until, f"ends at {log.end_offset}, and had told of {told.until}"
    rows = read_all(log)
    for offset, value in rows.items():
        assert told.values.get(offset) == value, f"offset {offset} named another message"
    lost = {offset for offset in told.on_disk if offset >= log.start_offset} - set(rows)
    assert not lost, f"lost although it had been synced: {sorted(lost)}"
    # What is lost by now stays lost.
    told.values, told.on_disk, told.until = dict(rows), set(rows), log.end_offset
    frame = Frame.of(Batch.from_columns([b"more"], now_us=1))
    with pytest.raises(DiskFull):
        log.append([frame])
    if random.random() < 0.5:
        is_full = False
        if random.random() < 0.5:
            log.roll()
        (offset,) = log.append([frame]).base_offsets
        assert offset == told.until, f"{offset} given out, and had told of {told.until}"
        told.values[offset] = b"more"
        told.until = log.committed_offset
    if random.random() < 0.5:
        log.close()
        told.on_disk = set(told.values)
    return disk.after_kill() if random.random() < 0.5 else disk.after_power_loss(random)


def has_reserved(disk: MemoryDisk) -> bool:
    manifest = read_manifest(MemoryFiles(disk))
    return manifest is not None and manifest.reserved > 0


def run_seed(seed: int, seen: Counter[str]) -> int:
    random = Random(seed)
    states = 0
    for moment in Workload(seed).run():
        for loss in range(LOSSES_PER_STATE):
            disk = moment.disk.after_kill() if loss == 0 else moment.disk.after_power_loss(random)
            is_kill, told = loss == 0, moment.told
            if random.random() < 0.25:
                disk, is_kill = cut_recovery_short(disk, random), False
                seen["recovery cut short"] += 1
            try:
                if random.random() < 0.25 and has_reserved(disk):
                    told = told.copy()
                    disk, is_kill = recover_without_room(disk, told, random), False
                    seen["no room"] += 1
                seen["lost"] += check(disk, told, is_kill=is_kill)
            except Exception as error:
                place = f"during {moment.during}, ahead of {moment.operation.kind} {moment.operation.name}"
                raise AssertionError(
                    f"seed {seed}, {place}: {error!r}\nreplay: pytest {__file__} --seed {seed}"
                ) from error
            states += 1
        seen[moment.during] += 1
    return states


def test_a_power_loss_takes_only_what_was_not_synced_and_no_offset_is_given_out_twice(
    request: pytest.FixtureRequest, scale: float
) -> None:
    only = request.config.getoption("--seed")
    if only is not None:
        run_seed(only, Counter())
        return
    seen: Counter[str] = Counter()
    states = seed = 0
    while states < STATES * scale:
        states += run_seed(seed, seen)
        seed += 1
    print(f"{states} states from {seed} seeds: {dict(seen)}")
    missing = {"append", "sync", "roll", "change", "delete_prefix", "merge", "reopen"} - set(seen)
    assert not missing, f"no crash point during {missing}"
    assert seen["lost"] > 0, "the power losses took nothing"
    assert seen["no room"] > 0, "no start found a full disk"


# --- would it notice? ---------------------------------------------------------------------------------------


def _mutant_nothing_reserved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_reserve", lambda log, end_offset: None)


def _mutant_reserved_offsets_given_out_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_skip_reserved", lambda log: None)


def _mutant_released_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync_within(log: Log, time_us: int | None) -> None:
        log._sync_within_us = time_us
        if time_us is None:
            log._write_manifest(log._manifest._replace(reserved=0))
        log.sync()

    patch.setattr(Log, "sync_within", sync_within)


def _mutant_not_synced_before_a_change(patch: pytest.MonkeyPatch) -> None:
    def sync_within(log: Log, time_us: int | None) -> None:
        log._sync_within_us = time_us

    patch.setattr(Log, "sync_within", sync_within)


def _mutant_an_unwritten_hole_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_release_reserved", lambda log: log._write_manifest(log._manifest._replace(reserved=0)))


def _mutant_an_unwritten_hole_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def append(log: Log, frames: list[Frame], spans: list[int], leader_epoch: int) -> Appended:
        if frames and log._hole_end:
            log._hole_end = 0
            log._note_synced()
        return real(log, frames, spans, leader_epoch)

    real = Log._append
    patch.setattr(Log, "_append", append)


MUTANTS = [value for name, value in list(globals().items()) if name.startswith("_mutant_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__.removeprefix("_mutant_"))
def test_the_simulation_catches_a_broken_build(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, LogCorrupt), match=r"named another|lost|had told of"):
        for seed in range(25):
            run_seed(seed, Counter())
