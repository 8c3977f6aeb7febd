"""How long does one message take?

A broker process and client processes on this machine, over TCP; messages of 100 B; all on disk before it is told:

    publish one     wait for its answer, again, with the blocking client and with the async one; beside a TCP round trip
                    plus write and fdatasync of as many bytes, each on its own; and beside a bare server that writes
                    and syncs what it gets before it answers, which no broker can be faster than; and beside others
    pushed          10,000 a second from a producer in a process of its own to a consumer that waits for them and
                    acknowledges each, from due to received; with the producer's usual linger of 3 ms, and with 1 ms;
                    and through others, at the same rate or at the highest of some whose pace they keep

The others have their own Python clients, and a fresh server for each turn where that does not take seconds. There is a
bar against Redis and NATS where they sync before they answer, as we do: not to be behind them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import uvloop

import harness
import penstock
from beside import RIVALS, Servers, present
from harness import Figure, Run, info
from pacing import under_way
from peers import Peer, arrivals, new_name
from penstock.client.blocking import Client
from serving import PARTITIONS, Broker, broker

RATE = 10_000
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
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


def p50_of_peer(run: Run, servers: Servers, peer: Peer) -> float:
    with servers.of(peer) as address:
        return median(peer.publish(address, [b"x" * harness.VALUE_BYTES], 1, 0.02 if run.quick else 0.5).each_s)


def publish_one(run: Run, address: str, q: Client, servers: Servers, peers: Sequence[Peer]) -> Iterator[Figure]:
    count = run.pick(500, 20)
    q.create_topic("one", partitions=1)
    contenders: dict[str, harness.Contender] = {
        "publish": partial(p50_of_publish, q, count),
        "async": partial(p50_of_async_publish, address, count),
        "bare": partial(p50_of_bare_server, run, count),
        "round trip": partial(p50_of_round_trip, count),
        "sync": partial(p50_of_sync, run, count),
    }
    contenders |= {peer.name: partial(p50_of_peer, run, servers, peer) for peer in peers}
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
    for peer in peers:
        ratio, name = harness.ratio(taken["publish"], taken[peer.name]), f"publish one / {peer.name}, p50"
        has_bar = peer.is_durable and peer.product in RIVALS
        yield harness.at_most(name, ratio, "×", 1) if has_bar else info(name, ratio, "×")
        ratio = harness.ratio(taken["async"], taken[peer.name])
        yield info(f"publish one, async / {peer.name}, p50", ratio, "×")
        yield info(f"publish one: {peer.name}, p50", 1e6 * median(taken[peer.name]), "µs")


# --- pushed -------------------------------------------------------------------------------------------------


def push(run: Run, running: Broker, q: Client, linger: str) -> arrivals.UnderWay:
    topic = new_name()
    q.create_topic(topic, partitions=PARTITIONS)
    try:
        count = int(RATE * seconds(run))
        return arrivals.UnderWay(RATE, under_way(q, running.address, topic, rate=RATE, count=count, linger=linger))
    finally:
        q.delete_topic(topic)


class Pushed:
    """Through another broker; once it has not kept a pace, it is not asked to again."""

    def __init__(self, run: Run, servers: Servers, peer: Peer) -> None:
        self._run = run
        self._servers = servers
        self._peer = peer
        self._rate = RATE

    def __call__(self) -> arrivals.UnderWay:
        with self._servers.of(self._peer) as address:
            found = arrivals.under_way(self._peer, address, self._rate, seconds(self._run))
        self._rate = found.rate
        return found


def seconds(run: Run) -> float:
    return 0.1 if run.quick else 2.0


def pushed(run: Run, running: Broker, q: Client, servers: Servers, peers: Sequence[Peer]) -> Iterator[Figure]:
    contenders: dict[str, Callable[[], arrivals.UnderWay]] = {
        f"linger {linger}": partial(push, run, running, q, linger) for linger in ("3ms", "1ms")
    }
    # Each starts a process in each turn, so a quick run has fewer of them.
    contenders |= {peer.name: Pushed(run, servers, peer) for peer in peers if peer.is_durable or not run.quick}
    for name, rounds in harness.interleave(run.rounds, contenders).items():
        rate = min(one.rate for one in rounds)
        kept = [one.taken_s for one in rounds if one.rate == rate]
        for percentile, share in PERCENTILES.items():
            told = f"pushed at {rate:,}/s, {name}, {percentile}"
            value = 1e3 * median(harness.percentile(taken, share) for taken in kept)
            has_bar = name == "linger 3ms" and percentile == "p99"
            yield harness.at_most(told, value, "ms", 10) if has_bar else info(told, value, "ms")


def measure(run: Run) -> Iterator[Figure]:
    peers = present()
    with broker(run) as running, penstock.connect(running.address) as q, Servers(run) as servers:
        yield from publish_one(run, running.address, q, servers, peers)
        yield from pushed(run, running, q, servers, peers)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
