"""Slow requests end with their client, and each principal has a few of them under way at all listeners together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml

from penstock.broker.turns import PRINCIPAL
from penstock.client.requests import CreateTopic, ListGroups
from penstock.errors import Overloaded
from penstock.local.transport import LocalTransport
from penstock.server.admission import SLOW_MAX
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.http import app
from penstock.server.keys import make
from penstock.wire.packets import Kind
from security.doors import Doors, knock, until

ALL = ["publish", "consume", "read", "describe", "admin"]


def access(path: Path) -> tuple[Path, str, str]:
    """A key that may do everything, and one without any rights."""
    (key, kept), (useless, hostile) = make("shop"), make("hostile")
    keys = [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in (kept, hostile)]
    every = {"principals": ["shop"], "operations": ALL}
    rules = [{**every, "topics": ["*"]}, {**every, "groups": ["*"], "operations": ALL[1:]}, {**every, "broker": True}]
    rules[-1]["operations"] = ["describe", "admin"]
    file = path / "access.yaml"
    file.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    return file, key, useless


class Held:
    """Requests of one type stand still at the broker until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        self.under_way = self.done = 0
        self.principals: list[str] = []
        self.going_on = asyncio.Event()
        call, names = LocalTransport.call, LocalTransport.names
        held = self

        async def hold() -> None:
            held.under_way += 1
            held.principals.append(PRINCIPAL.get())
            try:
                await held.going_on.wait()
                held.done += 1
            finally:
                held.under_way -= 1

        async def called(self: LocalTransport, request: Any) -> Any:
            if type(request) is kind:
                await hold()
            return await call(self, request)

        async def named(self: LocalTransport, request: Any) -> Any:
            if type(request) is kind:
                await hold()
            return await names(self, request)

        monkeypatch.setattr(LocalTransport, "call", called)
        monkeypatch.setattr(LocalTransport, "names", named)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def abandoned(asking: Awaitable[Any], is_there: Callable[[], bool]) -> None:
    """The client goes once its request is at the broker."""
    task = asyncio.ensure_future(asking)
    await until(is_there)
    task.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await task


async def native_cancel(doors: Doors, key: str, held: Held) -> None:
    async with doors.connection(key) as connection:
        await abandoned(connection.request(Kind.CALL, ListGroups(after="")), lambda: held.under_way == 1)
        await until(lambda: held.under_way == 0)
        # The connection goes on.
        await connection.request(Kind.CALL, CreateTopic("after", 1, {}))


async def native_disconnect(doors: Doors, key: str, held: Held) -> None:
    async with doors.connection(key) as connection:
        asking = asyncio.ensure_future(connection.request(Kind.CALL, ListGroups(after="")))
        await until(lambda: held.under_way == 1)
        connection.abort(Overloaded("gone"))
        await asyncio.wait([asking])
        assert asking.exception() is not None


async def http_disconnect(doors: Doors, key: str, held: Held) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{doors.http_port}", headers=bearer(key)) as web:
        await abandoned(web.get("/v1/groups"), lambda: held.under_way == 1)


async def grpc_cancel(doors: Doors, key: str, held: Held) -> None:
    listing = doors.stub.ListGroups(pb.ListGroupsRequest(), metadata=[*bearer(key).items()])
    await until(lambda: held.under_way == 1)
    listing.cancel()


@pytest.mark.parametrize("leave", [native_cancel, native_disconnect, http_disconnect, grpc_cancel])
def test_a_listing_ends_when_its_client_goes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[Doors, str, Held], Awaitable[None]],
) -> None:
    file, key, _ = access(tmp_path)

    async def work(doors: Doors) -> None:
        held = Held(monkeypatch, ListGroups)
        await leave(doors, key, held)
        await until(lambda: held.under_way == 0)
        assert (held.principals, held.done) == (["shop"], 0)

    knock(tmp_path / "data", work, access=file)


def test_metrics_end_when_their_client_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, key, _ = access(tmp_path)
    outcomes: list[str] = []

    async def held(*args: Any) -> Any:
        outcomes.append(PRINCIPAL.get())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise

    monkeypatch.setattr(app, "of_broker", held)

    async def work(doors: Doors) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{doors.http_port}", headers=bearer(key)) as web:
            await abandoned(web.get("/metrics"), lambda: len(outcomes) == 1)
        await until(lambda: outcomes == ["shop", "cancelled"])

    knock(tmp_path / "data", work, access=file)


@pytest.mark.parametrize("door", ["native", "grpc"])
def test_a_change_is_carried_out_though_its_client_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, key, _ = access(tmp_path)

    async def work(doors: Doors) -> None:
        held = Held(monkeypatch, CreateTopic)
        if door == "native":
            async with doors.connection(key) as connection:
                await abandoned(connection.request(Kind.CALL, CreateTopic("t", 1, {})), lambda: held.under_way == 1)
        else:
            creating = doors.stub.CreateTopic(
                pb.CreateTopicRequest(name="t", partitions=1), metadata=[*bearer(key).items()]
            )
            await until(lambda: held.under_way == 1)
            creating.cancel()
            # The broker has noticed.
            await until(lambda: ("grpc", "CreateTopic", "cancelled") in doors.grpc.counts.requests)
        assert held.under_way == 1
        held.going_on.set()
        await until(lambda: doors.site.broker.has_topic("t"))

    caplog.set_level("INFO", "penstock.audit")
    knock(tmp_path / "data", work, access=file)
    assert [one.outcome for one in caplog.records if getattr(one, "action", "") == "create_topic"] == ["ok"]  # type: ignore[attr-defined]


def test_slow_requests_of_a_principal_are_bounded_at_all_listeners_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, key, useless = access(tmp_path)

    async def work(doors: Doors) -> None:
        held = Held(monkeypatch, ListGroups)

        def by_grpc(key: str) -> Any:
            return doors.stub.ListGroups(pb.ListGroupsRequest(), metadata=[*bearer(key).items()])

        listings = [by_grpc(useless) for _ in range(SLOW_MAX - 2)]
        async with doors.connection(useless) as connection, doors.connection(useless) as another:
            first = asyncio.ensure_future(connection.request(Kind.CALL, ListGroups(after="")))
            second = asyncio.ensure_future(doors.web.get("/v1/groups", headers=bearer(useless)))
            await until(lambda: held.under_way == SLOW_MAX)
            # One more is refused, wherever it comes, and may be tried again.
            with pytest.raises(Overloaded, match="under way"):
                await another.request(Kind.CALL, ListGroups(after=""))
            refused = await doors.web.get("/v1/groups", headers=bearer(useless))
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            refused = await doors.web.get("/v1/cluster", headers=bearer(useless))
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await by_grpc(useless)
            assert ("penstock-code", "overloaded") in list(caught.value.trailing_metadata() or ())
            # Others are not.
            other = by_grpc(key)
            await until(lambda: held.under_way == SLOW_MAX + 1)
            held.going_on.set()
            await asyncio.gather(first, second, other, *listings)
            await another.request(Kind.CALL, ListGroups(after=""))

    knock(tmp_path / "data", work, access=file)
