"""A request comes in: who asks, by which route, and what is answered.

Starlette finds the route; publishing one message is so frequent that it goes past the router. Every failure, whatever
it is, is told as `{code, message, details}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, nullcontext
from functools import cache
from ipaddress import ip_address
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from starlette.routing import Route as Path
from starlette.routing import Router

import penstock
from penstock.decoding import json_decoder
from penstock.errors import Fatal, InternalError, InvalidInput, PenstockError
from penstock.limits import KIB
from penstock.server.access import Operation, Rules
from penstock.server.gate import Gate
from penstock.server.guard import Guarded
from penstock.server.http import dashboard, failures, shapes
from penstock.server.http.asking import Gone, Receive, Scope, Send, body_of, decoded, query_of
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.failures import Error, ForeignSite, MethodNotAllowed, Refused, RouteNotFound
from penstock.server.http.openapi import described
from penstock.server.http.routes import Route, message_max
from penstock.server.http.table import ROUTES
from penstock.server.http.topics import published
from penstock.server.metrics import Counts, of_doors, rendered
from penstock.server.metrics_broker import of_broker

log = logging.getLogger("penstock.http")

_JSON = (b"content-type", b"application/json")
_PLAIN = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_TOPICS, _PUBLISH = "/v1/topics/", "/publish"
# A larger body is read only of a client that may send it.
SMALL_BODY = 4 * KIB
# Of lists in bodies, except in JSON that is published: those that are longer are of no use.
ITEMS_MAX = 10_000
# Ends of names that are not given out on the internet.
_PRIVATE = (".local", ".localhost", ".internal", ".home.arpa", ".svc", ".test", ".lan")
_encode = msgspec.json.Encoder().encode


class App:
    """An ASGI application."""

    def __init__(
        self,
        desk: Desk,
        gate: Gate,
        counts: Counts,
        broke: Callable[[PenstockError], None],
        hosts: Collection[str] = (),
    ) -> None:
        """`hosts` are names of this machine."""
        self._hosts = hosts
        self.desk = desk
        self.counts = counts
        self._gate = gate
        self._broke = broke
        # Whom nothing is allowed.
        self.nobody = Guarded(desk.site, "nobody", lambda: Rules(()))
        self._publish_max = message_max(desk.site.limits)
        self._decoder = json_decoder(shapes.Publish)
        by_path: dict[str, list[Route]] = {}
        for route in ROUTES:
            by_path.setdefault(route.path, []).append(route)
        paths = [Path(path, _Endpoint(self, routes)) for path, routes in by_path.items()]
        others = [Path("/openapi.json", _Description(self)), Path("/metrics", _Metrics(self))]
        pages = dashboard.paths(self.fail)
        self._router = Router([*paths, *others, *pages], redirect_slashes=False, default=self._lost)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        topic = path[len(_TOPICS) : -len(_PUBLISH)]
        is_publish = path.startswith(_TOPICS) and path.endswith(_PUBLISH) and scope["method"] == "POST"
        if is_publish and topic and "/" not in topic:
            await self.answer(send, "POST /v1/topics/{topic}/publish", self._publish(topic, scope, receive))
        else:
            await self._router(scope, receive, send)

    async def _publish(self, topic: str, scope: Scope, receive: Receive) -> Reply:
        site, length = self.admitted(scope)
        if scope["query_string"]:
            query_of(scope["query_string"], shapes.NoQuery)
        if length is None or length > SMALL_BODY:
            site.check_publishing(topic)
        body = await body_of(receive, length, self._publish_max)
        given = await decoded(body, self._decoder, site.limits.json_nesting_max)
        stored = await published(site, topic, given)
        return Reply(200, _encode(stored))

    async def _lost(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.fail(
            send, RouteNotFound(f"path {scope['path'][:100]!a} does not exist. /openapi.json has all paths")
        )

    # --- who asks ----------------------------------------------------------------------------------------

    def admitted(self, scope: Scope) -> tuple[Guarded, int | None]:
        """The broker as they see it, and the length of the body as far as it is said."""
        head, peer = head_of(scope["headers"]), scope.get("client")
        if head.is_foreign:
            self._gate.audit.record("", peer, "authenticate", outcome=ForeignSite.code)
            raise ForeignSite("a page of another site may not ask for this")
        if not (self._gate.has_keys or is_private(head.host, self._hosts)):
            self._gate.audit.record("", peer, "authenticate", outcome=ForeignSite.code)
            raise ForeignSite(
                f"a broker without keys does not answer to {head.host[:100]!r}, a name that any web page could have: "
                "use an address, or a name without a dot, or start the broker with keys"
            )
        site = self._gate.admit(head.key, self.desk.site, peer=peer, is_single=True)
        scope["state"]["known"](site)
        return site, head.length

    # --- what is answered --------------------------------------------------------------------------------

    async def answer(self, send: Send, kind: str, asking: Any) -> None:
        """With what `asking` gives, or with its error; counted as a request of this kind."""
        began, outcome = monotonic(), "ok"
        try:
            reply: Reply = await asking
        except (Gone, asyncio.CancelledError):
            outcome = "cancelled"
        except Exception as error:
            told = self._told(error)
            outcome = told.code
            await self.fail(send, told)
        finally:
            self.counts.request("http", kind, outcome, monotonic() - began)
        if outcome == "ok":
            if isinstance(reply.body, bytes):
                await send_all(send, reply.status, reply.body, kind=reply.kind)
            else:
                await self._stream(send, reply.body)

    def _told(self, error: Exception) -> Error:
        """As it is told to whoever asked. Of what is not meant for them, the log hears."""
        if isinstance(error, Fatal):
            self._broke(error)
        if isinstance(error, PenstockError):
            return error.without_paths()
        if isinstance(error, Refused):
            return error
        log.error("a request failed", exc_info=error)
        return InternalError(f"the broker has a bug ({type(error).__name__}); its log says more")

    async def fail(self, send: Send, error: Error) -> None:
        await send_all(send, failures.status_of(type(error)), failures.body_of(error), failures.headers_of(error))

    async def _stream(self, send: Send, events: AsyncGenerator[bytes, None]) -> None:
        """An error ends it, with an event of its own."""
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        async with aclosing(events):
            try:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except Exception as error:
                body = b"event: error\ndata: %s\n\n" % failures.body_of(self._told(error))
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Reply(NamedTuple):
    """The body is bytes, or events that come one after the other."""

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    kind: tuple[bytes, bytes] = _JSON


class _Endpoint:
    """All methods of one path."""

    def __init__(self, app: App, routes: Sequence[Route]) -> None:
        self._app = app
        self._desk = app.desk
        self._path = routes[0].path
        self._routes = {route.method: route for route in routes}
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {
            route.method: json_decoder(route.body) for route in routes if route.body is not None
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["method"] in ("HEAD", *self._routes) else "OTHER"
        await self._app.answer(send, f"{method} {self._path}", self._carried_out(scope, receive))

    async def _carried_out(self, scope: Scope, receive: Receive) -> Reply:
        route = self._route(scope["method"])
        site, length = (self._app.nobody, None) if route.is_open else self._app.admitted(scope)
        query: Any = query_of(scope["query_string"], route.query)
        body = None
        if route.body is not None:
            limits = self._desk.site.limits
            if length is None or length > SMALL_BODY:
                site.check_named(route.needs, scope["path_params"])
            data = await body_of(receive, length, route.body_max(limits))
            items_max = None if issubclass(route.body, shapes.Content) else max(ITEMS_MAX, limits.batch_messages_max)
            body = await decoded(data or b"{}", self._decoders[route.method], limits.json_nesting_max, items_max)
        with scope["state"]["reading"]() if route.only_reads else nullcontext():
            found = await route.act(self._desk, Asked(site, scope["path_params"], query, body, receive))
        if route.is_stream:
            return Reply(route.status, found)
        return Reply(route.status, b"" if found is None else _encode(found))

    def _route(self, method: str) -> Route:
        route = self._routes.get("GET" if method == "HEAD" else method)
        if route is None or (method == "HEAD" and route.is_stream):
            allowed = sorted(self._routes)
            raise MethodNotAllowed(
                f"this path takes {', '.join(allowed)}, not {method}. /openapi.json has all paths", allowed=allowed
            )
        return route


@cache
def _description() -> bytes:
    """The same for every listener of the process. Takes tens of milliseconds: too long for a request."""
    return msgspec.json.encode(described(ROUTES, penstock.__version__))


class _Description:
    def __init__(self, app: App) -> None:
        self._app = app
        self._body = _description()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD"):
            await send_all(send, 200, self._body)
        else:
            await self._app.fail(send, MethodNotAllowed("only GET is for this path", allowed=["GET"]))


class _Metrics:
    """For Prometheus, which can give a key as well."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["method"] in ("GET", "HEAD") else "OTHER"
        await self._app.answer(send, f"{method} /metrics", self._told(scope))

    async def _told(self, scope: Scope) -> Reply:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("only GET is for this path", allowed=["GET"])
        site, _ = self._app.admitted(scope)
        site.check_broker(Operation.DESCRIBE)
        broker = self._app.desk.site.broker
        # Lists: on the thread, nothing is looked up any more.
        doors = [family._replace(samples=list(family.samples)) for family in of_doors(self._app.counts)]
        with scope["state"]["reading"](), site.slow():
            of_topics = await of_broker(broker)
            text = await broker.on_a_reading_thread(lambda: rendered(chain(doors, of_topics)).encode())
        return Reply(200, text, _PLAIN)


