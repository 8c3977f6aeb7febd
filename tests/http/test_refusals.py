"""What the door does not take: bodies, names, keys, sites, methods."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trustme
import yaml

from penstock.limits import Limits
from penstock.server.gate import Gate
from penstock.server.http import connection
from penstock.server.http.app import head_of
from penstock.server.http.asking import check_nesting
from penstock.server.http.door import HttpDoor
from penstock.server.http.failures import STATUSES, Refused, status_of
from penstock.server.http.table import ROUTES
from penstock.server.keys import make
from served import said

HOSTILE = [
    ".", "..", ".hidden", "../../etc/passwd", "a/b", "a\\b", "a b", "a\n", "\n", "a\0b", "naïve", "\u202eevil", "💥",
    "__internal", "x" * 201, "a;drop", "$(id)", "%2e%2e", "a:b", "*", "?x=1", "#x", "t:0:-1", "t:0:9999999999999999999",
    "t:0:0:0", ":::", "../t:0:0",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_on_every_route(serve: Any, name: str) -> None:
    async def work(here: Any) -> None:
        for route in ROUTES:
            for hostile in re.findall(r"{(\w+)}", route.path):
                # Dots too: httpx would take them for steps of the path.
                encoded = quote(name, safe="").replace(".", "%2E")
                path = re.sub(r"{\w+}", "t", route.path.replace(f"{{{hostile}}}", encoded))
                query = {"why": {"group": "g"}, "stream": {"topics": "t"}}.get(path.rpartition("/")[2], {})
                body = {**route.example, "topics": ["t"], "wait": 0} if path.endswith("/poll") else route.example
                reply = await here.http.request(route.method, path, json=body, params=query)
                assert 400 <= reply.status_code < 500, (route.path, reply.text)
                assert reply.json().keys() == {"code", "message", "details"}
        assert [topic["name"] for topic in (await here.ok("GET", "/v1/topics"))["topics"]] == ["t"]
        assert not [group for group in (await here.ok("GET", "/v1/groups"))["groups"] if group["name"] != "t"]

    serve(work)


@pytest.mark.parametrize("name", [*HOSTILE, "", None, 7])
def test_hostile_names_in_bodies_are_refused(serve: Any, name: Any) -> None:
    async def work(here: Any) -> None:
        schedule = {"name": name, "topic": "t", "cron": "@daily", "text": "x"}
        for path, body in (
            ("/v1/topics", {"name": name}),
            ("/v1/groups", {"name": name}),
            ("/v1/groups/g/poll", {"topics": [name]}),
            ("/v1/groups/g/poll", {"topics": "t", "consumer": name}),
            ("/v1/groups/g/seek", {"topic": name, "to": "latest"}),
            ("/v1/groups/x/replay", {"topic": name, "offsets": {}}),
            ("/v1/schedules", {**schedule, "topic": name}),
            ("/v1/schedules", schedule),
        ):
            status, _ = await here.fails("POST", path, body)
            assert status in (400, 404)

    serve(work)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b'{"text": "\xff"}',
        b'{"json": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"text": "x"} trailing',
        b"[]",
        b"null",
        b'"text"',
        b'{"text": 1e999}',
        b'{"partition": 1' + b"0" * 5_000 + b"}",
        b'{"json": ' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"text": "' + b'\\"' * 500_000,
    ],
)
def test_bodies_that_are_not_what_they_should_be(serve: Any, body: bytes) -> None:
    async def work(here: Any) -> None:
        for path in ("/v1/topics/t/publish", "/v1/topics/t/publish/batch", "/v1/groups/g/poll", "/v1/groups/g/ack"):
            reply = await here.http.post(path, content=body)
            assert (reply.status_code, reply.json()["code"]) in [(400, "invalid_input"), (400, "invalid_message")]

    serve(work)


def test_nesting_counts_what_is_not_in_strings() -> None:
    check_nesting(b'{"text": "' + b"[{" * 1_000 + b'\\"[[[["}', 32)
    check_nesting(b'{"messages": [' + b",".join([b'{"json": [[1]]}'] * 1_000) + b"]}", 32)
    check_nesting(b'{"text": "\\', 32)
    check_nesting(b"[" * 32 + b"]" * 32, 32)
    with pytest.raises(Exception, match="nested"):
        check_nesting(b"[" * 33 + b"]" * 33, 32)


@pytest.mark.parametrize("path", ["/v1/topics/t/publish", "/v1/topics/t/publish/batch", "/v1/groups/g/ack"])
@pytest.mark.parametrize("is_announced", [True, False])
def test_a_body_that_is_too_large_is_refused(serve: Any, path: str, is_announced: bool) -> None:
    async def chunks() -> Any:
        for _ in range(20 * 16):
            yield bytes(65_536)

    async def work(here: Any) -> None:
        content = bytes(20 << 20) if is_announced else chunks()
        reply = await here.http.post(path, content=content)
        assert (reply.status_code, reply.json()["code"]) == (413, "body_too_large")
        # The same connection goes on.
        assert await here.published("t", "x") == ["t:0:0"]

    serve(work)


def test_a_message_that_is_too_large_is_refused(serve: Any) -> None:
    async def work(here: Any) -> None:
        large = {"text": "x" * (1 << 20)}
        assert await here.fails("POST", "/v1/topics/t/publish", {**large, "key": "k"}) == (413, "batch_too_large")
        batch = {"messages": [{"text": "small"}, {**large, "key": "k"}]}
        small, refused = (await here.ok("POST", "/v1/topics/t/publish/batch", batch))["results"]
        assert (small["offset"], refused["error"]["code"]) == (0, "batch_too_large")

    serve(work)


def test_unknown_routes_and_wrong_methods(serve: Any) -> None:
    async def work(here: Any) -> None:
        for path in (
            "/v1",
            "/v2/topics",
            "/v1/topics/",
            "/v1/topics/t/publish/x",
            "/v1/topics//",
        ):
            assert await here.fails("GET", path) == (404, "route_not_found")
        for route in ROUTES:
            path = re.sub(r"{\w+}", "t", route.path)
            assert await here.fails("PUT", path) == (405, "method_not_allowed")
        reply = await here.http.delete("/v1/topics")
        assert reply.headers["allow"] == "GET, POST"
        assert await here.fails("POST", "/openapi.json") == (405, "method_not_allowed")

    serve(work)


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://a.proxy"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({}, False),
    ],
)
def test_pages_of_other_sites_may_not_ask(serve: Any, headers: dict[str, str], is_refused: bool) -> None:
    async def work(here: Any) -> None:
        for path, body in (("/v1/topics/t/publish", {"text": "x"}), ("/v1/groups", {"name": "g"})):
            reply = await here.http.post(path, json=body, headers=headers)
            assert (reply.status_code == 403) == is_refused
            assert not is_refused or reply.json()["code"] == "foreign_site"
        own = {"origin": f"http://127.0.0.1:{here.port}"}
        await here.ok("POST", "/v1/topics/t/publish", {"text": "x"}, headers=own)

    serve(work)


def _access(path: Path) -> tuple[Path, str]:
    key, kept = make("billing")
    file = path / "access.yaml"
    rules = [
        {"principals": ["billing"], "operations": ["publish", "consume", "describe"], "topics": ["mine"]},
        {"principals": ["billing"], "operations": ["consume"], "groups": ["mine"]},
        {"principals": ["billing"], "operations": ["admin"], "topics": ["*"]},
    ]
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    return file, key


def test_keys_and_rules_hold_here_too(serve: Any, tmp_path: Path) -> None:
    access, key = _access(tmp_path)

    async def work(here: Any) -> None:
        reply = await here.http.get("/v1/topics")
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert (await here.http.get("/v1/topics", headers={"authorization": "Bearer no"})).status_code == 401
        assert (await here.http.get("/v1/topics", headers={"authorization": f"Basic {key}"})).status_code == 401
        assert await here.ok("GET", "/ready") == {"status": "ready"}
        here.http.headers["authorization"] = f"Bearer {key}"
        for name in ("mine", "yours"):
            await here.ok("POST", "/v1/topics", {"name": name, "partitions": 1})
        assert [topic["name"] for topic in (await here.ok("GET", "/v1/topics"))["topics"]] == ["mine"]
        assert await here.published("mine", "x") == ["mine:0:0"]
        assert len(await here.polled("mine", "mine")) == 1
        denied = (403, "forbidden")
        assert await here.fails("POST", "/v1/topics/yours/publish", {"text": "x"}) == denied
        assert await here.fails("POST", "/v1/topics/yours/publish/batch", {"messages": [{"text": "x"}]}) == denied
        assert await here.fails("POST", "/v1/groups/mine/poll", {"topics": ["mine", "yours"]}) == denied
        assert await here.fails("POST", "/v1/groups/yours/poll", {"topics": "mine"}) == denied
        assert await here.fails("POST", "/v1/groups/yours/stream?topics=mine") == denied
        assert await here.fails("GET", "/v1/topics/mine/messages") == denied
        assert await here.fails("GET", "/v1/messages/mine:0:0") == denied
        assert (await here.ok("GET", "/v1/cluster"))["topics"] == 1

    serve(work, access=access)


# --- the head, and the connection ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x50\x53\x08\x00" + bytes(12),
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_told_so(serve: Any, data: bytes) -> None:
    async def work(here: Any) -> None:
        answer = await said(here.port, data)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"not_http"' in answer
        assert await here.ok("GET", "/health")

    serve(work)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /health HTTP/1.1\r\nX-Slow: ",
        b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    ],
)
def test_who_is_too_slow_is_let_go(serve: Any, head: bytes) -> None:
    async def work(here: Any) -> None:
        slow = [asyncio.create_task(said(here.port, head)) for _ in range(50)]
        # Others do not notice.
        await here.until(lambda: len(here.door.connections) > 50 or any(each.done() for each in slow))
        assert await here.published("t", "x") == ["t:0:0"]
        for answer in await asyncio.gather(*slow):
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"too_slow"' in answer
        assert len(here.door.connections) <= 1

    serve(work, limits=Limits(http_head_us=1_000_000))


def _has_come(only: connection.Connection, size: int) -> bool:
    return only._body_bytes >= size


def test_a_body_that_comes_fast_enough_may_take_long(serve: Any) -> None:
    async def work(here: Any) -> None:
        async def parts() -> Any:
            (only,) = here.door.connections
            yield b'{"text": "'
            for kib in range(8, 1_000, 8):
                yield b"x" * 8_192
                await here.until(partial(_has_come, only, kib * 1_024))
                only.check(only._since + kib / 8)
            yield b'"}'

        reply = await here.http.post("/v1/topics/t/publish", content=parts())
        assert reply.status_code == 200

    serve(work)


def test_who_says_nothing_for_long_is_let_go(serve: Any) -> None:
    async def work(here: Any) -> None:
        answer = await said(here.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b'{"status":"ok"}\n')

    serve(work, limits=Limits(idle_us=100_000))


def test_heads_and_pipelines_have_an_end(serve: Any) -> None:
    async def work(here: Any) -> None:
        answer = await said(here.port, b"GET /health HTTP/1.1\r\n", *(b"X-%d: y\r\n" % n for n in range(20_000)))
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        poll = b'{"topics": "t", "wait": "20s"}'
        waiting = b"POST /v1/groups/g/poll HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(poll) + poll
        await said(here.port, waiting, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        await here.until(lambda: not here.door._desk.waiting._tasks)

    serve(work)


def test_requests_in_a_row_are_answered_in_a_row(serve: Any) -> None:
    async def work(here: Any) -> None:
        body = b'{"text": "x"}'
        one = b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        last = one.replace(b"Host: x", b"Host: x\r\nConnection: close")
        answer = await said(here.port, one * 9 + last)
        offsets = [int(found) for found in re.findall(rb'"offset":(\d+)', answer)]
        assert offsets == list(range(10))

    serve(work)


def test_a_client_that_asks_first_is_told_to_go_on(serve: Any) -> None:
    async def work(here: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        body = b'{"text": "x"}'
        writer.write(
            b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()

    serve(work)


def test_every_error_has_a_status() -> None:
    def below(kind: type) -> Iterable[type]:
        return [kind, *(deeper for each in kind.__subclasses__() for deeper in below(each))]

    assert all(kind in STATUSES for kind in below(Refused)[1:])
    assert {status_of(kind) for kind in STATUSES} <= {*range(400, 432), 500, 501, 503, 507}


def test_a_head_is_read_once_and_for_all() -> None:
    head = head_of([(b"content-length", b"12"), (b"authorization", b"bearer  abc "), (b"host", b"a")])
    assert head == ("abc", 12, False, "a")


def test_with_a_certificate_it_speaks_tls_and_nothing_else(serve: Any) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def work(here: Any) -> None:
        door = HttpDoor(here.site, Gate(here.site, None))
        port = await door.open("127.0.0.1", 0, context)
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trusting) as http:
            assert (await http.post("/v1/topics/t/publish", json={"text": "x"})).json()["id"] == "t:0:0"
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(f"http://127.0.0.1:{port}/health")
        await door.close()

    serve(work)
