"""Penstock for code with an event loop: the names of the blocking client, with `await` and `async for`.

async with penstock.aio.open("./data") as q:
    await q.publish("orders", b"…")
    async for message in q.consumer("processors", ["orders"]):
        await message.ack()
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.reader import Reader
from penstock.client.received import Received, ReceivedBatch
from penstock.local.embedded import open_async
from penstock.net.connecting import connect_async

__all__ = ["Client", "Consumer", "Producer", "Reader", "Received", "ReceivedBatch", "connect", "open"]


def open(path: str | os.PathLike[str], *, limits: Mapping[str, int] | None = None) -> Opening:
    """The broker in the directory `path`, in this process: `async with open(…) as q`, or `q = await open(…)`."""
    return Opening(partial(open_async, path, limits))


def connect(address: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> Opening:
    """The broker at penstock://host:port, or the cluster of which nodes are at penstock://a:port,b:port: `async with
    connect(…) as q`, or `q = await connect(…)`."""
    return Opening(partial(connect_async, address, key=key, tls=tls))


class Opening:
    """A client to be: awaited, or entered."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        self._opened = opened
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._opened().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.close()
