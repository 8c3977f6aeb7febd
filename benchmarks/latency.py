"""How long does one message take?

A broker process and client processes on this machine, over TCP; messages of 100 B; all on disk before it is told:

    publish one     wait for its answer, again, with the blocking client and with the async one; beside a TCP round trip
                    plus write and fdatasync of as many bytes, each on its own; and beside a bare server that writes
                    and syncs what it gets before it answers, which no broker can be faster than
    pushed          10,000 a second from a producer in a process of its own to a consumer that waits for them and
                    acknowledges each, from due to received; with the producer's usual linger of 3 ms, and with 1 ms
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter

import uvloop

import harness
import penstock
from harness import Figure, Run, info
from pacing import under_way
from penstock.client.blocking import Client
from serving import PARTITIONS, Broker, broker

RATE = 10_000
# Of a frame with one message of 100 B.
FRAME_BYTES = 208
_ECHO = """
import os, socket, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) if len(sys.argv) > 1 else None
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(65536):
    if file is not None:
        os.write(file, data)
        os.fdatasync(file)
    peer.sendall(data)
"""


# --- publish one --------------------------------------------------------------------------------------------


def p50_of_publish(q: Client, count: int) -> float:
    return median(harness.seconds(partial(q.publish, "one", b"x" * harness.VALUE_BYTES)) for _ in range(count))


def p50_of_async_publish(address: str, count: int) -> float:
    async def publish_all() -> float:
        taken = []
        async with penstock.aio.connect(address) as q:
            for _ in range(count):
                began = perf_counter()
                await q.publish("one", b"x" * harness.VALUE_BYTES)
                taken.append(perf_counter() - began)
        return median(taken)

    return uvloop.run(publish_all())


def p50_of_bare_server(run: Run, count: int) -> float:
    with run.folder() as path:
        return p50_of_round_trip(count, str(path / "probe"))


def p50_of_round_trip(count: int, *synced: str) -> float:
    echo = subprocess.Popen([sys.executable, "-c", _ECHO, *synced], stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    with echo.stdout, socket.create_connection(("127.0.0.1", int(echo.stdout.readline()))) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def there_and_back() -> None:
            peer.sendall(b"x" * FRAME_BYTES)
            peer.recv(65536)

        found = median(harness.seconds(there_and_back) for _ in range(count))
    echo.wait()
    return found


def p50_of_sync(run: Run, count: int) -> float:
    with run.folder() as path:
        file = os.open(path / "probe", os.O_WRONLY | os.O_CREAT)

        def write_and_sync() -> None:
            os.write(file, b"x" * FRAME_BYTES)
            os.fdatasync(file)

        found = median(harness.seconds(write_and_sync) for _ in range(count))
        os.close(file)
    return found


def publish_one(run: Run, address: str, q: Client) -> Iterator[Figure]:
    count = run.pick(500, 20)
    q.create_topic("one", partitions=1)
    contenders: dict[str, harness.Contender] = {
        "publish": partial(p50_of_publish, q, count),
        "async": partial(p50_of_async_publish, address, count),
        "bare": partial(p50_of_bare_server, run, count),
        "round trip": partial(p50_of_round_trip, count),
        "sync": partial(p50_of_sync, run, count),
    }
    taken = harness.interleave(run.rounds, contenders)
    limit = [trip + sync for trip, sync in zip(taken["round trip"], taken["sync"], strict=True)]
    ratio = harness.ratio(taken["publish"], limit)
    yield harness.at_most("publish one / TCP round trip + fdatasync, p50", ratio, "×", 2)
    bare = "a bare server that writes and syncs"
    yield info(f"publish one / {bare}, p50", harness.ratio(taken["publish"], taken["bare"]), "×")
    yield info(f"publish one, async / {bare}, p50", harness.ratio(taken["async"], taken["bare"]), "×")
    for name, what in (
        ("publish", "publish one"),
        ("async", "publish one, async"),
        ("bare", bare),
        ("round trip", "TCP round trip"),
        ("sync", "write + fdatasync"),
    ):
        yield info(f"{what}, p50", 1e6 * median(taken[name]), "µs")
    yield info("write + fdatasync: slowest round / fastest", harness.unrest(taken["sync"]), "×")


# --- pushed -------------------------------------------------------------------------------------------------


def pushed(run: Run, running: Broker, q: Client) -> Iterator[Figure]:
    count = run.pick(2 * RATE, RATE // 10)
    turns = iter(range(1_000))

    def push(linger: str) -> list[float]:
        topic = f"pushed-{next(turns)}"
        q.create_topic(topic, partitions=PARTITIONS)
        try:
            return under_way(q, running.address, topic, rate=RATE, count=count, linger=linger)
        finally:
            q.delete_topic(topic)

    taken = harness.interleave(run.rounds, {linger: partial(push, linger) for linger in ("3ms", "1ms")})
    for linger, rounds in taken.items():
        p50, p99 = (1e3 * median(harness.percentile(one, share) for one in rounds) for share in (0.5, 0.99))
        name = f"pushed at 10,000/s, linger {linger}"
        yield harness.at_most(f"{name}, p99", p99, "ms", 10) if linger == "3ms" else info(f"{name}, p99", p99, "ms")
        yield info(f"{name}, p50", p50, "ms")


def measure(run: Run) -> Iterator[Figure]:
    with broker(run) as running, penstock.connect(running.address) as q:
        yield from publish_one(run, running.address, q)
        yield from pushed(run, running, q)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
