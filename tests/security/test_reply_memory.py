"""Replies that clients do not take: the broker holds a bounded number of bytes, whatever is asked for and by whom.

What counts is what the transports have not sent, and what is leased; not the memory of the process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from grpc_served import stub_of
from penstock.batch import Batch
from penstock.frame import Frame
from penstock.limits import KIB, MIB
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.session import Session
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Kind
from security.doors import Doors, knock, until

SIZE = 512 * KIB
# Of one frame that all of the polls lease.
LARGE = 6 * MIB
# The sockets of both sides take some of what is sent.
SOCKETS = 8 * MIB


def frame_of(size: int) -> Frame:
    return Frame.of(Batch.from_columns([bytes(SIZE)] * (size // SIZE), now_us=1))


def leased(doors: Doors, groups: int) -> int:
    """Bytes of messages that the groups hold."""
    state = doors.site.broker.topic("t").partitions[0].groups.state
    return sum(state(f"g{n}").in_flight for n in range(groups)) * SIZE


class Unsent:
    """Bytes that native connections have not sent, after each send."""

    def __init__(self, doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self._doors = doors
        send = Session._send

        def counted(session: Session, *given: Any) -> None:
            send(session, *given)
            self.most = max(self.most, self.now())

        monkeypatch.setattr(Session, "_send", counted)

    def now(self) -> int:
        transports = [session._transport for session in self._doors.native.sessions]
        return sum(one.get_write_buffer_size() for one in transports if one is not None)


class Consumer:
    """One native connection that sends requests at once and reads nothing until it shall."""

    def __init__(self, stack: AsyncExitStack, port: int) -> None:
        self._stack = stack
        self._port = port
        self._end = ClientEnd()

    async def ask(self, *asked: tuple[Kind, object]) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._stack.callback(self._writer.close)
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        requests = b"".join(self._end.request(kind, word)[1] for kind, word in asked)
        self._writer.write(self._end.hello("slow", None) + requests)

    async def take(self, size: int) -> None:
        """Read until so many bytes of messages have come."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]
        while size > 0:
            data = await self._reader.read(MIB)
            assert data, "closed"
            for packet in self._end.receive(data):
                if packet.kind is Kind.WELCOME:
                    self._end.welcomed(packet)
                size -= len(packet.payload)


def poll(group: str) -> tuple[Kind, object]:
    return Kind.POLL, words.Poll(group, "c", ("t",), 100, 8 * MIB, 50_000_000)


async def joined(doors: Doors, groups: int) -> None:
    await doors.site.broker.create_topic("t", 1)
    for n in range(groups):
        await doors.site.join_for_a_session(f"g{n}", "c", ["t"], {})


def test_polls_of_one_connection_that_reads_nothing_hold_16_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(doors: Doors) -> None:
        polls = 12
        await joined(doors, polls)
        unsent = Unsent(doors, monkeypatch)
        async with AsyncExitStack() as stack:
            consumer = Consumer(stack, doors.native_port)
            await consumer.ask(*[poll(f"g{n}") for n in range(polls)])
            await until(lambda: sum(session.requests for session in doors.native.sessions) == polls)
            await doors.site.broker.topic("t").publish_frame(frame_of(LARGE), 0)
            await until(lambda: leased(doors, polls) >= 2 * LARGE)
            async with doors.client() as other:
                await other.publish("t", b"others get on")
            assert leased(doors, polls) <= 16 * MIB + SOCKETS
            await consumer.take(polls * LARGE)
            assert unsent.most <= 16 * MIB

    knock(tmp_path, work)


def test_connections_of_one_principal_that_read_nothing_share_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(doors: Doors) -> None:
        doors.gate.reply_bytes_max = 16 * MIB
        connections = 8
        await joined(doors, connections)
        unsent = Unsent(doors, monkeypatch)
        async with AsyncExitStack() as stack:
            consumers = [Consumer(stack, doors.native_port) for _ in range(connections)]
            for n, consumer in enumerate(consumers):
                await consumer.ask(poll(f"g{n}"))
            await until(lambda: sum(session.requests for session in doors.native.sessions) == connections)
            await doors.site.broker.topic("t").publish_frame(frame_of(LARGE), 0)
            await until(lambda: leased(doors, connections) >= 2 * LARGE)
            async with doors.client() as other:
                await other.publish("t", b"others get on")
            await asyncio.gather(*[consumer.take(LARGE) for consumer in consumers])
            assert unsent.most <= 16 * MIB

    knock(tmp_path, work)


