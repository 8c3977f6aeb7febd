"""All commands together. `main` is the console script.

Exit codes are those of grep and diff: 0 all is well, 1 the answer is bad news, 2 there is no answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from penstock.cli import (
    archive,
    bench,
    cluster,
    cluster_changes,
    cluster_dev,
    consume,
    demo,
    dlq,
    group,
    key,
    log,
    ping,
    pipeline,
    pipeline_archive,
    pipeline_mirror,
    pipeline_report,
    publish,
    read,
    schedule,
    scheduled,
    serve,
    top,
    topic,
    trace,
)
from penstock.cli.output import print_error
from penstock.errors import PenstockError

EXIT_ERROR = 2

app = typer.Typer(
    name="penstock",
    help="A durable, replayable log and a per-message queue in one broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.add_typer(topic.app, name="topic")
app.command("publish")(publish.publish)
app.command("consume")(consume.consume)
app.command("read")(read.read)
app.add_typer(group.app, name="group")
app.add_typer(scheduled.app, name="scheduled")
app.add_typer(schedule.app, name="schedule")
app.add_typer(dlq.app, name="dlq")
app.command("trace")(trace.trace)
app.command("why")(trace.why)
app.command("top")(top.top)
app.command("bench")(bench.bench)
pipeline.app.command("archive")(pipeline_archive.archive)
pipeline.app.command("mirror")(pipeline_mirror.mirror)
pipeline.app.command("mirror-groups")(pipeline_mirror.mirror_groups)
pipeline.app.command("translate")(pipeline_mirror.translate)
pipeline.app.command("report")(pipeline_report.report)
app.add_typer(pipeline.app, name="pipeline")
cluster.app.command("dev")(cluster_dev.dev)
cluster.app.command("reassign")(cluster_changes.reassign)
cluster.app.command("rebalance")(cluster_changes.rebalance)
cluster.app.command("elect")(cluster_changes.elect)
cluster.app.command("drain")(cluster_changes.drain)
app.add_typer(cluster.app, name="cluster")
app.command("ping")(ping.ping)
app.command("demo")(demo.demo)
app.add_typer(serve.config_app, name="config")
app.add_typer(key.app, name="key")
app.add_typer(archive.app, name="archive")
app.add_typer(log.app, name="log")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    for stream in (sys.stdout, sys.stderr):
        # What a terminal can't show is better shown in escapes than not at all.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments)
        sys.stdout.flush()
    except PenstockError as error:
        print_error(error)
        sys.exit(EXIT_ERROR)
    except OSError as error:
        # What we have to say can't be written: a full disk behind a redirection, for one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {error.strerror or error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    sys.exit(0)
