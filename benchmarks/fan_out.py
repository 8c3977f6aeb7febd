"""What does it cost if ten groups get every message, and not one?

A broker process and a client on this machine, over TCP; messages of 100 B, one partition, acknowledgements on disk
before they are told:

    stored          messages that are there; the groups take 1,000 in turn, with one acknowledgement each time, until
                    all have all. Time for each delivery, with ten groups beside one; and beside Redis Streams
                    (XREADGROUP, XACK of all) and NATS JetStream (a durable pull consumer for each, one ack for all
                    before it) in their durable settings, driven in the same way
    live            consumers of ten groups wait, and messages are sent: time for each delivery until the last
                    acknowledgement, beside one group
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

import uvloop

import beside
import crowd
import harness
import loads
import penstock
from harness import Figure, Run, info
from peers import Peer, new_name
from peers.nats import JetStream
from peers.redis import RedisStreams
from penstock.client.blocking import Client
from serving import Broker, broker, values

GROUPS = 10
AT_ONCE = 1_000
BAR = 1.25


# --- ours ---------------------------------------------------------------------------------------------------


def stored(q: Client, some: Sequence[bytes], groups: int) -> float:
    """Seconds for each delivery."""
    topic = new_name()
    q.create_topic(topic, partitions=1)
    loads.send(q, [topic], some)
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(q.consumer(f"{topic}-{number}", topic, prefetch=AT_ONCE)) for number in range(groups)
        ]
        taking = [consumer.batches() for consumer in consumers]
        left = groups * len(some)
        started = time.perf_counter()
        while left:
            for batches in taking:
                batch = next(batches)
                batch.ack()
                left -= len(batch)
        return (time.perf_counter() - started) / (groups * len(some))


def live(q: Client, running: Broker, some: Sequence[bytes], groups: int) -> float:
    topic = new_name()
    q.create_topic(topic, partitions=1)
    names = [f"{topic}-{number}" for number in range(groups)]
    return crowd.deliveries(running.address, topic, names, list(some[:AT_ONCE]), len(some) // AT_ONCE)


# --- theirs -------------------------------------------------------------------------------------------------


def redis(address: str, some: Sequence[bytes]) -> float:
    from redis import Redis

    stream, names = new_name(), [f"group-{number}" for number in range(GROUPS)]
    with Redis.from_url(address) as client:
        for at in range(0, len(some), AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for value in some[at : at + AT_ONCE]:
                pipeline.xadd(stream, {"value": value})
            pipeline.execute()
        for name in names:
            client.xgroup_create(stream, name, id="0")
        left = GROUPS * len(some)
        started = time.perf_counter()
        while left:
            for name in names:
                [(_, entries)] = client.xreadgroup(name, "ann", {stream: ">"}, count=AT_ONCE, block=10_000)
                left -= client.xack(stream, name, *[number for number, _ in entries])
        return (time.perf_counter() - started) / (GROUPS * len(some))


def nats(address: str, some: Sequence[bytes]) -> float:
    return uvloop.run(_nats(address, some))


async def _nats(address: str, some: Sequence[bytes]) -> float:
    from nats import connect
    from nats.js.api import AckPolicy, ConsumerConfig, StorageType

    stream = new_name()
    client = await connect(address)
    try:
        js = client.jetstream()
        await js.add_stream(name=stream, subjects=[stream], storage=StorageType.FILE)
        for value in some:
            await js.publish_async(stream, value)
        await js.publish_async_completed()
        config = ConsumerConfig(max_ack_pending=10 * AT_ONCE, ack_policy=AckPolicy.ALL)
        groups = [await js.pull_subscribe(stream, durable=f"group-{number}", config=config) for number in range(GROUPS)]
        left = GROUPS * len(some)
        started = time.perf_counter()
        while left:
            for group in groups:
                messages = await group.fetch(min(AT_ONCE, len(some)), timeout=10)
                await messages[-1].ack()
                left -= len(messages)
        await client.flush()
        return (time.perf_counter() - started) / (GROUPS * len(some))
    finally:
        await client.close()


PEERS: tuple[tuple[Peer, Callable[[str, Sequence[bytes]], float]], ...] = (
    (RedisStreams(True), redis),
    (JetStream(True), nats),
)


def turn_of(run: Run, peer: Peer, fan_out: Callable[[str, Sequence[bytes]], float], some: Sequence[bytes]) -> float:
    with run.folder() as path, peer.serving(path) as address:
        return fan_out(address, some)


# --- figures ------------------------------------------------------------------------------------------------


def measure(run: Run) -> Iterator[Figure]:
    some, few = values(run.pick(200_000, 2_000)), values(run.pick(5_000, 1_000))
    peers = beside.present([peer for peer, _ in PEERS])
    with broker(run) as running, penstock.connect(running.address) as q:
        contenders = {
            "ten": partial(stored, q, some, GROUPS),
            "one": partial(stored, q, some, 1),
            "live ten": partial(live, q, running, some, GROUPS),
            "live one": partial(live, q, running, some, 1),
        }
        for peer, fan_out in PEERS:
            if peer in peers:
                contenders[peer.name] = partial(turn_of, run, peer, fan_out, few)
        taken = harness.interleave(run.rounds, contenders)
    for what in ("stored", "live"):
        ten, one = (taken[name if what == "stored" else f"live {name}"] for name in ("ten", "one"))
        yield info(f"{what}, ten groups", 1e-3 / median(ten), "k deliveries/s")
        yield info(f"{what}, one group", 1e-3 / median(one), "k deliveries/s")
        yield harness.at_most(f"{what}, a delivery to ten groups / to one", harness.ratio(ten, one), "×", BAR)
    for peer in peers:
        yield info(f"{peer.name}, ten groups", 1e-3 / median(taken[peer.name]), "k deliveries/s")
        yield info(f"stored, ten groups / {peer.name}", harness.ratio(taken[peer.name], taken["ten"]), "×")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
