"""For how long does one request hold the event loop?

A broker in this process with 20,000 dead letters, 4,000 groups and 2,000 topics, each request by itself, as a client
over TCP sends it. What is measured is the CPU time of the event loop's thread in one callback, so that other processes
do not count: the longest of each request. That of the client, which runs on the same loop, is not told apart.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import harness
from harness import Figure, Run, at_most
from penstock.batch import Batch
from penstock.broker.catalog import GroupRecord
from penstock.broker.group import COUNT_MAX
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings
from penstock.client import requests as r
from penstock.clock import SystemClock
from penstock.codec import CODECS
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.server.gate import Gate
from penstock.server.metrics import rendered
from penstock.server.metrics_broker import of_broker
from penstock.server.native import NativeDoor
from penstock.storage.files import DiskFiles
from penstock.wire.packets import Kind

BAR_MS = 10
LEASED = 5_000


class Longest:
    """CPU time of a callback of the event loop."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        carried_out = asyncio.events.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            carried_out(handle)
            self.seconds = max(self.seconds, time.thread_time() - began)

        asyncio.events.Handle._run = measured  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.events.Handle._run = carried_out  # type: ignore[method-assign]


async def fill(site: LocalTransport, letters: int, groups: int, topics: int) -> None:
    broker = site.broker
    topic = await broker.create_topic("t", 6)
    await asyncio.gather(*[topic.publish(Message(b"%d" % number), number % 6) for number in range(letters)])
    await broker.create_group("g")
    group = broker.group("g", "t")
    await group.start()
    for _ in range(letters):
        some = await group.lease("c", LEASED)
        if not some:
            break
        await asyncio.gather(*[group.reject(receipt, "bad") for receipt, _ in some])
    await broker.settle()
    catalog = broker._catalog
    made = [GroupRecord(f"g{number}", GroupSettings(), 1) for number in range(groups)]
    catalog._change(groups=(*catalog._contents.groups, *made))
    for number in range(groups):
        await asyncio.gather(*[part.groups.start(f"g{number}", 0) for part in topic.partitions])
    for number in range(topics):
        await broker.create_topic(f"t{number}", 1)


async def ask(transport: RemoteTransport, request: r.Request[Any]) -> None:
    """Without decoding the reply: that is the client's."""
    connection = await transport._link.connect()
    await connection.request(Kind.CALL, request)


def large_frames() -> dict[str, Frame]:
    """Of 30 MiB each, compressed to about a tenth."""
    values = [random.Random(number).randbytes(300) + bytes(2_700) for number in range(COUNT_MAX)]
    batch = Batch.from_messages([Message(value) for value in values], 1)
    return {name: Frame.of(batch, codec=CODECS[name]) for name in ("lz4", "zstd")}


async def fill_others(site: LocalTransport, delayed: int, frame: Frame) -> Partition:
    """A topic with large frames and a group on it; a group everywhere; and delayed messages, in the partition that this
    returns."""
    broker = site.broker
    large = await broker.create_topic("large", 1)
    for name in ("large", "cold", "wide"):
        await broker.create_group(name)
    for name in ("large", "cold"):
        await broker.group(name, "large").start()
    for _ in range(3):
        await large.publish_frame(frame, 0)
    for record in broker.topics:
        await broker.group("wide", record.name).start()
    late = await broker.create_topic("late", 1)
    due_us = site.now_us() + 10_000_000
    for left in range(delayed, 0, -COUNT_MAX):
        messages = [Message(b"", deliver_at=due_us)] * min(left, COUNT_MAX)
        await late.publish_frame(Frame.of(Batch.from_messages(messages, 1)), 0)
    return late.partitions[0]


async def longest_of_each(path: Path, letters: int, groups: int, topics: int, delayed: int) -> dict[str, float]:
    site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock())
    door = NativeDoor(site, Gate(site, None))
    transport = await RemoteTransport.to(Place("127.0.0.1", await door.open("127.0.0.1", 0)), SystemClock())
    await fill(site, letters, groups, topics)

    async def metrics() -> None:
        families = await of_broker(site.broker)
        await site.broker.on_a_reading_thread(lambda: rendered(families))

    large = large_frames()
    late = await fill_others(site, delayed, large["zstd"])
    large_group = site.broker.group("large", "large")

    def drop_from_page_cache() -> None:
        for file in path.rglob("*.log"):
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    async def cold_lease() -> None:
        await site.broker.on_a_reading_thread(drop_from_page_cache)
        await site.broker.group("cold", "large").lease("c", 10_000, 8 * MIB)

    async def due() -> None:
        while late.groups.delays.pending:
            await asyncio.sleep(0.01)

    async def owned() -> None:
        for number in range(500):
            site.broker.owned("groups", f"principal-{number}")

    where = r.Where()
    now_us = site.now_us()
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "list groups": partial(ask, transport, r.ListGroups(after="")),
        "list topics": partial(ask, transport, r.ListTopics(after="")),
        "describe a group": partial(ask, transport, r.DescribeGroup("g1")),
        "describe a topic": partial(ask, transport, r.DescribeTopic("t")),
        "list dead letters": partial(ask, transport, r.ListDeadLetters("t", where, False, 200, after="")),
        "trace": partial(ask, transport, r.GetTrace("t:0:0")),
        "why": partial(ask, transport, r.AskWhy("t:0:0", "g")),
        "state at": partial(ask, transport, r.GetStateAt("g", "t", now_us)),
        "metrics": metrics,
        "groups of 500 principals": owned,
        "publish a compressed frame (lz4)": partial(transport.publish_frame, "large", 0, large["lz4"]),
        "publish a compressed frame (zstd)": partial(transport.publish_frame, "large", 0, large["zstd"]),
        "lease a part of a compressed frame": partial(large_group.lease, "c", 1),
        "lease from a cold log": cold_lease,
        "delayed messages that are due": due,
        "maintenance": site.broker.maintain,
        "offsets by time": partial(ask, transport, r.FindOffsets("t", now_us)),
        "seek by time": partial(ask, transport, r.Seek("g3", "t", None, now_us, None, None)),
        "redrive, dry run": partial(ask, transport, r.Redrive("t", where, True, None)),
        "replay": partial(ask, transport, r.Replay("t", "again", 0, None, None, True, False, {})),
        "seek": partial(ask, transport, r.Seek("g1", "t", None, 1, None, None)),
        "redrive": partial(ask, transport, r.Redrive("t", where, False, None)),
        "delete a group": partial(ask, transport, r.DeleteGroup("g2")),
        "delete a group with state in all topics": partial(ask, transport, r.DeleteGroup("wide")),
        "delete a topic": partial(ask, transport, r.DeleteTopic("t")),
    }
    found = {}
    gc.collect()
    gc.disable()
    try:
        for name, request in requests.items():
            longest = Longest()
            with longest.watched():
                # A task: what this coroutine does by itself is no callback of its own.
                await asyncio.ensure_future(request())
            found[name] = 1e3 * longest.seconds
    finally:
        gc.enable()
    await transport.close()
    await door.close()
    await site.close()
    return found


def measure(run: Run) -> Iterator[Figure]:
    sizes = run.pick(20_000, 200), run.pick(4_000, 20), run.pick(2_000, 10), run.pick(500_000, 1_000)
    with run.folder() as path:
        found = asyncio.run(longest_of_each(path, *sizes))
    for name, milliseconds in found.items():
        yield at_most(f"longest callback: {name}", milliseconds, "ms", BAR_MS)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=1)
