"""How long does one message take?

A broker process and client processes on this machine, over TCP; messages of 100 B; all on disk before it is told:

    publish one     wait for its answer, again; beside a TCP round trip plus write and fdatasync of as many bytes
    pushed          10,000 a second from a producer in a process of its own to a consumer that waits for them and
                    acknowledges each, from due to received; with the producer's usual linger of 5 ms, and with 1 ms
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from statistics import median

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
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(65536):
    peer.sendall(data)
"""


# --- publish one --------------------------------------------------------------------------------------------


def p50_of_publish(q: Client, count: int) -> float:
    return median(harness.seconds(partial(q.publish, "one", b"x" * harness.VALUE_BYTES)) for _ in range(count))


def p50_of_round_trip(count: int) -> float:
    echo = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
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


def publish_one(run: Run, q: Client) -> Iterator[Figure]:
    count = run.pick(500, 20)
    q.create_topic("one", partitions=1)
    contenders: dict[str, harness.Contender] = {
        "publish": partial(p50_of_publish, q, count),
        "round trip": partial(p50_of_round_trip, count),
        "sync": partial(p50_of_sync, run, count),
    }
    taken = harness.interleave(run.rounds, contenders)
    limit = [trip + sync for trip, sync in zip(taken["round trip"], taken["sync"], strict=True)]
    ratio = harness.ratio(taken["publish"], limit)
    yield harness.at_most("publish one / TCP round trip + fdatasync, p50", ratio, "×", 2)
    for name, what in (("publish", "publish one"), ("round trip", "TCP round trip"), ("sync", "write + fdatasync")):
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

    taken = harness.interleave(run.rounds, {linger: partial(push, linger) for linger in ("5ms", "1ms")})
    for linger, rounds in taken.items():
        p50, p99 = (1e3 * median(harness.percentile(one, share) for one in rounds) for share in (0.5, 0.99))
        name = f"pushed at 10,000/s, linger {linger}"
        yield harness.at_most(f"{name}, p99", p99, "ms", 10) if linger == "5ms" else info(f"{name}, p99", p99, "ms")
        yield info(f"{name}, p50", p50, "ms")


def measure(run: Run) -> Iterator[Figure]:
    with broker(run) as running, penstock.connect(running.address) as q:
        yield from publish_one(run, q)
        yield from pushed(run, running, q)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
