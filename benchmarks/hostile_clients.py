"""Clients that want nothing good, over bare sockets: what 500 of them do to a broker is asked by `hostile.py`.

    python hostile_clients.py NATIVE HTTP GRPC COUNT KEY      (ports, and a key without rights)

Each kind keeps its connections: one that the broker closes is opened again, after a moment. Without a key:

    silent            at each listener: connected, nothing said
    half_hello        a HELLO that never ends
    slow_head         HTTP: a header every second, without an end
    kept_alive        HTTP: /health once a second
    no_key            HTTP and gRPC: a call a second that has no key
    browser           HTTP: what a page of another site has a browser send, each second
    watches           gRPC: a hundred Health/Watch streams
    unfinished        gRPC: ten Health/Check of 8 MB each that never end

With the key:

    partial_packet    native: a frame of 8 MiB of which the last byte is missing
    partial_body      HTTP: a body of 6 MB of which the last byte is missing
    partial_message   gRPC: ten requests of 8 MB of which the last byte is missing
    listings          native: listings of topics and groups, 50 ahead of their answers, in rounds of a second
                      HTTP: 20 ahead; gRPC: 100 calls at the same time
    abandoned         native, HTTP, gRPC: a connection for each listing, closed before its answer, without a pause
    nested            native: a request of a million nested lists
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from typing import NamedTuple

import msgspec

from penstock.client.requests import ListGroups, ListTopics
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Kind, packed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
END_STREAM = 1
FRAME_BYTES = 16_384
MESSAGE_BYTES = 8_000_000
AGAIN_S = 1.0
ABANDONED_S = 0.02
LIST_GROUPS = "/penstock.v1.Groups/ListGroups"


class Target(NamedTuple):
    native: int
    http: int
    grpc: int
    key: str


# --- HTTP/2, as little as it takes to send requests that do not end ----------------------------------------


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def headers(path: str, key: str | None = None) -> bytes:
    """As HPACK's literals without an index."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    if key is not None:
        fields["authorization"] = f"Bearer {key}"
    text = [part.encode() for field in fields.items() for part in field]
    sized = [bytes((len(part),)) + part for part in text]
    return b"".join(b"\0" + name + value for name, value in zip(sized[::2], sized[1::2], strict=True))


class Http2:
    """A connection that sends what the windows of the other end allow."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._window = self._initial = 65_535
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        writer.write(PREFACE + frame(SETTINGS, 0, 0))

    def call(self, stream: int, path: str, size: int = 0, key: str | None = None) -> None:
        """`size` bytes of its request are sent as the other end takes them, and the last one never."""
        self._writer.write(frame(HEADERS, END_HEADERS, stream, headers(path, key)))
        self._windows[stream] = self._initial - 5
        self._window -= 5
        self._writer.write(frame(DATA, 0, stream, b"\0" + (size + 1 if size else 0).to_bytes(4, "big")))
        self._left[stream] = size

    async def run(self) -> None:
        """Until the connection is closed."""
        while True:
            self._send()
            await self._writer.drain()
            head = await self._reader.readexactly(9)
            body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == SETTINGS and not flags & ACK:
                self._set(body)
                self._writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._writer.write(frame(PING, ACK, 0, body))
            elif kind == WINDOW_UPDATE and stream:
                self._windows[stream] += int.from_bytes(body, "big")
            elif kind == WINDOW_UPDATE:
                self._window += int.from_bytes(body, "big")

    def _set(self, body: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", body):
            if number == 4:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value

    def _send(self) -> None:
        for stream, left in self._left.items():
            size = max(min(left, self._window, self._windows[stream], FRAME_BYTES), 0)
            if size:
                self._writer.write(frame(DATA, 0, stream, bytes(size)))
                self._left[stream] -= size
                self._windows[stream] -= size
                self._window -= size


async def http2(port: int) -> Http2:
    return Http2(*await asyncio.open_connection("127.0.0.1", port))


# --- kinds --------------------------------------------------------------------------------------------------


async def _until_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _say(port: int, first: bytes) -> None:
    """Says this and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        await _until_closed(reader)
    finally:
        writer.close()