async def send_all(
    send: Send,
    status: int,
    body: bytes,
    more: Iterable[tuple[bytes, bytes]] = (),
    kind: tuple[bytes, bytes] = _JSON,
) -> None:
    if kind is _JSON and body:
        # For people with a terminal: what they type next starts on a line of its own.
        body += b"\n"
    headers = [kind, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers if status != 204 else []})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Head(NamedTuple):
    key: str | None
    length: int | None
    is_foreign: bool
    host: str


def head_of(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Browsers say where a request comes from: what a page of another site sends is none of its user's doing."""
    key = length = site = origin = host = None
    for name, value in headers:
        if name == b"content-length":
            length = _length(value)
        elif name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            key = rest.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
        elif name == b"sec-fetch-site":
            site = value
        elif name == b"origin":
            origin = value
        elif name == b"host":
            host = value
    if site is not None:
        is_foreign = site in (b"cross-site", b"same-site")
    else:
        is_foreign = origin is not None and origin.partition(b"://")[2] != host
    return Head(key, length, is_foreign, "" if host is None else host.decode("latin-1").lower())


def is_private(host: str, own: Collection[str]) -> bool:
    """Whether a name can't be an attacker's that was made to resolve to this machine, so that a page of that name could
    ask for anything here (DNS rebinding): an address, one of our own names, or one that no registrar sells."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").removesuffix(".")
    if not name or name in own or "." not in name or name.endswith(_PRIVATE):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise InvalidInput("the content-length is not a number")
    return int(value)
