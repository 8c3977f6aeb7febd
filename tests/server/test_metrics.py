"""What is told to Prometheus is true, and in its format."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

import grpc_served
from penstock.broker.tally import Histogram, Tally
from penstock.errors import TopicNotFound
from penstock.frame import HAS_DELAYS, Frame
from penstock.message import Message
from penstock.server import metrics_broker
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.metrics import BOUNDS, Counts, Family, Sample, of_doors, rendered
from penstock.server.metrics_broker import of_broker
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.testing.clock import ManualClock
from served import Served, serve

_LINE = re.compile(r'^[a-z_]+(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? -?[0-9.e+]+$')


def value(text: str, name: str, **labels: str) -> float:
    """Of the one sample with this name and at least these labels."""
    found = [
        line
        for line in text.splitlines()
        if re.match(rf"{name}[{{ ]", line) and all(f'{label}="{given}"' in line for label, given in labels.items())
    ]
    (line,) = found
    return float(line.rpartition(" ")[2])


def test_what_happened_is_counted(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("orders", partitions=1)
            for number in range(5):
                await q.publish("orders", b"%d" % number, delay="1h" if number == 4 else None)
            consumer = q.consumer("w", "orders", ordering="key")
            first, second, third, _ = await consumer.poll(10)
            await first.ack()
            await second.nack("1h")
            await third.reject("bad")
            with pytest.raises(TopicNotFound):
                await q.topic("nowhere")
            text = rendered([*of_doors(here.door.counts), *await of_broker(here.site.broker)])
            assert value(text, "penstock_connections", door="native") == 1
            assert value(text, "penstock_requests_total", request="publish", outcome="ok") == 5
            assert value(text, "penstock_requests_total", request="call", outcome="topic_not_found") == 1
            assert value(text, "penstock_request_seconds_count", request="publish") == 5
            assert value(text, "penstock_request_seconds_bucket", request="publish", le="+Inf") == 5
            assert value(text, "penstock_messages_published_total", topic="orders", partition="0") == 5
            assert value(text, "penstock_scheduled", topic="orders") == 1
            assert value(text, "penstock_stored_bytes", topic="orders") > 500
            assert value(text, "penstock_group_lag", group="w", topic="orders") == 3
            assert value(text, "penstock_group_in_flight", group="w", topic="orders") == 1
            assert value(text, "penstock_group_waiting", group="w", topic="orders") == 1
            assert value(text, "penstock_group_members", group="w") == 1
            await consumer.close()
            for line in text.splitlines():
                assert line.startswith("# ") or _LINE.match(line), line

    serve(tmp_path, work)


def test_what_groups_did_is_counted(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("orders", partitions=2)
            for number in range(6):
                await q.publish("orders", b"%d" % number, partition=number % 2)
            await q.publish("orders", b"late", ttl="1us")
            async with q.consumer("w", "orders", prefetch=1) as consumer:
                received = [message for _ in range(6) for message in await consumer.poll(1, wait="5s")]
                await received[0].reject("bad")
                for message in received[1:]:
                    await message.nack(0) if message is received[1] else await message.ack()
                (again,) = await consumer.poll(1, wait="5s")
                assert again.attempt == 2
                await again.ack()
                assert not await consumer.poll(1)
            await here.site.broker.settle()
            text = rendered([*of_doors(here.door.counts), *await of_broker(here.site.broker)])

            def total(name: str) -> float:
                return sum(value(text, name, group="w", topic="orders", partition=part) for part in ("0", "1"))

            assert total("penstock_group_delivered_total") == 7
            assert total("penstock_group_redelivered_total") == 1
            assert total("penstock_group_acknowledged_total") == 5
            assert total("penstock_group_nacked_total") == 1
            assert total("penstock_group_given_up_total") == 1
            assert total("penstock_group_dead_lettered_total") == 1
            assert total("penstock_group_expired_total") == 1
            assert total("penstock_group_lease_expired_total") == 0
            assert total("penstock_group_given_back_total") == 0
            # First deliveries only; acknowledgements whichever delivery they were of.
            assert value(text, "penstock_delivery_seconds_count", group="w", topic="orders") == 6
            assert value(text, "penstock_acknowledge_seconds_count", group="w", topic="orders") == 5
            assert value(text, "penstock_publish_seconds_count", door="native") == 7
            assert value(text, "penstock_schedules") == 0
            assert 'group="__' not in text

    serve(tmp_path, work)


def test_leases_that_ran_out_and_messages_given_back_are_counted(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        broker = here.site.broker
        topic = await broker.create_topic("orders", 1)
        await topic.publish(Message(b"x"))
        await broker.ensure_group("w")
        group = broker.group("w", "orders")
        assert await group.lease("ann", 1, visibility_us=1)
        while not (again := await group.lease("ann", 1)):
            await broker.tick()
        await group.release(again[0].receipt)
        text = rendered(await of_broker(broker))
        assert value(text, "penstock_group_lease_expired_total", group="w") == 1
        assert value(text, "penstock_group_given_back_total", group="w") == 1

    serve(tmp_path, work)


def test_a_start_counts_from_nothing(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            if not await q.topics():
                await q.create_topic("orders", partitions=1)
            await q.publish("orders", b"x")
            async with q.consumer("w", "orders") as consumer:
                (message,) = await consumer.poll(1)
                await message.ack()
            text = rendered(await of_broker(here.site.broker))
            assert value(text, "penstock_group_acknowledged_total", group="w") == 1

    serve(tmp_path, work)
    serve(tmp_path, work)


def test_messages_are_counted_by_their_age_however_many_frames_they_are_in(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    log = Log.open(tmp_path / "log", clock=clock)
    for _ in range(100):
        log.append([Frame.of_messages([Message(b"x")] * 2, now_us=clock.now_us())])
        clock.advance_us(1_000_000)
    log.sync()
    frames = list(log.frames(0))
    tally = Tally()
    tally.hand(BitMap64(range(200)), frames, flags=0, now_us=100_000_000)
    assert sum(tally.to_delivery.counts) == 200
    # Each was 0 to 99 seconds old; some are taken to be as old as one a few frames away.
    assert abs(tally.to_delivery.sum - 2 * sum(range(100))) < 200 * 4
    one = Tally()
    one.hand(BitMap64([3]), [frames[1]], flags=0, now_us=100_000_000)
    assert (sum(one.to_delivery.counts), one.to_delivery.sum) == (1, 98.0)
    few = Tally()
    few.hand(BitMap64([0, 3]), frames[:2], flags=0, now_us=100_000_000)
    assert (sum(few.to_delivery.counts), few.to_delivery.sum) == (2, 99.0 + 98.0)
    again = Tally()
    again.hand(BitMap64(), frames[:2], flags=0, now_us=100_000_000)
    assert sum(again.to_delivery.counts) == 0
    delayed = Tally()
    frame = Frame.of_messages([Message(b"x", deliver_at=5)], now_us=1)
    delayed.hand(BitMap64([0]), [frame], flags=HAS_DELAYS, now_us=100_000_000)
    assert sum(delayed.to_delivery.counts) == 0
    log.close()


def test_delayed_messages_are_not_counted_by_their_age_wherever_they_are(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    log = Log.open(tmp_path / "log", clock=clock)
    for number in range(100):
        message = Message(b"x", deliver_at=5_000_000) if number % 3 == 1 else Message(b"x")
        log.append([Frame.of_messages([message] * 2, now_us=clock.now_us())])
    log.sync()
    frames = list(log.frames(0))
    for some in (frames[:3], frames):
        tally = Tally()
        tally.hand(BitMap64(range(2 * len(some))), some, flags=HAS_DELAYS, now_us=100_000_000)
        assert sum(tally.to_delivery.counts) == 2 * sum(number % 3 != 1 for number in range(len(some)))
    log.close()


def test_a_message_that_comes_again_is_no_first_delivery(tmp_path: Path) -> None:
    """Also if it was given back unseen, or brought back from the dead."""

    async def work(here: Served) -> None:
        broker = here.site.broker
        topic = await broker.create_topic("orders", 1)
        for _ in range(3):
            await topic.publish(Message(b"x"))
        await broker.ensure_group("w")
        group = broker.group("w", "orders")
        for _ in range(3):
            (handed,) = await group.lease("ann", 2)
            await group.release(handed.receipt)
        tally = topic.partition(0).groups.state("w").tally
        assert (tally.delivered, sum(tally.to_delivery.counts)) == (6, 2)
        (handed,) = await group.lease("ann", 3)
        assert (tally.delivered, sum(tally.to_delivery.counts)) == (9, 3)
        await group.reject(handed.receipt, "broken")
        await broker.tick()
        await broker.dead_letters.redrive("orders")
        (handed,) = await group.lease("ann", 3)
        assert (tally.delivered, sum(tally.to_delivery.counts)) == (12, 3)
        await group.ack(handed.receipt)
        assert not tally.returned

    serve(tmp_path, work)


def test_syncs_are_timed(tmp_path: Path) -> None:
    counts = Counts()
    files = DiskFiles(tmp_path / "data", synced=counts.synced)
    file = files.directory("inner").open("f", "create")
    file.write([b"x"])
    file.sync()
    file.sync()
    file.close()
    files.close()
    text = rendered(of_doors(counts))
    assert value(text, "penstock_sync_seconds_count") == 2
    assert value(text, "penstock_sync_seconds_sum") > 0
    assert value(text, "penstock_sync_seconds_bucket", le="0.00005") <= 2


def test_the_grpc_door_counts_its_calls_and_its_connections(tmp_path: Path) -> None:
    async def work(here: grpc_served.Served, q: Any) -> None:
        await grpc_served.topic(q)
        await grpc_served.publish(q, "t", b"x")
        await grpc_served.failure(q.GetTopic(pb.GetTopicRequest(name="nowhere")))
        async with here.channel() as other:
            await other.channel_ready()
            # The listener counts its connections every second.
            while value(text := rendered(of_doors(here.door.counts)), "penstock_connections", door="grpc") != 2:
                await asyncio.sleep(0.01)
        assert value(text, "penstock_requests_total", door="grpc", request="PublishBatch", outcome="ok") == 1
        code = "topic_not_found"
        assert value(text, "penstock_requests_total", door="grpc", request="GetTopic", outcome=code) == 1
        assert value(text, "penstock_publish_seconds_count", door="grpc") == 1

    grpc_served.serve(tmp_path, work)


def test_labels_are_escaped() -> None:
    family = Family("x", "gauge", "Help.", [Sample({"a": 'q"\\\n'}, 1.5), Sample({}, 2)])
    assert rendered([family]) == '# HELP x Help.\n# TYPE x gauge\nx{a="q\\"\\\\\\n"} 1.5\nx 2\n'


def test_a_histogram_counts_each_in_its_bucket() -> None:
    histogram = Histogram(BOUNDS)
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, 1_000.0):
        histogram.add(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[-1] == 1
    histogram.add(0.0, 7)
    assert histogram.counts[0] == 9


def test_series_of_too_many_partitions_and_groups_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            for topic in ("orders", "payments"):
                await q.create_topic(topic, partitions=3)
                await q.publish(topic, b"x")
                for group in ("a", "b"):
                    async with q.consumer(group, topic) as consumer:
                        (message,) = await consumer.poll(1)
                        await message.ack()
        broker = here.site.broker

        async def text_with(series: int, histograms: int) -> str:
            monkeypatch.setattr(metrics_broker, "SERIES_MAX", series)
            monkeypatch.setattr(metrics_broker, "HISTOGRAMS_MAX", histograms)
            return rendered(await of_broker(broker))

        text = await text_with(12, 4)
        assert value(text, "penstock_metrics_aggregated", of="partitions") == 0
        assert value(text, "penstock_metrics_aggregated", of="groups") == 0
        assert text.count("penstock_group_lag{") == 12
        text = await text_with(5, 3)
        assert value(text, "penstock_metrics_aggregated", of="partitions") == 1
        assert value(text, "penstock_metrics_aggregated", of="groups") == 1
        assert 'penstock_messages_published_total{topic="orders"} 1' in text.splitlines()
        assert 'penstock_group_acknowledged_total{group="a",topic="orders"} 1' in text.splitlines()
        assert 'penstock_delivery_seconds_count{topic="orders"} 2' in text.splitlines()
        text = await text_with(2, 1)
        assert 'penstock_group_acknowledged_total{topic="orders"} 2' in text.splitlines()
        text = await text_with(1, 1)
        assert "penstock_group_acknowledged_total 4" in text.splitlines()
        assert "penstock_delivery_seconds_count 4" in text.splitlines()
        assert "penstock_group_members 0" in text.splitlines()

    serve(tmp_path, work)
