"""What does a queue cost on top of its log?

In one process, messages of 100 B in frames of 1,000, one partition: publishing ready frames through the broker beside
appending them to a log, and leasing and acknowledging 1,000 at a time, every acknowledgement on disk before it is told,
16 under way at once. Everything that happens is written to the deliveries log, as always.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import uvloop

import harness
from harness import Figure, Run, info
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.frame import Frame
from penstock.storage.files import DiskFiles

UNDER_WAY = 16
A_FRAME = 1_000


def through_the_broker(run: Run, frame: Frame, frames: int, taken: dict[str, list[float]]) -> float:
    """Seconds to publish; the time to lease and acknowledge is kept beside it."""
    with run.folder() as path, ThreadPoolExecutor(2) as executor:
        published, leased = uvloop.run(_publish_and_consume(str(path), executor, frame, frames))
    taken["lease and ack"].append(leased)
    return published


async def _publish_and_consume(
    path: str, executor: ThreadPoolExecutor, frame: Frame, frames: int
) -> tuple[float, float]:
    broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
    topic = await broker.create_topic("t", 1)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await _pipelined(partial(topic.publish_frame, frame, 0) for _ in range(frames))
    published = loop.time() - started
    await broker.create_group("g")
    group = broker.group("g", "t")
    started = loop.time()
    answers: list[asyncio.Task[None]] = []
    done = 0
    while handed := await group.lease("c", A_FRAME):
        for receipt, _ in handed:
            done += len(receipt.offsets)
            answers.append(asyncio.ensure_future(group.ack(receipt)))
        if len(answers) >= UNDER_WAY:
            await asyncio.gather(*answers)
            answers = []
    await asyncio.gather(*answers)
    leased = loop.time() - started
    assert done == frames * A_FRAME
    await broker.close()
    return published, leased


async def _pipelined(calls: Iterator[partial[object]]) -> None:
    """The next one starts when the oldest of twice `UNDER_WAY` is done: half of them are written meanwhile."""
    under_way: deque[asyncio.Future[object]] = deque()
    for call in calls:
        if len(under_way) >= 2 * UNDER_WAY:
            await under_way.popleft()
        under_way.append(asyncio.ensure_future(call()))
    await asyncio.gather(*under_way)


def to_the_log(run: Run, frame: Frame, frames: int) -> float:
    """As many frames to a sync as there are under way in the broker."""
    with run.folder() as path:
        log = harness.open_log(path)
        spent = harness.seconds(partial(_append, log, frame, frames))
        log.close()
    return spent


def _append(log: harness.Log, frame: Frame, frames: int) -> None:
    for _ in range(0, frames, UNDER_WAY):
        log.append([frame] * UNDER_WAY)
        log.sync()


def measure(run: Run) -> Iterator[Figure]:
    frame = Frame.of(Batch.from_columns(harness.values(A_FRAME), now_us=1))
    frames = run.pick(1_600, 32)
    leases: dict[str, list[float]] = {"lease and ack": []}
    taken = harness.interleave(
        run.rounds,
        {
            "broker": partial(through_the_broker, run, frame, frames, leases),
            "log": partial(to_the_log, run, frame, frames),
        },
    )
    messages = frames * A_FRAME / 1e6
    yield harness.at_least(
        "publish through the broker / append to a log", harness.ratio(taken["log"], taken["broker"]), "×", 0.8
    )
    yield info("publish through the broker", messages / median(taken["broker"]), "M messages/s")
    rate = messages / median(leases["lease and ack"])
    yield harness.at_least("lease and acknowledge, 1,000 at a time", rate, "M messages/s", 5)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=7)
