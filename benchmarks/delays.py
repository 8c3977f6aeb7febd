"""What do a million delayed messages cost, and how late do they come?

In one process, messages of 100 B in frames of 1,000, one partition. Publishing is beside that of the same messages
without delays. Memory is that of a fresh process, with the messages pending minus without delays. Lateness is from the
due time of a message to the moment it is in the hands of a consumer that waits for it: once by a virtual clock that
moves a millisecond at a time, once in real time, with a million pending of which 20,000 become due within ten seconds.

Then the same through a broker process and a client over TCP: a million scheduled with `send_batch`, and 10,000 that
become due within five seconds while a blocking consumer waits for them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import uvloop

import harness
import penstock
from harness import Figure, HandClock, Run, info
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.group import Handed
from penstock.clock import Clock, SystemClock
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.storage.files import DiskFiles
from serving import broker

A_FRAME = 1_000
UNDER_WAY = 16
HOUR_US = 3_600_000_000
_PROCESSES = multiprocessing.get_context("spawn")


def frames(count: int, first_us: int, within_us: int) -> list[Frame]:
    """Each with times of its own, drawn from [first, first + within); without delays if `within_us` is 0."""
    values = harness.values(A_FRAME)
    dice = np.random.default_rng(harness.SEED)
    made = []
    for _ in range(count):
        times = dice.integers(first_us, first_us + within_us, A_FRAME) if within_us else None
        made.append(Frame.of(Batch.from_columns(values, deliver_at=times, now_us=1)))
    return made


async def publish(broker: Broker, some: list[Frame]) -> float:
    topic = broker.topic("t")
    loop = asyncio.get_running_loop()
    started = loop.time()
    for at in range(0, len(some), UNDER_WAY):
        await asyncio.gather(*[topic.publish_frame(frame, 0) for frame in some[at : at + UNDER_WAY]])
    return loop.time() - started


async def opened(path: Path, executor: ThreadPoolExecutor, clock: Clock) -> Broker:
    return await Broker.open(DiskFiles(path), clock=clock, executor=executor)


async def _publishing(path: Path, count: int, within_us: int) -> float:
    with ThreadPoolExecutor(2) as executor:
        broker = await opened(path, executor, SystemClock())
        await broker.create_topic("t", 1)
        spent = await publish(broker, frames(count, SystemClock().now_us() + HOUR_US, within_us))
        await broker.close()
    return spent


def publishing(run: Run, count: int, within_us: int) -> float:
    with run.folder() as path:
        return uvloop.run(_publishing(path, count, within_us))


# --- memory -------------------------------------------------------------------------------------------------


def _resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def tell_memory(path: Path, count: int, within_us: int, parent: Connection) -> None:
    parent.send(uvloop.run(_pending(path, count, within_us)))


async def _pending(path: Path, count: int, within_us: int) -> int:
    with ThreadPoolExecutor(2) as executor:
        broker = await opened(path, executor, SystemClock())
        await broker.create_topic("t", 1)
        for _ in range(0, count, UNDER_WAY):
            await publish(broker, frames(UNDER_WAY, SystemClock().now_us() + HOUR_US, within_us))
        held = _resident()
        await broker.close()
        return held


def memory(run: Run, count: int, within_us: int) -> float:
    with run.folder() as path:
        parent, child = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=tell_memory, args=(path, count, within_us, child))
        process.start()
        held: int = parent.recv()
        process.join()
        return held / MIB


# --- starting again -----------------------------------------------------------------------------------------


async def _starting(path: Path, count: int) -> dict[str, float]:
    """Seconds to open with all of them pending: after a clean end, and after a kill."""
    loop = asyncio.get_running_loop()
    taken = {}
    killed = path.with_name(path.name + "-killed")
    with ThreadPoolExecutor(2) as executor:
        broker = await opened(path, executor, SystemClock())
        await broker.create_topic("t", 1)
        await publish(broker, frames(count, SystemClock().now_us() + HOUR_US, 24 * HOUR_US))
        shutil.copytree(path, killed)
        await broker.close()
        for name, where in (("clean", path), ("killed", killed)):
            started = loop.time()
            broker = await opened(where, executor, SystemClock())
            taken[name] = loop.time() - started
            assert len(broker.topic("t").partitions[0].groups.delays.pending) == count * A_FRAME
            await broker.close()
    shutil.rmtree(killed)
    return taken


# --- lateness -----------------------------------------------------------------------------------------------


def times_of(handed: Handed) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found = [np.empty(0, np.int64)]
    wanted = np.frombuffer(handed.receipt.offsets.to_array(), np.int64)
    for frame in handed.frames:
        batch = frame.batch(verify=False)
        assert batch.deliver_at is not None
        found.append(batch.deliver_at[np.isin(frame.offsets(batch), wanted)])
    return np.concatenate(found)


async def _late_by_hand(path: Path, count: int) -> list[float]:
    """Milliseconds, by a clock that moves one at a time."""
    clock = HandClock()
    late: list[float] = []
    with ThreadPoolExecutor(2) as executor:
        broker = await opened(path, executor, clock)
        await broker.create_topic("t", 1)
        await broker.create_group("g")
        group = broker.group("g", "t")
        await group.start()
        await publish(broker, frames(count, clock.time_us + 1_000_000, 1_000_000))
        while len(late) < count * A_FRAME:
            clock.time_us += 1_000
            for handed in await group.lease("c", 10_000, bytes_max=64 * MIB):
                late += ((clock.time_us - times_of(handed)) / 1_000).tolist()
                await group.ack(handed.receipt)
        await broker.close()
    return sorted(late)


async def _late(path: Path, count: int, soon: int, within_us: int) -> list[float]:
    clock = SystemClock()
    late: list[float] = []
    with ThreadPoolExecutor(2) as executor:
        broker = await opened(path, executor, clock)
        await broker.create_topic("t", 1)
        await broker.join("g", "c", ["t"])
        # Time to publish them all before the first is due.
        first = clock.now_us() + 2_000_000 + count * 2_000
        await publish(broker, frames(count, first + HOUR_US, 24 * HOUR_US))
        await publish(broker, frames(soon, first, within_us))
        group = broker.group("g", "t")
        acks: set[asyncio.Task[None]] = set()
        while len(late) < soon * A_FRAME:
            polled = await broker.poll("g", "c", ["t"], count=10_000, bytes_max=64 * MIB, wait_us=5_000_000)
            now = clock.now_us()
            for one in polled:
                late += ((now - times_of(one.handed)) / 1_000).tolist()
                acks.add(asyncio.ensure_future(group.ack(one.handed.receipt)))
        await asyncio.gather(*acks)
        await broker.close()
    return sorted(late)


# --- over TCP -----------------------------------------------------------------------------------------------


def over_tcp(run: Run, tables: int, soon: int, within_us: int) -> tuple[float, list[float]]:
    """Seconds to schedule a message, among so many; and milliseconds by which those that are due soon come late."""
    dice, values = np.random.default_rng(harness.SEED), harness.values(10 * A_FRAME)
    kind = pa.timestamp("us", "UTC")
    with broker(run) as running, penstock.connect(running.address) as q:
        q.create_topic("t", partitions=1)
        first = SystemClock().now_us() + HOUR_US
        some = [
            pa.table(
                {"value": values, "deliver_at": pa.array(dice.integers(first, first + HOUR_US, len(values)), kind)}
            )
            for _ in range(tables)
        ]
        with q.producer("t", batch_messages=len(values), batch_bytes=4 * MIB) as producer:
            started = time.perf_counter()
            for table in some:
                producer.send_batch(table, wait=False)
            producer.flush()
            spent = (time.perf_counter() - started) / (tables * len(values))
            first = SystemClock().now_us() + 1_000_000
            dues = dice.integers(first, first + within_us, soon)
            texts = [b"%d" % due for due in dues.tolist()]
            producer.send_batch(pa.table({"value": texts, "deliver_at": pa.array(dues, kind)}))
        late: list[float] = []
        with q.consumer("g", "t", ack_linger="5ms", until_idle="10s") as consumer:
            for message in consumer:
                assert message.value is not None
                late.append((SystemClock().now_us() - int(message.value)) / 1_000)
                message.ack()
                if len(late) == soon:
                    break
    assert len(late) == soon
    return spent, sorted(late)


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(1_000, 16)
    taken = harness.interleave(
        run.rounds,
        {
            "delayed": partial(publishing, run, count, 24 * HOUR_US),
            "plain": partial(publishing, run, count, 0),
        },
    )
    rate = count * A_FRAME / 1e6 / median(taken["delayed"])
    yield harness.at_least("published with delays", rate, "M messages/s", 1)
    yield info("publishing with delays / without", harness.ratio(taken["delayed"], taken["plain"]), "×")
    held = [memory(run, count, 24 * HOUR_US) - memory(run, count, 0) for _ in range(run.pick(3, 1))]
    yield harness.at_most("memory of a million pending", median(held), "MiB", 32)
    starts: dict[str, list[float]] = {"clean": [], "killed": []}
    for _ in range(run.pick(3, 1)):
        with run.folder() as path:
            for name, spent in uvloop.run(_starting(path, count)).items():
                starts[name].append(spent)
    yield harness.at_most("start with a million pending, after a clean end", median(starts["clean"]), "s", 5)
    yield harness.at_most("start with a million pending, after a kill", median(starts["killed"]), "s", 5)
    with run.folder() as path:
        late = uvloop.run(_late_by_hand(path, run.pick(200, 4)))
    yield harness.at_most("p99 lateness by a virtual clock", harness.percentile(late, 0.99), "ms", 20)
    with run.folder() as path:
        late = uvloop.run(_late(path, count, run.pick(20, 2), run.pick(10_000_000, 100_000)))
    assert late[0] >= 0, "early"
    yield harness.at_most("p99 lateness in real time", harness.percentile(late, 0.99), "ms", 20)
    yield info("p99.9 lateness in real time", harness.percentile(late, 0.999), "ms")
    spent, late = over_tcp(run, run.pick(100, 1), run.pick(10_000, 100), run.pick(5_000_000, 200_000))
    assert late[0] >= 0, "early"
    yield info("scheduled over TCP, a million", 1e-3 / spent, "k messages/s")
    yield info("p50 lateness over TCP", harness.percentile(late, 0.5), "ms")
    yield info("p99 lateness over TCP", harness.percentile(late, 0.99), "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
