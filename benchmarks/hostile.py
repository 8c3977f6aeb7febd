"""What do 500 hostile connections cost a client with a key?

A broker process on this machine with keys and all listeners. A client publishes one message after the other and polls
each of them; first alone, then while another process keeps 500 hostile connections (`hostile_clients.py`) for 60 s:
clients without a key, and one principal whose key has no rights. Both p99 are set beside those of the same client
alone. The memory is the most that the broker had in that time, minus before.

The attackers take their share of the processors: on a machine with two cores, a part of what is lost is theirs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

import harness
import penstock
from harness import Figure, Run, info
from neighbours import SPARE_FILES, allow_files
from penstock.client.blocking import Client
from penstock.limits import MIB
from penstock.server.keys import make
from serving import DOORS, Broker, broker

CONNECTIONS = 500
SECONDS = 60.0
HERE = Path(__file__).resolve().parent


class Spent(NamedTuple):
    """In seconds, and what the broker had at most meanwhile."""

    publishes: list[float]
    polls: list[float]
    resident_bytes: int
    descriptors: int


def access(path: Path) -> tuple[str, str]:
    """Keys of a client that may do everything, and of one that may do nothing."""
    (client, kept), (hostile, useless) = make("client"), make("hostile")
    keys = [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in (kept, useless)]
    rule = {"principals": ["client"], "operations": ["publish", "consume", "describe", "admin"]}
    rules = [{**rule, "topics": ["*"]}, {**rule, "groups": ["*"]}]
    rules[1]["operations"] = ["consume", "describe", "admin"]
    path.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    return client, hostile


def work(q: Client, running: Broker, seconds: float) -> Spent:
    publishes, polls = [], []
    resident, descriptors = running.resident_bytes, running.descriptors
    until = looked = time.perf_counter()
    until += seconds
    with q.consumer("g", "t", prefetch=1) as consumer:
        while (now := time.perf_counter()) < until:
            q.publish("t", b"x")
            published = time.perf_counter()
            messages = consumer.poll(1, wait="10s")
            polled = time.perf_counter()
            publishes.append(published - now)
            polls.append(polled - published)
            for message in messages:
                message.ack()
            if polled - looked > 0.1:
                looked = polled
                resident = max(resident, running.resident_bytes)
                descriptors = max(descriptors, running.descriptors)
    return Spent(publishes, polls, resident, descriptors)


@contextmanager
def hostile_process(running: Broker, count: int, key: str) -> Iterator[None]:
    ports = [str(running.ports[door]) for door in DOORS]
    command = [sys.executable, str(HERE / "hostile_clients.py"), *ports, str(count), key]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "began\n"
        yield
        assert process.poll() is None, "the attackers gave up"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def measure(run: Run) -> Iterator[Figure]:
    count, seconds = run.pick(CONNECTIONS, 32), run.pick(SECONDS, 2.0)
    allow_files(4 * CONNECTIONS + SPARE_FILES)
    with run.folder() as path:
        file = path / "access.yaml"
        client, hostile = access(file)
        with broker(run, DOORS, "--access", str(file)) as running, penstock.connect(running.address, key=client) as q:
            q.create_topic("t", partitions=1)
            work(q, running, seconds / 10)
            alone = work(q, running, seconds / 3)
            before = running.resident_bytes
            with hostile_process(running, count, hostile):
                beside = work(q, running, seconds)
    yield from compared("publish", alone.publishes, beside.publishes)
    yield from compared("poll", alone.polls, beside.polls)
    yield harness.at_most("memory beside 500 hostile connections", (beside.resident_bytes - before) / MIB, "MiB", 200)
    yield info("descriptors, at most", beside.descriptors, "")
    yield info("publishes a second beside them", len(beside.publishes) / seconds, "/s")


def compared(what: str, alone: list[float], beside: list[float]) -> Iterator[Figure]:
    first, then = harness.percentile(sorted(alone), 0.99), harness.percentile(sorted(beside), 0.99)
    yield harness.at_most(f"p99 of a {what} beside 500 hostile connections / alone", then / first, "×", 3)
    yield info(f"p99 of a {what} alone", 1e3 * first, "ms")
    yield info(f"p99 of a {what} beside them", 1e3 * then, "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=1)
