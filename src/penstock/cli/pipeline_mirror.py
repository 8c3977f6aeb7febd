"""penstock pipeline mirror, and what goes with it: topics of one cluster in another, and groups that move there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.given import duration_given, names_given, pairs_given
from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, print_one, print_rows
from penstock.cli.pipeline import LOCAL, Conf, Master, StateDirectory, run_shown
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.spark.builtin.mirror_groups import Moved
    from penstock.spark.connecting import Connecting

From = Annotated[str, typer.Option("--from", metavar="URL", help="The cluster that is mirrored.")]
To = Annotated[str, typer.Option("--to", metavar="URL", help="The cluster that gets the copies.")]
FromKey = Annotated[
    str | None, typer.Option("--from-key", envvar="PENSTOCK_FROM_KEY", metavar="KEY", help="The key for --from.")
]
ToKey = Annotated[
    str | None, typer.Option("--to-key", envvar="PENSTOCK_TO_KEY", metavar="KEY", help="The key for --to.")
]
FromCa = Annotated[
    str | None, typer.Option("--from-tls-ca", metavar="FILE", help="Whose certificates --from is trusted with.")
]
ToCa = Annotated[
    str | None, typer.Option("--to-tls-ca", metavar="FILE", help="Whose certificates --to is trusted with.")
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", help="What the names of copies start with. Default: any.")
]

_MOVED_COLUMNS = (
    Column("group"),
    Column("topic"),
    Column("partition", is_number=True),
    Column("floor", is_number=True),
    Column("target"),
    Column("to", is_number=True),
    Column("again", rank=1, is_number=True),
    Column("not mirrored", rank=1, is_number=True),
    Column("missing", is_number=True),
)


def mirror(
    source: From,
    target: To,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="NAMES", help="Topics, with commas between them.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches; new ones, too.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Put in front of the names of topics at the target.")
    ] = "",
    source_key: FromKey = None,
    target_key: ToKey = None,
    source_ca: FromCa = None,
    target_ca: ToCa = None,
    creates: Annotated[
        bool,
        typer.Option(
            "--create/--no-create", help="Make topics and partitions that are missing at the target, or fail."
        ),
    ] = True,
    once: Annotated[bool, typer.Option("--once", help="Mirror what is there now, and end.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often to look for more.")] = "1s",
    starting: Annotated[
        str,
        typer.Option(
            "--starting", metavar="earliest|latest", help="Where a new mirror starts, in topics that are there."
        ),
    ] = "earliest",
    rows_per_batch: Annotated[
        int, typer.Option("--rows-per-batch", metavar="N", min=1, help="At most so many messages in one batch.")
    ] = 1_000_000,
    compression: Annotated[
        str, typer.Option("--compression", metavar="none|lz4|zstd", help="How messages are stored at the target.")
    ] = "none",
    fails_on_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="What the source has deleted before it was mirrored ends the mirror, or is left out with a warning.",
        ),
    ] = True,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the pipeline. Default: from both addresses.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="Where it is kept how far the mirror is.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    state_directory: StateDirectory = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Mirror topics to another cluster. Same partitions, order, keys, headers and times; each message once.

    It goes on where it was when it ran last. Ctrl-C or SIGTERM end it after the batch it is in; a second one ends it at
    once. Nothing is lost or doubled in either case. Exit code 0: finished or stopped; 1: it failed, and why; 2: it
    could not begin.
    """
    from penstock.codec import CODECS
    from penstock.spark.builtin.mirror_topics import Selection
    from penstock.spark.pipeline.running import Job
    from penstock.spark.pipeline.session import check_arrow, check_spark
    from penstock.spark.pipeline.spec import Trigger

    settings = dict(pairs_given("--conf", conf))
    _check_choice("--starting", starting, ("earliest", "latest"))
    _check_choice("--compression", compression, tuple(CODECS))
    named = tuple(dict.fromkeys(names_given("--topics", topics)))
    trigger = Trigger(available_now=True) if once else Trigger(every_us=duration_given("--every", every))
    ends = _connecting(source, source_key, source_ca), _connecting(target, target_key, target_ca)
    check_spark()
    check_arrow()
    from penstock.spark.builtin.mirror import Mirror, check, start

    what = Mirror(
        *ends, Selection(named, pattern, prefix), trigger, creates, starting, rows_per_batch, compression, fails_on_loss
    )
    check(what)
    called = name or _default_name(*ends)
    job = Job(
        called,
        None,
        lambda spark, place: start(spark, what, place, called),
        master or settings.get("spark.master") or LOCAL,
        settings,
        checkpoint,
        kind="mirror",
    )
    run_shown(job, state_directory, output)


