"""The native protocol on a port: sessions, their limits, and the members behind them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from time import perf_counter

from penstock.cluster.feeding import Feeding
from penstock.errors import Fatal, PenstockError
from penstock.local.transport import LocalTransport
from penstock.server.gate import Gate
from penstock.server.listening import listen
from penstock.server.metrics import Counts
from penstock.server.session import Session
from penstock.server.turns import Turns
from penstock.server.vigil import Vigil

log = logging.getLogger("penstock.native")

SILENCE_US = 15_000_000
_ROUND_S = 1.0
# Of eight who publish in turns, one comes twice in a row now and then; four times hardly ever.
ALONE_AFTER = 3


class NativeDoor:
    """Belongs to the broker's event loop."""

    def __init__(
        self,
        site: LocalTransport,
        gate: Gate,
        *,
        name: str = "penstock",
        silence_us: int = SILENCE_US,
        cluster: str = "",
        counts: Counts | None = None,
        broke: Callable[[PenstockError], None] = lambda error: None,
        feeding: Feeding | None = None,
        now_s: Callable[[], float] = perf_counter,
    ) -> None:
        """`cluster` is the id of the one that the broker is a node of, if it is. `broke` hears of an error after which
        the broker must not go on."""
        self.counts = counts or Counts()
        self.site = site
        self.gate = gate
        self.name = name
        self.silence_us = silence_us
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self._broke = broke
        # Of a node in a cluster.
        self.feeding = feeding
        self._sessions: dict[Session, None] = {}
        # Who published last, and how often without anybody else in between.
        self._publisher: Session | None = None
        self._in_a_row = 0
        self.turns = Turns(self.loop)
        self.now_s = now_s
        self.vigil = Vigil(self.loop, site.limits.awake_us, now_s)
        self._server: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    @property
    def sessions(self) -> Collection[Session]:
        return self._sessions.keys()

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """The port that it listens on."""
        handshake_s = self.site.limits.handshake_us / 1e6
        self._server = await listen(lambda: Session(self), host, port, tls, self.gate.strangers, handshake_s)
        self._rounds = self.loop.create_task(self._go_round())
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    # --- sessions ----------------------------------------------------------------------------------------

    def admitted(self, session: Session) -> str | None:
        """Why it can't stay, if it can't."""
        self._sessions[session] = None
        self.counts.connections["native"] = len(self._sessions)
        limits = self.site.limits
        if len(self._sessions) > limits.connections_max:
            return f"the broker has {limits.connections_max} connections already"
        self.gate.strangers.add(session)
        return None

    def greeted(self, session: Session, *, has_rights: bool) -> None:
        if has_rights:
            self.gate.strangers.discard(session)
        else:
            self.gate.strangers.add(session)

    def publishes_alone(self, session: Session) -> bool:
        """It says that it publishes, and hears whether it has been the only one to do so lately.

        If others do, too, what they publish is in other sockets by now, and should be written together with this.
        """
        if session is not self._publisher:
            self._publisher, self._in_a_row = session, 0
        self._in_a_row += 1
        if self._in_a_row <= ALONE_AFTER:
            return False
        self.vigil.heard()
        return True

    def left(self, session: Session) -> None:
        """On purpose: its consumers do not come back."""
        session.members.leave()

    def gone(self, session: Session) -> None:
        """Its consumers may come back until their sessions are over."""
        self._sessions.pop(session, None)
        self.gate.strangers.discard(session)
        self.counts.connections["native"] = len(self._sessions)
        if session is self._publisher:
            self._publisher = None

    def broke(self, error: Fatal) -> None:
        self._broke(error)

    async def _go_round(self) -> None:
        stuck_s_max = self.site.limits.stuck_us / 1e6
        while True:
            await asyncio.sleep(_ROUND_S)
            self.gate.check_memory()
            now = self.loop.time()
            for session in list(self._sessions):
                if not session.is_open:
                    continue
                if session.stuck_since is not None and now - session.stuck_since > stuck_s_max:
                    log.info("%s has taken nothing for %g s", session.client, stuck_s_max)
                    session.abort()
                elif now - session.heard_at > self.silence_us / 1e6:
                    session.end("silent", f"nothing was heard for {self.silence_us / 1e6:g} s")
                else:
                    for group, consumer in session.members.keep_alive():
                        session.members.discard(group, consumer)

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self, reason: str = "the broker is stopping") -> None:
        """Answers what was asked, says goodbye, and closes."""
        if self._rounds is not None:
            self._rounds.cancel()
        if self._server is not None:
            self._server.close()
        sessions = list(self._sessions)
        await asyncio.gather(*[session.drained() for session in sessions])
        for session in sessions:
            session.end("stopping", reason)
        # One turn of the loop, so that the goodbyes are on their way.
        await asyncio.sleep(0)
