"""Which figures make which plot. A new benchmark gets its plot here, by the names of its figures, and nowhere else.

A rule takes those figures whose name its pattern matches as a whole, and says what they are by templates of `re`: `\\1`
is the first group. The first rule that takes a figure has it. Figures of two units never share a panel. A plot whose
scripts have no results is left out, and the page says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    # From zero, so that lengths compare.
    BARS = "bars"
    # On a logarithmic axis, with a line at 1.
    RATIOS = "ratios"
    # One row a series, one mark for each x: p50, p99.
    MARKS = "marks"
    # x is a number.
    LINES = "lines"


@dataclass(frozen=True)
class Rule:
    pattern: str
    series: str = r"\g<0>"
    x: str = ""
    panel: str = ""
    # Of units; everything by default.
    unit: str = ".*"

    def match(self, name: str, unit: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern, name) if re.fullmatch(self.unit, unit) else None


@dataclass(frozen=True)
class Plot:
    slug: str
    title: str
    scripts: tuple[str, ...]
    kind: Kind
    rules: tuple[Rule, ...]
    # What x is, for lines.
    x_label: str = ""


RATE = r".*/s"
TIME = r"s|ms|µs|ns"
SIZE = r"B|kB|KiB|MiB|GiB"
LIMIT = r"os\.\w+|round trip|bare server|write \+|GET /health|from memory|thrown away|written only|slowest round"

_PUBLISH = r"publish ([\d,]+) a batch, (\d+ clients?), ((?:no )?fsync): "

PLOTS = (
    Plot(
        "publish",
        "Publish and wait for the answer: messages a second by size of batch",
        ("publish",),
        Kind.LINES,
        (Rule(_PUBLISH + r"(.+)", series=r"\4", x=r"\1", panel=r"\2, \3", unit=RATE),),
        x_label="messages a batch",
    ),
    Plot(
        "publish-beside-others",
        "Publish and wait, beside other brokers in the same round: times their rate",
        ("publish",),
        Kind.LINES,
        (Rule(_PUBLISH + r"penstock / (.+)", series=r"\4", x=r"\1", panel=r"\2, \3", unit="×"),),
        x_label="messages a batch",
    ),
    Plot(
        "throughput",
        "One Python client over TCP: messages a second",
        ("throughput",),
        Kind.BARS,
        (
            Rule(r"send(_batch)?", r"penstock, \g<0>", panel="publish"),
            Rule(r"iterate", "penstock", panel="consume, an ack for each"),
            Rule(r"batches", "penstock", panel="consume, one ack for many"),
            Rule(r"(.+): publish", r"\1", panel="publish"),
            Rule(r"(.+): ack of each", r"\1", panel="consume, an ack for each"),
            Rule(r"(.+): ack of many", r"\1", panel="consume, one ack for many"),
        ),
    ),
    Plot(
        "beside-others",
        "Penstock beside other brokers, in the same round: times their rate",
        ("throughput",),
        Kind.RATIOS,
        (Rule(r"(send|send_batch|iterate|batches) / (.+)", series=r"\2", panel=r"\1", unit="×"),),
    ),
    Plot(
        "publish-one",
        "Publish one message and wait for the answer: median time",
        ("latency",),
        Kind.BARS,
        (
            Rule(r"publish one(, async)?, p50", r"penstock\1", unit="µs"),
            Rule(r"publish one: (.+), p50", r"\1", unit="µs"),
            Rule(r"([^/]+), p50", r"\1", unit="µs"),
        ),
    ),
    Plot(
        "publish-one-beside-others",
        "Publish one and wait, in the same round: times their time; left of 1 is faster",
        ("latency",),
        Kind.RATIOS,
        (
            Rule(r"publish one / (.+), p50", r"\1", panel="blocking client", unit="×"),
            Rule(r"publish one, async / (.+), p50", r"\1", panel="async client", unit="×"),
        ),
    ),
    Plot(
        "latency",
        "From due to received, under load: percentiles",
        ("latency",),
        Kind.MARKS,
        (
            Rule(r"pushed at ([\d,]+/s), (linger .+), (p[\d.]+)", r"penstock, \2, \1", x=r"\3", unit="ms"),
            Rule(r"pushed at ([\d,]+/s), (.+), (p[\d.]+)", r"\2, \1", x=r"\3", unit="ms"),
        ),
    ),
    Plot(
        "ring",
        "In one process: jobs a second",
        ("ring",),
        Kind.BARS,
        (Rule(r"(.+?): (.+)", r"\2", panel=r"\1", unit=RATE), Rule(r".+", unit=RATE)),
    ),
    Plot(
        "ring-beside-others",
        "The ring beside other queues, in the same round: times their rate",
        ("ring",),
        Kind.RATIOS,
        (Rule(r"(one at a time|from a thread to a task) / (.+)", r"\2", panel=r"\1", unit="×"),),
    ),
    Plot(
        "scaling",
        "Time for a message as things grow, beside that with one",
        ("scaling",),
        Kind.RATIOS,
        (
            Rule(r"(.+): (.+), time / with one", r"\2", panel=r"\1", unit="×"),
            Rule(r"(delivered to .+), time / to one", r"\1", panel="each delivery", unit="×"),
        ),
    ),
    Plot(
        "lanes",
        "Priority lanes: messages a second, and how soon an urgent one is there",
        ("lanes",),
        Kind.BARS,
        (
            Rule(r"(send|consume), (.+)", r"\2", panel=r"\1", unit=RATE),
            Rule(r"([^/]+), p50", r"\1", panel="from published to received, median", unit="ms"),
        ),
    ),
    Plot(
        "key-order",
        "Order: time for a message, beside a group without order",
        ("key_order",),
        Kind.RATIOS,
        (Rule(r"(.+), (by \w+): time / no order", r"\2", panel=r"\1", unit="×"),),
    ),
    Plot(
        "fan-out",
        "Fan-out to groups",
        ("fan_out",),
        Kind.BARS,
        (Rule(r".+", unit=RATE),),
    ),
    Plot(
        "leases",
        "Lease and acknowledge in one process, 1,000 at a time: messages a second",
        ("leases", "groups"),
        Kind.BARS,
        (Rule(r".*(?:plain|ordered|lease and acknowledge).*", unit=RATE),),
    ),
    Plot(
        "delays",
        "A million delayed messages: how late they come",
        ("delays",),
        Kind.MARKS,
        (Rule(r"(p[\d.]+) lateness (.+)", r"\2", x=r"\1", unit="ms"),),
    ),
    Plot(
        "restart",
        "Until a broker is ready again, by what it has stored",
        ("restart",),
        Kind.BARS,
        (Rule(r".+", unit=TIME),),
    ),
    Plot(
        "memory",
        "Memory",
        ("memory",),
        Kind.BARS,
        (Rule(r".+", unit=SIZE),),
    ),
    Plot(
        "log",
        "The log beside the disk: bytes a second",
        ("append", "read"),
        Kind.BARS,
        (Rule(r"(?:append|os\.write).*", panel="append", unit="MiB/s"), Rule(r".+", panel="read", unit="MiB/s")),
    ),
    Plot(
        "doors",
        "HTTP and gRPC: messages a second",
        ("doors",),
        Kind.BARS,
        (Rule(r".+", unit=RATE),),
    ),
    Plot(
        "spark",
        "Spark with two cores: rows a second",
        ("spark_scan", "spark_sink", "spark_archive"),
        Kind.BARS,
        (
            Rule(r"scan, (.+)", r"\1", panel="scan", unit=RATE),
            Rule(r"archived|written only", panel="archive", unit=RATE),
            Rule(r".+", panel="write", unit=RATE),
        ),
    ),
)

# Whose figure it is, by its name; the first that is found. Each has its colour on every plot.
CONTENDERS = (
    ("Redis", r"redis"),
    ("NATS", r"nats|jetstream"),
    ("RabbitMQ streams", r"rabbitmq.*stream"),
    ("RabbitMQ", r"rabbitmq"),
    ("Kafka", r"kafka"),
    ("multiprocessing.Queue", r"multiprocessing"),
    ("SimpleQueue", r"simplequeue"),
    ("queue.Queue", r"queue\.queue"),
    ("janus", r"janus"),
    ("deque", r"deque"),
    ("limit", LIMIT),
    ("penstock", r""),
)
# Settings that do not sync before they answer: drawn lighter.
NOT_DURABLE = r"default|no f?sync"


def contender(name: str) -> str:
    return next(who for who, pattern in CONTENDERS if re.search(pattern, name, re.IGNORECASE))


def is_durable(name: str) -> bool:
    return re.search(NOT_DURABLE, name, re.IGNORECASE) is None
