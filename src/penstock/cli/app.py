"""All commands together. `main` is the console script.

Exit codes are those of grep and diff: 0 all is well, 1 the answer is bad news, 2 there is no answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn, TextIO

import typer
from typer.main import get_command

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
    quota,
    read,
    schedule,
    scheduled,
    serve,
    top,
    topic,
    trace,
)
from penstock.cli.exposed import warn_of_secrets
from penstock.cli.output import EXIT_BAD_NEWS, note, print_error
from penstock.errors import InvalidInput, PenstockError, StorageError
from penstock.standard_files import reopen_closed

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
cluster.app.command("discard")(cluster_changes.discard)
app.add_typer(cluster.app, name="cluster")
app.command("ping")(ping.ping)
app.command("demo")(demo.demo)
app.add_typer(serve.config_app, name="config")
app.add_typer(key.app, name="key")
app.add_typer(quota.app, name="quota")
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
    reopen_closed()
    sys.stdout, sys.stderr = _writable(sys.stdout, 1), _writable(sys.stderr, 2)
    code = EXIT_ERROR
    # An error that can't be written is in the exit code all the same.
    with suppress(OSError):
        code = _run(arguments)
    sys.exit(code)


def _writable(stream: TextIO | None, descriptor: int) -> TextIO:
    """Python has no stream for a descriptor that was closed when it started."""
    found = os.fdopen(descriptor, "w", closefd=False) if stream is None else stream
    # What a terminal can't show is better shown in escapes than not at all.
    if isinstance(found, TextIOWrapper):
        found.reconfigure(errors="backslashreplace")
    return found


def _run(arguments: Sequence[str] | None) -> int:
    given, command = sys.argv[1:] if arguments is None else list(arguments), get_command(app)
    try:
        warn_of_secrets(command, given)
        # A command returns nothing; a number is the code of a typer.Exit.
        code: int | None = command(given, standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except PenstockError as error:
        print_error(error)
    except typer.TyperException as error:
        _print_usage_error(error)
    except typer.Abort:
        note("aborted")
        return EXIT_BAD_NEWS
    except OSError as error:
        # What we have to say can't be written: a full disk behind a redirection, for one.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print_error(
            StorageError(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        )
    return EXIT_ERROR


def _print_usage_error(error: typer.TyperException) -> None:
    message = error.format_message()
    if message.startswith("Usage:"):
        # Without a command, the whole help.
        note(message)
        return
    context: typer.Context | None = getattr(error, "ctx", None)
    hint = "" if context is None else f". See: {context.command_path} --help"
    if context is not None and context.parent is None and "such option" in message:
        hint = f". Options follow the command, as in: {context.command_path} ping --server ADDRESS"
    print_error(InvalidInput(message.removesuffix(".").removesuffix("?") + hint))
