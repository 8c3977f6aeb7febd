"""Power is lost at every storage operation of a replica, and whatever its disk kept, it finds its place again.

Three logs copy each other as `tests/replicas.py` has them. Ahead of every operation on the disk of one of them, that
disk is kept, and from each kept disk several power losses are rolled; from some of those, recovery itself is cut short
by another one. Then the log must open, hold every message that was synced, hold under each offset what the leader of
its epoch wrote, know its lineage as its frames have it, and, cut to where its leader agrees, catch up with it.

Replay one seed: pytest tests/simulation/test_replicated_power_loss.py --seed N
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from penstock.errors import LogCorrupt, LogDiverged
from penstock.storage import epochs, reset
from penstock.storage.files import Files
from penstock.storage.log import Log
from penstock.testing import FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from replicas import SETTINGS, Replicas, Row, agree, catch_up, check_lineage, rows_by_offset

STATES = 8_000
STEPS = 40
LOSSES_PER_STATE = 3
# The replica whose disk loses power.
OURS = 0

Rows = dict[int, tuple[int, Row]]


class PowerLoss(BaseException):
    """Not an error of ours: nothing may catch it."""


@dataclass
class Expected:
    """What our log must hold if the power is lost now. A reset leaves all of it, or a log that begins there."""

    must: Rows
    end_offset: int
    reset_to: int | None = None
    reset_from: int = 0


@dataclass
class Moment:
    disk: MemoryDisk
    expected: Expected
    leader: MemoryDisk
    operation: Operation
    during: str


class Crashing(Replicas):
    """Tells ahead of every operation of ours what must be there."""

    def __init__(self, seed: int) -> None:
        self.moments: list[Moment] = []
        self.expected = Expected({}, 0)
        self.doing = "open"
        self.theirs = MemoryDisk()
        super().__init__(seed, files=self._faulty, compacts=seed % 2 == 0)
        self.theirs = self.disks[self.leader].copy()

    def _faulty(self, number: int) -> Files:
        files = MemoryFiles(self.disks[number])
        return FaultyFiles(files, before=self.keep) if number == OURS else files

    def keep(self, operation: Operation) -> None:
        if operation.kind not in ("read", "open"):
            self.moments.append(Moment(self.disks[OURS].copy(), self.expected, self.theirs, operation, self.doing))

    @property
    def ours(self) -> Log:
        return self.logs[OURS]

    def run(self) -> list[Moment]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("truncate", "delete_prefix", "reset"):
                patch.setattr(Log, name, self._announced(getattr(Log, name), getattr(self, f"before_{name}")))
            self.elect()
            for _ in range(STEPS):
                self.settle()
                self.theirs = self.disks[self.leader].copy()
                # While we lead there is nobody to catch up with.
                if self.leader == OURS:
                    self.theirs = MemoryDisk()
                self.step()
        return self.moments

    def settle(self) -> None:
        """After each step, all that was synced must stay."""
        rows, synced = rows_by_offset(self.ours), self.ours.synced_offset
        self.expected = Expected({offset: row for offset, row in rows.items() if offset < synced}, synced)

    def compact(self) -> None:
        # Whatever has a key may go at any point of it.
        must = {offset: row for offset, row in self.expected.must.items() if row[1][0] is None}
        self.expected = Expected(must, self.expected.end_offset)
        super().compact()

    def begin_anew(self) -> None:
        """Anywhere; the leader knows better."""
        if self.leader != OURS:
            self.ours.reset(self.random.randint(0, self.ours.end_offset + 20))
            agree(self.ours, self.logs[self.leader])

    STEPS = (*Replicas.STEPS, "begin_anew")

    def _announced(self, original: Callable[..., None], announce: Callable[[int], None]) -> Callable[..., None]:
        def wrapped(one: Log, offset: int, **options: object) -> None:
            if len(self.logs) > OURS and one is self.ours:
                # What was synced on the way is not known here; what was before it is.
                announce(offset)
            original(one, offset, **options)
            if len(self.logs) > OURS and one is self.ours:
                self.settle()

        return wrapped

    def before_truncate(self, offset: int) -> None:
        must = {at: row for at, row in self.expected.must.items() if at < offset}
        self.expected = Expected(must, min(offset, self.expected.end_offset))
        self.doing = "truncate"

    def before_delete_prefix(self, offset: int) -> None:
        must = {at: row for at, row in self.expected.must.items() if at >= offset}
        self.expected = Expected(must, self.expected.end_offset)
        self.doing = "delete_prefix"

    def before_reset(self, offset: int) -> None:
        self.settle()
        self.expected.reset_to, self.expected.reset_from = offset, self.ours.start_offset
        self.doing = "reset"


def open_log(files: Files) -> Log:
    return Log.open(files, clock=ManualClock(), settings=SETTINGS, new_log_id=lambda: bytes([OURS] * 16))


def check(moment: Moment, disk: MemoryDisk, written: dict[tuple[int, int], Row]) -> None:
    found = open_log(MemoryFiles(disk))
    rows, expected = rows_by_offset(found), moment.expected
    for offset, (epoch, row) in rows.items():
        assert written.get((epoch, offset)) == row, f"phantom: offset {offset} of epoch {epoch} holds {row}"
    check_lineage(found)
    if (found.start_offset, found.end_offset) != (expected.reset_to, expected.reset_to):
        assert expected.reset_to is None or found.start_offset == expected.reset_from, "reset in part"
        for offset, wanted in expected.must.items():
            if offset >= found.start_offset:
                assert rows.get(offset) == wanted, f"lost: offset {offset}, found {rows.get(offset)}"
        assert found.end_offset >= expected.end_offset, f"ends at {found.end_offset}, had {expected.end_offset}"
    if moment.leader.names:
        leader = Log.open(MemoryFiles(moment.leader.after_kill()), clock=ManualClock(), settings=SETTINGS)
        catch_up(found, leader)
        assert found.end_offset == leader.end_offset
        theirs = rows_by_offset(leader)
        for offset, row in rows_by_offset(found).items():
            assert theirs.get(offset, row) == row, f"diverged: offset {offset}"
    else:
        epoch = found.last_epoch + 1
        assert found.append_epoch_start(epoch) >= expected.end_offset or expected.reset_to is not None
        found.sync()
    check_lineage(found)
    lineage, end = found.lineage, found.end_offset
    found.close()
    again = open_log(MemoryFiles(disk))
    assert (again.lineage, again.end_offset) == (lineage, end), "not the same after a clean end"


def cut_recovery_short(disk: MemoryDisk, random: Random) -> MemoryDisk:
    """The disk after a power loss at some operation of recovery; or after recovery, if it was quicker."""
    left = random.randint(0, 12)

    def before(operation: Operation) -> None:
        nonlocal left
        left -= operation.kind not in ("read", "open")
        if left < 0:
            raise PowerLoss

    try:
        open_log(FaultyFiles(MemoryFiles(disk), before))
    except PowerLoss:
        pass
    return disk.after_power_loss(random)


def run_seed(seed: int, seen: Counter[str]) -> int:
    random = Random(seed)
    states = 0
    crashing = Crashing(seed)
    for moment in crashing.run():
        for loss in range(LOSSES_PER_STATE):
            disk = moment.disk.after_kill() if loss == 0 else moment.disk.after_power_loss(random)
            if random.random() < 0.25:
                disk = cut_recovery_short(disk, random)
                seen["recovery cut short"] += 1
            try:
                check(moment, disk, crashing.written)
            except Exception as error:
                place = f"during {moment.during}, ahead of {moment.operation.kind} {moment.operation.name}"
                raise AssertionError(
                    f"seed {seed}, {place}: {error!r}\nreplay: pytest {__file__} --seed {seed}"
                ) from error
            states += 1
        seen[moment.during] += 1
        if moment.operation.name.startswith(epochs.NAME):
            seen["lineage"] += 1
    return states


def test_a_replica_that_loses_power_finds_its_place_again(request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    if only is not None:
        run_seed(only, Counter())
        return
    seen: Counter[str] = Counter()
    states = seed = 0
    while states < STATES * scale:
        states += run_seed(seed, seen)
        seed += 1
    print(f"{states} states from {seed} seeds, crash points by step: {dict(seen)}")
    missing = {"append", "fetch", "elect", "truncate", "delete_prefix", "reset", "lineage", "recovery cut short"} - set(
        seen
    )
    assert not missing, f"no crash point during {missing}"


# --- would it notice? ---------------------------------------------------------------------------------------


def _nothing(*_: object, **__: object) -> None:
    return None


def _mutant_lineage_written_behind_the_frames(patch: pytest.MonkeyPatch) -> None:
    """As if a sync of the frames made the file durable too."""
    original = epochs.write_epochs
    waiting: list[tuple[Files, bytes, epochs.Lineage]] = []

    def settle(one: epochs.Epochs) -> None:
        assert one._begun is not None
        one._take(one._begun, is_written=True)
        while waiting:
            original(*waiting.pop(0))

    patch.setattr(epochs, "write_epochs", lambda *written: waiting.append(written))
    patch.setattr(epochs.Epochs, "settle", settle)
    # What is behind the file is not looked at either.
    patch.setattr(epochs.Epochs, "compare", lambda one: setattr(one, "is_compared", True))


def _mutant_lineage_not_cut_by_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epochs.Epochs, "cut", _nothing)


def _mutant_file_not_written_again_after_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """The entry that was cut off comes back with the frames behind it."""
    original = epochs.Epochs.cut

    def cut(one: epochs.Epochs, end_offset: int) -> None:
        was_written = one.is_written
        original(one, end_offset)
        one.is_written = was_written

    patch.setattr(epochs.Epochs, "cut", cut)
    patch.setattr(epochs.Epochs, "compare", lambda one: setattr(one, "is_compared", True))


def _mutant_epoch_not_begun_in_the_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epochs, "write_epochs", _nothing)
    patch.setattr(epochs.Epochs, "compare", lambda one: setattr(one, "is_compared", True))


def _mutant_reset_without_its_file(patch: pytest.MonkeyPatch) -> None:
    original = reset.carry_out

    def carry_out(files: Files, under_way: reset.Reset) -> object:
        if reset.NAME not in files.names():
            files.open(reset.NAME, "create").close()
        return original(files, under_way)

    patch.setattr(reset, "write_reset", _nothing)
    patch.setattr(reset, "carry_out", carry_out)
    patch.setattr(reset, "read_reset", _nothing)


def _mutant_reset_not_gone_on_with(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reset, "read_reset", _nothing)


def _mutant_name_of_a_reset_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Left by a kill: visible, but not on disk when the segments go."""
    original = MemoryFiles.sync

    def sync(files: MemoryFiles) -> None:
        if hasattr(files, "was_synced"):
            original(files)
        files.was_synced = True  # type: ignore[attr-defined]

    patch.setattr(MemoryFiles, "sync", sync)


MUTANTS = [value for name, value in list(globals().items()) if name.startswith("_mutant_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__.removeprefix("_mutant_"))
def test_the_simulation_catches_a_broken_build(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    # For what it breaks, not because the mutant itself is broken.
    harm = "LogCorrupt|LogDiverged|lost|phantom|diverged|by \\(|no frame begins|no agreement|in part|not the same"
    harm += "|appended before|does not follow|missing|lineage"
    with pytest.raises((AssertionError, LogCorrupt, LogDiverged), match=harm):
        for seed in range(25):
            run_seed(seed, Counter())
