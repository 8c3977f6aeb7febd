"""What a node tells of its part in a cluster, to Prometheus: asked when somebody looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.cluster.core.election import is_led
from penstock.cluster.core.leader import Leader
from penstock.cluster.node import Node
from penstock.server.metrics import Family, Sample


def of_cluster(node: Node) -> Iterator[Family]:
    tally = node.tally
    live = node.members.live
    leading = [hosted.replica.role for hosted in node.hosted.values()]
    leaders = [role for role in leading if isinstance(role, Leader)]
    records = [role.ballot.record for role in leaders]
    behind: Counter[str] = Counter()
    for role in leaders:
        for name, progress in role.followers.items():
            if progress.ends is not None:
                behind[name] += max(0, role.site.ends[0] - progress.ends[0])
    unled = sum(not is_led(record, live) for record in node.partitions.records())
    gauges = (
        ("nodes", "Nodes that are alive, as this one knows.", len(live)),
        ("is_controller", "1 for the node that elects leaders.", int(node.controller.is_me)),
        ("leaders", "Partitions that this node leads.", len(leaders)),
        ("replicas", "Partitions that this node has a copy of.", len(node.hosted)),
        (
            "quarantined_copies",
            "Copies on this node with more than the records in etcd know: an operator decides what becomes of them.",
            len(node.kept) + sum(bool(hosted.quarantined) for hosted in node.hosted.values()),
        ),
        (
            "under_replicated",
            "Of those that it leads: fewer replicas are in sync than there should be.",
            sum(hosted.is_under_replicated() for hosted in node.hosted.values()),
        ),
        (
            "under_min_isr",
            "Of those that it leads: too few replicas are alive and keep up, and nothing can be published.",
            sum(hosted.is_under_min_isr() for hosted in node.hosted.values()),
        ),
        ("leaderless", "Partitions of the whole cluster that nobody leads, as this node knows.", unled),
        ("moving", "Of those that it leads: being moved.", sum(bool(record.target) for record in records)),
        ("session_seconds", "For so long its session in etcd is surely valid; 0 if it is not.", node.session_left_s()),
    )
    for name, help, value in gauges:
        yield Family(f"penstock_cluster_{name}", "gauge", help, [Sample({}, value)])
    yield Family(
        "penstock_cluster_follower_lag",
        "gauge",
        "Messages that a follower lacks, of all partitions that this node leads.",
        [Sample({"node": name}, count) for name, count in sorted(behind.items())],
    )
    counters = (
        ("isr_shrinks", "Followers taken out of sync by this node.", tally.isr_shrinks),
        ("isr_expands", "Followers taken back by this node.", tally.isr_expands),
        ("elections", "Leaders elected by this node, as the controller.", tally.elections),
        ("leaderships", "Times that this node began to lead a partition.", tally.leaderships),
        ("sent_bytes", "Bytes of partitions sent to followers.", tally.sent_bytes),
        ("fetched_bytes", "Bytes of partitions fetched from leaders.", tally.fetched_bytes),
        ("etcd_errors", "Requests to etcd that failed, or whose outcome is not known.", tally.etcd_errors),
    )
    for name, help, value in counters:
        yield Family(f"penstock_cluster_{name}_total", "counter", help, [Sample({}, value)])
