"""What all requests share, and what each of them has for itself: the broker, as far as whoever asks may use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.client.admin import Admin
from penstock.client.dead_letters import DeadLetters
from penstock.client.later import ScheduledMessages, Schedules
from penstock.client.pages import page_of
from penstock.client.requests import Listed, Request
from penstock.errors import ArchiveNotFound, LogClosed
from penstock.server.guard import Guarded
from penstock.server.http.asking import Receive
from penstock.server.http.waiting import Waiting
from penstock.server.receipts import key_of
from penstock.server.site import Site

if TYPE_CHECKING:
    from penstock.archive.archive import Archive


T = TypeVar("T")
B = TypeVar("B")
Q = TypeVar("Q")


class Desk:
    """Its `site` asks nobody for rights: it is for what the door does itself."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.waiting = Waiting(site)
        self.started_us = site.now_us()
        self.is_closing = False
        self._archive: Archive | None = None

    def receipt_key(self, group: str) -> bytes:
        return key_of(self.site.broker.secret, group)

    async def archive(self) -> Archive:
        """The one that the server was told of. Its manifest is read once, and then only what is new of it."""
        place = self.site.archive_dir
        if place is None:
            raise ArchiveNotFound("this server has no archive: archive_dir says where it is")
        if self._archive is None:
            # Here and not at the top: Parquet takes a while to load, and few need it.
            from penstock.archive.archive import Archive

            self._archive = await asyncio.to_thread(Archive.open, place)
        return self._archive

    def check_ready(self) -> None:
        if self.is_closing:
            raise LogClosed("the broker is stopping")
        self.site.check_ready()


class Asked(Generic[B, Q]):
    """One request. `path` has the parts of the path that have names; `receive` tells when the client goes."""

    __slots__ = ("body", "path", "query", "receive", "site")

    def __init__(self, site: Guarded, path: dict[str, str], query: Q, body: B, receive: Receive) -> None:
        self.site = site
        self.path = path
        self.query = query
        self.body = body
        self.receive = receive

    @property
    def admin(self) -> Admin:
        return Admin(self.site)

    @property
    def scheduled(self) -> ScheduledMessages:
        return ScheduledMessages(self.site)

    @property
    def schedules(self) -> Schedules:
        return Schedules(self.site)

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.site)

    async def page(self, request: Request[list[T] | Listed[T]]) -> Listed[T]:
        """The page of a listing that the query asks for, which has `after` and `limit`."""
        query: Any = self.query
        return await page_of(self.site, request, query.after, query.limit)


AnyAsked = Asked[Any, Any]
