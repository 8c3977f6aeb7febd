"""penstock pipeline: topics → SQL or Python → topics or tables, on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.given import pairs_given
from penstock.cli.options import OutputOption
from penstock.cli.output import EXIT_BAD_NEWS, Column, Output, console, print_error, print_json, print_one, print_rows
from penstock.cli.shown import counted, shown_lag, shown_rate, shown_span, shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.spark.pipeline.document import Problem
    from penstock.spark.pipeline.progress import Progress
    from penstock.spark.pipeline.running import Job
    from penstock.spark.pipeline.spec import Pipeline
    from penstock.spark.pipeline.state import State, Store

app = typer.Typer(
    help="Topics to topics or tables, with Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, in YAML.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs: local[4], spark://…, yarn. Default: local[*]."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="Where state is kept. Default: $PENSTOCK_PIPELINES, or ~/.local/state/penstock/pipelines.",
    ),
]
LOCAL = "local[*]"

_COLUMNS = (
    Column("pipeline"),
    Column("status"),
    Column("started"),
    Column("file", rank=1),
    Column("checkpoint", rank=2),
)
_STATUS_COLUMNS = (
    Column("pipeline"),
    Column("status"),
    Column("rows", is_number=True),
    Column("bad rows", rank=2, is_number=True),
    Column("rows/s", rank=1, is_number=True),
    Column("lag", is_number=True),
    Column("batch", rank=1, is_number=True),
    Column("started", rank=2),
)


@app.command("run")
def run(
    file: File,
    master: Master = None,
    conf: Conf = None,
    once: Annotated[bool, typer.Option("--once", help="Do what is there now, and end.")] = False,
    state_directory: StateDirectory = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a pipeline. It shows its progress, and goes on where it was when it ran last.

    Ctrl-C or SIGTERM end it after the batch it is in; a second one ends it at once. Nothing is lost or done twice in
    either case. Exit code 0: finished or stopped; 1: it failed, and why; 2: it could not begin.
    """
    from penstock.spark.pipeline.reading import read
    from penstock.spark.pipeline.running import Job
    from penstock.spark.pipeline.session import check_spark
    from penstock.spark.pipeline.spec import Trigger
    from penstock.spark.pipeline.topics import check_topics

    settings = dict(pairs_given("--conf", conf))
    pipeline = read(file)
    if once:
        pipeline = replace(pipeline, trigger=Trigger(available_now=True))
    check_spark()
    check_topics(pipeline)
    from penstock.spark.pipeline.queries import start

    job = Job(
        pipeline.name,
        pipeline.file,
        lambda spark, checkpoint: start(spark, pipeline, checkpoint),
        master or settings.get("spark.master") or pipeline.spark.get("spark.master") or LOCAL,
        {**pipeline.spark, **settings},
        pipeline.checkpoint,
        needs_avro=pipeline.needs_avro,
        needs_delta=pipeline.needs_delta,
    )
    run_shown(job, state_directory, output)


def run_shown(job: Job, state_directory: Path | None, output: Output) -> None:
    """Until it ends. Exit code 1 if it fails."""
    from penstock.cli.pipeline_view import view_for
    from penstock.errors import PipelineFailed
    from penstock.spark.pipeline.running import run as run_job

    with view_for(output) as view:
        try:
            run_job(job, _store(state_directory), view)
        except PipelineFailed as error:
            view.close()
            print_error(error)
            raise typer.Exit(EXIT_BAD_NEWS) from error


