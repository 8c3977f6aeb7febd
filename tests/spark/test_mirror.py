"""Topics mirrored from one real broker to another by a real Spark: what arrives, and which offset became which."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from broker_process import BrokerProcess, broker_process
from client.ways import embedded
from penstock.client.blocking import Client
from penstock.errors import MirrorConflict, NotFound
from penstock.spark.builtin.mirror_groups import move, moves, translate
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.progress import Progress
from spark.mirrors import messages, mirror_of, offsets, run, run_here, thinned

# In partition 0 of jobs, 6 is left over; of partition 1 the last alone is done.
DONE = {0, 2, 4, 8, 10, 12, 19}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    data = tmp_path_factory.mktemp("source")
    embedded(data, thinned)
    with broker_process(data) as source, broker_process(tmp_path_factory.mktemp("target")) as target:
        yield source, target


@pytest.fixture(scope="module")
def near(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[Client]:
    with penstock.connect(brokers[0].address) as client:
        yield client


@pytest.fixture(scope="module")
def far(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[Client]:
    with penstock.connect(brokers[1].address) as client:
        yield client


@pytest.fixture(scope="module")
def mirrored(
    spark: SparkSession,
    near: Client,
    far: Client,
    brokers: tuple[BrokerProcess, BrokerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Progress, Progress]:
    """Mirrored, changed, and mirrored again from where it was; with progress."""
    fill(near)
    far.create_topic("dc1.thinned", 2, cleanup="compact")
    for number in range(5):
        far.publish("dc1.thinned", f"was there {number}", partition=0)
    mirror = mirror_of(*brokers, "orders", "thinned", "jobs", prefix="dc1.", rows_per_batch=60)
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    first = run(spark, mirror, checkpoint)
    far.publish("dc1.thinned", "in between", partition=0)
    near.publish("thinned", "last", key="last", partition=0)
    near.change_topic("orders", 4)
    near.publish("orders", "more", partition=1)
    near.publish("orders", "in a new partition", partition=3)
    return first, run(spark, mirror, checkpoint)


def fill(near: Client) -> None:
    near.create_topic("orders", 3, retention={"hours": 48}, max_delay="30d", archive="required")
    with near.producer("orders") as producer:
        for number in range(60):
            producer.send(f"{number}", key=f"k{number % 7}", headers=[("a", b"1"), ("a", b"2"), ("n", b"\x00")])
    near.publish("orders", None, key="gone", partition=1)
    near.publish("orders", b"\xff\x00", partition=2, timestamp=1_600_000_000_123_456, priority="high")
    near.publish("orders", b"", partition=2, priority="low", delay="1d", ttl="2d")
    short = near.publish("orders", "too late", partition=0, ttl="1ms")
    while time.time_ns() // 1_000 <= short.append_time + 1_000:
        pass
    near.create_topic("jobs", 2)
    near.create_topic("not-mirrored", 1)
    for number in range(20):
        near.publish("jobs", f"{number}", partition=number % 2)
    near.create_group("billing", visibility="70s")
    with near.consumer("billing", ["jobs", "not-mirrored"], prefetch=20) as consumer:
        for message in consumer.poll(20, wait="5s"):
            if int(message.value or b"") in DONE:
                message.ack()


def test_everything_a_message_has_arrives_in_its_partition_and_order(
    near: Client, far: Client, mirrored: tuple[Progress, Progress]
) -> None:
    assert messages(far, "dc1.orders") == messages(near, "orders")
    assert messages(far, "dc1.orders")[3][0][1] == b"in a new partition"
    assert messages(far, "dc1.jobs") == messages(near, "jobs")
    copied = {**near.topic("orders").settings, "archive": "none"}
    assert far.topic("dc1.orders").settings == copied
    # Nothing is delivered before its time, or when its time is over.
    with far.consumer("workers", "dc1.orders", until_idle="1ms") as consumer:
        assert len([each.ack() for each in consumer]) == 64
    assert [each.message.value for each in far.scheduled.list("dc1.orders")] == [b""]


def test_progress_tells_of_rows_batches_and_lag(near: Client, mirrored: tuple[Progress, Progress]) -> None:
    first, second = mirrored
    # A batch has so many offsets at most; gaps are no messages.
    in_gaps = len(offsets(near, "thinned")) - 1
    assert (first.rows, first.batches, first.lag) == (64 + 20 + in_gaps, 3, 0)
    assert (second.rows, second.batches, second.lag) == (3, 1, 0)


def test_offsets_are_translated_over_gaps_at_the_source_and_messages_of_others_at_the_target(
    near: Client, far: Client, mirrored: tuple[Progress, Progress]
) -> None:
    held, there = offsets(near, "thinned"), offsets(far, "dc1.thinned")
    assert len(held) < 40
    assert [value for value in there if value in held] == list(held)
    for offset in range(41):
        value, _ = min((each for each in held.items() if each[1] >= offset), key=lambda each: each[1])
        found = translate(far, "thinned", 0, offset)
        assert (found.target, found.to, found.is_mirrored) == ("dc1.thinned", there[value], True)
    assert translate(far, "thinned", 0, 41).to == there[b"last"] + 1
    assert not translate(far, "thinned", 0, 500).is_mirrored
    with pytest.raises(NotFound, match="partition 1 of a topic thinned was not mirrored"):
        translate(far, "thinned", 1, 0)


def test_a_group_goes_on_at_the_mirror_with_what_it_has_not_done(
    near: Client, far: Client, mirrored: tuple[Progress, Progress]
) -> None:
    near.publish("jobs", "20", partition=0)
    with pytest.raises(NotFound, match=r"none of the topics of group billing \(.*\) is mirrored"):
        moves(near, far, "billing", prefix="other.")
    found = moves(near, far, "billing")
    assert [(each.target, each.partition, each.floor, each.to, each.behind) for each in found] == [
        ("dc1.jobs", 0, 3, 3, 0),
        ("dc1.jobs", 1, 0, 0, 0),
    ]
    move(near, far, "billing", found)
    assert far.group("billing").settings == near.group("billing").settings
    with far.consumer("billing", "dc1.jobs", until_idle="1ms") as consumer:
        got = {int(message.value or b"") for message in consumer if message.ack() is None}
    assert got == {*range(6, 20, 2), *range(1, 20, 2)}
    assert got | DONE == set(range(20))
    with (
        far.consumer("billing", "dc1.jobs"),
        pytest.raises(MirrorConflict, match="group billing has members at the target"),
    ):
        move(near, far, "billing", found)


def test_a_pattern_leaves_copies_and_dead_letters_alone(
    spark: SparkSession, near: Client, far: Client, brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path
) -> None:
    near.create_topic("shop.one", 1)
    near.publish("shop.one", "1")
    far.create_topic("shop.two", 1)
    far.publish("shop.two", "2")
    with near.consumer("clerks", "shop.one") as consumer:
        consumer.poll(1, wait="5s")[0].reject("broken")
    give_up = time.monotonic() + 30
    while "shop.one.dlq" not in {each.name for each in near.topics()}:
        assert time.monotonic() < give_up
    source, target = brokers
    run_here(far, mirror_of(target, source, pattern=r"(b\.|a\.)*shop\..*", prefix="b."), "back")
    assert messages(near, "b.shop.two") == messages(far, "shop.two")

    mirror = mirror_of(source, target, pattern=r"(?i)(b\.|a\.)*SHOP\..*", prefix="a.")
    run(spark, mirror, tmp_path / "mirror")

    assert {each.name for each in far.topics() if "shop" in each.name} == {"shop.two", "a.shop.one"}
    assert messages(far, "a.shop.one") == messages(near, "shop.one")
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, mirror, tmp_path / "another")
    told = cause_of(caught.value)
    assert told.startswith("the topic a.shop.one has messages of shop.one from a mirror with another checkpoint: go on")
    assert told.endswith(" [mirror_conflict]")
    assert len(messages(far, "a.shop.one")[0]) == 1
