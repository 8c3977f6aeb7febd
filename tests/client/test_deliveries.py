"""What happened to messages, as a table."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from client.ways import Run, both_ways, embedded
from penstock.broker import chronicle
from penstock.client.client import Client
from penstock.client.deliveries import DELIVERIES_SCHEMA, Events
from penstock.client.requests import Happenings
from penstock.errors import InvalidInput, OffsetOutOfRange, PartitionNotFound, PenstockError, TopicNotFound
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualClock, VirtualQueue

# Not of the deliveries log, or of no message in particular.
ELSEWHERE = {"PUBLISHED", "SCHEDULED", "RETAINED", "GROUP_MOVED"}
BACKOFF = {"initial": "500ms", "jitter": 0}


def table(queue: VirtualQueue, topic: str = "orders", **bounds: Any) -> list[dict[str, Any]]:
    batches = list(queue.deliveries(topic, **bounds).batches())
    assert all(batch.schema == DELIVERIES_SCHEMA for batch in batches)
    return pa.Table.from_batches(batches, DELIVERIES_SCHEMA).to_pylist()


def told(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows if row["event"] != "ASSIGNED"]


def micros(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


def logs(queue: VirtualQueue, topic: str = "orders") -> list[Any]:
    return [partition.deliveries for partition in queue._transport.broker.topic(topic).partitions]


def busy(queue: VirtualQueue, clock: VirtualClock) -> None:
    """A little of everything that can happen to a message."""
    dice = random.Random(7)
    ids = [
        queue.publish("orders", b"%d" % number, delay="2s" if number % 11 == 5 else None, ttl="9s").id
        for number in range(60)
    ]
    queue.scheduled.reschedule(ids[5], delay="4s")
    queue.scheduled.cancel(ids[16])
    consumers = [
        queue.consumer("w", "orders", name=name, assignment="shared", max_retries=2, visibility="3s", backoff=BACKOFF)
        for name in ("ann", "bob")
    ]
    consumers.append(queue.consumer("v", "orders", name="eve", max_retries=0))
    for turn in range(14):
        for consumer in consumers:
            for message in consumer.poll(dice.randint(1, 12)):
                match dice.randint(0, 5):
                    case 0 | 1:
                        message.ack()
                    case 2:
                        message.nack(reason=f"no {turn}")
                    case 3:
                        message.release()
                    case 4:
                        message.reject("bad")
                    case _:
                        # Until its lease runs out.
                        message.extend("4s")
        clock.advance("700ms")
        if turn == 8:
            queue.seek("v", "orders", 3, partition=0)
    queue.dead_letters.redrive("orders")
    consumers[0].poll(5)
    # Those that are merely let go of leave some time later, which is an event, too.
    for consumer in consumers:
        consumer.close()


# --- what is told -------------------------------------------------------------------------------------------


def test_each_event_is_a_row_for_each_message_it_happened_to(queue: VirtualQueue, clock: VirtualClock) -> None:
    start_us = clock.now_us()
    for number in range(3):
        queue.publish("orders", b"%d" % number)
    consumer = queue.consumer("w", "orders", name="ann", visibility="30s", backoff=BACKOFF)
    first, second, third = consumer.poll()
    clock.advance("1s")
    first.ack()
    second.nack(reason="busy")
    third.reject("bad")
    clock.advance("500ms")
    consumer.poll()
    rows = table(queue)
    assert told(rows, "event", "offset", "consumer", "attempt", "reason") == [
        ("GROUP_MOVED", None, None, None, "the group starts at offset 0"),
        *[("DELIVERED", offset, "ann", 1, None) for offset in range(3)],
        ("ACKNOWLEDGED", 0, "ann", 1, None),
        ("NACKED", 1, "ann", 1, "busy"),
        ("EXHAUSTED", 2, "ann", 1, "bad"),
        ("DEAD_LETTERED", 2, None, None, None),
        ("REDELIVERED", 1, "ann", 2, None),
    ]
    delivered = [row for row in rows if row["event"] == "DELIVERED"]
    assert {micros(row["until"]) for row in delivered} == {start_us + 30_000_000}
    assert {micros(row["time"]) for row in delivered} == {start_us}
    assert len({row["lease"] for row in delivered}) == len({row["event_offset"] for row in delivered}) == 1
    acknowledged = next(row for row in rows if row["event"] == "ACKNOWLEDGED")
    assert acknowledged["lease"] == delivered[0]["lease"]
    assert int(acknowledged["lease"], 16) > 0
    assert (acknowledged["topic"], acknowledged["partition"], acknowledged["group"]) == ("orders", 0, "w")
    assert micros(acknowledged["time"]) == start_us + 1_000_000
    assert acknowledged["until"] is None


def test_what_happened_to_no_message_has_no_offset(queue: VirtualQueue, clock: VirtualClock) -> None:
    queue.publish("orders", b"a", key="k")
    settings = {"ordering": "key", "max_retries": 0, "on_poison": "park"}
    with queue.consumer("w", "orders", name="ann", **settings) as consumer:
        (message,) = consumer.poll()
        message.extend("1h")
        message.nack(reason="poison")
        queue.release_key("w", "orders", "k")
    queue.delete_group("w")
    rows = [row for row in table(queue) if row["offset"] is None]
    words = [row["event"] for row in rows]
    assert words[:3] == ["GROUP_MOVED", "ASSIGNED", "LEASE_EXTENDED"]
    assert [word for word in words[3:] if word != "ASSIGNED"] == ["KEYS_RELEASED", "GROUP_DELETED"]
    assert (rows[1]["consumer"], rows[1]["group"]) == ("ann", "w")
    assert (rows[2]["consumer"], micros(rows[2]["until"])) == ("ann", clock.now_us() + 3_600_000_000)


def test_the_table_tells_of_each_message_what_its_trace_tells(queue: VirtualQueue, clock: VirtualClock) -> None:
    busy(queue, clock)
    rows = table(queue)
    seen = {row["event"] for row in rows}
    assert seen >= {"REDELIVERED", "GIVEN_BACK", "LEASE_EXPIRED", "EXHAUSTED", "DEAD_LETTERED", "REDRIVEN", "EXPIRED"}
    assert seen >= {"RELEASED", "CANCELLED", "RESCHEDULED", "ACKNOWLEDGED", "NACKED", "PASSED_OVER", "GROUP_MOVED"}
    for offset in range(60):
        traced = [
            (step.time_us, step.what, step.group, step.consumer, step.attempt, step.until_us)
            for step in queue.trace(f"orders:0:{offset}").steps
            if step.what not in ELSEWHERE
        ]
        found = [
            (micros(row["time"]), row["event"], row["group"], row["consumer"], row["attempt"], micros(row["until"]))
            for row in rows
            if row["offset"] == offset
        ]
        assert found == traced, offset


# --- stretches ----------------------------------------------------------------------------------------------


def test_a_stretch_tells_the_same_as_the_whole_wherever_it_begins(queue: VirtualQueue, clock: VirtualClock) -> None:
    busy(queue, clock)
    queue.restart()  # Which leaves a snapshot.
    busy(queue, clock)
    whole = table(queue)
    start, end = queue.deliveries("orders").ends()[0]
    assert start == 0
    assert end > whole[-1]["event_offset"]
    for first in range(start, end + 1, end // 12):
        chosen = [row for row in whole if first <= row["event_offset"] < first + 20]
        assert table(queue, from_offset=first, to_offset=min(first + 20, end)) == chosen
    # Page by page, each reader where it was.
    reader = queue.deliveries("orders")
    reader._inner._bytes_max = 1
    assert pa.Table.from_batches(reader.batches()).to_pylist() == whole
    assert len(queue._transport.broker.chronicle._followed) <= chronicle._FOLLOWED_MAX


def test_a_log_that_was_shortened_tells_where_it_begins(queue: VirtualQueue, clock: VirtualClock) -> None:
    busy(queue, clock)
    (log,) = logs(queue)
    cut = log.end_offset // 2
    queue.restart()
    busy(queue, clock)
    whole = table(queue)
    (log,) = logs(queue)
    log.delete_prefix(cut)
    assert queue.deliveries("orders").ends()[0][0] == cut
    with pytest.raises(OffsetOutOfRange, match=f"has offsets {cut} to"):
        table(queue, from_offset=0)
    rows, kept = [
        sorted(some, key=lambda row: (row["event_offset"], row["group"] or "", row["offset"] or 0))
        for some in (table(queue), [row for row in whole if row["event_offset"] >= cut])
    ]
    # What was so before it is not known until the next snapshot; nothing wrong is told.
    columns = ("event_offset", "offset", "time", "group")
    assert told(rows, *columns) == told(kept, *columns)
    unknown = [row for row in rows if row["attempt"] is None and row["event"] in ("DELIVERED", "ACKNOWLEDGED")]
    assert unknown
    known = [row for row in rows if row["event_offset"] > unknown[-1]["event_offset"]]
    assert known == [row for row in kept if row["event_offset"] > unknown[-1]["event_offset"]]
    assert len(known) > len(rows) / 3
    for row, right in zip(rows, kept, strict=True):
        assert row["attempt"] in (None, right["attempt"])
        assert row["consumer"] in (None, right["consumer"])


@both_ways
def test_partitions_are_read_one_after_the_other_and_read_on_later(tmp_path: Path, run: Run) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 3)
        for number in range(9):
            await q.publish("t", b"%d" % number, partition=number % 3)
        async with q.consumer("g", "t", name="me") as consumer:
            for message in await consumer.poll(100, wait="5s"):
                if message.offset < 2:
                    await message.ack()
            ends = await q.deliveries("t").ends()
            batches = [batch async for batch in q.deliveries("t").batches()]
            rows = pa.Table.from_batches(batches).to_pylist()
            done = [(row["partition"], row["offset"]) for row in rows if row["event"] == "ACKNOWLEDGED"]
            assert done == sorted(done)
            assert {row["attempt"] for row in rows if row["event"] == "ACKNOWLEDGED"} == {1}
            assert [row["partition"] for row in rows] == sorted(row["partition"] for row in rows)
            assert {row["consumer"] for row in rows if row["offset"] is not None} == {"me"}
            chosen = q.deliveries("t", partitions=[2, 0], from_offset={2: 1}, to_offset={0: 1})
            # The broker may have written something of its own since.
            offsets, last = await chosen.offsets(), await chosen.ends()
            assert list(offsets) == list(last) == [2, 0]
            assert (offsets[0], offsets[2][0]) == ((0, 1), 1)
            assert ends[2][1] <= offsets[2][1] <= last[2][1]
            assert [last[number][0] for number in (2, 0)] == [ends[number][0] for number in (2, 0)]
        # What has happened since, and nothing else.
        later = q.deliveries("t", from_offset={number: end for number, (_, end) in ends.items()})
        since = [row for batch in [batch async for batch in later.batches()] for row in batch.to_pylist()]
        assert since
        assert all(row["event_offset"] >= ends[row["partition"]][1] for row in since)
        assert "ACKNOWLEDGED" not in {row["event"] for row in since}

    run(tmp_path, work)


@both_ways
@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda q: q.deliveries("nowhere").ends(), TopicNotFound),
        (lambda q: q.deliveries("t", partitions=[1]).ends(), PartitionNotFound),
        (lambda q: q.deliveries("t", from_offset=5).offsets(), OffsetOutOfRange),
        (lambda q: q.deliveries("t", from_offset={1: 0}).offsets(), PartitionNotFound),
    ],
)
def test_what_is_not_there_is_refused(
    tmp_path: Path, run: Run, ask: Callable[[Client], Any], error: type[PenstockError]
) -> None:
    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        with pytest.raises(error):
            await ask(q)

    run(tmp_path, work)


def test_the_event_loop_goes_on_while_columns_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    columns_of = chronicle.columns_of

    def noted(happened: list[chronicle.Happened]) -> list[list[Any]]:
        threads.append(threading.get_ident())
        return columns_of(happened)

    monkeypatch.setattr(chronicle, "columns_of", noted)

    async def work(q: Client, site: LocalTransport) -> None:
        await q.create_topic("t", 1)
        await q.publish("t", b"1")
        async with q.consumer("g", "t") as consumer:
            await (await anext(aiter(consumer))).ack()
        assert [batch async for batch in q.deliveries("t").batches()]
        assert threads
        assert threading.get_ident() not in threads

    embedded(tmp_path, work)


@pytest.mark.parametrize("bounds", [{"from_offset": "first"}, {"to_offset": 1.5}, {"partitions": "0"}])
def test_bounds_that_make_no_sense_are_refused(queue: VirtualQueue, bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        queue.deliveries("orders", **bounds)


def test_an_event_of_very_many_messages_is_taken_apart_bit_by_bit() -> None:
    some = BitMap64(range(10, 16)).serialize()
    none = [None] * 3
    events = Happenings(9, [4, 5, 6], [1, 2, 3], ["A", "B", "C"], none, [some, None, some], *[none] * 5)
    batches = list(Events("t", 2, events).batches(rows_max=4))
    assert [batch.num_rows for batch in batches] == [4, 4, 4, 1]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [(row["event_offset"], row["offset"]) for row in rows] == [
        *[(4, offset) for offset in range(10, 16)],
        (5, None),
        *[(6, offset) for offset in range(10, 16)],
    ]
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 2)}
