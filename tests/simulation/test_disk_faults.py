"""Every storage operation fails once: the error is typed, acknowledged messages stay, and the log goes on or stops.

Replay one seed: pytest tests/simulation/test_disk_faults.py --seed N
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from test_power_loss import Workload, check

from penstock.errors import DeviceFailed, DiskFull, Fatal, LogClosed, StorageError, StorageReadOnly, SyncFailed
from penstock.storage.files import Files
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from support import frame_of

RUNS = 700
CHANGING = ("write", "write_at", "create", "rename", "remove", "truncate")


class FaultyWorkload(Workload):
    """One operation fails; the workload goes on as a broker would: retries what may be retried, stops at fatal."""

    def __init__(self, seed: int, fail_at: int, error: StorageError, written: int = 0) -> None:
        self.left = fail_at
        self.fault = Fault(error, written)
        self.fired: Operation | None = None
        self.kinds = ("sync", "sync directory") if isinstance(error, SyncFailed) else CHANGING
        super().__init__(seed)

    def files(self) -> Files:
        return FaultyFiles(MemoryFiles(self.disk), before=self.maybe_fail)

    def maybe_fail(self, operation: Operation) -> Fault | None:
        if operation.kind not in self.kinds or self.fired:
            return None
        self.left -= 1
        if self.left >= 0:
            return None
        self.fired = operation
        return self.fault

    def run_until_it_stops(self) -> bool:
        """False if a fatal error ended it early."""
        steps = [self.append] * 8 + [self.sync] * 4
        steps += [self.roll, self.truncate, self.delete_prefix, self.merge, self.compact, self.retain, self.reopen]
        for _ in range(25):
            step = self.random.choice(steps)
            self.during = step.__name__
            try:
                step()
            except Fatal:
                if self.during != "reopen":
                    with pytest.raises(Fatal):
                        self.log.append([frame_of(b"no more")])
                return False
            except LogClosed:
                # A reopen that failed half-way: somebody tries again.
                self.disk.is_locked = False
                self.log = self.open()
            except StorageError as error:
                assert error is self.fault.error, "an error that nobody caused"
                if self.during == "reopen":
                    self.disk.is_locked = False
                    self.log = self.open()
                    self.settle()
            self.clock.advance_us(1_000)
        return True


def run_seed(seed: int, seen: Counter[str]) -> None:
    random = Random(seed)
    errors: list[StorageError] = [
        DiskFull("no space left"),
        SyncFailed("input/output error"),
        DeviceFailed("input/output error"),
        StorageReadOnly("read-only file system"),
    ]
    error = errors[seed % 4]
    try:
        workload = FaultyWorkload(seed, random.randint(0, 80), error, written=random.choice((0, 1, 100)))
    except StorageError as raised:
        assert raised is error, "an error that nobody caused"
        seen["refused to open"] += 1
        return
    try:
        went_on = workload.run_until_it_stops()
        if workload.fired is None:
            return
        seen[f"{error.code} at {workload.fired.kind}"] += 1
        seen["went on" if went_on else "stopped"] += 1
        if isinstance(error, SyncFailed):
            assert not went_on, f"went on after a failed sync of {workload.fired.name or 'the directory'}"
        check(workload.disk.after_kill(), workload.expected)
        check(workload.disk.after_power_loss(random), workload.expected)
    except Exception as failure:
        raise AssertionError(
            f"seed {seed}, {error.code} at {workload.fired} during {workload.during}: {failure!r}\n"
            f"replay: pytest {__file__} --seed {seed}"
        ) from failure


def test_no_fault_of_the_disk_loses_an_acknowledged_message(request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    for seed in [only] if only is not None else range(int(RUNS * scale)):
        run_seed(seed, seen)
    print(dict(seen))
    if only is None:
        assert sum(n for what, n in seen.items() if what.startswith("sync_failed")) >= 50 * min(scale, 1)
        assert sum(n for what, n in seen.items() if what.startswith("disk_full")) >= 20 * min(scale, 1)
        assert seen["went on"] > 0
        assert seen["stopped"] > 0
