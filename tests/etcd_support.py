"""Real etcd processes, and loops that end in time."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd.client import EtcdStore
from penstock.cluster.etcd.process import EtcdProcess
from penstock.cluster.etcd.session import BootTime, Session
from penstock.cluster.etcd.settings import EtcdSettings, endpoints_of
from penstock.cluster.etcd.store import Change, Store

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")
PATIENCE_S = 60
# A single member has nobody to wait for before it leads. Leases may be as short as 1 s then, instead of 2.
QUICK = ("--heartbeat-interval=20", "--election-timeout=200")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(bounded())


@contextmanager
def etcd_process(directory: Path, *arguments: str, **options: Any) -> Iterator[EtcdProcess]:
    process = EtcdProcess(directory, arguments=(*QUICK, *arguments), **options)
    process.start()
    try:
        yield process
    finally:
        process.kill()


@asynccontextmanager
async def opened(addresses: str | Sequence[str], **options: Any) -> AsyncGenerator[EtcdStore]:
    store = EtcdStore(EtcdSettings(endpoints_of(addresses), **options))
    try:
        yield store
    finally:
        await store.close()


def post(
    process: EtcdProcess,
    path: str,
    request: dict[str, Any],
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """Beside the client that is tested. Bytes become base64."""
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", process.port, timeout=PATIENCE_S)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", process.port, timeout=PATIENCE_S, context=tls)
    )
    body = json.dumps(request, default=lambda value: base64.b64encode(value).decode())
    connection.request("POST", path, body, {"Authorization": token} if token else {})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


async def changes(store: Store, prefix: str, from_revision: int, count: int) -> list[Change]:
    """The first so many."""
    found: list[Change] = []
    async with aclosing(store.watch(prefix, from_revision)) as watch:
        async for told in watch:
            found += told.changes
            if len(found) >= count:
                break
    return found


async def is_lost(session: Session, before_us: int) -> bool:
    """Whether it is told to be, before that boot time."""
    try:
        async with asyncio.timeout((before_us - BootTime().now_us()) / 1_000_000):
            return await session.lost.wait()
    except TimeoutError:
        return False


class Pretender:
    """Something that listens, takes requests, and answers them by a function; None closes the connection."""

    def __init__(self, answer: Callable[[str, bytes], bytes | None]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.paths: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # The other side may go whenever it likes.
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while line := requests.readline():
                path, length = line.split()[1].decode(), 0
                while (header := requests.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = requests.read(length)
                self.paths.append(path)
                answer = self._answer(path, body)
                if answer is None:
                    return
                connection.sendall(answer)


def answered(content: dict[str, Any] | bytes, status: str = "200 OK") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def status(version: str = "3.5.30", cluster_id: int = 7, leader: int = 1) -> bytes:
    header = {"cluster_id": str(cluster_id), "revision": "5"}
    return answered({"header": header, "version": version, "leader": str(leader)})
