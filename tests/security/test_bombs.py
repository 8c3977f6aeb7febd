"""What is small and becomes large, or is just too large: refused at every door with a stable code, changing nothing."""

from __future__ import annotations

import asyncio
import gzip
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import yaml

from grpc_served import failure
from penstock.batch import Batch
from penstock.client.placement import FindPlacement
from penstock.codec import LZ4, ZSTD
from penstock.errors import InvalidInput, PenstockError
from penstock.frame import Frame
from penstock.limits import KIB, MIB, Limits
from penstock.message import Message
from penstock.net.connection import Connection
from penstock.server import guard
from penstock.server.access import Operation, Right
from penstock.server.access_file import add_key
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.http.table import ROUTES
from penstock.server.keys import make
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Kind, packed
from security.doors import Doors, knock, packets, until
from security.hostile import GENEROUS, bomb
from served import said

TOO_LARGE = (413, "batch_too_large")
INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def _published(connection: Connection, frame: bytes | memoryview) -> str:
    try:
        await connection.request(Kind.PUBLISH, words.PublishFrame("t", 0), [frame])
    except PenstockError as error:
        return error.code
    return "ok"


async def _unharmed(doors: Doors, before: dict[str, Any]) -> None:
    assert doors.state() == before
    assert (await doors.web.post("/v1/topics/t/publish", json={"text": "x"})).status_code == 200


# --- what is compressed -------------------------------------------------------------------------------------


def _bombs() -> Iterator[tuple[str, bytes]]:
    zeros = Batch.from_columns([bytes(MIB)] * 7, now_us=1)
    noise = np.random.default_rng(0).bytes(100_000)
    for codec in (LZ4, ZSTD):
        yield "more than 100 times its size", bomb(zeros, codec)
        # 33 MiB, and no more than 100 times as large.
        large = Batch.from_columns([noise + bytes(MIB - len(noise))] * 33, now_us=1)
        yield "more than 4 frames", bomb(large, codec)
        yield "more than it says", bomb(zeros, codec, claimed=1_000)
        yield "less than it says", bomb(Batch.from_columns([noise], now_us=1), codec, claimed=200_000)
        yield "a length of 4 GiB", bomb(zeros, codec, claimed=0xFFFF_FFFF)


