"""A broker behind a real HTTP port, on a thread of its own, and a browser without a window that looks at it.

The browser is the system's Chromium, or the one that `playwright install chromium` gets. Without one, these tests are
skipped; tests/dashboard/test_files.py needs none.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from penstock.clock import SystemClock
from penstock.local.transport import LocalTransport
from penstock.server.gate import Gate
from penstock.server.http.door import HttpDoor
from penstock.server.http.table import ROUTES
from penstock.server.keys import make
from penstock.storage.files import DiskFiles
from stalling import loop_watched

try:
    from playwright.sync_api import Browser, Error, Page, sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_MS = 60_000

Look = Callable[..., "Page"]


class Broker:
    """`ok` asks its API, as a test that does not use the browser would."""

    def __init__(self, url: str, stop: Callable[[], None]) -> None:
        self.url = url
        self.stop = stop
        self.key = ""
        self.http = httpx.Client(base_url=url, timeout=20)

    def ok(self, method: str, path: str, json: Any = None) -> Any:
        reply = self.http.request(method, path, json=json)
        assert reply.is_success, reply.text
        return reply.json() if reply.content else None

    def published(self, topic: str, *texts: str, **more: Any) -> list[str]:
        return [self.ok("POST", f"/v1/topics/{topic}/publish", {"text": text, **more})["id"] for text in texts]

    def polled(self, group: str, topic: str, **more: Any) -> list[dict[str, Any]]:
        reply = self.ok("POST", f"/v1/groups/{group}/poll", {"topics": topic, **more})
        messages: list[dict[str, Any]] = reply["messages"]
        return messages

    def given_up(self, group: str, topic: str, reason: str, **more: Any) -> None:
        """Whatever the group has to do."""
        receipts = [message["receipt"] for message in self.polled(group, topic, **more)]
        assert self.ok("POST", f"/v1/groups/{group}/reject", {"receipts": receipts, "reason": reason})["failed"] == []


@contextmanager
def broker_on(path: Path, access: Path | None = None) -> Iterator[Broker]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="broker")
    thread.start()

    def wait_for(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def opened() -> tuple[LocalTransport, HttpDoor, int]:
        site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock())
        door = HttpDoor(site, Gate(site, access))
        return site, door, await door.open("127.0.0.1", 0)

    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(thread.join)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        site, door, port = wait_for(opened())
        stack.callback(lambda: wait_for(site.close()))
        stopping = ExitStack()
        stopping.callback(lambda: wait_for(door.close()))
        stack.push(stopping)
        broker = Broker(f"http://127.0.0.1:{port}", stopping.close)
        stack.callback(broker.http.close)
        with loop_watched():
            yield broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with broker_on(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def guarded(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that asks for a key, and has one; it may do everything, or what the rules say that are the parameter."""
    key, kept = make("ann")
    access = tmp_path / "access.yaml"
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    rules = {"rules": request.param} if hasattr(request, "param") else {}
    access.write_text(yaml.safe_dump({"keys": keys, **rules}), encoding="utf-8")
    with broker_on(tmp_path / "guarded", access) as broker:
        broker.key = key
        broker.http.headers["authorization"] = f"Bearer {key}"
        yield broker


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not longer than a module: its event loop runs on the thread of the tests, and others want one of their own."""
    if sync_playwright is None:
        pytest.skip("no browser: playwright is not installed (pip install playwright)")
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    # A sandbox needs rights that root in a container does not have; the only page it sees is ours.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=args)
        except Error as error:
            pytest.skip(f"no browser: install chromium, or run `playwright install chromium` ({error.message[:80]})")
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Opens a page. Nothing may go wrong unseen: an error in its log, or a request to anybody else, fails the test."""
    wrong: list[str] = []
    with ExitStack() as stack:

        def look(broker: Broker, at: str = "/", **how: Any) -> Page:
            context = browser.new_context(base_url=broker.url, **{"reduced_motion": "reduce", **how})
            stack.callback(context.close)
            context.set_default_timeout(_PATIENCE_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if _is_wrong(said) else None)
            page.on("request", lambda asked: wrong.append(asked.url) if not _is_ours(asked, broker.url) else None)
            page.goto(at)
            return page

        yield look
    assert wrong == []


def _is_wrong(said: Any) -> bool:
    """That a request was refused, the browser says too; the page shows that itself."""
    return said.type == "error" and not said.text.startswith("Failed to load resource")


def _is_ours(asked: Any, url: str) -> bool:
    """A file of the page, or a route of the public API."""
    path = urlsplit(asked.url).path
    return bool(asked.url.startswith(url + "/")) and (
        path == "/" or path.startswith("/page/") or _is_route(asked.method, path)
    )


def _is_route(method: str, path: str) -> bool:
    patterns = [re.sub(r"{\w+}", "[^/]+", route.path) for route in ROUTES if route.method == method]
    return any(re.fullmatch(pattern, path) for pattern in patterns)


@pytest.fixture
def page(look: Look, broker: Broker) -> Page:
    return look(broker)
