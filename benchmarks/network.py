"""How fast is a broker behind a connection, for one Python client?

A broker process (`penstock serve`) and a client process on the same machine, over TCP, messages of 100 B, six
partitions, every publish and acknowledgement on disk before it is told:

    send            a blocking producer, one `send` a message
    send_batch      ready Arrow tables of 10,000
    iterate         a blocking consumer, one message at a time, each acknowledged, told together after 5 ms (ack_linger)
    batches         a blocking consumer, in columns, each batch acknowledged and waited for
    publish one     wait for its answer, again; beside a TCP round trip plus write and fdatasync of the same bytes
    connections     memory of the broker with 2,000 of them that do nothing, minus before
    start           from nothing to ready; `import penstock`; `penstock --help`
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa

import harness
import penstock
from harness import Figure, Run, info
from penstock.client.blocking import Client
from penstock.limits import MIB
from penstock.wire.conversation import ClientEnd

PENSTOCK = Path(sys.executable).with_name("penstock")
PARTITIONS = 6
TABLE_ROWS = 10_000
_ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(65536):
    peer.sendall(data)
"""


class Broker:
    def __init__(self, path: Path) -> None:
        started = time.perf_counter()
        command = [
            PENSTOCK,
            "serve",
            "--data",
            path / "data",
            "--native",
            "127.0.0.1:0",
            "--http",
            "none",
            "--grpc",
            "none",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        found = None
        while found is None:
            found = re.search(r"native=127\.0\.0\.1:(\d+)", self.process.stderr.readline())
        self.ready_s = time.perf_counter() - started
        self.port = int(found[1])

    @property
    def resident(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def stop(self) -> None:
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        self.process.stderr.close()
        self.process.wait()


@contextmanager
def broker(run: Run) -> Iterator[Broker]:
    with run.folder() as path:
        running = Broker(path)
        try:
            yield running
        finally:
            running.stop()


# --- how many a second --------------------------------------------------------------------------------------


class Bench:
    def __init__(self, q: Client, messages: int) -> None:
        self._q = q
        self._messages = messages
        self._number = 0
        self._tables = [pa.table({"value": harness.values(TABLE_ROWS)})] * max(messages // TABLE_ROWS, 1)
        q.create_topic("stored", partitions=PARTITIONS)
        with q.producer("stored") as producer:
            for _ in range(messages):
                producer.send(b"x" * harness.VALUE_BYTES)

    def _topic(self) -> str:
        self._number += 1
        self._q.create_topic(f"t{self._number}", partitions=PARTITIONS)
        return f"t{self._number}"

    def send(self) -> float:
        topic, value = self._topic(), b"x" * harness.VALUE_BYTES
        with self._q.producer(topic) as producer:
            started = time.perf_counter()
            for _ in range(self._messages):
                producer.send(value)
            producer.flush()
            spent = time.perf_counter() - started
        self._q.delete_topic(topic)
        return spent / self._messages

    def send_batch(self) -> float:
        topic = self._topic()
        with self._q.producer(topic, batch_messages=TABLE_ROWS, batch_bytes=4 * MIB) as producer:
            started = time.perf_counter()
            for table in self._tables:
                producer.send_batch(table)
            spent = time.perf_counter() - started
        self._q.delete_topic(topic)
        return spent / (len(self._tables) * TABLE_ROWS)

    def iterate(self) -> float:
        self._number += 1
        with self._q.consumer(f"g{self._number}", "stored", prefetch=10_000, ack_linger="5ms") as consumer:
            started = time.perf_counter()
            for number, message in enumerate(consumer, 1):
                message.ack()
                if number == self._messages:
                    break
            consumer.flush()
            return (time.perf_counter() - started) / self._messages

    def batches(self) -> float:
        self._number += 1
        done = 0
        with self._q.consumer(f"g{self._number}", "stored", prefetch=10_000) as consumer:
            started = time.perf_counter()
            for batch in consumer.batches():
                batch.ack()
                done += len(batch)
                if done == self._messages:
                    break
            return (time.perf_counter() - started) / self._messages


# --- how long one takes -------------------------------------------------------------------------------------


def p50_of_publish(q: Client, count: int) -> float:
    return median(harness.seconds(partial(q.publish, "one", b"x" * harness.VALUE_BYTES)) for _ in range(count))


def p50_of_round_trip(count: int) -> float:
    echo = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    with echo.stdout, socket.create_connection(("127.0.0.1", int(echo.stdout.readline()))) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def there_and_back() -> None:
            peer.sendall(b"x" * 208)
            peer.recv(65536)

        found = median(harness.seconds(there_and_back) for _ in range(count))
    echo.wait()
    return found


def p50_of_sync(path: Path, count: int) -> float:
    file = os.open(path / "probe", os.O_WRONLY | os.O_CREAT)

    def write_and_sync() -> None:
        os.write(file, b"x" * 208)
        os.fdatasync(file)

    found = median(harness.seconds(write_and_sync) for _ in range(count))
    os.close(file)
    return found


def latency(run: Run, q: Client) -> Iterator[Figure]:
    count = run.pick(500, 20)
    q.create_topic("one", partitions=1)
    ratios, ones = [], []
    with run.folder() as path:
        for number in range(run.rounds + 1):
            limit = p50_of_round_trip(count) + p50_of_sync(path, count)
            one = p50_of_publish(q, count)
            if number:
                ones.append(one)
                ratios.append(one / limit)
    yield harness.at_most("publish one / round trip + fdatasync, p50", median(ratios), "×", 2)
    yield info("publish one, p50", 1e6 * median(ones), "µs")


# --- what it costs to be there ------------------------------------------------------------------------------


def memory_of_connections(running: Broker, count: int) -> float:
    before = running.resident
    held = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", running.port))
        peer.sendall(ClientEnd().hello("idle", None))
        peer.recv(4096)
        held.append(peer)
    grown = running.resident - before
    for peer in held:
        peer.close()
    return grown / MIB


def start_up(rounds: int) -> Iterator[Figure]:
    def of(*command: str | Path) -> float:
        taken = [
            harness.seconds(partial(subprocess.run, command, check=True, capture_output=True)) for _ in range(rounds)
        ]
        return 1_000 * median(taken)

    yield harness.at_most("import penstock", of(sys.executable, "-c", "import penstock"), "ms", 300)
    yield harness.at_most("penstock --help", of(PENSTOCK, "--help"), "ms", 400)


def measure(run: Run) -> Iterator[Figure]:
    ready = []
    for _ in range(run.rounds):
        with broker(run) as running:
            ready.append(running.ready_s)
    with broker(run) as running, penstock.connect(f"penstock://127.0.0.1:{running.port}") as q:
        bench = Bench(q, run.pick(500_000, 20_000))
        contenders = {name: getattr(bench, name) for name in ("send", "send_batch", "iterate", "batches")}
        taken = harness.interleave(run.rounds, contenders)
        for name, bar in (("send", 600), ("send_batch", 3_000), ("iterate", 300), ("batches", 2_000)):
            yield harness.at_least(name, 1e-3 / median(taken[name]), "k messages/s", bar)
        yield from latency(run, q)
    with broker(run) as running:
        connections = run.pick(2_000, 20)
        yield harness.at_most("2,000 idle connections", memory_of_connections(running, connections), "MiB", 40)
    yield harness.at_most("start of the broker", median(ready), "s", 1.5)
    yield from start_up(run.rounds)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
