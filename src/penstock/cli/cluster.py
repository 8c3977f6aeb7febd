"""penstock cluster: how a cluster is. What changes it is in `cluster_changes`, one to try out in `cluster_dev`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.bundles import bundled
from penstock.cli.cluster_site import Site
from penstock.cli.cluster_view import (
    NODE_COLUMNS,
    PARTITION_COLUMNS,
    Hot,
    hot_partitions,
    node_cells,
    node_json,
    partition_cells,
    partition_json,
    print_status,
)
from penstock.cli.given import duration_given
from penstock.cli.options import OutputOption
from penstock.cli.output import EXIT_BAD_NEWS, Column, Output, note, print_rows
from penstock.cli.shown import shown_rate

if TYPE_CHECKING:
    from penstock.client.cluster_requests import ClusterReport

app = typer.Typer(
    help="Look after a cluster: its nodes, and where partitions are.", no_args_is_help=True, rich_markup_mode=None
)

Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC…", help="Of these. Default: of all.")]


@app.command("status")
@bundled
def status(site: Site, output: OutputOption = Output.TABLE) -> None:
    """Whether all is well. Exit code 1 if not: a node or etcd is gone, or a partition lacks a leader or replicas."""
    print_status(_survey(site), output)


@app.command("nodes")
@bundled
def nodes(site: Site, output: OutputOption = Output.TABLE) -> None:
    """The nodes, and what each has. Also those that are gone and still have replicas."""
    report = _survey(site)
    print_rows(output, report.nodes, node_json, NODE_COLUMNS, node_cells, "there are no nodes")


@app.command("partitions")
@bundled
def partitions(site: Site, topics: Topics = None, output: OutputOption = Output.TABLE) -> None:
    """Who leads each partition, who follows, and how many messages each follower is behind."""
    report = _survey(site, topics)
    print_rows(output, report.partitions, partition_json, PARTITION_COLUMNS, partition_cells, "there are no partitions")


@app.command("hot")
@bundled
def hot(
    site: Site,
    topics: Topics = None,
    over: Annotated[str, typer.Option("--over", metavar="DURATION", help="How long to count.")] = "5s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Partitions that get three times their topic's average or more. Exit code 1 if there are any."""
    over_s = duration_given("--over", over) / 1e6
    from penstock.client.cluster_requests import SurveyCluster

    with site.open() as call:
        before, began = call(SurveyCluster(tuple(topics or ()))), time.monotonic()
        time.sleep(over_s)
        after, took_s = call(SurveyCluster(tuple(topics or ()))), time.monotonic() - began
    found = hot_partitions(before, after, took_s)
    if not found:
        note(f"no partition of {after.topics} topics is hot")
        return
    columns = [
        Column("topic"),
        Column("partition", is_number=True),
        Column("leader"),
        Column("messages/s", is_number=True),
        Column("topic's average", is_number=True),
    ]
    print_rows(output, found, _hot_json, columns, _hot_cells, "")
    raise typer.Exit(EXIT_BAD_NEWS)


def _hot_json(found: Hot) -> dict[str, Any]:
    return found._asdict()


def _hot_cells(found: Hot) -> list[str]:
    return [found.topic, str(found.partition), found.leader, shown_rate(found.rate), shown_rate(found.average)]


def _survey(site: Site, topics: list[str] | None = None) -> ClusterReport:
    from penstock.client.cluster_requests import SurveyCluster

    with site.open() as call:
        return call(SurveyCluster(tuple(topics or ())))
