"""The parts that a simulated machine is made of: jobs and their locks, disks, clocks."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import DiskFull, SyncFailed
from penstock.testing.faulty_files import Fault
from penstock.testing.memory_files import MemoryDisk, MemoryFiles
from simulation.world.clocks import WorldClock, true_us
from simulation.world.disks import Drive, WorldFiles
from simulation.world.executors import WorldExecutor
from simulation.world.guards import guarded
from simulation.world.jobs import WorldLock, WorldRLock, wait_here
from simulation.world.loop import Process, WorldLoop
from simulation.world.network import Network

ROOT = Path(__file__).parents[3]


@pytest.fixture
def loop() -> Iterator[WorldLoop]:
    loop = WorldLoop("parts")
    yield loop
    loop.close()
    # A run goes on without it.
    gc.enable()


def run(loop: WorldLoop, work: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
    process = Process(loop, "one", "one")
    process.default_executor = WorldExecutor(process, 4, Random(1))

    async def main() -> None:
        await process.start(work(process))

    loop.run(main())
    return process


def test_jobs_interleave_where_they_wait_and_not_where_they_have_a_lock(loop: WorldLoop) -> None:
    said: list[str] = []
    lock = WorldLock()

    async def work(process: Process) -> None:
        def job(name: str) -> None:
            said.append(f"{name} begins")
            wait_here(process, 1_000)
            with lock:
                said.append(f"{name} has it")
                wait_here(process, 1_000)
                said.append(f"{name} gives it up")

        await asyncio.gather(*[loop.run_in_executor(None, job, name) for name in "ab"])

    run(loop, work)
    assert sorted(said[:2]) == ["a begins", "b begins"]
    first, second = said[2][0], said[4][0]
    assert said[2:] == [f"{one} {does}" for one in (first, second) for does in ("has it", "gives it up")]


def test_an_event_loop_that_wants_a_lock_of_a_job_gets_it_and_stands_still_for_as_long(loop: WorldLoop) -> None:
    lock = WorldRLock()
    said: list[str] = []

    async def work(process: Process) -> None:
        def job() -> None:
            with lock, lock:
                said.append("has it")
                wait_here(process, 5_000_000)
                said.append("gives it up")
            wait_here(process, 1_000)
            said.append("ends")

        ends = asyncio.ensure_future(loop.run_in_executor(None, job))
        while not said:
            await asyncio.sleep(0.001)
        assert not lock.acquire(blocking=False)
        began_us = loop.now_us
        with lock:
            assert said == ["has it", "gives it up"]
        await asyncio.sleep(0)
        assert loop.now_us - began_us >= 4_990_000
        await ends

    run(loop, work)
    assert said == ["has it", "gives it up", "ends"]


def test_a_job_of_a_process_that_dies_at_a_file_operation_stays_there(loop: WorldLoop) -> None:
    drive, disk, said = Drive(loop, Random(1)), MemoryDisk(), list[str]()
    process = Process(loop, "one", "one")
    executor = WorldExecutor(process, 1, Random(1))

    async def main() -> None:
        files = WorldFiles(MemoryFiles(disk), drive, process)
        file = files.open("a", "create")

        def job() -> None:
            try:
                for _ in range(5):
                    file.write([b"x"])
            finally:
                said.append("ended")

        drive.crash_at(3, process.kill)
        executor.submit(job)
        while not process.is_dead:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)

    loop.run(main())
    assert disk.names["a"].current == b"xx"
    assert said == []


def test_a_stall_ends_late_and_a_full_disk_takes_nothing(loop: WorldLoop) -> None:
    drive, disk = Drive(loop, Random(1)), MemoryDisk()

    async def work(process: Process) -> None:
        file = WorldFiles(MemoryFiles(disk), drive, process).open("a", "create")
        drive.stall(2_000_000)
        began_us = loop.now_us
        await loop.run_in_executor(None, lambda: file.write([b"late"]))
        assert loop.now_us - began_us >= 2_000_000
        drive.is_full = True
        with pytest.raises(DiskFull):
            file.write_at(3, b"more")
        file.write_at(0, b"over")
        drive.is_full = False
        file.write_at(3, b"more")

    run(loop, work)


def test_a_failed_sync_loses_what_it_was_to_sync(loop: WorldLoop) -> None:
    drive, disk = Drive(loop, Random(1)), MemoryDisk()

    async def work(process: Process) -> None:
        files = WorldFiles(MemoryFiles(disk), drive, process)
        file = files.open("a", "create")
        files.sync()
        file.write([b"lost"])
        drive.fail(("sync",), Fault(SyncFailed("Input/output error")))
        with pytest.raises(SyncFailed):
            file.sync()
        file.write([b"kept"])
        file.sync()
        assert file.read_at(0, 8) == b"lostkept"

    run(loop, work)
    assert disk.after_power_loss(Random(1)).names["a"].current == b"\0\0\0\0kept"


def test_timers_go_by_the_clock_of_their_machine(loop: WorldLoop) -> None:
    clock = WorldClock(loop, Random(1))

    async def work(process: Process) -> None:
        process.clock = clock
        clock.drift(1.25)
        began_us, local_us = loop.now_us, clock.monotonic_us()
        await asyncio.sleep(10)
        assert clock.monotonic_us() - local_us >= 10_000_000
        assert 8_000_000 <= loop.now_us - began_us < 8_001_000
        clock.drift(1.0)
        clock.step_us(-60_000_000)
        behind_us, ahead_us = clock.wrong_us
        assert clock.now_us() - true_us(loop) == behind_us
        assert 2_000_000 <= ahead_us < 2_001_000

    run(loop, work)


class Noting(asyncio.Protocol):
    def __init__(self) -> None:
        self.came: list[tuple[float, bytes]] = []
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.came.append((self.loop.time(), data))


def test_a_slow_link_takes_its_time_for_each_byte_and_a_lost_connection_for_ever(loop: WorldLoop) -> None:
    network = loop.network = Network(loop, "parts")
    one, two = Process(loop, "one", "one"), Process(loop, "two", "two")

    async def main() -> None:
        heard = Noting()
        network.listen(two, lambda: heard, "two", 1)
        transport, _ = await one.start(loop.create_connection(asyncio.Protocol, "two", 1))
        network.slow("one", "two", 100_000, 1_000)
        began = loop.time()
        transport.write(bytes(2_000))
        while not heard.came:
            await asyncio.sleep(0.01)
        assert heard.came[0][0] - began >= 2.1
        network.speed_up("one", "two")
        assert network.go_silent("one", "two") == 1
        transport.write(b"never heard of")
        await asyncio.sleep(60)
        assert len(heard.came) == 1
        assert not transport.is_closing()

    loop.run(main())


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.monotonic_ns()",
        "import time; time.sleep(0)",
        "import os; os.getrandom(1)",
        "import os; os.stat('.')",
        "import os; os.listdir('.')",
        "import secrets; secrets.token_hex()",
        "import uuid; uuid.uuid4()",
        "import random; random.sample([1, 2], 1)",
        "import random; random.Random()",
        "import random; random.SystemRandom().random()",
        "import threading; threading.Thread(target=int).start()",
        "import _thread; _thread.start_new_thread(int, ())",
        "from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor(1).submit(int)",
        "import socket; socket.socket().close()",
        "open('nothing', 'w').close()",
    ],
)
def test_a_guard_reports_what_the_program_takes_from_outside(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reports: list[str] = []
    with guarded(reports.append):
        exec(code, {"__name__": "penstock.guarded"})
    assert any("penstock.guarded" in report or "thread" in report for report in reports)


def test_a_guard_lets_a_seeded_generator_pass() -> None:
    reports: list[str] = []
    with guarded(reports.append):
        exec("import random; random.Random(1).random()", {"__name__": "penstock.guarded"})
    assert reports == []


def test_a_salt_changes_the_order_of_a_set_of_objects() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import penstock.clock as c; from simulation.world.guards import salt;"
        "clock = c.SystemClock(); known = hash(clock); assert salt(7) > 0;"
        "assert hash(clock) != known"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
