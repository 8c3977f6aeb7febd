"""A TCP port of which the broker counts every connection from the accept on, TLS handshakes included, until its end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from penstock.server.admission import Strangers

log = logging.getLogger("penstock.tls")

BACKLOG = 1024
# What was sent last must arrive within this time.
CLOSE_S = 0.5


async def listen(
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    strangers: Strangers,
    handshake_s: float,
) -> asyncio.Server:
    """`factory` makes the protocol of a connection; its `connection_made` follows the handshake."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_server(factory, host, port, backlog=BACKLOG)
    handshakes = set[asyncio.Task[None]]()
    return await loop.create_server(
        lambda: _Handshake(factory, tls, strangers, handshake_s, handshakes), host, port, backlog=BACKLOG
    )


def close(transport: asyncio.Transport) -> None:
    """Close a connection whether the client agrees or not: one that takes nothing, or does not answer the end of TLS,
    would otherwise keep its descriptor and what it was sent."""
    if not transport.is_closing():
        transport.close()
    asyncio.get_running_loop().call_later(CLOSE_S, transport.abort)


class _Handshake(asyncio.Protocol):
    """Owns a connection until TLS is established. The event loop's own TLS servers report a connection only then."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        strangers: Strangers,
        handshake_s: float,
        handshakes: set[asyncio.Task[None]],
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._strangers = strangers
        self._handshake_s = handshake_s
        self._handshakes = handshakes
        self._socket: socket.socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport would read ciphertext. The connection goes on with another one, on the same socket.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        cast(asyncio.Transport, transport).abort()
        self._strangers.add(self)
        task = asyncio.get_running_loop().create_task(self._shake_hands())
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory, self._socket, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as error:
            # Not TLS, too slow, or gone.
            log.debug("no TLS handshake: %s", error)
        finally:
            self._strangers.discard(self)

    def evict(self, reason: str) -> None:
        """There is no protocol yet in which to give the reason."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
