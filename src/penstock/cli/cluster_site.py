"""Where the cluster is: behind the address of any of its nodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import typer

from penstock.cli.broker import ADDRESS, ETCD_S, key_given
from penstock.cli.bundles import Bundle

if TYPE_CHECKING:
    from penstock.client.requests import Request

R = TypeVar("R")

_Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="ADDRESS",
        help=f"Any of its nodes, or several with commas between. Default: $PENSTOCK_SERVER, or {ADDRESS}.",
    ),
]
_ServerKey = Annotated[
    str | None, typer.Option("--server-key", metavar="KEY", help="The key to the brokers. Default: $PENSTOCK_KEY.")
]


class Call(Protocol):
    def __call__(self, request: Request[R]) -> R: ...


class Site(Bundle):
    comes_last: ClassVar[bool] = True

    def __init__(self, server: _Server = None, server_key: _ServerKey = None) -> None:
        self._address = server or os.environ.get("PENSTOCK_SERVER") or ADDRESS
        self._key = key_given(server_key)

    @contextmanager
    def open(self) -> Iterator[Call]:
        """Requests are asked of whichever node answers."""
        from penstock.net.connecting import transport_to
        from penstock.net.routing.pace import Pace

        with asyncio.Runner() as runner:
            transport = runner.run(transport_to(self._address, key=self._key, pace=Pace(etcd_s=ETCD_S)))
            try:

                def call(request: Request[Any]) -> Any:
                    return runner.run(transport.call(request))

                yield call
            finally:
                runner.run(transport.close())
