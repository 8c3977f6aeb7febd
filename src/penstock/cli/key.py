"""penstock key: keys in an access file, which a server reads again when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.given import duration_given
from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, print_answer, print_rows
from penstock.cli.shown import shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.server.keys import Key

app = typer.Typer(no_args_is_help=True, help="Keys to a server, in its access file.")

File = Annotated[str, typer.Option("--file", metavar="FILE", help="The access file; made if it is not there.")]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="DURATION", help="How long it is valid, as in 90d. Default: for ever."),
]


@app.command("create")
def create(
    principal: Annotated[str, typer.Argument(help="Whose key it is: the name that rules use.")],
    file: File = "access.yaml",
    expires: Expires = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key and print it: this is the only time it is told.

    The access file is written anew. Its rules stay; comments in it do not.
    """
    from penstock.server.access_file import add_key
    from penstock.server.keys import make

    until_us = None if expires is None else SystemClock().now_us() + duration_given("--expires", expires)
    secret, kept = make(principal, until_us)
    add_key(file, kept)
    print_answer(output, {**_as_json(kept), "key": secret}, secret)


@app.command("list")
def list_keys(file: File = "access.yaml", output: OutputOption = Output.TABLE) -> None:
    """Whose keys there are, and how long they are valid. Not what they are."""
    from penstock.server.access_file import read

    columns = [Column("id"), Column("principal"), Column("expires")]
    print_rows(output, list(read(file).keys), _as_json, columns, _cells, "there are no keys")


@app.command("revoke")
def revoke(
    identity: Annotated[str, typer.Argument(metavar="ID", help="The id of a key, as in pk_ID_….")],
    file: File = "access.yaml",
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a key out of the file: whoever has it can't connect any more.

    The access file is written anew. Its rules stay; comments in it do not.
    """
    from penstock.server.access_file import remove_key

    remove_key(file, identity)
    print_answer(output, {"revoked": identity}, f"revoked {identity}")


def _as_json(key: Key) -> dict[str, Any]:
    return {"id": key.id, "principal": key.principal, "expires": time_json(key.expires_us)}


def _cells(key: Key) -> list[str]:
    expires = "never" if key.expires_us is None else shown_time(key.expires_us, SystemClock().now_us())
    return [key.id, key.principal, expires]