def test_frames_that_become_too_large_are_refused_unread(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        async with doors.connection() as connection:
            for what, frame in _bombs():
                code = "frame_too_large" if len(frame) > 8 * MIB else "decompression_refused"
                assert await _published(connection, frame) == code, what
        await _unharmed(doors, before)

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    knock(tmp_path, work)
    # Next to the bombs themselves, which were made here.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 512 * KIB


def test_http_and_grpc_decompress_nothing(tmp_path: Path) -> None:
    """Nobody is asked for a key before a body would be decompressed."""
    body = gzip.compress(b'{"text": "' + b"x" * (8 * MIB) + b'"}')

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        for encoding in ("gzip", "deflate", "br", "zstd"):
            headers = {"content-encoding": encoding, "content-type": "application/json"}
            reply = await doors.web.post("/v1/topics/t/publish", content=body, headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")
        request = pb.PublishRequest(topic="t", message=pb.NewMessage(value=bytes(MIB // 2)))
        for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = doors.stub.Publish(request, compression=algorithm)
            assert await failure(call) == (grpc.StatusCode.UNIMPLEMENTED, None)
        await _unharmed(doors, before)

    knock(tmp_path, work)


# --- what is nested -----------------------------------------------------------------------------------------


def _nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_json_is_nested_so_deep_and_no_deeper_on_every_route(tmp_path: Path) -> None:
    parts = {"topic": "t", "group": "g", "id": "t:0:0", "consumer": "c", "schedule": "s"}

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        for route in ROUTES:
            if route.body is None:
                continue
            path = route.path.format(**parts)
            for body in (
                b'{"json": %s}' % _nested(32),
                b'{"x": %s}' % _nested(200_000),
                b'{"x":' * 50_000 + b"1" + b"}" * 50_000,
                b"[" * 500_000,
            ):
                reply = await doors.web.request(route.method, path, content=body)
                assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input"), route.path
                assert "nested more than 32 deep" in reply.json()["message"]
        assert doors.state() == before
        for depth, status in ((31, 200), (32, 400)):
            body = b'{"json": %s}' % _nested(depth)
            assert (await doors.web.post("/v1/topics/t/publish", content=body)).status_code == status

    knock(tmp_path, work)


def test_how_deep_json_is_nested_can_be_set(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for depth, status in ((2, 200), (3, 400)):
            body = b'{"json": %s}' % _nested(depth)
            assert (await doors.web.post("/v1/topics/t/publish", content=body)).status_code == status

    knock(tmp_path, work, limits=Limits(json_nesting_max=3))


def test_what_is_nested_in_a_packet_fails_that_request_only(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.connection() as connection:
            for header in (b"\x91" * 100_000 + b"\x90", b"\x81\xa1x" * 80_000 + b"\xc0", b"\xdd\xff\xff\xff\xff"):
                for kind in (Kind.CALL, Kind.JOIN, Kind.POLL, Kind.ANSWER, Kind.READ, Kind.LEAVE):
                    number, head = connection._end.request(kind, None)
                    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    connection._under_way[number] = reply
                    assert head
                    connection._send(packed(kind, number, header))
                    with pytest.raises(PenstockError) as caught:
                        await reply
                    assert caught.value.code == "protocol_error"
            assert connection.is_open

    knock(tmp_path, work)


# --- what is too much ---------------------------------------------------------------------------------------

MUCH: dict[str, Message] = {
    "a message of more than 1 MiB": Message(bytes(MIB + 1)),
    "a key and a value of more than 1 MiB": Message(bytes(MIB), key=b"k"),
    "more than 100 headers": Message(b"x", headers=tuple((f"h{number}", b"") for number in range(101))),
    "headers of more than 32 KiB": Message(b"x", headers=(("h", bytes(32 * KIB)),)),
    "names of headers of more than 32 KiB": Message(b"x", headers=(("h" * (32 * KIB + 1), b""),)),
}
ENOUGH: dict[str, Message] = {
    # In JSON each of its bytes is an escape.
    "a message of 1 MiB": Message(bytes(MIB)),
    "100 headers": Message(b"x", headers=tuple((f"h{number}", b"") for number in range(100))),
    "headers of 32 KiB": Message(b"x", headers=(("h", bytes(32 * KIB - 1)),)),
}


def _new(message: Message) -> pb.NewMessage:
    headers = [pb.Header(name=name, value=value) for name, value in message.headers]
    return pb.NewMessage(value=message.value, key=message.key, headers=headers)


def _json(message: Message) -> dict[str, Any]:
    assert message.value is not None
    body: dict[str, Any] = {"text": message.value.decode()}
    if message.key is not None:
        body["key"] = message.key.decode()
    if message.headers:
        body["headers"] = {name: value.decode() for name, value in message.headers}
    return body


async def _everywhere(doors: Doors, message: Message) -> list[Any]:
    """What comes of it: as the client, in a frame, over HTTP (alone and in a batch) and over gRPC (the same)."""
    frame = Frame.of(Batch.from_messages([message], now_us=1), limits=GENEROUS)
    fields = {"key": message.key, "headers": dict(message.headers)}
    async with doors.client() as q, doors.connection() as connection:
        try:
            assert message.value is not None
            await q.publish("t", message.value, **fields)  # type: ignore[arg-type]
            outcomes: list[Any] = ["ok"]
        except InvalidInput as error:
            outcomes = [error.code]
        outcomes.append(await _published(connection, frame.data))
    alone = await doors.web.post("/v1/topics/t/publish", json=_json(message))
    outcomes.append("ok" if alone.status_code == 200 else (alone.status_code, alone.json()["code"]))
    batch = await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [_json(message)]})
    outcomes.append(batch.json()["results"][0].get("error", {"code": "ok"})["code"])
    for request in (
        doors.stub.Publish(pb.PublishRequest(topic="t", message=_new(message))),
        doors.stub.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[_new(message)])),
    ):
        try:
            await request
            outcomes.append("ok")
        except grpc.aio.AioRpcError:
            outcomes.append(await failure(request))
    return outcomes


@pytest.mark.parametrize("what", MUCH)
def test_messages_that_are_too_large_are_refused_everywhere(tmp_path: Path, what: str) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        code = "batch_too_large"
        assert await _everywhere(doors, MUCH[what]) == [code, code, TOO_LARGE, code, (INVALID, code), (INVALID, code)]
        # As the message of a schedule, too.
        schedule = {"name": "s", "topic": "t", "cron": "@hourly", **_json(MUCH[what])}
        reply = await doors.web.post("/v1/schedules", json=schedule)
        assert (reply.status_code, reply.json()["code"]) == TOO_LARGE
        await _unharmed(doors, before)

    knock(tmp_path, work)


@pytest.mark.parametrize("what", ENOUGH)
def test_messages_that_are_just_small_enough_are_taken_everywhere(tmp_path: Path, what: str) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        assert await _everywhere(doors, ENOUGH[what]) == ["ok"] * 6

    knock(tmp_path, work)


def test_batches_of_too_many_messages_are_refused_everywhere(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        many = 10_001
        async with doors.connection() as connection:
            frame = Frame.of(Batch.from_columns([b""] * many, now_us=1), limits=GENEROUS)
            assert await _published(connection, frame.data) == "batch_too_large"
        reply = await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [{"text": ""}] * many})
        assert (reply.status_code, reply.json()["code"]) == TOO_LARGE
        call = doors.stub.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage()] * many))
        assert await failure(call) == (INVALID, "batch_too_large")
        await _unharmed(doors, before)
        reply = await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [{"text": ""}] * (many - 1)})
        assert len(reply.json()["results"]) == many - 1

    knock(tmp_path, work)