def test_pushes_of_many_subscriptions_hold_16_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(doors: Doors) -> None:
        groups = 12
        await joined(doors, groups)
        unsent = Unsent(doors, monkeypatch)
        async with AsyncExitStack() as stack:
            consumer = Consumer(stack, doors.native_port)
            subscriptions = [words.Subscribe(f"g{n}", "c", ("t",), 10_000, 1 << 30) for n in range(groups)]
            await consumer.ask(*[(Kind.SUBSCRIBE, one) for one in subscriptions])
            await until(lambda: sum(session.requests for session in doors.native.sessions) == groups)
            await doors.site.broker.topic("t").publish_frame(frame_of(LARGE), 0)
            await until(lambda: leased(doors, groups) >= 2 * LARGE)
            async with doors.client() as other:
                await other.publish("t", b"others get on")
            await consumer.take(groups * LARGE)
            assert unsent.most <= 16 * MIB

    knock(tmp_path, work)


def test_a_read_that_asks_for_one_byte_reserves_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(doors: Doors) -> None:
        doors.gate.reply_bytes_max = 16 * MIB
        connections = 6
        await joined(doors, 0)
        await doors.site.broker.topic("t").publish_frame(frame_of(LARGE), 0)
        unsent = Unsent(doors, monkeypatch)
        async with AsyncExitStack() as stack:
            consumers = [Consumer(stack, doors.native_port) for _ in range(connections)]
            for consumer in consumers:
                await consumer.ask(*[(Kind.READ, words.Read("t", 0, 0, 1 << 40, 1))] * 3)
            await until(lambda: unsent.most > 4 * MIB)
            await asyncio.gather(*[consumer.take(3 * LARGE) for consumer in consumers])
            assert unsent.most <= 16 * MIB

    knock(tmp_path, work)


def test_http_polls_and_streams_that_are_not_read_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        doors.gate.reply_bytes_max = 8 * MIB
        each = 6
        await joined(doors, 2 * each)

        def asked(n: int) -> bytes:
            if n < each:
                body = b'{"topics": ["t"], "consumer": "c", "max": 100, "wait": "50s"}'
                return b"POST /v1/groups/g%d/poll HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (
                    n,
                    len(body),
                    body,
                )
            query = b"topics=t&consumer=c&max_in_flight=100"
            return b"POST /v1/groups/g%d/stream?%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (n, query)

        def unsent() -> int:
            return sum(connection.transport.get_write_buffer_size() for connection in doors.http.connections)

        async with AsyncExitStack() as stack:
            clients = []
            for n in range(2 * each):
                reader, writer = await asyncio.open_connection("127.0.0.1", doors.http_port)
                stack.callback(writer.close)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(asked(n))
                clients.append((reader, writer))
            waiting = doors.http._desk.waiting
            await until(lambda: waiting._count == 2 * each)
            for _ in range(2):
                await doors.site.broker.topic("t").publish_frame(frame_of(4 * MIB), 0)
            await until(lambda: unsent() > 4 * MIB)
            async with doors.client() as other:
                for _ in range(20):
                    await other.publish("t", b"others get on")
            # Base64 makes four bytes of three.
            assert unsent() <= 8 * MIB * 4 // 3
            assert leased(doors, 2 * each) <= 8 * MIB + SOCKETS + 4 * MIB

            async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                size = 0
                while size < 4 * MIB:
                    data = await reader.read(MIB)
                    assert data, "closed"
                    size += len(data)
                # The client takes what else comes.
                draining.append(asyncio.ensure_future(reader.read(-1)))
                return size

            draining: list[asyncio.Future[bytes]] = []
            assert min(await asyncio.gather(*[taken(*one) for one in clients])) >= 4 * MIB

    knock(tmp_path, work)


def test_grpc_streams_that_are_not_read_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        doors.gate.reply_bytes_max = 4 * MIB
        streams = 16
        await joined(doors, streams)
        for _ in range(2):
            await doors.site.broker.topic("t").publish_frame(frame_of(LARGE), 0)
        # Of a client that reads nothing ahead.
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * KIB))
        async with doors.channel(*options) as channel:
            calls = [stub_of(channel).Subscribe() for _ in range(streams)]
            for n, call in enumerate(calls):
                subscription = pb.Subscription(group=f"g{n}", consumer="c", topics=["t"], credit=1_000)
                await call.write(pb.SubscribeRequest(subscribe=subscription))
            await until(lambda: bool(doors.gate._replies["anybody"].waiting))
            async with doors.client() as other:
                for _ in range(20):
                    await other.publish("t", b"others get on")
            assert doors.gate._replies["anybody"].size <= 4 * MIB
            assert leased(doors, streams) <= 4 * MIB + SOCKETS

            async def taken(call: Any) -> int:
                size = 0
                while size < 2 * LARGE:
                    size += (await call.read()).ByteSize()
                call.cancel()
                return size

            assert min(await asyncio.gather(*map(taken, calls))) >= 2 * LARGE

    knock(tmp_path, work)
