"""The audit log: who did what to what, from where, and what came of it.

    authenticate                    a key was refused; or was used, once per key, address and `KEY_USE_US`
    publish, consume, read, …       refused: the principal has no right to do that
    create_topic, redrive, …        every request that needs the right `admin`, refused or not
    add_key, change_rules, …        the access file has changed

Each event is a line of the logger `penstock.audit` and, if `AuditTopic` is there, a message in the topic `__audit`. An
event never delays what it is about. At most `EVENTS_MAX` events of one principal and action that succeeded, and as many
that did not, are recorded within `WINDOW_US`; the rest are counted, and the next line has their number in `left_out`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, deque
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.broker.names import AUDIT
from penstock.broker.settings import DAY_US, TopicSettings
from penstock.client.requests import Request
from penstock.clock import Clock, rfc3339
from penstock.errors import AlreadyExists, PenstockError, TopicNotFound
from penstock.message import Message
from penstock.server.site import Site

log = logging.getLogger("penstock.audit")

WINDOW_US, EVENTS_MAX = 10_000_000, 100
KEY_USE_US = 600_000_000
# Of addresses of clients without a principal, and of keys and addresses: with more, all others share one.
_KNOWN_MAX = 10_000
_TEXT_MAX = 300
# Events that wait for the topic. A broker that does not take them for longer loses the next ones.
QUEUE_MAX = 10_000
_RETENTION_US = 30 * DAY_US
_RETRY_S = 1.0
_CLOSE_S = 2.0
_DENIED = ("forbidden", "unauthenticated", "foreign_site")

# Host and port of a client.
Peer = tuple[str, int] | None
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class _Source(NamedTuple):
    """What has a window of its own. What was refused must not keep what was done out of the log."""

    principal: str
    host: str
    action: str
    is_ok: bool


class _Window:
    __slots__ = ("began_us", "count", "last", "left_out")

    def __init__(self, began_us: int) -> None:
        self.began_us = began_us
        self.count = self.left_out = 0
        self.last: dict[str, Any] = {}


class Audit:
    """Belongs to one event loop."""

    def __init__(self, clock: Clock, *, node: str = "") -> None:
        """`node` is the name of this one in a cluster."""
        self._clock = clock
        self._node = node
        self._windows: dict[_Source, _Window] = {}
        self._keys_used: dict[tuple[str, str], int] = {}
        self.topic: AuditTopic | None = None
        # Events by what became of them: recorded, left_out, or dropped on the way to the topic.
        self.counts: Counter[str] = Counter()

    def record(
        self, principal: str, peer: Peer, action: str, object: str = "", outcome: str = "ok", **more: Any
    ) -> None:
        """`outcome` is ok, or the code of an error."""
        now_us, host = self._clock.monotonic_us(), "" if peer is None else peer[0]
        window = self._window(_Source(principal, "" if principal else host, action, outcome == "ok"), now_us)
        address = "" if peer is None else f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
        event = {"principal": principal, "address": address, "action": action, "object": object, "outcome": outcome}
        event = {name: value[:_TEXT_MAX] for name, value in event.items()} | more
        if window.count >= EVENTS_MAX:
            window.left_out += 1
            window.last = event
            self.counts["left_out"] += 1
            return
        window.count += 1
        self._tell(event)

    def record_key_use(self, key: str, principal: str, peer: Peer) -> None:
        """Record the first use of a key from an address within `KEY_USE_US`."""
        now_us, used = self._clock.monotonic_us(), (key, "" if peer is None else peer[0])
        until_us = self._keys_used.get(used)
        if until_us is not None and now_us < until_us:
            return
        if until_us is None and len(self._keys_used) >= _KNOWN_MAX:
            self._keys_used = {known: at for known, at in self._keys_used.items() if now_us < at}
            if len(self._keys_used) >= _KNOWN_MAX:
                used = (key, "")
        self._keys_used[used] = now_us + KEY_USE_US
        self.record(principal, peer, "authenticate", f"key {key}")

    def _window(self, of: _Source, now_us: int) -> _Window:
        window = self._windows.get(of)
        if window is None and not of.principal and len(self._windows) >= _KNOWN_MAX:
            # Strangers with many addresses leave the windows of principals alone.
            of = _Source("", "", "", of.is_ok)
            window = self._windows.get(of)
        if window is None or now_us - window.began_us >= WINDOW_US:
            if window is not None:
                self._tell_left_out(window)
            window = self._windows[of] = _Window(now_us)
        return window

    def flush(self) -> None:
        """Report how many events were left out of windows that are over. To be called now and then."""
        now_us = self._clock.monotonic_us()
        for of, window in list(self._windows.items()):
            if now_us - window.began_us >= WINDOW_US:
                del self._windows[of]
                self._tell_left_out(window)

    def _tell_left_out(self, window: _Window) -> None:
        if window.left_out:
            self._tell({**window.last, "left_out": window.left_out})

    def _tell(self, event: dict[str, Any]) -> None:
        self.counts["recorded"] += 1
        level = logging.WARNING if event["outcome"] in _DENIED else logging.INFO
        log.log(level, "%s", event["action"], extra=event)
        if self.topic is not None:
            node = {"node": self._node} if self._node else {}
            self.topic.put({"time": rfc3339(self._clock.now_us()), **node, **event})


class AuditTopic:
    """The way of events to the topic `__audit`, which is created with the first of them."""

    def __init__(self, site: Site, counts: Counter[str]) -> None:
        self._site = site
        self._counts = counts
        self._queue: deque[dict[str, Any]] = deque()
        self._added = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, event: dict[str, Any]) -> None:
        if len(self._queue) >= QUEUE_MAX or self._task.done():
            self._counts["dropped"] += 1
            return
        self._queue.append(event)
        self._added.set()

    async def _run(self) -> None:
        while self._queue or not self._is_closing:
            while self._queue:
                await self._publish(self._queue[0])
                self._queue.popleft()
            if not self._is_closing:
                self._added.clear()
                await self._added.wait()

    async def _publish(self, event: dict[str, Any]) -> None:
        message = Message(json.dumps(event, default=str).encode(), key=str(event["principal"]).encode() or None)
        while True:
            try:
                await self._site.publish(AUDIT, message, None)
                return
            except TopicNotFound:
                with suppress(AlreadyExists):
                    await self._create()
            except PenstockError as error:
                if not error.retriable:
                    self._counts["dropped"] += 1
                    log.warning("an audit event could not be stored in %s: %s", AUDIT, error.message)
                    return
                await asyncio.sleep(_RETRY_S)

    async def _create(self) -> None:
        settings = TopicSettings(dead_letters=False, retention_age_us=_RETENTION_US)
        try:
            await self._site.broker.create_topic(AUDIT, 1, settings)
        except AlreadyExists:
            raise
        except PenstockError as error:
            log.warning("the topic %s can't be created yet: %s", AUDIT, error.message)
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Store what is in the queue, for a while."""
        self._is_closing = True
        self._added.set()
        await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._task.cancel()
        self._counts["dropped"] += len(self._queue)


def action_of(request: Request[Any]) -> str:
    """`create_topic` for a CreateTopic."""
    return _WORDS.sub("_", type(request).__name__).lower()


def object_of(request: Request[Any]) -> str:
    """What a request is about, as in `group billing, topic orders`. Never what is in messages."""
    kind = action_of(request).rpartition("_")[2]
    named = (("name", kind), ("topic", "topic"), ("group", "group"), ("node", "node"), ("partition", "partition"))
    parts = [f"{what} {value}" for field, what in named if (value := getattr(request, field, None)) is not None]
    if (identity := getattr(request, "id", None)) is not None:
        parts.append(f"{'copy' if kind == 'copy' else 'message'} {identity}")
    return ", ".join(parts) or "broker"


def is_dry(request: Request[Any]) -> bool:
    """Whether it changes nothing, and says what would be."""
    return bool(getattr(request, "is_dry", False) or getattr(request, "dry_run", False))
