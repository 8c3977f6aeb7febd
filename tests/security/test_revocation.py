"""Keys that are revoked or expire, and rules that change: connections, streams and waiting polls end, too."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import get_ident
from time import monotonic, time_ns
from typing import Any

import grpc
import httpx
import pytest
import yaml

from broker_process import broker_process
from grpc_served import stub_of
from penstock.broker.dead_letters import DeadLetters
from penstock.client.requests import CreateTopic
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.net.connection import Connection, Place
from penstock.server import gate
from penstock.server.access_file import add_key, read, remove_key
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.keys import Key, make
from penstock.wire import words
from penstock.wire.packets import Kind
from security.doors import Doors, knock, until

EVERYTHING: dict[str, Any] = {
    "principals": ["*"],
    "operations": ["publish", "consume", "read", "describe", "admin"],
    "topics": ["*"],
    "groups": ["*"],
}


CODES = {grpc.StatusCode.UNAUTHENTICATED: "unauthenticated", grpc.StatusCode.PERMISSION_DENIED: "forbidden"}


class Access:
    """An access file that allows everything, and the key of a client that loses its rights."""

    def __init__(self, path: Path) -> None:
        self.file = path / "access.yaml"
        self.file.write_text(yaml.safe_dump({"rules": [EVERYTHING]}), encoding="utf-8")
        self.key, self._kept = make("victim")
        add_key(self.file, self._kept)

    def revoke(self) -> None:
        remove_key(self.file, self._kept.id)

    def expire(self) -> None:
        self.revoke()
        soon_us = time_ns() // 1_000 + 300_000
        add_key(self.file, Key(self._kept.id, self._kept.principal, self._kept.hash, soon_us))

    def deny(self) -> None:
        content = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        content["rules"].append({**EVERYTHING, "operations": ["consume"], "effect": "deny"})
        self.file.write_text(yaml.safe_dump(content), encoding="utf-8")


async def native(doors: Doors, key: str) -> str:
    """The code of what ends a poll without an end."""
    async with doors.client(key) as client:
        try:
            async for _ in client.consumer("g", "t"):
                pass
        except PenstockError as error:
            return error.code
    return "idle"


async def http(doors: Doors, key: str) -> str:
    url, headers = "/v1/groups/g/stream?topics=t&consumer=c", {"authorization": f"Bearer {key}"}
    async with doors.web.stream("POST", url, headers=headers, timeout=None) as answer:
        text = "".join([part async for part in answer.aiter_text()])
    return str(yaml.safe_load(text.rpartition("data: ")[2])["code"])


async def http_poll(doors: Doors, key: str) -> str:
    body, headers = {"topics": ["t"], "consumer": "c", "wait": "4m"}, {"authorization": f"Bearer {key}"}
    answer = await doors.web.post("/v1/groups/g/poll", json=body, headers=headers, timeout=None)
    return str(answer.json().get("code", "ok"))


async def grpc_poll(doors: Doors, key: str) -> str:
    asked = pb.PollRequest(group="g", consumer="c", topics=["t"], wait_us=240_000_000)
    try:
        await doors.stub.Poll(asked, metadata=[("authorization", f"Bearer {key}")])
    except grpc.aio.AioRpcError as error:
        return CODES[error.code()]
    return "ok"


async def grpc_stream(doors: Doors, key: str) -> str:
    call = doors.stub.Subscribe(metadata=[("authorization", f"Bearer {key}")])
    await call.write(pb.SubscribeRequest(subscribe=pb.Subscription(group="g", consumer="c", topics=["t"], credit=10)))
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
        code = await call.code()
    except grpc.aio.AioRpcError as error:
        code = error.code()
    return CODES[code]


@pytest.mark.parametrize(
    ("change", "told"),
    [(Access.revoke, "unauthenticated"), (Access.expire, "unauthenticated"), (Access.deny, "forbidden")],
    ids=["revoked", "expired", "denied"],
)
@pytest.mark.parametrize("way", [native, http, http_poll, grpc_stream, grpc_poll], ids=lambda way: way.__name__)
def test_what_waits_for_messages_ends_when_it_is_not_allowed_any_more(
    tmp_path: Path, way: Callable[[Doors, str], Awaitable[str]], change: Callable[[Access], None], told: str
) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        waiting = asyncio.ensure_future(way(doors, access.key))
        while not doors.state()["members"].get("g"):
            assert not waiting.done(), waiting.result()
            await asyncio.sleep(0.01)
        change(access)
        while not waiting.done():
            await doors.gate.refresh()
            await asyncio.sleep(0.01)
        assert waiting.result() == told
        if told == "unauthenticated" and way in (native, http, grpc_stream):
            while doors.state()["members"]["g"]:
                await asyncio.sleep(0.01)

    knock(tmp_path / "data", work, access=access.file)


async def _native_idle(doors: Doors, key: str) -> Any:
    connection = await Connection.to(doors.place._replace(key=key), SystemClock())
    await connection.request(Kind.JOIN, words.Join("g", "c", ("t",), {}))
    return connection


async def _native_without_credit(doors: Doors, key: str) -> Any:
    connection = await _native_idle(doors, key)
    connection.subscribe(words.Subscribe("g", "c", ("t",), 0, 0), lambda packet: None)
    return connection


async def _grpc_without_credit(doors: Doors, key: str) -> Any:
    call = doors.stub.Subscribe(metadata=[("authorization", f"Bearer {key}")])
    await call.write(pb.SubscribeRequest(subscribe=pb.Subscription(group="g", consumer="c", topics=["t"])))
    assert (await call.read()).HasField("subscribed")
    return call


@pytest.mark.parametrize("change", [Access.revoke, Access.deny], ids=["revoked", "denied"])
@pytest.mark.parametrize(
    "way", [_native_idle, _native_without_credit, _grpc_without_credit], ids=lambda way: way.__name__.strip("_")
)
def test_a_consumer_that_is_not_allowed_any_more_leaves_also_if_it_asks_for_nothing(
    tmp_path: Path, way: Callable[[Doors, str], Awaitable[Any]], change: Callable[[Access], None]
) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        kept = await way(doors, access.key)
        assert doors.site.is_member("g", "c")
        change(access)
        await doors.gate.refresh()
        await until(lambda: not doors.site.is_member("g", "c"))
        if isinstance(kept, Connection):
            await kept.close()

    knock(tmp_path / "data", work, access=access.file)


def test_a_blank_list_of_rules_allows_nothing_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(tmp_path)
    content = access.file.read_text(encoding="utf-8")
    access.file.write_text("rules:\n" + content[content.index("keys:") :], encoding="utf-8")

    async def work(doors: Doors) -> None:
        async with doors.client(access.key) as client:
            with pytest.raises(PenstockError) as error:
                await client.create_topic("t", 1)
            assert error.value.code == "forbidden"

    knock(tmp_path / "data", work, access=access.file)
    assert "nothing is allowed" in caplog.text


def test_what_the_broker_writes_is_for_its_own_user_only(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as client:
            await client.create_topic("t", 1)
            await client.publish("t", b"secret")

    knock(tmp_path / "data", work)
    paths = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_a_redrive_under_way_stops_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(tmp_path)
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()
    copy = DeadLetters._copy

    async def slow(self: DeadLetters, *given: Any) -> None:
        has_begun.set()
        await may_go_on.wait()
        await copy(self, *given)

    monkeypatch.setattr(DeadLetters, "_copy", slow)

    async def work(doors: Doors) -> None:
        async with doors.client(access.key) as client:
            await client.create_topic("t", 1)
            for _ in range(5):
                await client.publish("t", b"x")
            async with client.consumer("g", "t") as consumer:
                for message in await consumer.poll(5, wait="20s"):
                    await message.reject("bad")
            assert len(await client.dead_letters.list("t")) == 5
            # Copies, one after the other.
            await client.delete_group("g")
            redriving = asyncio.ensure_future(client.dead_letters.redrive("t"))
            beginning = asyncio.ensure_future(has_begun.wait())
            await asyncio.wait([redriving, beginning], return_when=asyncio.FIRST_COMPLETED)
            assert not redriving.done(), redriving.result()
            access.revoke()
            await doors.gate.refresh()
            with pytest.raises(PenstockError):
                await redriving
        may_go_on.set()
        async with doors.site.broker.dead_letters._settling:
            # The one that was under way.
            assert doors.state()["ends"]["t"] == [6]

    knock(tmp_path / "data", work, access=access.file)


def test_a_real_server_ends_what_a_revoked_key_has_open(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Without a further request on any of these connections."""
    access = Access(tmp_path)

    async def work(native: int, http: str, rpc: str) -> None:
        connection = await Connection.to(Place("127.0.0.1", native)._replace(key=access.key), SystemClock())
        await connection.request(Kind.CALL, CreateTopic("t", 1, {}))
        await connection.request(Kind.JOIN, words.Join("g", "native", ("t",), {}))
        headers = {"authorization": f"Bearer {access.key}"}
        async with (
            httpx.AsyncClient(timeout=None) as web,
            web.stream("POST", f"http://{http}/v1/groups/g/stream?topics=t&consumer=http", headers=headers) as stream,
            grpc.aio.insecure_channel(rpc) as channel,
        ):
            assert stream.status_code == 200
            call = stub_of(channel).Subscribe(metadata=list(headers.items()))
            wanted = pb.Subscription(group="g", consumer="grpc", topics=["t"])
            await call.write(pb.SubscribeRequest(subscribe=wanted))
            assert (await call.read()).HasField("subscribed")
            began = monotonic()
            access.revoke()
            text = "".join([part async for part in stream.aiter_text()])
            assert '"unauthenticated"' in text
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            await connection.ended.wait()
            record_property("seconds", monotonic() - began)

    doors = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--access", str(access.file))
    with broker_process(tmp_path / "data", *doors) as broker:
        found = re.search(r" http=(\S+) grpc=(\S+)", broker.said)
        assert found is not None

        async def bounded() -> None:
            async with asyncio.timeout(60):
                await work(broker.port, found[1], found[2])

        asyncio.run(bounded())


def test_the_access_file_is_parsed_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keys and rules take half a second."""
    access = Access(tmp_path)
    threads = []

    def reading(file: Path) -> Any:
        threads.append(get_ident())
        return read(file)

    monkeypatch.setattr(gate, "read", reading)

    async def work(doors: Doors) -> None:
        threads.clear()
        access.revoke()
        await doors.gate.refresh()
        assert len(threads) == 1
        assert threads[0] != get_ident()

    knock(tmp_path / "data", work, access=access.file)


def test_clients_are_checked_again_a_few_at_a_time(tmp_path: Path) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        clients = [doors.gate.admit(access.key) for _ in range(1_000)]
        ended: Counter[int] = Counter()
        turn = 0

        async def others() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        for client in clients:
            client.revoked = lambda error: ended.update([turn])
        running = asyncio.ensure_future(others())
        access.revoke()
        await doors.gate.refresh()
        running.cancel()
        assert ended.total() == 1_000
        assert max(ended.values()) <= gate._CLIENTS_AT_ONCE

    knock(tmp_path / "data", work, access=access.file)
