"""A connection that is made again when it is lost: by whoever needs it next, and once for all of them."""

from __future__ import annotations

import asyncio

from penstock.client.words import CLIENT_CLOSED
from penstock.clock import Clock
from penstock.errors import ConnectionLost, LogClosed
from penstock.net.connection import Connection, Place

# A broker that restarts is back within a second or two; one that is gone should not be asked a thousand times.
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0


class Link:
    """Belongs to one event loop."""

    def __init__(self, place: Place, clock: Clock, *, patience_s: float) -> None:
        self.place = place
        self._clock = clock
        self._patience_s = patience_s
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        # How many wait until it is connected. Whoever comes later waits behind them: requests keep their order.
        self._in_line = 0
        self._is_closed = False
        # The broker's wall clock minus our monotonic clock. Not minus our wall clock: that may be set, which would seem
        # to set the broker's.
        self.ahead_us = clock.now_us() - clock.monotonic_us()

    @property
    def open(self) -> Connection | None:
        """As it is now, without waiting."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    @property
    def is_lost(self) -> bool:
        """There was a connection, and there is none now. From any thread."""
        return self._connection is not None and not self._connection.is_open

    async def connect(self, patience_s: float | None = None) -> Connection:
        """An open connection. ConnectionLost if there is none for so long."""
        connection = self.open
        if connection is not None and not self._is_closed and not self._in_line:
            return connection
        self._in_line += 1
        try:
            return await self._connected(patience_s)
        finally:
            self._in_line -= 1

    async def _connected(self, patience_s: float | None) -> Connection:
        give_up = asyncio.get_running_loop().time() + (self._patience_s if patience_s is None else patience_s)
        async with self._connecting:
            pause = _PAUSE_S
            while True:
                if self._is_closed:
                    raise LogClosed(CLIENT_CLOSED)
                connection = self.open
                if connection is not None:
                    return connection
                try:
                    self._connection = await Connection.to(self.place, self._clock, self._hear)
                except ConnectionLost as error:
                    if asyncio.get_running_loop().time() + pause > give_up:
                        # Whoever wanted to ask something knows that it was not asked.
                        raise ConnectionLost(error.message, **error.details, was_sent=False) from (
                            error.__cause__ or error
                        )
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_S_MAX)

    def _hear(self, least_us: int, most_us: int) -> None:
        """Keep the known difference while it is within the bounds, which are wide if the answer waited here."""
        if not least_us <= self.ahead_us <= most_us:
            self.ahead_us = least_us

    async def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()
