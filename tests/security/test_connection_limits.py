"""How many connections, how long they may take, how much they may have under way: at each door, with small limits."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import yaml

from grpc_served import stub_of
from penstock.batch import Batch
from penstock.errors import InvalidInput, InvalidSetting, Overloaded, QuotaExceeded
from penstock.frame import Frame
from penstock.limits import KIB, MIB, Limits
from penstock.message import Message
from penstock.server import session
from penstock.server.config import load
from penstock.server.gate import Gate
from penstock.server.grpc import intake
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.intake import READING_MAX, Sized
from penstock.server.http.door import HttpDoor
from penstock.server.keys import make
from penstock.server.native import NativeDoor
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Kind, Packet
from security.doors import Doors, knock, opened, packets, until
from served import said

# What one read of a socket may bring.
CHUNK = 512 * KIB


@asynccontextmanager
async def silent(port: int, first: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that says this and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        yield reader, writer
    finally:
        writer.close()


async def _enter(stack: AsyncExitStack, count: int, port: int, first: bytes = b"") -> None:
    for _ in range(count):
        await stack.enter_async_context(silent(port, first))


def _goodbye(data: bytes) -> str:
    *_, last = packets(data)
    assert last.kind is Kind.GOODBYE
    return words.decoded(last.header, words.Goodbye).code


# --- how they are set ---------------------------------------------------------------------------------------


def test_limits_are_set_in_a_file_or_a_line(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("limits: {connections_max: 7, idle: 2m}", encoding="utf-8")
    expected = Limits(connections_max=7, idle_us=120_000_000)
    for given in (
        load(file, {}, {}),
        load(None, {"PENSTOCK_LIMITS": "connections_max=7, idle=2m"}, {}),
        load(None, {}, {"limits": "idle=120s,connections_max=7"}),
        load(None, {}, {"limits": str(expected)}),
    ):
        assert given[0].limits == expected
    assert str(Limits()) == "default"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("connections_max", "name=value"),
        ("connections_max=1,connections_max=2", "name=value"),
        ("connections=1", "no limit 'connections'"),
        ("connections_max=0", "from 1 to"),
        ("connections_max=-1", "whole number"),
        ("connections_max=many", "whole number"),
        ("connections_max=99999999999999999", "from 1 to"),
        ("idle=5", "unit"),
        ("idle=0", "from 1 to"),
        ("idle_us=5", "no limit 'idle_us'"),
        ("disk_free_percent_min=100", "1 to 99"),
        ("message_bytes_max=5000000", "at least twice"),
        ("frame_bytes_max=2147483648", "there is room for"),
        ([1], "names and values"),
        ({"connections_max": True}, "whole number"),
        ({"connections_max": None}, "whole number"),
        ({1: 1}, "no limit 1"),
    ],
)
def test_limits_that_make_no_sense_are_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        load(None, {}, {"limits": given})


@pytest.mark.parametrize("name", Limits.__dataclass_fields__)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", None, 1 << 60])
def test_no_limit_can_be_nothing(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        Limits(**{name: value})


# --- how many -----------------------------------------------------------------------------------------------


def test_a_native_door_has_room_for_so_many(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as first, doors.client():
            with pytest.raises(Overloaded):
                async with doors.client():
                    pass
            assert await first.topics() == []
        await until(lambda: not doors.native.sessions)
        async with doors.client() as q:
            assert await q.topics() == []

    knock(tmp_path, work, limits=Limits(connections_max=2))


def test_one_more_stranger_closes_the_oldest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At whichever listener: clients with a key get in, and those that are in stay."""

    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack, doors.client() as inside:
            old, _ = await stack.enter_async_context(silent(doors.native_port))
            await until(lambda: len(doors.gate.strangers) == 1)
            await _enter(stack, 2, doors.http_port)
            await until(lambda: len(doors.gate.strangers) == 3)
            async with doors.client() as newcomer:
                assert await newcomer.topics() == []
            assert _goodbye(await old.read()) == "overloaded"
            assert await inside.topics() == []
            assert (await doors.web.get("/v1/topics")).status_code == 200
        await until(lambda: not doors.native.sessions)
        async with doors.client(), doors.client(), doors.client(), doors.client():
            assert len(doors.native.sessions) == 4
        # The silent ones and the broker's own clients made way for each other more than once.
        assert len([record for record in caplog.records if "strangers_max" in record.message]) == 1

    knock(tmp_path, work, limits=Limits(strangers_max=3))


