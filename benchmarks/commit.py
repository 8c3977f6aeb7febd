"""What does group commit gain over one fsync for each message?

Messages of 100 B, each on disk before its appender goes on: 1, 8 and 64 tasks of one event loop over `Journal`, each
awaiting its commit before the next. They hand in a message, which the journal frames together with its neighbours,
or a frame of one message that they made; either is part of the work. Two baselines pay one fdatasync a message:
os.write of the bytes of a frame, made before, and Log.append with Log.sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import product
from statistics import median

import harness
from harness import Figure, Run, info
from penstock.broker.disk import Disk
from penstock.broker.journal import Journal
from penstock.clock import SystemClock
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.log import Log

try:
    import uvloop
except ImportError:
    uvloop = None

APPENDERS = (1, 8, 64)
Loop = Callable[[], asyncio.AbstractEventLoop]
Make = Callable[[], Frame | Message]
VALUE = harness.values(1)[0]
CLOCK = SystemClock()


def a_message() -> Message:
    return Message(VALUE)


def a_frame() -> Frame:
    return Frame.of_message(Message(VALUE), now_us=CLOCK.now_us())


def commit(run: Run, loop: Loop, make: Make, appenders: int, messages: int) -> float:
    """Seconds for each message."""
    with run.folder() as path, ThreadPoolExecutor(1) as executor:
        log = harness.open_log(path)
        with asyncio.Runner(loop_factory=loop) as runner:
            spent = runner.run(_closed_loop(log, executor, make, appenders, messages))
        assert log.synced_offset == messages
        log.close()
    return spent / messages


async def _closed_loop(log: Log, executor: Executor, make: Make, appenders: int, messages: int) -> float:
    loop = asyncio.get_running_loop()
    journal = Journal(log, clock=CLOCK, disk=Disk(executor), loop=loop)
    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for _ in range(appenders):
            group.create_task(_appender(journal, make, messages // appenders))
    return loop.time() - started


async def _appender(journal: Journal, make: Make, messages: int) -> None:
    for _ in range(messages):
        await journal.commit(make())


def append_and_sync(run: Run, frame: Frame, messages: int) -> float:
    with run.folder() as path:
        log = harness.open_log(path)
        spent = harness.seconds(partial(_append_and_sync_each, log, frame, messages))
        log.close()
    return spent


def _append_and_sync_each(log: Log, frame: Frame, messages: int) -> None:
    for _ in range(messages):
        log.append([frame])
        log.sync()


def measure(run: Run) -> Iterator[Figure]:
    loops: dict[str, Loop] = {"asyncio": asyncio.SelectorEventLoop}
    if uvloop is not None:
        loops["uvloop"] = uvloop.new_event_loop
    frame = a_frame()
    alone = run.pick(1_000, 50)
    counts = {1: alone, 8: 4 * alone, 64: run.pick(200, 2) * 64}
    contenders: dict[str, harness.Contender] = {
        "raw": lambda: harness.write_raw(run.directory / "raw", [[frame.data]] * alone) / alone,
        "log": lambda: append_and_sync(run, frame, alone) / alone,
    }
    names = []
    for appenders, (loop, factory), (made, make) in product(
        APPENDERS, loops.items(), (("messages", a_message), ("frames", a_frame))
    ):
        name = f"{appenders} × {made} on {loop}"
        contenders[name] = partial(commit, run, factory, make, appenders, counts[appenders])
        names.append(name)
    taken = harness.interleave(run.rounds, contenders)
    for name in names:
        yield from compared(name, taken[name], taken["raw"], taken["log"])
    yield info("os.write + fdatasync for each message", 1 / median(taken["raw"]), "messages/s")
    yield info("os.write + fdatasync: slowest round / fastest", harness.unrest(taken["raw"]), "×")
    yield info("Log.append + Log.sync for each message", 1 / median(taken["log"]), "messages/s")


def compared(name: str, ours: list[float], raw: list[float], log: list[float]) -> Iterator[Figure]:
    over_raw = f"{name} / os.write + fdatasync"
    # The broker runs on uvloop, and takes single messages as messages.
    if name == "64 × messages on uvloop":
        yield harness.at_least(over_raw, harness.ratio(raw, ours), "×", 10)
    else:
        yield info(over_raw, harness.ratio(raw, ours), "×")
    yield info(f"{name} / Log.append + Log.sync", harness.ratio(log, ours), "×")
    yield info(name, 1 / median(ours), "messages/s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=11)
