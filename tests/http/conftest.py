"""A broker behind a real HTTP port, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local.transport import LocalTransport
from penstock.server.gate import Gate
from penstock.server.http.door import HttpDoor
from penstock.storage.files import DiskFiles
from stalling import loop_watched


class Served:
    def __init__(self, site: LocalTransport, door: HttpDoor, port: int, http: httpx.AsyncClient) -> None:
        self.site = site
        self.door = door
        self.port = port
        self.http = http
        self.broke: list[PenstockError] = []

    async def ok(self, method: str, path: str, json: Any = None, **more: Any) -> Any:
        """What it answers, which is a success."""
        reply = await self.http.request(method, path, json=json, **more)
        assert reply.status_code in (200, 201, 204), reply.text
        assert not reply.content or reply.text.endswith("}\n")
        return reply.json() if reply.content else None

    async def fails(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, str]:
        """The status and the code of what went wrong."""
        reply = await self.http.request(method, path, json=json, **more)
        body = reply.json()
        assert reply.text.endswith("}\n")
        assert body.keys() == {"code", "message", "details"}
        assert body["message"]
        return reply.status_code, body["code"]

    async def published(self, topic: str, *texts: str, **more: Any) -> list[str]:
        sent = [await self.ok("POST", f"/v1/topics/{topic}/publish", {"text": text, **more}) for text in texts]
        return [one["id"] for one in sent]

    async def polled(self, group: str = "g", topics: str = "t", **more: Any) -> list[dict[str, Any]]:
        reply = await self.ok("POST", f"/v1/groups/{group}/poll?as=text", {"topics": topics, **more})
        messages: list[dict[str, Any]] = reply["messages"]
        return messages

    def in_flight(self, group: str = "g", topic: str = "t") -> int:
        states = [part.groups for part in self.site.broker.topic(topic).partitions if part.groups.has(group)]
        return sum(groups.state(group).in_flight for groups in states)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0)


Serve = Callable[..., None]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Runs its argument with a `Served` that has a topic t of one partition."""

    async def run(work: Callable[[Any], Awaitable[None]], access: Path | None, round_s: float, limits: Limits) -> None:
        site = await LocalTransport.open(partial(DiskFiles, tmp_path / "data"), clock=SystemClock(), limits=limits)
        broke: list[PenstockError] = []
        door = HttpDoor(site, Gate(site, access), broke=broke.append, round_s=round_s)
        port = await door.open("127.0.0.1", 0)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, verify=False) as http:
                here = Served(site, door, port, http)
                here.broke = broke
                if access is None:
                    await here.ok("POST", "/v1/topics", {"name": "t", "partitions": 1})
                with loop_watched():
                    await work(here)
        finally:
            await door.close()
            await site.close()

    def serve(
        work: Callable[[Any], Awaitable[None]],
        *,
        access: Path | None = None,
        round_s: float = 0.02,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await run(work, access, round_s, limits)

        asyncio.run(bounded())

    return serve
