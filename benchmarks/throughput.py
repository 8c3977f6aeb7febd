"""How many messages a second does one Python client get through a broker, and how many through others?

A broker process and a client process on this machine, over TCP; messages of 100 B, six partitions; every publish and
acknowledgement on disk before it is told:

    send            a blocking producer, one `send` a message
    send_batch      ready Arrow tables of 10,000, none waited for before the next is sent, all of them at the end
    iterate         a blocking consumer, one message at a time, an `ack` for each, told together after 5 ms (ack_linger)
    batches         a blocking consumer, in columns, one acknowledgement for each batch, waited for
    run             `consumer.run` with a function that only counts, on one thread
    run_8           the same on 8 threads
    run_key         the same on 8 threads in a group that is ordered by key, with 500 keys
    run_async       the same with a coroutine function, 8 at a time
    run_async_key   the same with a coroutine function and ordered by key

Redis Streams, NATS JetStream, RabbitMQ's quorum queues and streams, and Kafka take their turns in the same rounds, each
with its own Python client, and with a fresh server where that does not take seconds. There is a bar against Redis and
NATS where they sync before they answer, as we do; beside the others, and beside the defaults, there is only the ratio.
`send` and `send_batch` are compared with how they publish, `iterate` with an ack for each message, `batches` with one
ack for many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa
import uvloop

import harness
import penstock
from beside import RIVALS, Servers, present
from harness import Figure, Run, info
from peers import Peer
from penstock.client.blocking import Client, Received
from penstock.client.received import Received as AsyncReceived
from penstock.limits import MIB
from serving import PARTITIONS, broker, values

TABLE_ROWS = 10_000
BARS = {"send": 600, "send_batch": 3_000, "iterate": 300, "batches": 2_000}
RUN_BARS = {"run": 200, "run_8": 200, "run_key": 100, "run_async": 100, "run_async_key": 100}
KEYS = 500
# Which of theirs each of ours is compared with.
BESIDE = {"send": "publish_s", "send_batch": "publish_s", "iterate": "ack_each_s", "batches": "ack_many_s"}
WHAT = {"publish_s": "publish", "ack_each_s": "ack of each", "ack_many_s": "ack of many"}
PEER_BAR = 5


# --- ours ---------------------------------------------------------------------------------------------------


def send(q: Client, topic: str, some: Sequence[bytes]) -> float:
    with q.producer(topic) as producer:
        started = time.perf_counter()
        for value in some:
            producer.send(value)
        producer.flush()
        return (time.perf_counter() - started) / len(some)


def send_batch(q: Client, topic: str, tables: Sequence[pa.Table]) -> float:
    with q.producer(topic, batch_messages=TABLE_ROWS, batch_bytes=4 * MIB) as producer:
        started = time.perf_counter()
        for table in tables:
            producer.send_batch(table, wait=False)
        producer.flush()
        return (time.perf_counter() - started) / sum(len(table) for table in tables)


def iterate(q: Client, topic: str, count: int) -> float:
    with q.consumer("iterate", topic, prefetch=10_000, ack_linger="5ms", until_idle="10s") as consumer:
        done = 0
        started = time.perf_counter()
        for message in consumer:
            assert message.value
            message.ack()
            done += 1
            if done == count:
                break
        consumer.flush()
        spent = time.perf_counter() - started
    assert done == count
    return spent / count


def batches(q: Client, topic: str, count: int) -> float:
    with q.consumer("batches", topic, prefetch=10_000, until_idle="10s") as consumer:
        done = 0
        started = time.perf_counter()
        for batch in consumer.batches():
            batch.ack()
            done += len(batch)
            if done == count:
                break
        spent = time.perf_counter() - started
    assert done == count
    return spent / count


def run_handlers(q: Client, group: str, topic: str, count: int, concurrency: int, **settings: Any) -> float:
    done = 0

    def handle(message: Received) -> None:
        nonlocal done
        done += 1
        if done == count:
            consumer.close()

    consumer = q.consumer(group, topic, prefetch=10_000, **settings)
    started = time.perf_counter()
    handled = consumer.run(handle, concurrency)
    assert handled == (count, 0)
    return (time.perf_counter() - started) / count


def run_coroutines(address: str, group: str, topic: str, count: int, **settings: Any) -> float:
    async def handled() -> float:
        done = 0

        async def handle(message: AsyncReceived) -> None:
            nonlocal done
            done += 1
            if done == count:
                closing.append(asyncio.ensure_future(consumer.close()))

        closing: list[asyncio.Future[None]] = []
        async with penstock.aio.connect(address) as q:
            consumer = q.consumer(group, topic, prefetch=10_000, **settings)
            started = time.perf_counter()
            assert await consumer.run(handle, 8) == (count, 0)
            return (time.perf_counter() - started) / count

    return uvloop.run(handled())


def running(q: Client, address: str, count: int) -> dict[str, float]:
    by_key = {"ordering": "key"}
    return {
        "run": run_handlers(q, "run", "keyed", count, 1),
        "run_8": run_handlers(q, "run_8", "keyed", count, 8),
        "run_key": run_handlers(q, "run_key", "keyed", count, 8, **by_key),
        "run_async": run_coroutines(address, "run_async", "keyed", count),
        "run_async_key": run_coroutines(address, "run_async_key", "keyed", count, **by_key),
    }


def ours(run: Run, some: Sequence[bytes]) -> dict[str, float]:
    """Seconds for each message. A little of everything first: a broker that has just started is slower."""
    table = pa.table({"value": values(TABLE_ROWS)})
    keyed = table.append_column("key", pa.array([b"%d" % (row % KEYS) for row in range(TABLE_ROWS)], pa.binary()))
    count = len(some) // TABLE_ROWS * TABLE_ROWS
    few = some[:10_000]
    with broker(run) as process, penstock.connect(process.address) as q:
        for topic in ("warm", "columns", "bench", "keyed"):
            q.create_topic(topic, partitions=PARTITIONS)
        send_batch(q, "keyed", [keyed] * (count // TABLE_ROWS))
        send(q, "warm", few)
        send_batch(q, "columns", [table])
        iterate(q, "warm", len(few))
        batches(q, "warm", len(few))
        return {
            "send": send(q, "bench", some),
            "send_batch": send_batch(q, "columns", [table] * max(2 * len(some) // TABLE_ROWS, 1)),
            "iterate": iterate(q, "bench", len(some)),
            "batches": batches(q, "bench", len(some)),
            **running(q, process.address, count),
        }


# --- beside the others --------------------------------------------------------------------------------------


def turn_of(run: Run, servers: Servers, peer: Peer, some: Sequence[bytes]) -> dict[str, float]:
    """Seconds for each message, of what is done with it."""
    with servers.of(peer) as address:
        turn = peer.turn(address, some[: run.pick(peer.messages, 500)])
    return {what: spent for what, spent in turn._asdict().items() if spent is not None}


def measure(run: Run) -> Iterator[Figure]:
    peers = present()
    some = values(run.pick(500_000, 20_000))
    with Servers(run) as servers:
        contenders = {"penstock": partial(ours, run, some)}
        for peer in peers:
            contenders[peer.name] = partial(turn_of, run, servers, peer, some)
        turns = harness.interleave(run.rounds, contenders)
    taken = {name: [turn[name] for turn in turns["penstock"]] for name in BARS | RUN_BARS}
    for name, bar in (BARS | RUN_BARS).items():
        yield harness.at_least(name, 1e-3 / median(taken[name]), "k messages/s", bar)
    for peer in peers:
        yield from compared(peer, turns[peer.name], taken)


def compared(
    peer: Peer, turns: Sequence[Mapping[str, float]], taken: Mapping[str, Sequence[float]]
) -> Iterator[Figure]:
    has_bar = peer.is_durable and peer.product in RIVALS
    spent = {what: [turn[what] for turn in turns] for what in turns[0]}
    for name, theirs in BESIDE.items():
        if theirs in spent:
            ratio = harness.ratio(spent[theirs], taken[name])
            told = f"{name} / {peer.name}"
            yield harness.at_least(told, ratio, "×", PEER_BAR) if has_bar else info(told, ratio, "×")
    for theirs, each in spent.items():
        yield info(f"{peer.name}: {WHAT[theirs]}", 1e-3 / median(each), "k messages/s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
