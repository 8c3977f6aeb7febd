"""How does the rate of publishing go with the size of a batch, with many clients, and with fsync?

A broker process and a client process on this machine, over TCP; messages of 100 B; one topic of one partition, one
stream or queue. Each client publishes a batch of 1 to 1,000 messages, waits until all of it is acknowledged, and does
it again, for a quarter of a second; one client, or eight at once: threads, or tasks of one loop where the client
library is asynchronous. Ours is the blocking client: `publish` of one, `send_batch` of more, with the table made of a
list of values each time. The others take their turns in the same rounds.

    fsync           acknowledged when it is on disk
    no fsync        acknowledged before: ours with `durability: interval`, the others in their default settings

Names of figures, for those that draw them; the first is in messages/s, the second a ratio of two of the first:

    publish {messages} a batch, {clients} client(s), {fsync|no fsync}: {product}
    publish {messages} a batch, {clients} client(s), {fsync|no fsync}: penstock / {product}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from statistics import median

import pyarrow as pa

import harness
import penstock
from beside import RIVALS, Servers, present
from harness import Figure, Run, info
from peers import Peer
from peers.closed_loop import Published, in_threads
from penstock.client.blocking import Client, Producer
from serving import broker, values

SIZES = (1, 10, 100, 500, 1_000)
SIZES_QUICK = (1, 100)
CLIENTS = (1, 8)
OURS = "penstock"
TOPIC = "bench"
# What a topic has to be made with.
DURABILITY = {"fsync": "fsync", "no fsync": "interval"}
# Of messages in a batch, by a single client. Below it everybody waits for the disk and for two wake-ups, and nobody can
# be five times as fast: of 100, five times Redis would leave less than a bare server takes that writes and syncs.
BARRED_FROM = 500
BAR = 5.0
# In every combination of sizes and clients.
Rates = dict[tuple[int, int], float]


def told(size: int, clients: int, synced: str, who: str) -> str:
    return f"publish {size:,} a batch, {clients} client{'s' if clients > 1 else ''}, {synced}: {who}"


def synced(is_durable: bool) -> str:
    return "fsync" if is_durable else "no fsync"


def seconds(run: Run) -> float:
    return 0.02 if run.quick else 0.25


# --- ours ---------------------------------------------------------------------------------------------------


def ours(run: Run, address: str, durability: str) -> Rates:
    with penstock.connect(address) as q:
        q.create_topic(TOPIC, partitions=1, durability=durability)
        try:
            return rates(run, lambda batch, clients: publish(address, batch, clients, seconds(run)))
        finally:
            q.delete_topic(TOPIC)


def publish(address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
    @contextmanager
    def connected() -> Iterator[Callable[[Sequence[bytes]], object]]:
        with penstock.connect(address) as q, q.producer(TOPIC) as producer:
            yield partial(publish_batch, q, producer)

    return in_threads(clients, batch, seconds, connected)


def publish_batch(q: Client, producer: Producer, batch: Sequence[bytes]) -> None:
    if len(batch) == 1:
        q.publish(TOPIC, batch[0])
    else:
        producer.send_batch(pa.table({"value": batch}))


# --- all ----------------------------------------------------------------------------------------------------


def combinations(run: Run) -> Iterator[tuple[int, int]]:
    return product(SIZES_QUICK if run.quick else SIZES, CLIENTS)


def rates(run: Run, publish: Callable[[Sequence[bytes], int], Published]) -> Rates:
    return {(size, clients): publish(values(size), clients).rate for size, clients in combinations(run)}


def theirs(run: Run, servers: Servers, peer: Peer) -> Rates:
    with servers.of(peer) as address:
        return rates(run, lambda batch, clients: peer.publish(address, batch, clients, seconds(run)))


def measure(run: Run) -> Iterator[Figure]:
    peers = present()
    with Servers(run) as servers, broker(run) as running:
        contenders = {
            f"{how}: {OURS}": partial(ours, run, running.address, setting) for how, setting in DURABILITY.items()
        }
        for peer in peers:
            contenders[f"{synced(peer.is_durable)}: {peer.product}"] = partial(theirs, run, servers, peer)
        found = harness.interleave(run.rounds, contenders)
    for size, clients in combinations(run):
        yield from compared(size, clients, {name: [turn[size, clients] for turn in found[name]] for name in found})


def compared(size: int, clients: int, rates: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    for contender, found in rates.items():
        how, who = contender.split(": ")
        yield info(told(size, clients, how, who), median(found), "messages/s")
        if who == OURS:
            continue
        name = told(size, clients, how, f"{OURS} / {who}")
        ratio = harness.ratio(rates[f"{how}: {OURS}"], found)
        has_bar = how == "fsync" and who in RIVALS and clients == 1 and size >= BARRED_FROM
        yield harness.at_least(name, ratio, "×", BAR) if has_bar else info(name, ratio, "×")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
