"""What do clients cost the others that do nothing, or ask for much?

A broker process on this machine, and clients over TCP:

    idle            memory of the broker with 2,000 connections that said hello and nothing more, minus before
    stuck           5,000 messages a second go to two groups. The process of one consumer is stopped (SIGSTOP) while it
                    is being sent messages; how long they are under way to the other one is beside the same without it
    slow requests   500 messages a second are published while another connection pipelines requests, over and over: 200
                    listings of 4,000 groups, 100 traces and answers to "why", or 10 dry runs and listings of 20,000
                    dead letters; how long each takes from due to stored, beside the same without them
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import pyarrow as pa

import harness
import penstock
from harness import Figure, Run, info
from pacing import PROCESSES, p99_until_stored, under_way
from penstock.client.blocking import Client
from penstock.client.requests import AskWhy, GetTrace, ListDeadLetters, ListGroups, Redrive, Request, Where
from penstock.clock import SystemClock
from penstock.limits import MIB
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.wire.conversation import ClientEnd
from serving import PARTITIONS, Broker, broker

RATE = 5_000
PUBLISHED = 500
SPARE_FILES = 100


def memory_of_connections(running: Broker, count: int) -> float:
    """In MiB."""
    with ExitStack() as held:
        before = running.resident_bytes
        peers = [held.enter_context(welcomed(running.ports["native"])) for _ in range(count)]
        grown = running.resident_bytes - before
        for peer in peers:
            assert is_open(peer)
        return grown / MIB


def welcomed(port: int) -> socket.socket:
    peer, end = socket.create_connection(("127.0.0.1", port)), ClientEnd()
    peer.sendall(end.hello("idle", None))
    # A welcome is some hundred bytes, and comes in one piece.
    end.welcomed(next(end.receive(peer.recv(4096))))
    return peer


def is_open(peer: socket.socket) -> bool:
    """The broker has neither hung up nor said anything more."""
    peer.setblocking(False)
    try:
        peer.recv(1)
    except BlockingIOError:
        return True
    return False


def allow_files(count: int) -> None:
    """Those that are started after this may have as many, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


# --- stuck --------------------------------------------------------------------------------------------------


def consume_one(address: str, topic: str, here: Connection) -> None:
    """Asks for many and takes one; the rest is under way when it is stopped."""
    with penstock.connect(address) as q, q.consumer("stuck", topic, prefetch=10_000) as consumer:
        next(consumer)
        here.send("here")
        here.recv()


@contextmanager
def stuck_consumer(q: Client, address: str, topic: str) -> Iterator[None]:
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=consume_one, args=(address, topic, there))
    process.start()
    try:
        q.publish(topic, b"for the one that gets stuck")
        assert here.recv() == "here"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.join()
        here.close()
        there.close()


def p99_of_others(run: Run, with_stuck: bool, count: int) -> float:
    """In seconds. Each time with a broker of its own: what one that was killed leaves behind is not for the next."""
    with broker(run) as running, penstock.connect(running.address) as q, ExitStack() as stack:
        q.create_topic("t", partitions=PARTITIONS)
        if with_stuck:
            stack.enter_context(stuck_consumer(q, running.address, "t"))
        q.create_group("measured", start="latest")
        return harness.percentile(under_way(q, running.address, "t", rate=RATE, count=count), 0.99)


# --- slow requests ------------------------------------------------------------------------------------------

LETTERS = "letters"
# What another connection pipelines, over and over.
SLOW: dict[str, list[Request[Any]]] = {
    "listings": [ListGroups(after="")] * 200,
    "traces": [ask for at in range(50) for ask in (GetTrace(f"{LETTERS}:0:{at}"), AskWhy(f"{LETTERS}:0:{at}", "g"))],
    "redrives": [Redrive(LETTERS, Where(), True, None), ListDeadLetters(LETTERS, Where(), False, 200, after="")] * 5,
}


def request_over_and_over(address: str, name: str, here: Connection) -> None:
    """Until it is stopped."""

    async def main() -> None:
        host, _, port = address.removeprefix("penstock://").rpartition(":")
        transport = await RemoteTransport.to(Place(host, int(port)), SystemClock())
        here.send("ready")
        while not here.poll():
            await asyncio.gather(*[transport.call(request) for request in SLOW[name]])
        await transport.close()

    asyncio.run(main())


@contextmanager
def slow_requests(address: str, name: str) -> Iterator[None]:
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=request_over_and_over, args=(address, name, there))
    process.start()
    try:
        assert here.recv() == "ready"
        yield
        assert process.is_alive(), "a request failed"
    finally:
        process.kill()
        process.join()
        here.close()
        there.close()


def fill_dead_letters(q: Client, count: int) -> None:
    q.create_topic(LETTERS, partitions=1)
    with q.producer(LETTERS) as producer:
        producer.send_batch(pa.table({"value": [b"bad"] * count}))
    with q.consumer("g", LETTERS) as consumer:
        left = count
        while left:
            for message in consumer.poll(5_000, wait="5s"):
                message.reject("bad")
                left -= 1


def p99_beside(run: Run, q: Client, running: Broker, name: str | None) -> float:
    """In seconds."""
    with nullcontext() if name is None else slow_requests(running.address, name):
        return p99_until_stored(q, running.address, rate=PUBLISHED, seconds=run.pick(8, 1), partitions=PARTITIONS)


def measure_slow_requests(run: Run) -> Iterator[Figure]:
    with broker(run) as running, penstock.connect(running.address) as q:
        for number in range(run.pick(4_000, 20)):
            q.create_group(f"g{number}")
        fill_dead_letters(q, run.pick(20_000, 200))
        contenders = {name or "alone": partial(p99_beside, run, q, running, name) for name in (None, *SLOW)}
        taken = harness.interleave(run.rounds, contenders)
    yield info("publish alone: p99", 1e3 * median(taken["alone"]), "ms")
    for name in SLOW:
        ratio = harness.ratio(taken[name], taken["alone"])
        yield harness.at_most(f"publish beside pipelined {name} / alone, p99", ratio, "×", 2)
        yield info(f"publish beside pipelined {name}: p99", 1e3 * median(taken[name]), "ms")


def measure(run: Run) -> Iterator[Figure]:
    connections = run.pick(2_000, 20)
    allow_files(connections + SPARE_FILES)
    grown = []
    for _ in range(min(run.rounds, 3)):
        with broker(run) as running:
            grown.append(memory_of_connections(running, connections))
    yield harness.at_most("2,000 idle connections", median(grown), "MiB", 40)
    count = run.pick(2 * RATE, RATE // 10)
    contenders = {
        "alone": partial(p99_of_others, run, False, count),
        "beside": partial(p99_of_others, run, True, count),
    }
    taken = harness.interleave(run.rounds, contenders)
    ratio = harness.ratio(taken["beside"], taken["alone"])
    yield harness.at_most("p99 beside a stuck consumer / without", ratio, "×", 2)
    yield info("p99 without a stuck consumer", 1e3 * median(taken["alone"]), "ms")
    yield info("p99 beside a stuck consumer", 1e3 * median(taken["beside"]), "ms")
    yield from measure_slow_requests(run)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
