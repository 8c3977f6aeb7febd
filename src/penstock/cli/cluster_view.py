"""How a cluster looks: its nodes and partitions, what is wrong with them, and how far moves have come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from penstock.cli.hot import hot_of
from penstock.cli.output import EXIT_BAD_NEWS, Column, Output, console, print_fields, print_json, print_table
from penstock.cli.shown import counted, shown_size, shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.client.cluster_requests import ClusterReport, NodeReport, PartitionReport, QuarantinedCopy

_ROWS_MAX = 20

NODE_COLUMNS = (
    Column("node"),
    Column("state"),
    Column("leaders", is_number=True),
    Column("replicas", is_number=True),
    Column("native"),
    Column("http", rank=2),
    Column("grpc", rank=4),
    Column("rack", rank=1),
    Column("version", rank=3),
    Column("disk", rank=5),
    Column("since", rank=2),
)
PARTITION_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("leader"),
    Column("epoch", rank=1, is_number=True),
    Column("replicas"),
    Column("in sync"),
    Column("min_isr", rank=2, is_number=True),
    Column("behind"),
    Column("moves to", rank=1),
)


def names(nodes: Iterable[str]) -> str:
    return ",".join(nodes) or "-"


def place(partition: PartitionReport) -> str:
    return f"{partition.topic}:{partition.number}"


def waits_for(partition: PartitionReport) -> str:
    """Of one that nobody leads: who must come back for that, with the disk it had."""
    if partition.in_sync:
        return f"is about to be led by {' or '.join(partition.in_sync)}"
    return f"waits for {' or '.join(partition.last_in_sync)}" if partition.last_in_sync else "-"


# --- nodes --------------------------------------------------------------------------------------------------


def node_json(node: NodeReport) -> dict[str, Any]:
    return {
        "id": node.id,
        "is_alive": node.is_alive,
        "is_draining": node.is_draining,
        "leaders": node.leaders,
        "replicas": node.replicas,
        "native": node.native,
        "http": node.http,
        "grpc": node.grpc,
        "rack": node.rack,
        "version": node.version,
        "disk": node.disk,
        "since": time_json(node.since_us or None),
    }


def node_cells(node: NodeReport) -> list[str]:
    state = "alive" if node.is_alive else "gone"
    return [
        node.id,
        f"{state}, draining" if node.is_draining else state,
        str(node.leaders),
        str(node.replicas),
        node.native or "-",
        node.http or "-",
        node.grpc or "-",
        node.rack or "-",
        node.version or "-",
        node.disk[:8] or "-",
        shown_time(node.since_us, SystemClock().now_us()),
    ]


# --- partitions ---------------------------------------------------------------------------------------------


def partition_json(partition: PartitionReport) -> dict[str, Any]:
    known = partition.end_offset >= 0
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "id": partition.id,
        "leader": partition.leader or None,
        "epoch": partition.epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
        "last_in_sync": list(partition.last_in_sync),
        "min_isr": partition.min_isr,
        "target": list(partition.target),
        "start_offset": partition.start_offset if known else None,
        "end_offset": partition.end_offset if known else None,
        "followers": [
            {
                "node": follower.node,
                "messages_behind": follower.messages_behind if follower.messages_behind >= 0 else None,
                "deliveries_behind": follower.deliveries_behind if follower.deliveries_behind >= 0 else None,
            }
            for follower in partition.followers
        ],
        "progress": progress_of(partition) if partition.target else None,
    }


def partition_cells(partition: PartitionReport) -> list[str]:
    behind = [
        f"{follower.node} {follower.messages_behind if follower.messages_behind >= 0 else '?'}"
        for follower in partition.followers
        if follower.messages_behind
    ]
    return [
        partition.topic,
        str(partition.number),
        partition.leader or "-",
        str(partition.epoch),
        names(partition.replicas),
        names(partition.in_sync) if partition.leader else waits_for(partition),
        str(partition.min_isr),
        ", ".join(behind) or "-",
        f"{names(partition.target)} ({_percent(partition)})" if partition.target else "-",
    ]


def progress_of(partition: PartitionReport) -> float:
    """Of a move, by the replica that has come least far; 1 while the rest is only to be put into the record."""
    missing = set(partition.target) - set(partition.in_sync)
    if not missing:
        return 1.0
    if partition.end_offset < 0:
        return 0.0
    total = max(1, partition.end_offset - partition.start_offset)
    behind = [follower.messages_behind for follower in partition.followers if follower.node in missing]
    if any(each < 0 for each in behind):
        return 0.0
    return max(0.0, 1 - max(behind, default=0) / total)


def _percent(partition: PartitionReport) -> str:
    return f"{100 * progress_of(partition):.0f} %"


# --- all together -------------------------------------------------------------------------------------------


def wrong_with(report: ClusterReport) -> dict[str, list[str]]:
    """By what it is, whom it is about. Empty if all is well."""
    found = {
        "gone": [node.id for node in report.nodes if not node.is_alive and node.replicas],
        "silent": list(report.silent),
        "leaderless": [place(each) for each in report.partitions if not each.leader],
        "under_min_isr": [place(each) for each in report.partitions if each.is_under_min_isr],
        "under_replicated": [place(each) for each in report.partitions if each.is_under_replicated],
        "quarantined": [copy_name(each) for each in report.quarantined],
    }
    if not report.controller:
        found["without_controller"] = ["the cluster"]
    if report.is_cut_off:
        found["cut_off_from_etcd"] = [report.node]
    return {what: whom for what, whom in found.items() if whom}


def print_status(report: ClusterReport, output: Output) -> None:
    wrong = wrong_with(report)
    moving = [each for each in report.partitions if each.target]
    alive = [node for node in report.nodes if node.is_alive]
    if output is Output.JSON:
        print_json(
            console(),
            {
                "cluster": report.id,
                "is_well": not wrong,
                "is_cut_off_from_etcd": report.is_cut_off,
                "controller": report.controller or None,
                "nodes": [node.id for node in alive],
                "draining": [node.id for node in report.nodes if node.is_draining],
                "topics": report.topics,
                "partitions": len(report.partitions),
                "level": report.level or None,
                **{what: wrong.get(what, []) for what in _WRONG},
                "quarantined": [msgspec.to_builtins(each) for each in report.quarantined],
                "moving": [{**partition_json(each)} for each in moving],
                "throttle_bytes_per_s": report.throttle or None,
            },
        )
    else:
        _print_status(report, wrong, alive, moving)
    if wrong:
        raise typer.Exit(EXIT_BAD_NEWS)


_WRONG = {
    "gone": "nodes gone",
    "silent": "nodes silent",
    "leaderless": "without leader",
    "under_min_isr": "under min_isr",
    "under_replicated": "under-replicated",
    "quarantined": "quarantined copies",
}


def _print_status(
    report: ClusterReport,
    wrong: dict[str, list[str]],
    alive: list[NodeReport],
    moving: list[PartitionReport],
) -> None:
    draining = [node.id for node in report.nodes if node.is_draining]
    nodes = f"{len(alive)} alive: {', '.join(node.id for node in alive)}"
    waiting = [f"{place(each)} ({waits_for(each)})" for each in report.partitions if not each.leader]
    shown = {**wrong, "leaderless": waiting}
    fields = [
        ("cluster", report.id),
        ("state", _state(report, wrong)),
        ("nodes", nodes + (f"; draining: {', '.join(draining)}" if draining else "")),
        ("controller", report.controller or "none"),
        ("feature level", str(report.level or "not known")),
        ("topics", f"{report.topics}, with {counted(len(report.partitions), 'partition')}"),
        *((name, some(shown.get(what, []))) for what, name in _WRONG.items()),
        ("moving", str(len(moving)) + (f", at {shown_size(report.throttle)}/s at most" if report.throttle else "")),
    ]
    out = console()
    print_fields(out, fields, max(len(name) for name, _ in fields))
    if report.quarantined:
        _print_quarantined(report.quarantined)
    if moving:
        out.print()
        columns = [Column("moving"), Column("from"), Column("to"), Column("progress", is_number=True)]
        rows = [[place(each), names(each.replicas), names(each.target), _percent(each)] for each in moving]
        print_table(out, columns, rows[:_ROWS_MAX])
        if len(rows) > _ROWS_MAX:
            out.print(f"and {len(rows) - _ROWS_MAX} more")


def copy_name(copy: QuarantinedCopy) -> str:
    return f"{copy.topic}:{copy.number} on {copy.node}" if copy.topic else f"{copy.id} on {copy.node}"


def _print_quarantined(copies: Sequence[QuarantinedCopy]) -> None:
    out = console()
    out.print()
    columns = [
        Column("quarantined"),
        Column("node"),
        Column("partition id"),
        Column("epoch", is_number=True),
        Column("offsets"),
        Column("why"),
    ]
    rows = [
        [
            f"{each.topic}:{each.number}" if each.topic else "-",
            each.node,
            each.id,
            str(each.epoch),
            f"{each.start_offset} to {each.end_offset}",
            each.why,
        ]
        for each in copies
    ]
    print_table(out, columns, rows[:_ROWS_MAX])
    if len(rows) > _ROWS_MAX:
        out.print(f"and {len(rows) - _ROWS_MAX} more")
    out.print("What to do with them: docs/guides/cluster.md, “When etcd was restored from a backup”")


def _state(report: ClusterReport, wrong: dict[str, list[str]]) -> str:
    if report.is_cut_off:
        return (
            f"etcd can't be reached (says {report.node}): nothing can be changed, and a node that fails is not replaced"
        )
    return "something is wrong" if wrong else "all is well"


def some(whom: list[str]) -> str:
    if not whom:
        return "0"
    shown = ", ".join(whom[:_ROWS_MAX])
    return f"{len(whom)}: {shown}" + (", …" if len(whom) > _ROWS_MAX else "")


# --- hot ones -----------------------------------------------------------------------------------------------


class Hot(NamedTuple):
    topic: str
    partition: int
    leader: str
    rate: float
    average: float


def hot_partitions(before: ClusterReport, after: ClusterReport, took_s: float) -> list[Hot]:
    """By what was published between the two; those whose leader was not heard both times are left out."""
    ends = {each.id: each.end_offset for each in before.partitions if each.end_offset >= 0}
    counts: dict[str, dict[PartitionReport, int]] = {}
    for each in after.partitions:
        if each.id in ends and each.end_offset >= 0:
            counts.setdefault(each.topic, {})[each] = max(0, each.end_offset - ends[each.id])
    found = [
        Hot(topic, each.number, each.leader, of_topic[each] / took_s, sum(of_topic.values()) / len(of_topic) / took_s)
        for topic, of_topic in counts.items()
        for each in hot_of(of_topic)
    ]
    return sorted(found, key=lambda hot: -hot.rate)
