"""One HTTP/1.1 connection to a member of etcd: one request at a time, and an answer of bounded size.

What goes wrong before a request is on its way is `NotSent`; afterwards it is `AnswerLost`, for then nobody can say what
the other side made of it. Both stay in this package. Time-outs are the caller's: a connection whose request did not
come to its end is closed, since its answer could be taken for that of the next.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from typing import NamedTuple

import httptools

from penstock.cluster.etcd.settings import Endpoint

_READ_BYTES = 64 * 1024
# The kernel gives up on a peer that is gone; one that merely says nothing is found by the caller's time-outs.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class NotSent(Exception):
    """Nothing has left this process."""


class TlsRefused(NotSent):
    """By this side or by the other, as TLS is set up. It does not pass by itself."""


class AnswerLost(Exception):
    """The request was sent, at least in part."""


class TooMuch(AnswerLost):
    """The answer is larger than it may be."""


class Reply(NamedTuple):
    status: int
    body: bytes


class _Answer:
    """What the parser has told so far."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        # 0 before the head is complete.
        self.status = 0
        self.keeps_alive = False
        self.done = False
        self.body = bytearray()

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.keeps_alive = self.parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True


class Connection:
    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._socket = select.poll()
        self._socket.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
        self._answer = _Answer()
        self._usable = True

    @classmethod
    async def to(cls, endpoint: Endpoint, context: ssl.SSLContext | None) -> Connection:
        try:
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=context if endpoint.tls else None
            )
        except ssl.SSLCertVerificationError as error:
            raise TlsRefused(f"its certificate is not trusted ({error.verify_message})") from error
        except ssl.SSLError as error:
            raise TlsRefused(f"TLS can't be agreed on ({error.reason})") from error
        except OSError as error:
            raise NotSent(error.strerror or str(error) or "it was closed while it was being made") from error
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return cls(endpoint, reader, writer)

    @property
    def is_idle(self) -> bool:
        """It can take another request. What has come unasked is its end, also if the event loop does not know yet: a
        change would be sent to nobody, and its outcome be unknown."""
        return self._is_open and not self._socket.poll(0)

    @property
    def _is_open(self) -> bool:
        return self._usable and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._usable = False
        self._writer.transport.abort()

    async def request(
        self, path: str, body: bytes, headers: dict[str, str], bytes_max: int, *, get: bool = False
    ) -> Reply:
        await self._send(path, body, headers, get=get)
        reply = await self._whole(bytes_max)
        self._usable = self._answer.keeps_alive
        return reply

    async def stream(self, path: str, body: bytes, headers: dict[str, str], bytes_max: int) -> Reply | None:
        """None if lines follow; an answer that is not 200 as a whole."""
        await self._send(path, body, headers)
        while not self._answer.status:
            await self._receive(bytes_max)
        return None if self._answer.status == 200 else await self._whole(bytes_max)

    async def line(self, bytes_max: int) -> bytes | None:
        """The next line that is not empty; None if there are no more."""
        answer = self._answer
        searched = 0
        while True:
            end = answer.body.find(b"\n", searched)
            if end >= 0:
                line = bytes(answer.body[:end])
                del answer.body[: end + 1]
                searched = 0
                if line:
                    return line
            elif answer.done:
                line, answer.body = bytes(answer.body), bytearray()
                return line or None
            else:
                searched = len(answer.body)
                await self._receive(bytes_max)

    async def _whole(self, bytes_max: int) -> Reply:
        while not self._answer.done:
            await self._receive(bytes_max)
        return Reply(self._answer.status, bytes(self._answer.body))

    async def _send(self, path: str, body: bytes, headers: dict[str, str], *, get: bool = False) -> None:
        if not self._is_open:
            raise NotSent("the connection was closed")
        self._usable = False
        self._answer = _Answer()
        lines = [
            f"{'GET' if get else 'POST'} {path} HTTP/1.1",
            f"Host: {str(self.endpoint).partition('://')[2]}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        try:
            await self._writer.drain()
        except OSError as error:
            raise _lost(error) from error

    async def _receive(self, bytes_max: int) -> None:
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError as error:
            raise _lost(error) from error
        if not data:
            raise AnswerLost("the connection was closed before the answer was complete")
        try:
            self._answer.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise AnswerLost(f"what came is not HTTP ({error})") from error
        if len(self._answer.body) > bytes_max:
            raise TooMuch(f"the answer has more than {bytes_max} bytes")


def _lost(error: OSError) -> AnswerLost | TlsRefused:
    """With TLS 1.3 it is told only now that our certificate, or that there is none, was not enough: and no request is
    looked at before it is."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return TlsRefused(f"TLS can't be agreed on ({reason})")
    return AnswerLost(error.strerror or str(error))
