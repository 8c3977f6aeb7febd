"""Those parts of the page that no run changes: what is compared with what, when another is better, and the order of it.

Nothing here is a figure. What a script says of its peers (versions, settings, or that one is missing) stands beside its
figures, and counts where this differs.
"""

from __future__ import annotations

from typing import NamedTuple

from reporting.blocks import Block, Bullets, Heading, Table, Text

INTRO = (
    "How fast Penstock is, beside what one would use instead, and beside what the machine can do. Every figure "
    "was measured by a script that anyone can run."
)

METHOD: list[Block] = [
    Heading(2, "How it is measured"),
    Text(
        "A machine is never quiet, so nothing is compared with a number from yesterday. What is compared runs in "
        "the same minutes: every round runs each contender once, in an order that turns from round to round. A "
        "ratio is taken within a round, and the median over the rounds is the figure. The first round is not "
        "counted. A rate is the median of the rounds, too."
    ),
    Text(
        "Broker, peers and clients share one machine and talk over loopback TCP. A server is started for its "
        "turn, on an empty directory of the same disk, and stopped after it; RabbitMQ, which takes seconds to "
        "start, once for a script. Kafka has to be there already. Messages have 100 bytes that hardly compress, "
        "unless it says otherwise. All are driven **by the client a Python user would use**, as one who knows it "
        "would for many messages: pipelines, windows of unconfirmed messages, fetches of many."
    ),
    Heading(2, "What is compared with what"),
    Text(
        "Penstock answers a publish or an acknowledgement when it is on disk (`fdatasync`); a topic with "
        "`durability: interval` is answered before. A target stands only against settings of others that promise "
        "what is promised here by default. What promises less is faster for it, and is shown without a target, or "
        "beside `durability: interval`."
    ),
    Table(
        ("contender", "durable: on disk before the answer", "not: faster, and shown beside it"),
        (
            (
                "Penstock",
                "`durability: fsync`, the default",
                "`durability: interval`: answered when it is written, synced within a second",
            ),
            (
                "Redis Streams",
                "`appendonly yes`, `appendfsync always`",
                "the default, in memory with a snapshot now and then: a crash takes what came since",
            ),
            (
                "NATS JetStream",
                "file storage, `sync_interval: always`",
                "the default, file storage synced every two minutes: a power loss can take those",
            ),
            ("RabbitMQ quorum queues", "persistent messages with confirms: there is no other setting", "—"),
            (
                "RabbitMQ streams",
                "—",
                "confirmed when they are written, before they are synced: there is no other setting",
            ),
            (
                "Kafka",
                "`acks=all` and a topic with `flush.messages=1`",
                "the default with `acks=all`: answered when all in-sync replicas have it, before they sync",
            ),
            (
                "`queue.Queue`, `multiprocessing.Queue`, `janus`",
                "—",
                "gone with the process; beside the ring without its journal",
            ),
        ),
    ),
    Text(
        "The acknowledgements of consumers are less even. Those to Penstock and to Redis with `appendfsync "
        "always` are on disk before they are answered; nats-py and pika send theirs and go on. Where one "
        "acknowledgement stands for many messages, it does so for all contenders."
    ),
]

PEERS: list[Block] = [
    Heading(2, "When another is the better choice"),
    Text(
        "**These figures are of one machine and of Python.** Much of the time of a message is spent in the "
        "client, and a client in Go, Java or C does more in a second than its Python sister; the servers of "
        "others are built for many of those at once. None of that is measured here. Penstock is ahead where a "
        "batch stays a batch, in columns, from the producer to the disk and to the consumer. Where messages come "
        "singly and each is waited for, everybody waits for the same disk, and a broker that is written in Python "
        "has no advantage: look at the tables of single messages. And a handler that takes a millisecond makes "
        "all queues alike."
    ),
    Bullets(
        (
            "**If a machine may fail and the queue must not**, and you want what has been through that for years: NATS "
            "JetStream and RabbitMQ's quorum queues replicate by Raft, Kafka by its in-sync replicas, SQS across data "
            "centres. Penstock's cluster is young. What is compared with others here is one server each, and nothing "
            "is replicated, unless a Kafka cluster that was given does it; what replication costs Penstock has a part "
            "of its own.",
            "**Redis**, if you run it already, and a crash may take the last second (`appendfsync everysec`) or "
            "the last minutes (its default): then it answers a single message sooner than anything that syncs. "
            "One server is also cache, lock, counter and sorted set, and every language has a client. What it "
            "holds has to fit into memory.",
            "**NATS**, for many small services in many languages: request and reply, subjects with wildcards, "
            "thousands of subscribers, leaf nodes at the edge, one small binary. Without JetStream, where nothing is "
            "kept, it is a different kind of fast.",
            "**RabbitMQ**, if messages must find their way by rules: exchanges, bindings, headers, federation; if "
            "clients speak AMQP, MQTT or STOMP; or if you want what has been operated everywhere for fifteen years.",
            "**Kafka**, if the data outgrows a machine, or others are to join in: partitions over many brokers, "
            "transactions, Connect, Streams, Flink, Debezium, a schema registry, and managed offers from everyone. "
            "With a native client and many partitions its brokers write what their disks can.",
            "**`queue.Queue`**, `multiprocessing.Queue` or `janus`, if jobs may die with the process, and their "
            "rates in the table of the ring are enough, as they are for most: nothing to install but `janus`, and "
            "Python objects go in as they are.",
            "**Celery**, if you want tasks and not messages: chains, chords, results, a scheduler and an ecosystem of "
            "years, on a broker you have. It is not in these tables, as its cost is that of its broker and of its own "
            "work for each task.",
            "**SQS**, if nobody should run anything: it scales, replicates and is paid by the request. A request takes "
            "milliseconds, with ten messages at most; it cannot be measured on one machine, and is not.",
        )
    ),
]


class Section(NamedTuple):
    title: str
    intro: str
    scripts: tuple[str, ...]


SECTIONS = (
    Section(
        "Beside other brokers",
        "Over TCP, by Python clients.",
        ("publish", "throughput", "latency"),
    ),
    Section(
        "The ring, in one process",
        "`penstock.Ring` beside the queues one would use instead.",
        ("ring",),
    ),
    Section(
        "As things grow",
        "More partitions, topics, groups, and messages behind and ahead.",
        ("scaling", "backlog", "groups", "fan_out", "neighbours", "scan_beside"),
    ),
    Section(
        "What the queue can do, and its price",
        "Order, lanes, delays, failures, tracing.",
        ("leases", "key_order", "lanes", "delays"),
    ),
    Section("HTTP and gRPC", "", ("doors",)),
    Section("Starting, and memory", "", ("start", "restart", "memory")),
    Section(
        "A cluster",
        "Three nodes and etcd, all of them on one machine and its one disk.",
        ("cluster_publish", "cluster_catchup", "cluster_failover", "cluster_rebalance", "cluster_idle"),
    ),
    Section("Spark", "", ("spark_scan", "spark_sink", "spark_stream", "spark_archive")),
    Section(
        "The log, beside the disk",
        "In one process, against what the operating system does with the same bytes.",
        ("append", "read", "commit", "point_read", "open", "encode"),
    ),
)
OTHERS = "And besides"
