"""What all requests share, and what each of them has for itself: the broker, as far as whoever asks may use it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from pyroaring import BitMap64

from penstock.client.admin import Admin
from penstock.client.dead_letters import DeadLetters
from penstock.client.later import ScheduledMessages, Schedules
from penstock.client.transport import Transport
from penstock.errors import LogClosed, PenstockError
from penstock.local.transport import LocalTransport
from penstock.server.guard import Guarded
from penstock.server.http.asking import Receive
from penstock.server.http.waiting import Waiting

B = TypeVar("B")
Q = TypeVar("Q")


class Desk:
    """Its `site` asks nobody for rights: it is for what the door does itself."""

    def __init__(self, site: LocalTransport) -> None:
        self.site = site
        self.waiting = Waiting(site.broker)
        self.started_us = site.now_us()
        self.is_closing = False

    def leased(self, group: str, topic: str, partition: int, lease: int) -> BitMap64:
        """What is left of a lease."""
        try:
            groups = self.site.broker.topic(topic).partition(partition).groups
        except PenstockError:
            return BitMap64()
        found = groups.state(group).leases.get(lease) if groups.has(group) else None
        return BitMap64() if found is None else found.offsets

    def check_ready(self) -> None:
        if self.is_closing:
            raise LogClosed("the broker is stopping")
        self.site.check()


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
    def transport(self) -> Transport:
        """What clients are made of; all of it but joining without a session, and closing."""
        return cast(Transport, self.site)

    @property
    def admin(self) -> Admin:
        return Admin(self.transport)

    @property
    def scheduled(self) -> ScheduledMessages:
        return ScheduledMessages(self.transport)

    @property
    def schedules(self) -> Schedules:
        return Schedules(self.transport)

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.transport)


AnyAsked = Asked[Any, Any]
