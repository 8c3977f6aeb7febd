"""The dashboard at `/`: the files of the folder `page`, as they are. What they show, they ask of the API like anybody.

The address of a file has the hash of all of them, so that browsers may keep it for good; only `/` is asked for again.
None of them says anything about the broker, so nobody needs a key for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files

from starlette.routing import Route as Path

from penstock.server.http.asking import Receive, Scope, Send
from penstock.server.http.failures import Error, MethodNotAllowed, RouteNotFound

Headers = list[tuple[bytes, bytes]]
Fail = Callable[[Send, Error], Awaitable[None]]

_TYPES = {".html": b"text/html", ".css": b"text/css", ".js": b"text/javascript", ".svg": b"image/svg+xml"}
# The page runs its own scripts, asks its own broker, and is shown in nobody's frame.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_SAFE: Headers = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_FOR_GOOD = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK_AGAIN = (b"cache-control", b"no-cache")


def paths(fail: Fail) -> list[Path]:
    """`fail` answers with an error."""
    parts = {part.name: part.read_bytes() for part in files(__package__).joinpath("page").iterdir() if part.is_file()}
    version = hashlib.sha256(b"".join(name.encode() + parts[name] for name in sorted(parts))).hexdigest()[:16]
    index = parts.pop("index.html").replace(b"{version}", version.encode())
    tag = b'"%s"' % version.encode()
    served = [Path("/", _File("index.html", index, [_ASK_AGAIN, (b"etag", tag)], fail))]
    for name, content in parts.items():
        served.append(Path(f"/page/{version}/{name}", _File(name, content, [_FOR_GOOD, (b"etag", tag)], fail)))
    return [*served, Path("/page/{path:path}", _Missing(fail))]


class _File:
    def __init__(self, name: str, content: bytes, headers: Headers, fail: Fail) -> None:
        kind = _TYPES[name[name.rindex(".") :]]
        self._content = content
        self._unchanged = [*_SAFE, *headers]
        self._headers = [
            (b"content-type", kind + b"; charset=utf-8"),
            (b"content-length", b"%d" % len(content)),
            *self._unchanged,
        ]
        self._tag = dict(headers)[b"etag"]
        self._fail = fail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await self._fail(send, MethodNotAllowed("only GET is for this path", allowed=["GET"]))
        elif self._tag in _known(scope["headers"]):
            await _send(send, 304, self._unchanged, b"")
        else:
            await _send(send, 200, self._headers, self._content)


class _Missing:
    """Of another version, or of none."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._fail(send, RouteNotFound("the dashboard has no such file; load the page again"))


def _known(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The tags that whoever asks has already."""
    given = b",".join(value for name, value in headers if name == b"if-none-match")
    return {tag.strip().removeprefix(b"W/") for tag in given.split(b",")}


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
