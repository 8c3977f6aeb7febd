"""Does it matter how much lies behind a group, or in front of the message it wants?

In one process, messages of 100 B in frames of 1,000, one partition. A group leases and acknowledges 1,000 at a time,
16 under way, once in a topic with nothing else, and once behind 50 million messages that the same group has
acknowledged, all but the very first. Then: ten million normal messages that a group has not touched, and one of high
priority at the very end; how long a lease of one takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import uvloop
from pyroaring import BitMap64

import harness
from harness import Figure, Run, info
from leases import A_FRAME, UNDER_WAY
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.group import Group
from penstock.broker.settings import GroupSettings
from penstock.clock import SystemClock
from penstock.codec import ZSTD
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.files import DiskFiles

SETTINGS = GroupSettings(visibility_us=3_600_000_000, max_in_flight=1_000_000)


async def publish(broker: Broker, topic: str, frame: Frame, count: int) -> None:
    for at in range(0, count, 64):
        await asyncio.gather(*[broker.topic(topic).publish_frame(frame, 0) for _ in range(min(64, count - at))])


async def drain(group: Group, at_once: int, bytes_max: int = 1 << 20) -> float:
    """Seconds for everything but the first message of the topic, which stays leased."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    answers: list[asyncio.Task[None]] = []
    while handed := await group.lease("c", at_once, bytes_max):
        for receipt, _ in handed:
            offsets = receipt.offsets - BitMap64([0]) if receipt.offsets.min() == 0 else receipt.offsets
            answers.append(asyncio.ensure_future(group.ack(receipt._replace(offsets=offsets))))
        if len(answers) >= UNDER_WAY:
            await asyncio.gather(*answers)
            answers = []
    await asyncio.gather(*answers)
    return loop.time() - started


async def behind(run: Run, path: Path, backlog: int, count: int) -> dict[str, list[float]]:
    frame = Frame.of(Batch.from_columns(harness.values(A_FRAME), now_us=1))
    small = Frame.of(Batch.from_columns([b"x" * 100] * A_FRAME, now_us=1), codec=ZSTD)
    taken: dict[str, list[float]] = {"empty": [], "behind": []}
    with ThreadPoolExecutor(2) as executor:
        broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
        for name in ("empty", "behind"):
            await broker.create_topic(name, 1)
            await broker.create_group(name, SETTINGS)
            await broker.group(name, name).start()
        await publish(broker, "behind", small, backlog)
        await drain(broker.group("behind", "behind"), 10_000)
        for number in range(run.rounds + 1):
            for name in ("empty", "behind") if number % 2 else ("behind", "empty"):
                await publish(broker, name, frame, count)
                spent = await drain(broker.group(name, name), A_FRAME)
                if number:
                    taken[name].append(spent)
        state = broker.topic("behind").partitions[0].groups.state("behind")
        assert (state.floor, state.in_flight) == (0, 1)
        assert len(state.done) >= backlog * A_FRAME - 1
        await broker.close()
    return taken


async def high_among_normal(path: Path, backlog: int, rounds: int) -> list[float]:
    """Milliseconds."""
    small = Frame.of(Batch.from_columns([b"x" * 100] * A_FRAME, now_us=1), codec=ZSTD)
    taken = []
    with ThreadPoolExecutor(2) as executor:
        broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
        topic = await broker.create_topic("t", 1)
        await broker.create_group("g", SETTINGS)
        group = broker.group("g", "t")
        await group.start()
        await publish(broker, "t", small, backlog)
        for number in range(rounds):
            await topic.publish(Message(b"urgent", priority=1))
            started = time.perf_counter()
            (handed,) = await group.lease("c", 1)
            taken.append((time.perf_counter() - started) * 1_000)
            assert handed.receipt.offsets == BitMap64([backlog * A_FRAME + number])
        await broker.close()
    return sorted(taken)


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(400, 16)
    with run.folder() as path:
        taken = uvloop.run(behind(run, path, run.pick(50_000, 64), count))
    messages = count * A_FRAME / 1e6
    yield info("lease and acknowledge, nothing behind", messages / median(taken["empty"]), "M messages/s")
    slower = harness.ratio(taken["behind"], taken["empty"])
    yield harness.at_most("time behind 50 million / with nothing behind", slower, "×", 1.2)
    with run.folder() as path:
        found = uvloop.run(high_among_normal(path, run.pick(10_000, 16), run.pick(200, 20)))
    yield harness.at_most("the high one among ten million, p99", harness.percentile(found, 0.99), "ms", 1)
    yield info("the high one among ten million, median", median(found), "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=7)