async def _repeat(port: int, first: bytes, then: bytes) -> None:
    """Says the second once a second, whatever is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ending = asyncio.ensure_future(_until_closed(reader))
    try:
        writer.write(first)
        while not ending.done():
            writer.write(then)
            await writer.drain()
            await asyncio.wait({ending}, timeout=1.0)
    finally:
        ending.cancel()
        writer.close()


def _request(path: str, *fields: str) -> bytes:
    return "\r\n".join((f"{path} HTTP/1.1", "Host: localhost", *fields, "", "")).encode()


async def _calls(port: int, path: str, count: int, size: int = 0, key: str | None = None) -> None:
    connection = await http2(port)
    for number in range(count):
        connection.call(2 * number + 1, path, size, key)
    await connection.run()


async def _rounds_of_calls(port: int, path: str, count: int, key: str) -> None:
    """A round a second, until some are refused by HTTP/2 for being too many: then on another connection."""
    connection = await http2(port)
    running = asyncio.ensure_future(connection.run())
    try:
        for number in range(1 << 20):
            connection.call(2 * number + 1, path, key=key)
            if number % count == count - 1:
                await asyncio.wait({running}, timeout=1.0)
                if running.done():
                    break
    finally:
        running.cancel()


async def _abandon(port: int, first: bytes) -> None:
    """The connection is closed once the request is likely to be carried out."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(first)
            await writer.drain()
            await asyncio.sleep(ABANDONED_S)
        finally:
            writer.close()


async def _calls_again_and_again(port: int) -> None:
    connection = await http2(port)
    running = asyncio.ensure_future(connection.run())
    try:
        for number in range(1 << 20):
            connection.call(2 * number + 1, "/penstock.v1.Topics/ListTopics")
            await asyncio.wait({running}, timeout=1.0)
            if running.done():
                break
    finally:
        running.cancel()


def _hello(at: Target) -> bytes:
    return ClientEnd().hello("hostile", at.key)


def _partial_packet(at: Target) -> bytes:
    size = 8 << 20
    return _hello(at) + packed(Kind.PUBLISH, 1, b"", size) + bytes(size - 1)


def _partial_body(at: Target) -> bytes:
    size = 6_000_000
    head = (f"Authorization: Bearer {at.key}", f"Content-Length: {size}")
    return _request("POST /v1/topics/t/publish", *head) + bytes(size - 1)


def _listings() -> bytes:
    end = ClientEnd()
    some = islice(cycle((ListTopics(), ListGroups())), 50)
    return b"".join(end.request(Kind.CALL, one)[1] for one in some)


def _listing(at: Target) -> bytes:
    return _hello(at) + ClientEnd().request(Kind.CALL, ListGroups(after=""))[1]


def _web_listing(at: Target) -> bytes:
    return _request("GET /v1/groups", f"Authorization: Bearer {at.key}")


def _grpc_listing(at: Target) -> bytes:
    asked = headers(LIST_GROUPS, at.key)
    return (
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, asked) + frame(DATA, END_STREAM, 1, bytes(5))
    )