def test_frames_packets_bodies_and_calls_have_an_end(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        before = doors.state()
        large = Frame.of(Batch.from_columns([bytes(MIB)] * 9, now_us=1), limits=GENEROUS)
        async with doors.connection() as connection:
            assert await _published(connection, large.data) == "frame_too_large"
        hello = ClientEnd().hello("x", None)
        for header, payload in ((0xFFFF_FFFF, 0), (0, 0xFFFF_FFFF), (0xFFFF_FFFF, 0xFFFF_FFFF), (12 * MIB, 13 * MIB)):
            prefix = packed(Kind.CALL, 1, b"")[:8] + header.to_bytes(4, "little") + payload.to_bytes(4, "little")
            *_, last = packets(await said(doors.native_port, hello + prefix))
            assert words.decoded(last.header, words.Goodbye).code == "packet_too_large"
        request = pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(value=bytes(MIB))] * 10)
        assert (await failure(doors.stub.PublishBatch(request)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await _unharmed(doors, before)

    knock(tmp_path, work)


# --- of those whom nobody knows -----------------------------------------------------------------------------


def _access(path: Path) -> Path:
    _, kept = make("somebody")
    file = path / "access.yaml"
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file.write_text(yaml.safe_dump({"keys": keys}), encoding="utf-8")
    return file


def test_of_strangers_next_to_nothing_is_read(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        # Natively a packet of 4 KiB, and that is a HELLO.
        for size, code in ((4 * KIB + 1, "packet_too_large"), (4 * KIB - 100, "unauthenticated")):
            hello = ClientEnd().hello("x" * size, None)
            *_, last = packets(await said(doors.native_port, hello))
            assert words.decoded(last.header, words.Goodbye).code == code
        prefix = packed(Kind.HELLO, 0, b"")[:8] + (4 * KIB).to_bytes(4, "little") + (1).to_bytes(4, "little")
        *_, last = packets(await said(doors.native_port, prefix))
        assert words.decoded(last.header, words.Goodbye).code == "packet_too_large"
        # Over HTTP the head, which has an end as well; an answer comes before the body does.
        head = b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.http_port)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        # Over gRPC no request at all.
        call = doors.stub.PublishStream()
        assert await failure(call.read()) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        async with doors.channel() as channel:
            bare = channel.stream_unary("/penstock.v1.Publisher/PublishBatch")
            assert await failure(bare()) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        assert doors.grpc._desk.intake.in_flight == 0

    knock(tmp_path / "data", work, access=_access(tmp_path))


def test_a_head_of_http_has_an_end(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        for first in (b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, b"\r\n" * 100_000):
            answer = await said(doors.http_port, first)
            assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) or answer == b""
        await until(lambda: not doors.http.connections)

    knock(tmp_path, work)


def test_a_call_that_is_no_request_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that no method takes, or nothing at all. None of it is a bug of ours."""

    async def work(doors: Doors) -> None:
        told = (INVALID, "protocol_error")
        async with doors.channel() as channel:
            for method in ("Publisher/Publish", "Publisher/PublishBatch", "Topics/CreateTopic", "Consumer/Ack"):
                call = channel.unary_unary(f"/penstock.v1.{method}")
                assert await failure(call(b"\xff\xff\xff nonsense")) == told
                assert await failure(channel.stream_unary(f"/penstock.v1.{method}")(iter(()))) == told
            for method in ("Publisher/PublishStream", "Consumer/Subscribe"):
                stream = channel.stream_stream(f"/penstock.v1.{method}")()
                await stream.write(b"\xff\xff\xff nonsense")
                assert await failure(stream.read()) == told

    knock(tmp_path, work)
    ours = [record for record in caplog.records if record.name.startswith("penstock")]
    assert not [record for record in ours if record.levelname == "ERROR"]


def test_a_request_with_nested_lists_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    many = msgspec.msgpack.encode([[]] * 2_000_000)
    bomb = b"\x84\xa4type\xabCreateTopic\xa4name\xa1t\xaapartitions\x01\xa8settings\x81\xa1x" + many

    async def work(doors: Doors) -> None:
        async with doors.connection() as connection:
            tracemalloc.start()
            try:
                with pytest.raises(PenstockError) as failure:
                    await connection.request(Kind.CALL, msgspec.Raw(bomb))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert failure.value.code == "protocol_error"
        assert peak < 12 * len(bomb), "64 bytes for each list would be far more"

    knock(tmp_path / "data", work)


def test_a_header_is_held_to_a_bound_of_its_own(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.connection() as connection:
            with pytest.raises(PenstockError) as failure:
                await connection.request(Kind.CALL, msgspec.Raw(msgspec.msgpack.encode(b"x" * (6 << 20))))
        assert failure.value.code in ("packet_too_large", "connection_lost")

    knock(tmp_path / "data", work)


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"t{number}" for number in range(count))


@pytest.mark.parametrize("count", [2_000, 30_000])
@pytest.mark.parametrize("is_allowed", [True, False])
def test_many_names_are_refused_before_rights_to_each_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_allowed: bool, count: int
) -> None:
    key, kept = make("consumer")
    file, names = tmp_path / "access.yaml", _names(count)
    add_key(file, kept)
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    rule = {"principals": ["consumer" if is_allowed else "other"], "operations": ["consume", "describe"]}
    content["rules"] = [{**rule, "groups": ["*"], "topics": ["*"]}]
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    asked: list[str] = []
    right = guard._topic

    def counted(operation: Operation, name: str) -> Right:
        asked.append(name)
        return right(operation, name)

    monkeypatch.setattr(guard, "_topic", counted)
    requests = {
        Kind.JOIN: words.Join("g", "c", names, {}),
        Kind.POLL: words.Poll("g", "c", names, 1, 1_000, 0),
        Kind.SUBSCRIBE: words.Subscribe("g", "c", names, 1, 1_000),
        Kind.CALL: FindPlacement(names),
        Kind.READ: words.Read("t", 0, 0, 1, 1_000, names),
    }

    async def work(doors: Doors) -> None:
        async with doors.connection(key) as connection:
            for kind, word in requests.items():
                with pytest.raises(PenstockError) as failure:
                    await connection.request(kind, word)
                assert failure.value.code in ("invalid_input", "forbidden", "unsupported")
                assert len(failure.value.message) < 300
        assert len(asked) < 10

    knock(tmp_path / "data", work, access=file)
