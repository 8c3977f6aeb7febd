"""penstock pipeline archive: topics to Parquet, and the broker told what it may delete."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.broker import ADDRESS, key_given
from penstock.cli.given import duration_given, pairs_given
from penstock.cli.options import OutputOption
from penstock.cli.output import Output
from penstock.cli.pipeline import LOCAL, Conf, Master, StateDirectory, run_shown
from penstock.errors import InvalidInput

_SECOND_US = 1_000_000


def archive(
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The archive; it is made if it is not there.")],
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="NAMES", help="Topics, with commas between them.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches; new ones, too.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="ADDRESS", help=f"The broker. Default: $PENSTOCK_SERVER, or {ADDRESS}."),
    ] = None,
    server_key: Annotated[
        str | None,
        typer.Option("--server-key", metavar="KEY", help="The key to the broker. Default: $PENSTOCK_KEY."),
    ] = None,
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="Whose certificates the broker is trusted with.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often there is a batch.")] = "1m",
    offsets_max: Annotated[
        int | None,
        typer.Option(
            "--max-offsets-per-trigger", metavar="N", min=1, help="So many in one batch. Default: 1 GiB of the log."
        ),
    ] = None,
    fails_on_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="End, or leave a gap, if messages were deleted before they were archived.",
        ),
    ] = True,
    refills: Annotated[
        bool,
        typer.Option(
            "--refill",
            help="The archive has less than the broker was told: fill it with what the broker has, and keep that.",
        ),
    ] = False,
    compacts: Annotated[
        bool, typer.Option("--compact/--no-compact", help="Put small files together between batches.")
    ] = True,
    compact_every: Annotated[
        int,
        typer.Option("--compact-every", metavar="N", min=2, help="When a partition has so many small ones of a day."),
    ] = 32,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the pipeline. Default: from the directory.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    state_directory: StateDirectory = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Archive topics as Parquet, each message once. The broker is told, and may delete what retention says.

    It goes on behind what is in the archive. Ctrl-C or SIGTERM end it after the batch it is in; a second one ends it at
    once. Nothing is lost or doubled in either case. Exit code 0: finished or stopped; 1: it failed, and why; 2: it
    could not begin.
    """
    from penstock.spark.connecting import Connecting
    from penstock.spark.pipeline.running import Job
    from penstock.spark.pipeline.session import check_spark
    from penstock.spark.pipeline.spec import Trigger

    settings = dict(pairs_given("--conf", conf))
    if (topics is None) == (pattern is None):
        raise InvalidInput("which topics is said by --topics or by --pattern, one of them", argument="--topics")
    trigger = Trigger(available_now=True) if once else Trigger(every_us=_every_us(every))
    called = _name(name, to)
    connecting = Connecting(
        server or os.environ.get("PENSTOCK_SERVER") or ADDRESS,
        key_given(server_key),
        tls_ca,
    )
    connecting.check()
    check_spark()
    from penstock.spark.builtin.archive import Archiving, prepared, start

    what = Archiving(
        called,
        connecting,
        to,
        topics,
        pattern,
        trigger,
        offsets_max,
        fails_on_loss,
        compact_every if compacts else None,
        refills,
    )
    with connecting.open() as client:
        filled = prepared(what, client)
        job = Job(
            called,
            None,
            lambda spark, checkpoint: start(spark, what, filled, client, checkpoint),
            master or settings.get("spark.master") or LOCAL,
            settings,
            kind="archive",
        )
        run_shown(job, state_directory, output)


def _every_us(text: str) -> int:
    every_us = duration_given("--every", text)
    if every_us < _SECOND_US:
        raise InvalidInput(f"--every is 1s or longer, not {text}: each batch is a file or more", argument="--every")
    return every_us


def _name(given: str | None, to: str) -> str:
    """Also that of a directory: among what pipelines keep."""
    if given is None:
        where = os.path.realpath(to)
        mark = hashlib.sha256(os.fsencode(where)).hexdigest()[:8]
        return f"archive-{re.sub(r'[^A-Za-z0-9_-]', '_', Path(where).name)[:150] or 'root'}-{mark}"
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", given):
        raise InvalidInput(f"--name has letters, digits, dots, _ and -, not {given!r}", argument="--name")
    return given
