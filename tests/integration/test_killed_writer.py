"""Real processes, killed for real, on a real disk: what was acknowledged is there, in order, once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log, LogSettings
from support import rows_of

WRITER = Path(__file__).with_name("writer.py")
KILLS_AT_RANDOM = 40
KILLS_AT_A_SYNC = 20


def start(
    directory: Path, run: str, *more: str, strace: str | None = None, by_the_kernel: bool = False
) -> subprocess.Popen[bytes]:
    """`by_the_kernel`: what is little is synced as in ADR 21."""
    command = [sys.executable, str(WRITER), str(directory), run, *more]
    if strace is not None:
        program = shutil.which("strace")
        assert program, "strace is missing; `make setup` installs it"
        call = strace.split(":")[0]
        command = [program, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={strace}", *command]
    environment = {**os.environ, "SYNCS": "1"} if by_the_kernel else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What it said; a line cut short by the kill was not said."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            if line.endswith(b"\n"):
                yield json.loads(line)


class History:
    """What was tried and what was acknowledged, over all runs on one log."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, str] = {}

    def hear(self, line: dict[str, Any]) -> None:
        if "ok" in line:
            assert self.acknowledged.setdefault(line["offset"], line["ok"]) == line["ok"], "an offset given out twice"

    def check(self, directory: Path) -> None:
        log = Log.open(DiskFiles(directory), clock=SystemClock(), settings=LogSettings(segment_bytes_max=64 << 10))
        values = {row.offset: (row.value or b"").decode().strip() for row in rows_of(log, bytes_max=1 << 20)}
        log.close()
        assert list(values) == list(range(len(values))), "offsets have gaps"
        lost = {offset: value for offset, value in self.acknowledged.items() if values.get(offset) != value}
        assert not lost, f"acknowledged, but not there: {lost}"
        assert len(set(values.values())) == len(values), "a message is there twice"
        by_task: dict[str, list[int]] = {}
        for value in values.values():
            task, _, number = value.rpartition("-")
            by_task.setdefault(task, []).append(int(number))
        assert all(numbers == sorted(numbers) for numbers in by_task.values()), "a task's messages are out of order"


def test_a_writer_killed_at_any_time_loses_nothing_it_acknowledged(tmp_path: Path, scale: float) -> None:
    random = Random(7)
    history = History()
    for run in range(int(KILLS_AT_RANDOM * scale)):
        process = start(tmp_path / "log", f"r{run}", by_the_kernel=run % 2 == 0)
        kill_after = random.choice((0, 1, 20, 200, 1000, 2000))
        for heard, line in enumerate(lines_of(process)):
            assert "stopped" not in line, line
            history.hear(line)
            if heard == kill_after:
                process.kill()
        assert process.wait() == -9
        if run % 5 == 0:
            history.check(tmp_path / "log")
    history.check(tmp_path / "log")
    assert len(history.acknowledged) > 5_000 * scale


def test_a_writer_killed_at_its_nth_sync_loses_nothing_it_acknowledged(tmp_path: Path, scale: float) -> None:
    random = Random(8)
    history = History()
    for run in range(int(KILLS_AT_A_SYNC * scale)):
        at, by_the_kernel = random.randint(1, 40), run % 2 == 0
        call = "io_submit" if by_the_kernel else "fdatasync"
        process = start(
            tmp_path / "log", f"s{run}", strace=f"{call}:signal=KILL:when={at}", by_the_kernel=by_the_kernel
        )
        for line in lines_of(process):
            history.hear(line)
        assert process.wait() == -9
        if run % 5 == 0:
            history.check(tmp_path / "log")
    history.check(tmp_path / "log")
    assert history.acknowledged


