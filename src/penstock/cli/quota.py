"""penstock quota: quotas in an access file, which a server reads again when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.given import size_given
from penstock.cli.key import File
from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, print_answer, print_rows
from penstock.cli.shown import shown_size
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.server.quotas import Quota

app = typer.Typer(no_args_is_help=True, help="Quotas of principals, in a server's access file.")

_COLUMNS = [
    Column("principal"),
    Column("publish/s", is_number=True),
    Column("consume/s", is_number=True),
    Column("requests/s", is_number=True),
    Column("connections", is_number=True),
    Column("storage", is_number=True),
    Column("topics", is_number=True),
    Column("groups", is_number=True),
    Column("schedules", is_number=True),
    Column("members", is_number=True),
    Column("producers", is_number=True),
]


@app.command("list")
def list_quotas(file: File = "access.yaml", output: OutputOption = Output.TABLE) -> None:
    """Show the quotas that apply to each principal with a key, and to each name in the file."""
    from penstock.server.access_file import read
    from penstock.server.quotas import quota_of

    access = read(file)
    patterns = [pattern for rule in access.quotas for pattern in rule.principals]
    names = [pattern.text + "*" * pattern.is_prefix for pattern in patterns] + [key.principal for key in access.keys]
    # A pattern fits itself: what is shown for it applies to names about which the file says nothing more.
    rows = [(name, quota_of(access.quotas, name)) for name in sorted(set(names))]
    print_rows(output, rows, _as_json, _COLUMNS, _cells, "there are no quotas, and no keys")


@app.command("set")
def set_quotas(
    principal: Annotated[str, typer.Argument(help="Whose quotas: a principal, or the start of names, as in shop*.")],
    publish: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes to publish each second, as in 10MB, or none.")
    ] = None,
    consume: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes to poll and read each second, as in 10MB, or none.")
    ] = None,
    requests: Annotated[str | None, typer.Option(metavar="N", help="Requests each second, or none.")] = None,
    connections: Annotated[str | None, typer.Option(metavar="N", help="Open connections, or none.")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes in topics of the principal, as in 10GiB, or none.")
    ] = None,
    topics: Annotated[str | None, typer.Option(metavar="N", help="Topics that the principal created, or none.")] = None,
    groups: Annotated[str | None, typer.Option(metavar="N", help="Groups that it created, or none.")] = None,
    schedules: Annotated[str | None, typer.Option(metavar="N", help="Schedules that it created, or none.")] = None,
    members: Annotated[str | None, typer.Option(metavar="N", help="Its consumers in groups, or none.")] = None,
    producers: Annotated[
        str | None, typer.Option(metavar="N", help="Its producers that sent something in the last hour, or none.")
    ] = None,
    file: File = "access.yaml",
    output: OutputOption = Output.TABLE,
) -> None:
    """Set quotas of a principal. Those that are not named stay as they are; none takes one away.

    The access file is written anew. Its keys and rules stay; comments in it do not.
    """
    from penstock.server.access_file import read, set_quota
    from penstock.server.quotas import NAMES, quota_of

    # In the order of their names.
    values = (publish, consume, requests, connections, storage, topics, groups, schedules, members, producers)
    given = dict(zip(NAMES, values, strict=True))
    changes = {name: _number(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise InvalidInput("name at least one quota: --publish, --consume, --requests, --connections, --storage, …")
    set_quota(file, principal, changes)
    quota = quota_of(read(file).quotas, principal)
    print_answer(output, _as_json((principal, quota)), f"the quotas of {principal} are set")


def _number(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not name.endswith(("bytes", "bytes_per_s")) and not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"{name} is a whole number or none, not {text!r}", argument=name)
    return size_given(name, text)


def _as_json(row: tuple[str, Quota]) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {"principal": row[0], **asdict(row[1])}


def _cells(row: tuple[str, Quota]) -> list[str]:
    name, quota = row
    sizes = (quota.publish_bytes_per_s, quota.consume_bytes_per_s)
    created = (quota.topics, quota.groups, quota.schedules, quota.members, quota.producers)
    counts = map(_count, (quota.requests_per_s, quota.connections))
    return [name, *map(_size, sizes), *counts, _size(quota.storage_bytes), *map(_count, created)]


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def _size(size: int | None) -> str:
    return "-" if size is None else shown_size(size)
