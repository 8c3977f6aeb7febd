"""HTTP on a port: connections, what happens to them every second, and a graceful end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from email.utils import formatdate
from typing import cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from penstock.errors import PenstockError
from penstock.server.gate import Gate
from penstock.server.http.app import App
from penstock.server.http.connection import Connection
from penstock.server.http.desk import Desk
from penstock.server.listening import listen
from penstock.server.metrics import Counts
from penstock.server.site import Site

_ROUND_S = 1.0


class HttpDoor:
    """Belongs to the broker's event loop.

    uvicorn's connections without uvicorn's server: that one wants to own the process, with its signals and its end.
    """

    def __init__(
        self,
        site: Site,
        gate: Gate,
        *,
        counts: Counts | None = None,
        broke: Callable[[PenstockError], None] = lambda error: None,
        round_s: float = _ROUND_S,
        hosts: Collection[str] = (),
    ) -> None:
        """`broke` is called on a fatal error; `hosts` are names of this machine."""
        self._counts = counts or Counts()
        self._desk = Desk(site)
        self._round_s = round_s
        self._limits = site.limits
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._state = ServerState()
        self._config = Config(
            App(self._desk, gate, self._counts, broke, hosts),
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=-(-site.limits.idle_us // 1_000_000),
        )
        self._config.load()
        self._server: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    @property
    def connections(self) -> set[Connection]:
        return cast(set[Connection], self._state.connections)

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """The port that it listens on."""
        self._note_date()
        handshake_s = self._limits.handshake_us / 1e6
        self._server = await listen(self._connection, host, port, tls, self._gate.strangers, handshake_s)
        self._rounds = self._loop.create_task(self._go_round())
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, self._limits, self._gate)

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(self._round_s)
            self._note_date()
            self._counts.connections["http"] = len(self.connections)
            self._desk.waiting.members.keep_alive()
            self._gate.check_memory()
            now = self._loop.time()
            for connection in list(self.connections):
                connection.check(now)

    def _note_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    async def close(self) -> None:
        """Answers what was asked, ends long polls and streams, and closes."""
        self._desk.is_closing = True
        if self._server is not None:
            self._server.close()
        self._desk.waiting.end()
        try:
            for connection in list(self.connections):
                connection.shutdown()
            while self._state.tasks:
                await asyncio.wait(self._state.tasks)
        except asyncio.CancelledError:
            # It takes too long: somebody does not read what it is sent.
            for connection in list(self.connections):
                connection.transport.abort()
            raise
        finally:
            if self._rounds is not None:
                self._rounds.cancel()
            for connection in list(self.connections):
                connection.transport.close()
        # One turn of the loop, so that the last answers are on their way.
        await asyncio.sleep(0)