def translate(
    target: To,
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="The topic, as it is called at the source.")],
    partition: Annotated[int, typer.Option("--partition", metavar="N", min=0, help="Its partition.")],
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="An offset at the source.")],
    prefix: Prefix = None,
    source_id: Annotated[
        str | None, typer.Option("--source-id", metavar="ID", help="Which topic, if several of that name are mirrored.")
    ] = None,
    target_key: ToKey = None,
    target_ca: ToCa = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where a message of the source is in its mirror.

    That of the first message at this offset or behind it; it is said if that is not the same. If it is not mirrored
    yet, the one it will be at or behind.
    The source is not needed for it.
    """
    from penstock.spark.builtin import mirror_groups

    with _connecting(target, target_key, target_ca).open() as client:
        found = mirror_groups.translate(client, topic, partition, offset, prefix=prefix, source_id=source_id)
    if output is Output.JSON:
        print_one(output, found._asdict())
    else:
        word = "" if found.is_mirrored else "  (not mirrored yet)"
        if found.is_skipped:
            word = f"  (of offset {offset} there is no message here: the next one)"
        print(f"{found.target}:{found.partition}:{found.to}{word}")


def mirror_groups(
    source: From,
    target: To,
    groups: Annotated[str, typer.Option("--groups", metavar="NAMES", help="Groups, with commas between them.")],
    prefix: Prefix = None,
    source_key: FromKey = None,
    target_key: ToKey = None,
    source_ca: FromCa = None,
    target_ca: ToCa = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Also if they never get messages there that are at the source only."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where they would be, and change nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move groups to the mirror. They go on there where they are at the source.

    To the first message that a group has not done; what it has done behind that, it gets again. A group that is not
    there is made with the settings it has at the source. One that has members is refused, and so is one that has not
    done messages which are at the source, and were left out by the mirror.
    """
    from penstock.spark.builtin.mirror_groups import check_missing, move, moves

    names = names_given("--groups", groups)
    here, there = _connecting(source, source_key, source_ca), _connecting(target, target_key, target_ca)
    with here.open() as source_client, there.open() as target_client:
        found = {name: moves(source_client, target_client, name, prefix) for name in names}
        if not dry_run:
            if not allow_missing:
                check_missing(row for each in found.values() for row in each)
            for name, each in found.items():
                move(source_client, target_client, name, each, allow_missing=allow_missing)
    rows = [row for each in found.values() for row in each]
    print_rows(output, rows, _moved_json, _MOVED_COLUMNS, _moved_cells, "nothing is to be moved")


def _check_choice(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidInput(f"{option} is {' or '.join(allowed)}, not {given!r}", argument=option)


def _connecting(url: str, key: str | None, ca: str | None) -> Connecting:
    from penstock.spark.connecting import Connecting

    found = Connecting(url, key, ca)
    found.check()
    return found


def _default_name(source: Connecting, target: Connecting) -> str:
    from penstock.net.address import places_of

    places = [places_of(each.url)[0] for each in (source, target)]
    return "mirror-" + "-".join(f"{place.host}_{place.port}" for place in places)


def _moved_json(moved: Moved) -> dict[str, Any]:
    return moved._asdict()


def _moved_cells(moved: Moved) -> list[str]:
    return [str(each) for each in moved]
