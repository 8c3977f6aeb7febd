"""What a server tells of itself to Prometheus: what it counted, and what the broker has, asked when somebody looks.

The text format 0.0.4. Of the broker nothing is counted on the way of a message: offsets and sets say it all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic

# Of requests, in seconds: a sync takes a tenth of a millisecond on a good disk, a poll waits for half a minute.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Counts:
    """Kept by the doors. Belongs to one event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}
        self.connections: Counter[str] = Counter()

    def request(self, door: str, kind: str, outcome: str, seconds: float) -> None:
        """`outcome` is ok, or the code of an error."""
        self.requests[door, kind, outcome] += 1
        histogram = self.seconds.get((door, kind))
        if histogram is None:
            histogram = self.seconds[door, kind] = Histogram()
        histogram.add(seconds)


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float
    suffix: str = ""


class Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: Iterable[Sample]


def rendered(families: Iterable[Family]) -> str:
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value, suffix in family.samples:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            number = f"{value:.0f}" if value == int(value) else repr(value)
            lines.append(f"{family.name}{suffix}{{{told}}} {number}" if told else f"{family.name}{suffix} {number}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- what the doors counted ---------------------------------------------------------------------------------


def of_doors(counts: Counts) -> Iterator[Family]:
    yield Family(
        "penstock_connections",
        "gauge",
        "Open connections.",
        [Sample({"door": d}, n) for d, n in counts.connections.items()],
    )
    yield Family(
        "penstock_requests_total",
        "counter",
        "Requests that were answered, by their outcome: ok, or the code of an error.",
        [Sample({"door": d, "request": k, "outcome": o}, n) for (d, k, o), n in counts.requests.items()],
    )
    yield Family(
        "penstock_request_seconds",
        "histogram",
        "From a request to its answer; of a publish or an answer until it is on disk.",
        [sample for (door, kind), histogram in counts.seconds.items() for sample in _buckets(door, kind, histogram)],
    )


def _buckets(door: str, kind: str, histogram: Histogram) -> Iterator[Sample]:
    labels, total = {"door": door, "request": kind}, 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
        total += count
        yield Sample({**labels, "le": bound}, total, "_bucket")
    yield Sample(labels, histogram.sum, "_sum")
    yield Sample(labels, total, "_count")


# --- what the broker has ------------------------------------------------------------------------------------


def of_broker(broker: Broker) -> Iterator[Family]:
    topics = {record.name: broker.topic(record.name) for record in broker.topics}
    yield Family(
        "penstock_messages_published_total",
        "counter",
        "Messages ever stored: the next offset.",
        [Sample(labels, part.messages.end_offset) for labels, part in _partitions(topics)],
    )
    yield Family(
        "penstock_messages_stored",
        "gauge",
        "Offsets that are still there.",
        [Sample(labels, part.messages.end_offset - part.messages.start_offset) for labels, part in _partitions(topics)],
    )
    yield Family(
        "penstock_stored_bytes",
        "gauge",
        "Bytes of messages on disk.",
        [Sample(labels, sum(s.size for s in part.messages.segments)) for labels, part in _partitions(topics)],
    )
    yield Family(
        "penstock_scheduled",
        "gauge",
        "Delayed messages that are not due yet.",
        [Sample(labels, len(part.groups.delays.pending)) for labels, part in _partitions(topics)],
    )
    yield from _of_groups(broker, topics)


def _partitions(topics: dict[str, Topic]) -> Iterator[tuple[dict[str, str], Partition]]:
    for name, topic in topics.items():
        for number, part in enumerate(topic.partitions):
            yield {"topic": name, "partition": str(number)}, part


def _of_groups(broker: Broker, topics: dict[str, Topic]) -> Iterator[Family]:
    states = [
        ({"group": group, **labels}, part, part.groups.state(group))
        for labels, part in _partitions(topics)
        for group in part.groups.groups
    ]
    for name, help, of in (
        ("lag", "Messages that are not done.", lambda part, state: state.lag(part.reading.visible_offset)),
        ("in_flight", "Messages that are leased.", lambda part, state: state.in_flight),
        ("waiting", "Messages that wait for their next try.", lambda part, state: len(state.waiting)),
        ("parked_keys", "Keys that wait for somebody to release them.", lambda part, state: len(state.parked)),
        ("dead_letters", "Messages that were given up and are retained.", lambda part, state: len(state.dead)),
    ):
        samples = [Sample(labels, of(part, state)) for labels, part, state in states]
        yield Family(f"penstock_group_{name}", "gauge", help, samples)
    members = {record.name: broker.consumers.of(record.name) for record in broker.groups}
    yield Family(
        "penstock_group_members",
        "gauge",
        "Consumers that have joined.",
        [Sample({"group": name}, len(found.names()) if found is not None else 0) for name, found in members.items()],
    )
