"""What a server tells of itself to Prometheus: what it counted, and what the broker has, asked when somebody looks.

The text format 0.0.4. On the way of a message nothing is counted one by one: offsets and sets say most of it, and the
rest is counted by requests, leases and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import NamedTuple

import penstock
from penstock.broker.tally import Histogram

# Of requests, in seconds: a sync takes a tenth of a millisecond on a good disk, a poll waits for half a minute.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


# Of syncs: from a disk with a battery to one that is about to fail.
SYNC_BOUNDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)
# Of the event loop: a request should hold it for 10 ms at most.
STALL_BOUNDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Requests that store messages, and are answered when they are on disk. A stream of batches is not among them: its end
# tells nothing of them.
PUBLISHING = {
    "publish",
    "POST /v1/topics/{topic}/publish",
    "POST /v1/topics/{topic}/publish/batch",
    "Publish",
    "PublishBatch",
}


class Counts:
    """Kept by the doors. Belongs to one event loop, but for what says otherwise."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}
        self.connections: Counter[str] = Counter()
        # Of a door that does not know by itself, and is asked when somebody looks.
        self.connected: dict[str, Callable[[], int]] = {}
        self.spans: Counter[str] = Counter()
        self.stalls = Histogram(STALL_BOUNDS)
        # Of keys, asked when somebody looks.
        self.of_access: Callable[[], Iterable[Family]] = lambda: ()
        # Of a node of a cluster: asked when somebody looks.
        self.of_cluster: Callable[[], Iterable[Family]] = lambda: ()
        self._syncs = Histogram(SYNC_BOUNDS)
        self._lock = Lock()

    def request(self, door: str, kind: str, outcome: str, seconds: float) -> None:
        """`outcome` is ok, or the code of an error."""
        self.requests[door, kind, outcome] += 1
        histogram = self.seconds.get((door, kind))
        if histogram is None:
            histogram = self.seconds[door, kind] = Histogram(BOUNDS)
        histogram.add(seconds)

    def synced(self, seconds: float) -> None:
        """On any thread."""
        with self._lock:
            self._syncs.add(seconds)

    def span(self, outcome: str, count: int) -> None:
        """On any thread."""
        with self._lock:
            self.spans[outcome] += count

    @property
    def syncs(self) -> Histogram:
        """As it is now."""
        copy = Histogram(SYNC_BOUNDS)
        with self._lock:
            copy.merge(self._syncs)
        return copy

    def publishes(self) -> dict[str, Histogram]:
        """By door, made from the requests: nothing more is counted for it."""
        found: dict[str, Histogram] = {}
        for (door, kind), histogram in self.seconds.items():
            if kind in PUBLISHING:
                found.setdefault(door, Histogram(BOUNDS)).merge(histogram)
        return found


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
    yield Family("penstock_info", "gauge", "The version.", [Sample({"version": penstock.__version__}, 1)])
    connections = {**counts.connections, **{door: ask() for door, ask in counts.connected.items()}}
    yield Family(
        "penstock_connections",
        "gauge",
        "Open connections, by door.",
        [Sample({"door": door}, count) for door, count in sorted(connections.items())],
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
        all_buckets(({"door": d, "request": k}, histogram) for (d, k), histogram in counts.seconds.items()),
    )
    yield Family(
        "penstock_publish_seconds",
        "histogram",
        "From a request that stores messages to its answer: they are on disk.",
        all_buckets(({"door": door}, histogram) for door, histogram in counts.publishes().items()),
    )
    yield Family(
        "penstock_sync_seconds",
        "histogram",
        "Of each fdatasync of a file: what a group commit waits for.",
        _buckets({}, counts.syncs),
    )
    yield Family(
        "penstock_loop_stall_seconds",
        "histogram",
        "Times for which the event loop was held, of at least 10 ms: everything else waits meanwhile.",
        _buckets({}, counts.stalls),
    )
    yield Family(
        "penstock_telemetry_spans_total",
        "counter",
        "Spans for OpenTelemetry: exported, failed (the collector did not take them), or dropped (too many).",
        [Sample({"outcome": outcome}, counts.spans[outcome]) for outcome in ("exported", "failed", "dropped")],
    )
    yield from counts.of_access()
    yield from counts.of_cluster()


def all_buckets(histograms: Iterable[tuple[dict[str, str], Histogram]]) -> Iterator[Sample]:
    for labels, histogram in histograms:
        yield from _buckets(labels, histogram)


def _buckets(labels: dict[str, str], histogram: Histogram) -> Iterator[Sample]:
    total = 0
    for bound, count in zip((*map(_bound, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        yield Sample({**labels, "le": bound}, total, "_bucket")
    yield Sample(labels, histogram.sum, "_sum")
    yield Sample(labels, total, "_count")


def _bound(seconds: float) -> str:
    """Never 5e-05: they are compared as text."""
    text = f"{seconds:.6f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text
