"""Keys that are revoked or expire, and rules that change: connections, streams and waiting polls end, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import time_ns
from typing import Any

import grpc
import pytest
import yaml

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.net.connection import Connection
from penstock.server.access_file import add_key, remove_key
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
            doors.gate.refresh()
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
        doors.gate.refresh()
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
