"""One connection. uvicorn reads and writes HTTP; what it has no limits for is limited here.

    the head of a request        10 s, 32 KiB and 100 headers
    its body                     at least 8 KiB/s, after the first 10 s
    what follows an answer       64 MiB of a body that nobody wants
    requests ahead of answers    32
    nothing at all               5 minutes
    answers that are not read    60 s

Sizes are looked at as they come, times every second. A connection is a stranger's until one of its requests came with a
key that has any right, or would have been let in without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.errors import Overloaded, ProtocolError
from penstock.limits import KIB, MIB, Limits
from penstock.server.admission import PARTIAL_BYTES_MIN, PartialRequest
from penstock.server.gate import Gate
from penstock.server.guard import Guarded
from penstock.server.http.asking import Gone
from penstock.server.http.failures import Error, HeadTooLarge, NotHttp, TooSlow, body_of, status_of
from penstock.server.listening import close
from penstock.server.reply_budget import ReplyAccount, Reservation

HEAD_BYTES_MAX = 32 * KIB
# Each of them may be a few bytes, and takes far more in memory. As in Apache.
HEADERS_MAX = 100
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
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._transport.close()


class _Reading(FlowControl):
    """Nothing is read while the connection waits for memory, even if the application asks for more of a body."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        self._is_held = True
        self.pause_reading()

    def go_on(self) -> None:
        self._is_held = False
        self.resume_reading()


class Connection(HttpToolsProtocol):
    def __init__(self, config: Config, server_state: ServerState, limits: Limits, gate: Gate) -> None:
        # What requests find in their scope.
        super().__init__(config, server_state, {"known": self._is_known, "reading": self._reading_for})
        self._limits = limits
        self._strangers = gate.strangers
        self._gate = gate
        # A request of which a part has come.
        self._partial: PartialRequest | None = None
        # What is expected: the head of a request, its body, or nothing in particular.
        self._in_head = True
        self._in_body = False
        self._since = self.loop.time()
        self._heard_at = self._since
        self._head_bytes = self._body_bytes = 0
        self._stuck_since: float | None = None
        self._closing_since: float | None = None
        # Of the request that is being carried out, if it only reads.
        self._task: asyncio.Task[Any] | None = None
        # Principals among whose connections this one is.
        self._counted: list[Guarded] = []
        # Of each of them: bytes of replies. Requests are carried out one after the other.
        self._replies: dict[str, ReplyAccount] = {}
        self._reserved: dict[str, Reservation] = {}

    # --- what uvicorn tells ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._reading = _Reading(transport)
        if len(self.connections) > self._limits.connections_max:
            self.refuse(Overloaded(f"the broker has {self._limits.connections_max} connections already"))
        else:
            self._strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._strangers.discard(self)
        self._forget_partial()
        if self._task is not None:
            self._task.cancel()
        for site in self._counted:
            site.disconnect(self)
        for replies in self._replies.values():
            replies.close()

    @contextmanager
    def _reading_for(self) -> Iterator[None]:
        """For a request that only reads: it is cancelled when the client goes."""
        if self.transport.is_closing():
            raise Gone
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def _is_known(self, site: Guarded) -> None:
        # One whose key counts already is not counted again with each request.
        if all(site.principal != other.principal for other in self._counted):
            site.connect(self)
            self._counted.append(site)
            replies = self._replies[site.principal] = ReplyAccount(
                self._gate.replies_of(site), self, self._limits.in_flight_bytes_max, self._unsent
            )
            self._reserved[site.principal] = replies.reservation()
            if site.has_rights:
                self._strangers.discard(self)
        site.memory = self._reserved[site.principal]
        if self._partial is not None and self._partial.principal != site.principal:
            # The body began to arrive before the key was checked.
            self._forget_partial()
            self._count_partial()

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def on_response_complete(self) -> None:
        for reserved in self._reserved.values():
            reserved.release()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.refuse(HeadTooLarge(f"the head of a request has at most {HEAD_BYTES_MAX} bytes"))
            elif self._head_bytes > PARTIAL_BYTES_MIN:
                self._count_partial()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._since, self._head_bytes, self._body_bytes = True, self._heard_at, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS_MAX:
            self.refuse(HeadTooLarge(f"a request has at most {HEADERS_MAX} headers"))
            # The parser stops: nothing of the request is carried out.
            raise ValueError("too many headers")
        super().on_header(name, value)

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
        elif self._body_bytes > PARTIAL_BYTES_MIN and not self.cycle.response_complete:
            self._count_partial()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._forget_partial()

    def _count_partial(self) -> None:
        if self._partial is None:
            principal = self._counted[-1].principal if self._counted else ""
            self._partial = self._gate.partial_of(principal).begin(self, self._reading.hold, self._reading.go_on)
        self._partial.grow(self._head_bytes + self._body_bytes)

    def _forget_partial(self) -> None:
        if self._partial is not None:
            self._partial.end()
            self._partial = None
            if not self.transport.is_closing():
                # The last bytes may have come together with those that exceeded the budget.
                self._reading.go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck_since = None
        for replies in self._replies.values():
            replies.refresh()

    # --- what is too much --------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Every second or so."""
        limits = self._limits
        if self.transport.is_closing():
            # What is left to be sent may take a while, and no longer.
            self._closing_since = self._closing_since or now
            if now - self._closing_since > limits.stuck_us / 1e6:
                self.transport.abort()
            return
        elapsed = now - self._since
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
        close(self.transport)

    def evict(self, reason: str) -> None:
        if self.cycle is None or not self.cycle.response_complete:
            self.refuse(Overloaded(reason))
        # Between two requests, an answer would be taken for that to the next one.
        close(self.transport)

    def send_400_response(self, msg: str) -> None:
        self.refuse(NotHttp("this is not HTTP/1.1"))