@pytest.mark.parametrize("at", [4, 5, 9, 23])
def test_a_failed_sync_stops_the_process_and_the_next_start_needs_no_help(tmp_path: Path, at: int) -> None:
    history = History()
    # It fails once and would "succeed" from then on, as Linux does.
    process = start(tmp_path / "log", "a", strace=f"fdatasync:error=EIO:when={at}")
    lines = list(lines_of(process))
    for line in lines:
        history.hear(line)
    assert process.wait() == 70
    assert lines[-1] == {"stopped": "sync_failed"}
    history.check(tmp_path / "log")
    again = start(tmp_path / "log", "b", "5")
    for line in lines_of(again):
        history.hear(line)
    assert again.wait() == 0
    history.check(tmp_path / "log")


@pytest.mark.parametrize("error", ["EAGAIN", "EINVAL"])
def test_a_kernel_that_takes_no_syncs_for_a_while_or_none_any_more_costs_nobody_a_message(
    tmp_path: Path, error: str
) -> None:
    history = History()
    inject = f"io_submit:error={error}:when=5..9"
    process = start(tmp_path / "log", "a", "40", "no", strace=inject, by_the_kernel=True)
    for line in lines_of(process):
        history.hear(line)
    assert process.wait() == 0
    history.check(tmp_path / "log")
    assert len(history.acknowledged) == 16 * 40


def test_a_full_disk_refuses_publishes_until_there_is_room_and_loses_nothing(tmp_path: Path) -> None:
    history = History()
    process = start(tmp_path / "log", "a", "40", "no", strace="pwritev,pwritev2:error=ENOSPC:when=10..14")
    failed = []
    for line in lines_of(process):
        history.hear(line)
        if "failed" in line:
            assert line["failed"] == "disk_full"
            failed.append(line["value"])
    assert process.wait() == 0
    assert failed
    history.check(tmp_path / "log")
    assert not set(failed) & set(history.acknowledged.values())


def in_small_file_system(mount: Path, script: str) -> subprocess.Popen[bytes]:
    """Runs a shell script with a tmpfs of 1 MiB at `mount`, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    assert unshare, "unshare is missing; it comes with util-linux"
    mount.mkdir()
    script = f"mount -t tmpfs -o size=1m tmpfs {mount} && {script}"
    return subprocess.Popen([unshare, "--map-root-user", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)


def test_a_file_system_that_is_really_full_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Here a write comes back short before it fails."""
    small, kept = tmp_path / "small", tmp_path / "kept"
    write = f"{sys.executable} {WRITER} {small}/log a 400 no"
    process = in_small_file_system(small, f"{{ {write}; cp -r {small}/log {kept}; }}")
    history = History()
    codes = set()
    for line in lines_of(process):
        history.hear(line)
        if "failed" in line:
            codes.add(line["failed"])
    process.wait()
    assert codes == {"disk_full"}
    assert len(history.acknowledged) > 1000
    history.check(kept)


def test_a_read_only_file_system_is_refused_whether_there_is_a_log_or_not(tmp_path: Path) -> None:
    small = tmp_path / "small"
    write = f"{sys.executable} {WRITER} {small}"
    process = in_small_file_system(
        small,
        f"{write}/log a 1 no >/dev/null && mount -o remount,ro {small} && {{ {write}/log b 1; {write}/new c 1; }}",
    )
    assert list(lines_of(process)) == [{"stopped": "storage_read_only"}] * 2
    assert process.wait() == 1


def test_a_second_process_is_refused_while_the_first_has_the_log(tmp_path: Path) -> None:
    first = start(tmp_path / "log", "a")
    lines = lines_of(first)
    assert "opened" in next(lines)
    second = start(tmp_path / "log", "b", "1")
    assert list(lines_of(second)) == [{"stopped": "directory_locked"}]
    assert second.wait() == 1
    assert "ok" in next(lines)
    first.kill()
    for _ in lines:
        pass
    first.wait()
    third = start(tmp_path / "log", "c", "1")
    assert [list(line) for line in lines_of(third)] == [["opened"], *[["ok", "offset"]] * 16]
    assert third.wait() == 0