def _page() -> bytes:
    """An image, a form, and the question that comes before anything else."""
    foreign = ("Origin: https://shop.example", "Referer: https://shop.example/", "User-Agent: Mozilla/5.0")
    foreign += ("Sec-Fetch-Site: cross-site", "Cookie: session=1")
    body = ("Content-Type: text/plain", "Content-Length: 12")
    return (
        _request("GET /v1/groups/g/stream?topics=t", *foreign, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
        + _request("POST /v1/topics/t/publish", *foreign, *body)
        + b'{"text":"x"}'
        + _request("OPTIONS /v1/topics", *foreign, "Access-Control-Request-Method: POST")
    )


def _nested() -> bytes:
    many = msgspec.msgpack.encode([[]] * 1_000_000)
    bomb = b"\x84\xa4type\xabCreateTopic\xa4name\xa1t\xaapartitions\x01\xa8settings\x81\xa1x" + many
    return ClientEnd().request(Kind.CALL, msgspec.Raw(bomb))[1]


KINDS: dict[str, Callable[[Target], Awaitable[None]]] = {
    "silent native": lambda at: _say(at.native, b""),
    "silent http": lambda at: _say(at.http, b""),
    "silent grpc": lambda at: _say(at.grpc, PREFACE + frame(SETTINGS, 0, 0)),
    "half_hello": lambda at: _say(at.native, ClientEnd().hello("x" * 4_000, None)[:-1]),
    "slow_head": lambda at: _repeat(at.http, b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n"),
    "kept_alive": lambda at: _repeat(at.http, b"", _request("GET /health")),
    "no_key http": lambda at: _repeat(at.http, b"", _request("GET /v1/topics")),
    "no_key grpc": lambda at: _calls_again_and_again(at.grpc),
    "browser": lambda at: _repeat(at.http, b"", _page()),
    "watches": lambda at: _calls(at.grpc, "/grpc.health.v1.Health/Watch", 100),
    "unfinished": lambda at: _calls(at.grpc, "/grpc.health.v1.Health/Check", 10, MESSAGE_BYTES),
    "partial_packet": lambda at: _say(at.native, _partial_packet(at)),
    "partial_body": lambda at: _say(at.http, _partial_body(at)),
    "partial_message": lambda at: _calls(at.grpc, "/penstock.v1.Publisher/PublishBatch", 10, MESSAGE_BYTES, at.key),
    "partial_request": lambda at: _calls(at.grpc, "/penstock.v1.Topics/GetTopic", 10, MESSAGE_BYTES, at.key),
    "listings": lambda at: _repeat(at.native, _hello(at), _listings()),
    "listings http": lambda at: _repeat(at.http, b"", 20 * _web_listing(at)),
    "listings grpc": lambda at: _rounds_of_calls(at.grpc, LIST_GROUPS, 100, at.key),
    "abandoned native": lambda at: _abandon(at.native, _listing(at)),
    "abandoned http": lambda at: _abandon(at.http, _web_listing(at)),
    "abandoned grpc": lambda at: _abandon(at.grpc, _grpc_listing(at)),
    "nested": lambda at: _repeat(at.native, _hello(at), _nested()),
}
# Each of them costs the processor of whoever sends it far more than a connection that waits.
FEW = {
    "listings": 5,
    "listings http": 5,
    "listings grpc": 2,
    "abandoned native": 2,
    "abandoned http": 2,
    "abandoned grpc": 2,
    "nested": 2,
}


async def attack(at: Target, count: int, began: Callable[[], None] = lambda: None) -> None:
    """With as many connections, until it is cancelled. `began` is called once each of them was opened once."""
    few = {kind: min(most, max(count // len(KINDS), 1)) for kind, most in FEW.items()}
    others = [kind for kind in KINDS if kind not in FEW]
    chosen = [kind for kind, number in few.items() for _ in range(number)]
    chosen += islice(cycle(others), count - len(chosen))
    pending = len(chosen)

    async def keep(kind: str) -> None:
        nonlocal pending
        is_first = True
        while True:
            going = asyncio.ensure_future(KINDS[kind](at))
            await asyncio.wait({going}, timeout=AGAIN_S if is_first else None)
            if is_first:
                is_first, pending = False, pending - 1
                if not pending:
                    began()
            try:
                await going
            except (OSError, EOFError):
                # Closed, or refused.
                pass
            finally:
                going.cancel()
            await asyncio.sleep(AGAIN_S)

    async with asyncio.TaskGroup() as group:
        for kind in chosen:
            group.create_task(keep(kind))


def main() -> None:
    """Says `began` once it has; ends when it is terminated."""
    native, http, grpc, count = map(int, sys.argv[1:5])
    at = Target(native, http, grpc, sys.argv[5])
    asyncio.run(attack(at, count, lambda: print("began", flush=True)))


if __name__ == "__main__":
    main()
