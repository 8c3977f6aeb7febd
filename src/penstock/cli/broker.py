"""Where the broker is: behind an address, or in a directory that this process opens itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from penstock.cli.bundles import Bundle
from penstock.errors import ConnectionLost, DirectoryLocked, InvalidInput

if TYPE_CHECKING:
    from penstock.client.blocking import Client

ADDRESS = "penstock://127.0.0.1:7420"
# Somebody sits before it, and is told soon that etcd is away; programs wait for longer.
ETCD_S = 2.0

_Server = Annotated[
    str | None,
    typer.Option("--server", metavar="ADDRESS", help=f"The broker. Default: $PENSTOCK_SERVER, or {ADDRESS}."),
]
_Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="The broker's directory instead, if no server has it open."),
]
# Not --key: that is a message's.
_ServerKey = Annotated[
    str | None,
    typer.Option("--server-key", metavar="KEY", help="The key to the broker. Default: $PENSTOCK_KEY."),
]


def key_given(server_key: str | None) -> str | None:
    if server_key == "":
        raise InvalidInput("--server-key is empty. Pass the key, or leave the option out")
    return server_key or os.environ.get("PENSTOCK_KEY") or None


class Broker(Bundle):
    """What the options of a command say; nothing is opened before it is asked for."""

    comes_last: ClassVar[bool] = True

    def __init__(self, server: _Server = None, data: _Data = None, server_key: _ServerKey = None) -> None:
        if server is not None and data is not None:
            raise InvalidInput("the broker is at --server or in --data, not both")
        if server == "":
            raise InvalidInput("--server is empty. Pass the broker's address, or leave the option out")
        self.data = data
        self.address = server or os.environ.get("PENSTOCK_SERVER") or ADDRESS
        self.key = key_given(server_key)

    def open(self, *, create: bool = False) -> Client:
        """A client, to be used in a `with`. Only with `create` a directory that is not there is made."""
        return self._connected() if self.data is None else self._opened(self.data, create)

    def _connected(self) -> Client:
        from penstock.net import connect
        from penstock.net.routing.pace import Pace

        try:
            return connect(self.address, key=self.key, pace=Pace(etcd_s=ETCD_S))
        except ConnectionLost as error:
            import ssl

            # Where somebody answers, only not as was expected, another server is no help.
            if isinstance(error.__cause__, ssl.SSLError) or not isinstance(error.__cause__, OSError):
                raise
            raise ConnectionLost(f"{error.message}; --data DIR needs no server", **error.details) from error

    def _opened(self, data: str, create: bool) -> Client:
        import penstock

        if not create and not Path(data).is_dir():
            raise InvalidInput(f"{data}: no such directory")
        try:
            return penstock.open(data)
        except DirectoryLocked as error:
            raise DirectoryLocked(
                f"{data} is in use by another process; if that is a server, reach it with --server", **error.details
            ) from error
