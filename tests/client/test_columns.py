"""Reading some columns of the log and not the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from client.ways import Run, both_ways
from penstock.broker import projection
from penstock.broker.settings import TopicSettings
from penstock.client.client import Client
from penstock.client.rows import LOG_SCHEMA
from penstock.errors import InvalidInput, PenstockError
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualQueue

TIME = pa.timestamp("us", tz="UTC")
WHERE = ["partition", "offset", "append_time"]
MESSAGE = ["key", "value", "headers", "timestamp", "deliver_at", "expires_at", "priority"]
CHOICES = [[], ["timestamp"], ["value"], ["headers", "key"], ["priority", "expires_at", "deliver_at"], MESSAGE]


def rich(count: int) -> pa.Table:
    """Messages that have something in every column, some of them nothing."""
    now = 1_700_000_000_000_000
    rows = range(count)
    return pa.table(
        {
            "value": pa.array([None if row % 7 == 0 else b"value %d " % row * 10 for row in rows], pa.binary()),
            "key": pa.array([None if row % 3 == 0 else b"key %d" % (row % 50) for row in rows], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"%d" % row}] * (row % 3) for row in rows]),
            "timestamp": pa.array(now + np.arange(count) % 100).cast(TIME),
            "expires_at": pa.array([None if row % 2 else 2 * now for row in rows], pa.int64()).cast(TIME),
            "priority": pa.array([row % 3 - 1 for row in rows], pa.int8()),
        }
    )


async def read(q: Client, **options: Any) -> pa.Table:
    return pa.Table.from_batches([batch async for batch in q.reader("t", **options).batches()])


async def check_all_choices(q: Client) -> pa.Table:
    whole = await read(q)
    assert whole.schema == LOG_SCHEMA
    for columns in CHOICES:
        some = await read(q, columns=columns)
        assert some.equals(whole.select([*WHERE, *columns])), columns
        part = await read(q, columns=columns, from_offset=101, to_offset=333)
        wanted = (pa.compute.greater_equal(whole["offset"], 101), pa.compute.less(whole["offset"], 333))
        assert part.combine_chunks().equals(
            whole.select([*WHERE, *columns]).filter(pa.compute.and_(*wanted)).combine_chunks()
        ), columns
    return whole


@both_ways
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_column_is_the_same_alone_as_with_all_others(tmp_path: Path, run: Run, compression: str) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        async with q.producer("t", compression=compression) as producer:
            for _ in range(2):
                await producer.send_batch(rich(200))
        for number in range(3):
            # Too small to be made smaller.
            await q.publish("t", b"%d" % number, key="k", delay="1h")
        whole = await check_all_choices(q)
        assert len(whole) == 403

    run(tmp_path, work)


@both_ways
def test_what_a_log_has_merged_and_thinned_out_keeps_its_offsets_and_times(tmp_path: Path, run: Run) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1, cleanup="compact")
        async with q.producer("t") as producer:
            for _ in range(40):
                await producer.send_batch(rich(20))
        partition = site.broker.topic("t").partitions[0]
        partition.messages.roll()
        partition.maintain(TopicSettings(cleanup="compact"), np.empty(0, np.int64), partition.messages.end_offset)
        whole = await check_all_choices(q)
        assert whole.num_rows < 800
        assert len(set(whole["append_time"].to_pylist())) > 1
        assert len(list(partition.messages.read(0, until=800))) < 40

    run(tmp_path, work)


@both_ways
def test_of_what_is_not_wanted_nothing_is_sent(tmp_path: Path, run: Run) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        async with q.producer("t") as producer:
            for _ in range(20):
                await producer.send_batch(rich(1_000))
        whole, times = [
            await q._transport.read("t", 0, 0, 20_000, 100_000, columns) for columns in (None, ["timestamp"])
        ]
        assert len(whole.frames) == 1
        # So a page of the same size has more of them.
        assert len(times.frames) > 5
        assert times.next_offset == 1_000 * len(times.frames)
        assert sum(len(frame.data) for frame in times.frames) <= 100_000
        batch = times.frames[0].batch()
        assert [getattr(batch, name) for name in ("key", "value", "headers", "expires_at", "priority")] == [None] * 5

    run(tmp_path, work)


@both_ways
def test_a_request_reads_only_so_much_of_the_log(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "READ_BYTES_MAX", 200_000)
    monkeypatch.setattr(projection, "_READ_AT_ONCE", 50_000)

    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        async with q.producer("t") as producer:
            for _ in range(20):
                await producer.send_batch(rich(1_000))
        page = await q._transport.read("t", 0, 0, 20_000, 1 << 20, [])
        assert 1 <= len(page.frames) < 5
        assert (await read(q, columns=[]))["offset"].to_pylist() == list(range(20_000))

    run(tmp_path, work)


@both_ways
def test_a_column_that_there_is_not_is_refused_by_the_broker_too(tmp_path: Path, run: Run) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        with pytest.raises(InvalidInput, match="not 'colour'"):
            await q._transport.read("t", 0, 0, 1, 1, ["colour"])

    run(tmp_path, work)


@pytest.mark.parametrize(
    "read",
    [
        lambda q: q.reader("orders", columns=["colour"]),
        lambda q: q.reader("orders", columns="value"),
        lambda q: q.reader("orders", columns=7),
        lambda q: q.reader("orders", columns=[["value"]]),
        lambda q: list(q.reader("orders", columns=["value"])),
    ],
)
def test_columns_that_make_no_sense_are_refused(queue: VirtualQueue, read: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(queue)
    assert caught.value.details["argument"] == "columns"


def test_columns_come_as_they_were_asked_for_and_once(queue: VirtualQueue) -> None:
    queue.publish("orders", b"v", key=b"k")
    (batch,) = queue.reader("orders", columns=["value", "offset", "key", "value"]).batches()
    assert batch.schema.names == [*WHERE, "value", "key"]
    assert batch.column("value").to_pylist() == [b"v"]


def test_damage_is_found_where_it_is(queue: VirtualQueue) -> None:
    with queue.producer("orders") as producer:
        for number in range(3):
            producer.send_batch(pa.table({"value": [b"%d" % number * 1_000] * 10}))
    (directory,) = queue.disk.directories["partitions"].directories.values()
    (segment,) = (inode for name, inode in directory.directories["messages"].names.items() if name.endswith(".log"))
    segment.current[segment.current.index(b"1" * 1_000) + 5] ^= 1
    seen: list[int] = []
    with pytest.raises(PenstockError, match="the frame at offset 10 is damaged") as caught:
        for batch in queue.reader("orders", columns=["timestamp"]).batches():
            seen += batch.column("offset").to_pylist()
    assert caught.value.code == "log_corrupt"
    assert seen == list(range(10))
