"""What do clients that do nothing cost the others?

A broker process on this machine, and clients over TCP:

    idle            memory of the broker with 2,000 connections that said hello and nothing more, minus before
    stuck           5,000 messages a second go to two groups. The process of one consumer is stopped (SIGSTOP) while it
                    is being sent messages; how long they are under way to the other one is beside the same without it
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

import harness
import penstock
from harness import Figure, Run, info
from pacing import PROCESSES, under_way
from penstock.client.blocking import Client
from penstock.limits import MIB
from penstock.wire.conversation import ClientEnd
from serving import PARTITIONS, Broker, broker

RATE = 5_000
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


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