def test_strangers_never_have_more_than_half_of_a_listener(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            await _enter(stack, 4, doors.native_port)
            for _ in range(2):
                await stack.enter_async_context(doors.client())

    knock(tmp_path, work, limits=Limits(connections_max=4))


GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def test_an_http_door_has_room_for_so_many(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                reader, _ = await stack.enter_async_context(silent(doors.http_port, GET % b"/v1/topics"))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            answer = await said(doors.http_port, GET % b"/health")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"overloaded"' in answer
        await until(lambda: not doors.http.connections)
        assert (await doors.web.get("/health")).status_code == 200

    knock(tmp_path, work, limits=Limits(connections_max=3))


def _access(path: Path) -> tuple[Path, str]:
    key, kept = make("somebody")
    file = path / "access.yaml"
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file.write_text(yaml.safe_dump({"keys": keys}), encoding="utf-8")
    return file, key


def test_http_connections_without_a_key_make_way_for_one_with_it(tmp_path: Path) -> None:
    """Whatever else they asked for, and although they are idle and kept alive."""
    access, key = _access(tmp_path)

    async def work(doors: Doors) -> None:
        doors.web.headers["authorization"] = f"Bearer {key}"
        assert (await doors.web.get("/v1/topics")).status_code == 200
        async with AsyncExitStack() as stack:
            strangers = []
            for first in (GET % b"/health", GET % b"/v1/topics", b"GET /"):
                reader, _ = await stack.enter_async_context(silent(doors.http_port, first))
                strangers.append(reader)
                if first != b"GET /":
                    await reader.readuntil(b"\r\n\r\n")
            await until(lambda: len(doors.gate.strangers) == 3)
            known = b"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % key.encode()
            for _ in range(6):
                reader, _ = await stack.enter_async_context(silent(doors.http_port, known))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            # Only the oldest had to go. Between two requests, it is given no reason.
            assert b"overloaded" not in await strangers[0].read()
            await until(lambda: len(doors.http.connections) == 9)
            assert len(doors.gate.strangers) == 2
            # The one that is in goes on.
            assert (await doors.web.get("/v1/topics")).status_code == 200

    knock(tmp_path / "data", work, access=access, limits=Limits(strangers_max=3))


def test_grpc_connections_without_a_key_make_way_for_one_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access, key = _access(tmp_path)
    asked, metadata = pb.ListTopicsRequest(), [("authorization", f"Bearer {key}")]

    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack, doors.channel() as inside:
            await stub_of(inside).ListTopics(asked, metadata=metadata)
            readers = [(await stack.enter_async_context(silent(doors.grpc_port, HTTP2)))[0] for _ in range(6)]
            # Idle, and with calls that no key came with.
            for reader in readers[:3]:
                while await reader.read(1 << 16):
                    pass
            await until(lambda: len(doors.gate.strangers) == 3)
            async with doors.channel() as late:
                await stub_of(late).ListTopics(asked, metadata=metadata)
            await stub_of(inside).ListTopics(asked, metadata=metadata)
        await until(lambda: not doors.gate.strangers)
        assert "strangers_max" in caplog.text

    knock(tmp_path / "data", work, access=access, limits=Limits(strangers_max=3))


@pytest.mark.parametrize("door", ["native", "http"])
def test_tls_handshakes_count_as_strangers(tmp_path: Path, door: str) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def work(doors: Doors) -> None:
        kind: Any = {"native": NativeDoor, "http": HttpDoor}[door]
        secure = kind(doors.site, doors.gate)
        port = await secure.open("127.0.0.1", 0, context)
        async with AsyncExitStack() as stack:
            readers = [(await stack.enter_async_context(silent(port, b"\x16\x03\x01")))[0] for _ in range(4)]
            assert await readers[0].read() == b""
            await until(lambda: len(doors.gate.strangers) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            # Both listeners answer at the first request, which may come along with the end of the handshake.
            writer.write(ClientEnd().hello("x", None) if door == "native" else GET % b"/v1/topics")
            assert await reader.read(1)
            assert len(doors.gate.strangers) < 3
            writer.close()
        await secure.close()

    knock(tmp_path, work, limits=Limits(strangers_max=3))


@pytest.mark.parametrize("door", ["native", "http"])
def test_a_stranger_that_does_not_answer_the_end_of_tls_is_gone_all_the_same(tmp_path: Path, door: str) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def shaken(port: int) -> ssl.SSLSocket:
        return trusting.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")

    async def work(doors: Doors) -> None:
        secure: Any = {"native": NativeDoor, "http": HttpDoor}[door](doors.site, doors.gate)
        port = await secure.open("127.0.0.1", 0, context)
        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(await asyncio.to_thread(shaken, port))
            await until(lambda: not 0 < len(secure.sessions if door == "native" else secure.connections) <= 3)
            await until(lambda: 0 < len(secure.sessions if door == "native" else secure.connections) <= 3)
        await secure.close()

    knock(tmp_path, work, limits=Limits(strangers_max=3))


def test_a_stranger_that_does_not_read_its_answers_is_gone_when_another_needs_its_place(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        def unsent() -> int:
            return sum(one.transport.get_write_buffer_size() > 0 for one in doors.http.connections)

        with ExitStack() as stack:
            for least in (1, 2, 2, 2):
                stranger = stack.enter_context(socket.socket())
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * KIB)
                await asyncio.to_thread(stranger.connect, ("127.0.0.1", doors.http_port))
                stranger.sendall(GET % b"/openapi.json" * 30)
                await until(partial(lambda least: unsent() >= least, least))
            await until(lambda: len(doors.http.connections) == 2)

    knock(tmp_path, work, limits=Limits(strangers_max=2))


def test_a_grpc_door_has_room_for_so_many(tmp_path: Path) -> None:
    asked = pb.ListTopicsRequest()

    async def work(doors: Doors) -> None:
        await doors.stub.ListTopics(asked)
        async with doors.channel() as second, doors.channel() as third, doors.channel() as fourth:
            await stub_of(second).ListTopics(asked)
            # gRPC lets go of one more than it may have, and of those that come after it.
            outcomes = [await _status(stub_of(channel).ListTopics(asked)) for channel in (third, fourth)]
            assert outcomes[-1] is grpc.StatusCode.UNAVAILABLE
            await doors.stub.ListTopics(asked)

    knock(tmp_path, work, limits=Limits(connections_max=3))


async def _status(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


# --- how long -----------------------------------------------------------------------------------------------

SOON = Limits(handshake_us=100_000, http_head_us=100_000, idle_us=200_000, stuck_us=200_000)


@pytest.mark.parametrize("door", ["native", "http"])
def test_tls_has_to_be_agreed_on_soon(tmp_path: Path, door: str) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def work(doors: Doors) -> None:
        kind: Any = {"native": NativeDoor, "http": HttpDoor}[door]
        secure = kind(doors.site, Gate(doors.site, None))
        port = await secure.open("127.0.0.1", 0, context)
        for first in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            assert await said(port, first) == b""
        await secure.close()

    knock(tmp_path, work, limits=SOON)


# The preface of HTTP/2, and settings that change nothing.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("first", [b"", b"PRI * HT", HTTP2])
def test_who_says_nothing_to_a_grpc_door_is_let_go(tmp_path: Path, first: bytes) -> None:
    """Before it has said that it speaks HTTP/2, and after."""

    async def work(doors: Doors) -> None:
        await said(doors.grpc_port, first)

    knock(tmp_path, work, limits=SOON)


def test_a_body_has_to_come_as_fast_as_the_limit_says(tmp_path: Path) -> None:
    head = b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"

    async def work(doors: Doors) -> None:
        async with silent(doors.http_port, head + bytes(5_000)) as (reader, _):
            await until(lambda: len(doors.http.connections) == 1)
            (only,) = doors.http.connections
            await until(lambda: only._body_bytes == 5_000)
            # 2 s are free, and 5,000 bytes are enough for 5 s more.
            only.check(only._since + 6.9)
            assert not only.transport.is_closing()
            only.check(only._since + 7.1)
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")

    limits = Limits(http_head_us=2_000_000, http_body_bytes_per_s_min=1_000)
    knock(tmp_path, work, limits=limits, round_s=3_600)


def _partial_body(key: str, size: int) -> bytes:
    """A publish of which `size` bytes have arrived, and more are announced."""
    lines = (
        "POST /v1/topics/t/publish HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {MIB}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + b" " * size


def _partial_size(doors: Doors, principal: str) -> int:
    requests = doors.gate._partial.get(principal)
    return 0 if requests is None else requests.size


def test_partial_requests_of_one_principal_do_not_hold_up_another(tmp_path: Path) -> None:
    keys = dict(make(name) for name in ("hostile", "client"))
    hostile, client = keys
    file = tmp_path / "access.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "keys": [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in keys.values()],
                "rules": [{"principals": ["*"], "operations": ["publish"], "topics": ["*"]}],
            }
        ),
        encoding="utf-8",
    )

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        doors.gate.partial_bytes_max = 256 * KIB
        async with AsyncExitStack() as stack:
            await _enter(stack, 8, doors.http_port, _partial_body(hostile, 100 * KIB))
            await until(lambda: _partial_size(doors, "hostile") > 256 * KIB)
            bearer = {"authorization": f"Bearer {client}"}
            answer = await doors.web.post("/v1/topics/t/publish", json={"text": "x" * 200 * KIB}, headers=bearer)
            assert answer.is_success, answer.text
            assert _partial_size(doors, "hostile") > 256 * KIB
        # Of a principal that has gone, nothing is kept.
        await until(lambda: not doors.gate._partial)

    knock(tmp_path / "data", work, access=file)


def test_one_principal_leaves_connections_to_others(tmp_path: Path) -> None:
    keys = dict(make(name) for name in ("hostile", "client"))
    hostile, client = keys
    file = tmp_path / "access.yaml"
    kept = [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in keys.values()]
    rule = {"principals": ["client"], "operations": ["publish", "describe"], "topics": ["*"]}
    file.write_text(yaml.safe_dump({"keys": kept, "rules": [rule]}), encoding="utf-8")

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        bearer = {"authorization": f"Bearer {client}"}
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(doors.connection(hostile))
            with pytest.raises(QuotaExceeded, match="connections of 8"):
                await stack.enter_async_context(doors.connection(hostile))
            async with doors.client(client) as other:
                await other.publish("t", b"x")
        async with AsyncExitStack() as stack:
            get = b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n\r\n" % hostile.encode()
            for _ in range(40):
                reader, _ = await stack.enter_async_context(silent(doors.http_port, get))
                await reader.readline()
            reply = await doors.web.post("/v1/topics/t/publish", json={"text": "x"}, headers=bearer)
            assert reply.is_success, reply.text

    knock(tmp_path / "data", work, access=file, limits=Limits(connections_max=20))


def test_a_connection_goes_on_after_a_request_that_exceeded_the_budget(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        doors.gate.partial_bytes_max = 100 * KIB
        async with silent(doors.http_port, _partial_body("", 90 * KIB)):
            await until(lambda: _partial_size(doors, "anybody") > 64 * KIB)
            for _ in range(3):
                answer = await doors.web.post("/v1/topics/t/publish", json={"text": "x" * 70 * KIB})
                assert answer.is_success, answer.text
            async with doors.client() as client:
                for _ in range(3):
                    await client.publish("t", b"x" * 100 * KIB)

    knock(tmp_path / "data", work)


def test_who_takes_nothing_is_let_go_and_its_messages_come_to_others(tmp_path: Path) -> None:
    """A native consumer that has asked for more than it reads."""

    async def work(doors: Doors) -> None:
        broker = doors.site.broker
        await broker.create_topic("t", 1)
        batch = Batch.from_columns([bytes(512 * KIB)] * 8, now_us=1)
        for _ in range(10):
            await broker.topic("t").publish_batch(batch)
        await doors.site.join_for_a_session("g", "c", ["t"], {})
        hello = ClientEnd().hello("stuck", None)
        subscribe = ClientEnd().request(Kind.SUBSCRIBE, words.Subscribe("g", "c", ("t",), 10_000, 1 << 30))[1]
        async with silent(doors.native_port, hello + subscribe) as (reader, writer):
            writer.transport.pause_reading()
            state = broker.topic("t").partitions[0].groups.state
            await until(lambda: state("g").in_flight > 0)
            await until(lambda: any(session.stuck_since is not None for session in doors.native.sessions))
            # What waits to be sent, and one delivery more.
            assert state("g").in_flight <= (4 * MIB + 8 * MIB) // (512 * KIB) + 8
            await until(lambda: not doors.native.sessions)
            assert reader

    knock(tmp_path, work, limits=SOON)


def test_a_peer_that_asks_far_ahead_and_reads_nothing_is_not_kept_all_the_replies(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        await doors.site.broker.topic("t").publish_batch(Batch.from_columns([bytes(MIB - 100)] * 8, now_us=1))
        end = ClientEnd()
        hello = end.hello("stuck", None)
        asked = [end.request(Kind.READ, words.Read("t", 0, 0, 1 << 40, 8 * MIB))[1] for _ in range(20)]
        async with silent(doors.native_port, hello + b"".join(asked)) as (reader, writer):
            writer.transport.pause_reading()
            await until(lambda: bool(doors.native.sessions))
            (only,) = doors.native.sessions
            unsent: list[int] = []
            send = only._send

            def counted(*given: Any) -> None:
                send(*given)
                assert only._transport is not None
                unsent.append(only._transport.get_write_buffer_size())

            only._send = counted  # type: ignore[method-assign]
            await until(lambda: not only.writable.is_set())
            writer.transport.resume_reading()
            pages = 0
            async for packet in _packets(reader, end):
                if packet.kind is Kind.WELCOME:
                    end.welcomed(packet)
                pages += packet.kind is Kind.REPLY
                if pages == len(asked):
                    break
            assert max(unsent) <= 16 * MIB

    knock(tmp_path, work)


async def _packets(reader: asyncio.StreamReader, end: ClientEnd) -> AsyncIterator[Packet]:
    while data := await reader.read(CHUNK):
        for packet in end.receive(data):
            yield packet


# --- how much under way -------------------------------------------------------------------------------------


def test_a_native_connection_is_not_read_from_while_much_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(doors: Doors) -> None:
        may_go = asyncio.Event()

        async def wait(session: Any, packet: Packet) -> tuple[object, tuple[()]]:
            await may_go.wait()
            return None, ()

        monkeypatch.setitem(session._ACTIONS, Kind.CALL, wait)
        async with doors.connection() as connection:
            word = {"type": "ListTopics", "filling": bytes(100 * KIB)}
            asked = [asyncio.ensure_future(connection.request(Kind.CALL, word)) for _ in range(100)]
            (only,) = doors.native.sessions
            await until(lambda: only._is_paused)
            for _ in range(100):
                await asyncio.sleep(0)
            assert only._in_flight <= MIB + CHUNK
            may_go.set()
            await asyncio.gather(*asked)
            assert only._in_flight == 0

    knock(tmp_path, work, limits=Limits(in_flight_bytes_max=MIB))


def test_an_http_body_is_no_larger_than_what_may_be_under_way(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for size, status in ((7 * MIB, 400), (9 * MIB, 413)):
            reply = await doors.web.post("/v1/topics/t/publish/batch", content=b" " * size)
            assert reply.status_code == status

    knock(tmp_path, work, limits=Limits(in_flight_bytes_max=8 * MIB))


def _blocked(doors: Doors) -> Callable[[], None]:
    """Nothing is stored until what is returned is called."""
    may_go, publish_frame = asyncio.Event(), doors.site.publish_frame

    async def publish(*arguments: Any) -> Any:
        await may_go.wait()
        return await publish_frame(*arguments)

    doors.site.publish_frame = publish  # type: ignore[method-assign]
    return may_go.set


def _batch(size: int) -> pb.PublishBatchRequest:
    return pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(value=bytes(size))])


def test_a_grpc_connection_is_not_read_from_while_much_is_under_way(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        let_go, intake = _blocked(doors), doors.grpc._desk.intake
        calls = [doors.stub.PublishBatch(_batch(200 * KIB)) for _ in range(60)]
        await until(lambda: intake.in_flight > MIB)
        async with doors.channel() as other:
            # Others do not notice; and by then there was time to read more.
            for _ in range(20):
                await stub_of(other).GetTopic(pb.GetTopicRequest(name="t"))
        assert intake.in_flight <= MIB + READING_MAX * 201 * KIB
        let_go()
        assert sorted(reply.offsets[0] for reply in await asyncio.gather(*calls)) == list(range(60))
        await until(lambda: intake.in_flight == 0)

    knock(tmp_path, work, limits=Limits(in_flight_bytes_max=MIB))


def _kept(monkeypatch: pytest.MonkeyPatch) -> list[Sized]:
    """All requests that a gRPC door made from now on has read."""
    read, sized = list[Sized](), intake.sized

    def keeping(kind: type[Any]) -> Callable[[bytes], Sized]:
        reading = sized(kind)

        def keep(data: bytes) -> Sized:
            read.append(reading(data))
            return read[-1]

        return keep

    monkeypatch.setattr("penstock.server.grpc.calls.sized", keeping)
    return read


def test_the_streams_of_a_grpc_connection_have_one_bound_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _kept(monkeypatch)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        let_go, intake = _blocked(doors), doors.grpc._desk.intake
        streams = [doors.stub.PublishStream() for _ in range(5)]

        async def send(stream: Any) -> list[int]:
            writing = asyncio.ensure_future(_write(stream))
            offsets = [(await stream.read()).offsets[0] for _ in range(10)]
            await writing
            return offsets

        sending = [asyncio.ensure_future(send(stream)) for stream in streams]
        await until(lambda: intake.in_flight > MIB)
        async with doors.channel() as other:
            for _ in range(20):
                await stub_of(other).GetTopic(pb.GetTopicRequest(name="t"))
        # One more of each, which was being read when there was still room.
        assert intake.in_flight <= MIB + 5 * 201 * KIB
        # Nothing is held that is not counted.
        assert sum(came.size for came in read if isinstance(came.request, pb.PublishBatchRequest)) == intake.in_flight
        let_go()
        assert sorted(chain.from_iterable(await asyncio.gather(*sending))) == list(range(50))
        await until(lambda: intake.in_flight == 0)

    async def _write(stream: Any) -> None:
        for _ in range(10):
            await stream.write(_batch(200 * KIB))
        await stream.done_writing()

    knock(tmp_path, work, limits=Limits(in_flight_bytes_max=MIB))


def test_a_stream_that_breaks_off_gives_its_room_back(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        let_go, intake = _blocked(doors), doors.grpc._desk.intake
        async with doors.channel() as channel:
            stream = stub_of(channel).PublishStream()
            writing = asyncio.ensure_future(_flood(stream))
            await until(lambda: intake.in_flight > MIB)
            stream.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            # It was the only call of its connection. What it has left behind is there, and counts, until it is done.
            await until(lambda: all(account.calls == 0 for account in intake._accounts.values()))
            assert intake.in_flight > MIB
        let_go()
        await until(lambda: not intake._accounts)
        assert (await doors.stub.PublishBatch(_batch(1))).offsets

    async def _flood(stream: Any) -> None:
        for _ in range(60):
            await stream.write(_batch(200 * KIB))

    knock(tmp_path, work, limits=Limits(in_flight_bytes_max=MIB))


def test_a_subscription_keeps_nothing_of_its_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have megabytes of what no field is for."""
    read = _kept(monkeypatch)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        stream = doors.stub.Subscribe()
        wanted = pb.Subscription(group="g", consumer="c", topics=["t"], credit=1)
        await stream.write(pb.SubscribeRequest(subscribe=wanted))
        assert (await stream.read()).HasField("subscribed")
        (came,) = [came for came in read if isinstance(came.request, pb.SubscribeRequest)]
        mine = Sized(pb.SubscribeRequest(subscribe=wanted), 0)
        # Besides those who look, nobody knows it.
        assert sys.getrefcount(came.request) == sys.getrefcount(mine.request)
        assert sys.getrefcount(came.request.subscribe) == sys.getrefcount(mine.request.subscribe)
        assert doors.grpc._desk.intake.in_flight == 0
        stream.cancel()

    knock(tmp_path, work)


def test_a_grpc_connection_has_so_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "STREAMS_MAX", 2)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        streams = [doors.stub.PublishStream() for _ in range(2)]
        for stream in streams:
            await stream.write(_batch(1))
            assert (await stream.read()).offsets
        more = doors.stub.PublishStream()
        assert await more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(await more.trailing_metadata())["penstock-code"] == "overloaded"
        assert (await doors.stub.PublishBatch(_batch(1))).offsets
        await streams[0].done_writing()
        assert await streams[0].read() is grpc.aio.EOF
        last = doors.stub.PublishStream()
        await last.write(_batch(1))
        assert (await last.read()).offsets

    knock(tmp_path, work)


def test_calls_whose_request_does_not_come_give_way_to_others(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        async with doors.channel() as channel:
            silent = channel.stream_unary(
                "/penstock.v1.Publisher/Publish",
                request_serializer=pb.PublishRequest.SerializeToString,
                response_deserializer=pb.PublishReply.FromString,
            )
            calls = [silent() for _ in range(READING_MAX)]
            accounts = doors.grpc._desk.intake._accounts
            # The first of them may be over by the time that the last one is there.
            await until(
                lambda: (
                    any(account.reading == READING_MAX for account in accounts.values())
                    or any(call.done() for call in calls)
                )
            )
            assert (await stub_of(channel).PublishBatch(_batch(1))).offsets
            for call in calls:
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert dict(await call.trailing_metadata())["penstock-code"] == "too_slow"
            await until(lambda: not accounts)

    knock(tmp_path, work, limits=SOON)


# --- how much unanswered ------------------------------------------------------------------------------------


def test_a_group_holds_so_many_of_a_partition(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        broker = doors.site.broker
        await broker.create_topic("t", 2)
        for partition in (0, 1):
            await broker.topic("t").publish_batch(Batch.from_columns([b"x"] * 20, now_us=1), partition)
        polled = (await doors.web.post("/v1/groups/g/poll", json={"topics": "t", "max": 40})).json()["messages"]
        assert len(polled) == 10
        assert not (await doors.web.post("/v1/groups/g/poll", json={"topics": "t"})).json()["messages"]
        asked = pb.PollRequest(group="h", consumer="c", topics=["t"], max_messages=40)
        assert len((await doors.stub.Poll(asked)).messages) == 10
        async with doors.client() as q, q.consumer("i", "t", until_idle="10ms") as consumer:
            assert len([message for _ in range(4) for message in await consumer.poll(40)]) == 10
        done = {"receipts": [message["receipt"] for message in polled[:3]]}
        await doors.web.post("/v1/groups/g/ack", json=done)
        assert len((await doors.web.post("/v1/groups/g/poll", json={"topics": "t"})).json()["messages"]) == 3

    knock(tmp_path, work, limits=Limits(unacked_max=5))


def test_a_group_can_not_have_more_than_the_limit(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        reply = await doors.web.post("/v1/groups", json={"name": "g", "max_in_flight": 6})
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_setting")
        assert "5" in reply.json()["message"]
        async with doors.client() as q:
            with pytest.raises(InvalidSetting, match="5"):
                await q.create_group("g", max_in_flight=6)
            await q.create_group("g", max_in_flight=5)
            with pytest.raises(InvalidSetting):
                await q.change_group("g", max_in_flight=20_000)
        settings = pb.GroupSettings(max_in_flight=6)
        call = doors.stub.Replay(pb.ReplayRequest(topic="t", group="r", from_us=0, settings=settings))
        assert await _status(call) is grpc.StatusCode.INVALID_ARGUMENT

    knock(tmp_path, work, limits=Limits(unacked_max=5))


def test_a_group_that_was_allowed_more_is_held_to_the_limit_of_today(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as before:
            await before.site.broker.create_topic("t", 1)
            await before.site.broker.ensure_group("g", max_in_flight=15)
            await before.site.broker.topic("t").publish_batch(Batch.from_columns([b"x"] * 20, now_us=1))
        async with opened(tmp_path, limits=Limits(unacked_max=5)) as after:
            polled = await after.web.post("/v1/groups/g/poll", json={"topics": "t"})
            assert len(polled.json()["messages"]) == 5

    asyncio.run(run())


def test_messages_that_are_not_read_are_bounded_at_the_grpc_door(tmp_path: Path) -> None:
    """A stream whose consumer has all the credit, and reads nothing."""

    async def work(doors: Doors) -> None:
        broker = doors.site.broker
        await broker.create_topic("t", 1)
        for _ in range(20):
            await doors.site.publish_frame("t", 0, Frame.of(Batch.from_columns([bytes(512 * KIB)] * 4, now_us=1)))
        async with doors.channel() as slow:
            stream = stub_of(slow).Subscribe()
            wanted = pb.Subscription(group="g", consumer="c", topics=["t"], credit=10_000)
            await stream.write(pb.SubscribeRequest(subscribe=wanted))
            await until(lambda: broker.topic("t").partitions[0].groups.has("g"))
            state = broker.topic("t").partitions[0].groups.state("g")
            await until(lambda: state.in_flight > 0)
            for _ in range(50):
                # Others do not notice.
                await doors.stub.GetTopic(pb.GetTopicRequest(name="t"))
            assert state.in_flight < 40
            stream.cancel()
        await until(lambda: state.in_flight == 0)
        assert await doors.site.publish("t", Message(b"x"), None)

    knock(tmp_path, work)


def _access_of(path: Path, rules: list[dict[str, Any]], *principals: str) -> tuple[Path, list[str]]:
    keys = dict(make(name) for name in principals)
    shown = [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in keys.values()]
    file = path / "access.yaml"
    file.write_text(yaml.safe_dump({"keys": shown, "rules": rules}), encoding="utf-8")
    return file, list(keys)


def _held(doors: Doors) -> int:
    return sum(session._end.held for session in doors.native.sessions)


def test_many_small_partial_requests_of_one_key_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    rules = [{"principals": ["hostile", "client"], "operations": ["publish", "describe"], "topics": ["t"]}]
    file, (hostile, client) = _access_of(tmp_path, rules, "hostile", "client")

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        doors.gate.partial_bytes_max = 256 * KIB
        end = ClientEnd()
        publish = words.PublishFrame("t", 0, "all")
        part = end.hello("hostile", hostile) + end.request(Kind.PUBLISH, publish, MIB)[1] + bytes(50 * KIB)
        async with AsyncExitStack() as stack:
            await _enter(stack, 60, doors.native_port, part)
            await _enter(stack, 20, doors.http_port, _partial_body(hostile, 50 * KIB))
            await until(lambda: _held(doors) > 512 * KIB)
            async with doors.client(client) as other:
                for _ in range(20):
                    await other.publish("t", b"others get on")
            assert _partial_size(doors, "hostile") <= 1024 * KIB + 60 * KIB
            await until(lambda: _held(doors) <= 1024 * KIB + 60 * KIB)

    knock(tmp_path / "data", work, access=file)


def test_connections_of_keys_without_any_right_make_way_for_others(tmp_path: Path) -> None:
    rules = [{"principals": ["client"], "operations": ["publish", "describe"], "topics": ["t"]}]
    file, (useless, client) = _access_of(tmp_path, rules, "useless", "client")

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        get = f"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {useless}\r\n\r\n".encode()
        async with doors.client(client) as kept, AsyncExitStack() as stack:
            await _enter(stack, 15, doors.native_port, ClientEnd().hello("useless", useless))
            await _enter(stack, 15, doors.http_port, get)
            await kept.publish("t", b"x")
            await until(lambda: len(doors.native.sessions) + len(doors.http.connections) <= 8 + 1)
            assert len(doors.gate.strangers) == 8
            async with doors.client(client) as other:
                await other.publish("t", b"x")

    knock(tmp_path / "data", work, access=file, limits=Limits(strangers_max=8, connections_max=20))
