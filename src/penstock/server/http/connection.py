"""One connection. uvicorn reads and writes HTTP; what it has no limits for is limited here.

    the head of a request        10 s and 64 KiB
    its body                     at least 8 KiB/s, after the first 10 s
    what follows an answer       64 MiB of a body that nobody wants
    requests ahead of answers    32
    nothing at all               5 minutes
    answers that are not read    60 s

Sizes are looked at as they come, times every second. A connection is a stranger's until one of its requests came with a
key that somebody has, or would have been let in without.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.errors import Overloaded, ProtocolError
from penstock.limits import KIB, MIB, Limits
from penstock.server.http.failures import Error, HeadTooLarge, NotHttp, TooSlow, body_of, status_of

HEAD_BYTES_MAX = 64 * KIB
UNWANTED_BYTES_MAX = 64 * MIB
AHEAD_MAX = 32


class _Whole:
    """The transport of one answer, whose head waits for the first of the body: one packet, and one system call."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None and self._cycle.response_started:
            self._head = data
        else:
            self._transport.write(self._head + data if self._head else data)
            self._head = b"" if self._head is not None else None

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


class Connection(HttpToolsProtocol):
    def __init__(self, config: Config, server_state: ServerState, limits: Limits, strangers: set[Connection]) -> None:
        """`strangers` are those of the door."""
        # What requests find in their scope.
        super().__init__(config, server_state, {"known": self._is_known})
        self._limits = limits
        self._strangers = strangers
        # What is expected: the head of a request, its body, or nothing in particular.
        self._in_head = True
        self._in_body = False
        self._since = self.loop.time()
        self._heard_at = self._since
        self._head_bytes = self._body_bytes = 0
        self._stuck_since: float | None = None

    # --- what uvicorn tells ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._strangers.add(self)
        if len(self.connections) > self._limits.connections_max:
            self.refuse(Overloaded(f"the broker has {self._limits.connections_max} connections already"))
        elif len(self._strangers) > self._limits.strangers_max:
            self.refuse(Overloaded(f"{self._limits.strangers_max} connections have not said who they are"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._strangers.discard(self)

    def _is_known(self) -> None:
        self._strangers.discard(self)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.refuse(HeadTooLarge(f"the head of a request has at most {HEAD_BYTES_MAX} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._since, self._head_bytes = True, self._heard_at, 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            self.cycle.transport = cast(asyncio.Transport, _Whole(self.cycle))
        self._in_head, self._in_body, self._since, self._body_bytes = False, True, self._heard_at, 0
        if len(self.pipeline) > AHEAD_MAX:
            self.refuse(ProtocolError(f"{AHEAD_MAX} requests wait for an answer already"))

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        if self.cycle.response_complete and self._body_bytes > UNWANTED_BYTES_MAX:
            self.transport.abort()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck_since = None

    # --- what is too much --------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Every second or so."""
        if self.transport.is_closing():
            return
        elapsed = now - self._since
        limits = self._limits
        head_s, rate = limits.http_head_us / 1e6, limits.http_body_bytes_per_s_min
        if self._stuck_since is not None and now - self._stuck_since > limits.stuck_us / 1e6:
            self.transport.abort()
        elif self._in_head and elapsed > head_s:
            self.refuse(TooSlow(f"the head of a request comes within {head_s:g} s"))
        elif self._in_body and not self.flow.read_paused and self._body_bytes < (elapsed - head_s) * rate:
            self.refuse(TooSlow(f"a body comes with at least {rate} bytes a second"))
        elif self._is_idle and now - self._heard_at > limits.idle_us / 1e6:
            self.transport.close()

    @property
    def _is_idle(self) -> bool:
        return not self._in_head and not self._in_body and self.cycle.response_complete

    def refuse(self, error: Error) -> None:
        """Says why, if nothing else is being said, and closes."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = body_of(error) + b"\n"
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status_of(type(error))] + head + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self.refuse(NotHttp("this is not HTTP/1.1"))