@app.command("validate")
def validate(
    file: File,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also ask the broker whether the topics are there.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also have Spark plan it: SQL and columns. Takes seconds.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find the mistakes in a pipeline's file, each with its line. Exit code 1 if there are any."""
    from penstock.spark.pipeline.reading import examine

    pipeline, problems = examine(file)
    if pipeline is not None and connect:
        from penstock.spark.pipeline.topics import missing_topics

        problems = missing_topics(pipeline)
    if pipeline is not None and plan:
        from penstock.spark.pipeline.planning import plan_problems

        problems = [*problems, *plan_problems(pipeline)]
    _print_problems(file, pipeline, problems, output)
    if problems:
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command("list")
def list_pipelines(state_directory: StateDirectory = None, output: OutputOption = Output.TABLE) -> None:
    """What pipelines ran here, and whether they still do."""
    store = _store(state_directory)
    print_rows(output, store.all(), _state_json, _COLUMNS, _cells, f"no pipeline has run here (in {store.directory})")


@app.command("status")
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of one of them, all there is to know.")] = None,
    state_directory: StateDirectory = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """How pipelines do: rows, rate, lag, and why one failed. Exit code 1 if one failed or was killed."""
    store = _store(state_directory)
    if name is None:
        states = store.all()
        nothing = f"no pipeline has run here (in {store.directory})"
        print_rows(output, states, _state_json, _STATUS_COLUMNS, _status_cells, nothing)
    else:
        states = [store.get(name)]
        print_one(output, _state_json(states[0]), fields=_fields(states[0]))
    if any(state.status in ("failed", "killed") for state in states):
        raise typer.Exit(EXIT_BAD_NEWS)


def _store(directory: Path | None) -> Store:
    from penstock.spark.pipeline.state import Store, default_directory

    return Store(default_directory() if directory is None else directory)


# --- how they look ------------------------------------------------------------------------------------------


def _print_problems(file: Path, pipeline: Pipeline | None, problems: Sequence[Problem], output: Output) -> None:
    if output is Output.JSON:
        name = None if pipeline is None else pipeline.name
        found = [problem._asdict() for problem in problems]
        print_json(console(), {"file": str(file), "name": name, "valid": not problems, "problems": found})
        return
    for problem in problems:
        print(problem.shown(str(file)))
    if not problems and pipeline is not None:
        print(f"{file}: {pipeline.name} is a pipeline from {_sources(pipeline)} to {_sink(pipeline)}")


def _sources(pipeline: Pipeline) -> str:
    return ", ".join(", ".join(source.topics) or source.options["subscribePattern"] for source in pipeline.sources)


def _sink(pipeline: Pipeline) -> str:
    return str(getattr(pipeline.sink, "topic", "") or getattr(pipeline.sink, "path", ""))


def _state_json(state: State) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(state)
    found["started"], found["ended"] = time_json(found.pop("started_us")), time_json(found.pop("ended_us"))
    return found


def _cells(state: State) -> list[str]:
    started = shown_time(state.started_us, SystemClock().now_us())
    return [state.name, state.status, started, state.file or "-", state.checkpoint]


def _status_cells(state: State) -> list[str]:
    now = state.progress
    numbers = ["-"] * 5
    if now is not None:
        numbers = [f"{now.rows:,}", f"{now.bad_rows:,}", shown_rate(now.rows_per_s), shown_lag(now.lag)]
        numbers.append("-" if now.batch is None else str(now.batch))
    rows, bad, rate, lag, batch = numbers
    return [state.name, state.status, rows, bad, rate, lag, batch, shown_time(state.started_us, SystemClock().now_us())]


def _batch(now: Progress) -> str:
    return f"{now.batch}: {now.batch_rows:,} rows in {shown_span(now.batch_ms * 1_000)}, {now.time}"


def _fields(state: State) -> list[tuple[str, str]]:
    clock_us = SystemClock().now_us()
    told = {
        "killed": f"killed: the process {state.pid} is gone, and did not say why",
        "failed": f"failed: {state.error}",
    }
    found = [
        ("pipeline", state.name),
        ("status", told.get(state.status, state.status)),
        ("file", state.file or "-"),
        ("started", shown_time(state.started_us, clock_us)),
        ("ended", shown_time(state.ended_us, clock_us)),
        ("process", str(state.pid)),
        ("master", state.master),
    ]
    if (now := state.progress) is not None:
        bad = f", {counted(now.bad_rows, 'bad one')}" if now.bad_rows else ""
        found += [
            ("rows", f"{now.rows:,} in {now.batches:,} batch{'' if now.batches == 1 else 'es'}{bad}"),
            ("last batch", "-" if now.batch is None else _batch(now)),
            ("rows/s", shown_rate(now.rows_per_s)),
            ("lag", shown_lag(now.lag)),
            ("state", f"{now.state_rows:,} rows"),
            ("watermark", now.watermark or "-"),
        ]
    return [*found, ("checkpoint", state.checkpoint), ("log", state.log)]
