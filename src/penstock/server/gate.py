"""Who may come in, and what they see of the broker then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from pathlib import Path
from time import monotonic
from weakref import WeakSet

from penstock.errors import InvalidSetting, Unauthenticated
from penstock.limits import Limits
from penstock.server.access import Rules
from penstock.server.access_file import Access, read
from penstock.server.admission import PARTIAL_BYTES_MAX, SLOW_MAX, PartialRequests, Strangers, UnderWay
from penstock.server.audit import Audit, Peer
from penstock.server.guard import Guarded
from penstock.server.keys import Key, changes
from penstock.server.quotas import Quota, Quotas
from penstock.server.reply_budget import NODE_BYTES_MAX, REPLY_BYTES_MAX, ReplyBudget
from penstock.server.site import Site

log = logging.getLogger("penstock.access")

# Clients that are checked again without a break: a millisecond, unless one has many requests.
_CLIENTS_AT_ONCE = 20


class Gate:
    """With a file of keys and rules; or without: everybody who can reach a door may do everything then."""

    def __init__(
        self,
        site: Site,
        file: str | os.PathLike[str] | None,
        *,
        secret: str | None = None,
        audit: Audit | None = None,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """`secret` is what the nodes of a cluster know each other by."""
        self._site = site
        self._secret = secret
        self._now_s = now_s
        self._file = None if file is None else Path(file)
        self._access: Access | None = None if file is None else read(file)
        self.audit = audit or Audit(site)
        # Shared by all listeners.
        self.strangers = Strangers(site.limits, now_s)
        quotas = [] if self._access is None else self._access.quotas
        self.quotas = Quotas(quotas, site, _share(site.limits, self.strangers.count_max))
        self._slow = UnderWay("listings, traces, redrives or other slow requests", SLOW_MAX)
        self._stamp = self._changed()
        # Of clients with a key: those that stay are checked again when keys or rules change, or a key expires.
        self._admitted: WeakSet[Guarded] = WeakSet()
        self._check_at_us = self._next_expiry_us()
        self._partial: dict[str, PartialRequests] = {}
        self.partial_bytes_max = PARTIAL_BYTES_MAX
        self._replies: dict[str, ReplyBudget] = {}
        self.reply_bytes_max = REPLY_BYTES_MAX

    @property
    def has_keys(self) -> bool:
        return self._access is not None

    def owned(self, kind: str, principal: str) -> int:
        """How many topics, groups or schedules the principal has created."""
        return self._site.broker.owned(kind, principal)

    def partial_of(self, principal: str) -> PartialRequests:
        """Each principal has a budget of its own: a client that fills it does not hold up those of others."""
        return self._partial.setdefault(principal, PartialRequests(principal, self.partial_bytes_max, self._now_s))

    def replies_of(self, site: Guarded) -> ReplyBudget:
        """The budget of its principal. Nodes of the cluster are few, and ask on behalf of many clients."""
        bytes_max = NODE_BYTES_MAX if site.is_node else self.reply_bytes_max
        return self._replies.setdefault(site.principal, ReplyBudget(bytes_max, self._now_s))

    def check_memory(self) -> None:
        """To be called every second or so."""
        for requests in list(self._partial.values()):
            requests.check()
            if requests.is_idle:
                # Of a principal that may never come again.
                del self._partial[requests.principal]
        for principal, replies in list(self._replies.items()):
            replies.check()
            if replies.is_idle:
                del self._replies[principal]

    def admit(
        self, key: str | None, site: Site | None = None, *, peer: Peer = None, is_single: bool = False
    ) -> Guarded:
        """The broker for whoever has this key. Unauthenticated if nobody has. `site`: by that way to it. `peer` is the
        client's address. `is_single`: the client has one request, see `Allowance`."""
        site = site or self._site
        if self._secret is not None and key is not None and compare_digest(key.encode(), self._secret.encode()):
            self.audit.record_key_use("of the cluster", "node", peer)
            return Guarded(site, "node", _everything, is_node=True)
        if self._access is None:
            return Guarded(site, "anybody", _everything, audit=self.audit, peer=peer, slow=self._slow)
        found = self._found(key, peer)
        guarded = Guarded(
            site,
            found.principal,
            partial(self._rules_for, found),
            binds_producers=True,
            audit=self.audit,
            peer=peer,
            meter=self.quotas.meter(found.principal),
            is_single=is_single,
            slow=self._slow,
        )
        self._admitted.add(guarded)
        return guarded

    def _found(self, key: str | None, peer: Peer) -> Key:
        assert self._access is not None
        try:
            found = self._access.keys.find(key, self._site.now_us())
        except Unauthenticated as error:
            identity = self._access.keys.identity_of(key)
            self.audit.record("", peer, "authenticate", identity and f"key {identity}", error.code)
            raise
        self.audit.record_key_use(found.id, found.principal, peer)
        return found

    def _rules_for(self, key: Key) -> Rules:
        """Unauthenticated if the key is not in force any more."""
        assert self._access is not None
        if not self._access.keys.is_valid(key, self._site.now_us()):
            raise Unauthenticated("this key was revoked, or has expired: use another one")
        return self._access.rules

    async def refresh(self) -> None:
        """Reads the file again if it has changed, on a thread. One that is invalid changes nothing. To be called now
        and then: it also looks at what is stored, and at what was left out of the audit log."""
        stamp = self._changed()
        if self._file is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                access = await asyncio.to_thread(read, self._file)
            except InvalidSetting as error:
                log.error("the access file has changed and is invalid; the old one stays in force: %s", error.message)
                self.audit.record("", None, "change_access", outcome=error.code)
            else:
                log.info("the access file has been read again")
                await self._take(access)
        if self._check_at_us is not None and self._site.now_us() >= self._check_at_us:
            await self._check_again()
        self.quotas.measure(self._site.broker)
        self.audit.flush()

    async def _take(self, access: Access) -> None:
        """Put the changed file into force."""
        before, self._access = self._access, access
        assert before is not None
        for action, key in changes(before.keys, access.keys):
            self.audit.record("", None, action, f"key {key.id} of {key.principal}")
        if access.rules != before.rules:
            self.audit.record("", None, "change_rules")
        if access.quotas != before.quotas:
            self.audit.record("", None, "change_quotas")
            self.quotas.change(access.quotas)
            for guarded in list(self._admitted):
                guarded.apply_quotas()
        await self._check_again()

    async def _check_again(self) -> None:
        """A few clients at a time: there may be thousands, each with many requests."""
        self._check_at_us = self._next_expiry_us()
        for turn, guarded in enumerate(list(self._admitted), 1):
            guarded.check_again()
            if turn % _CLIENTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _next_expiry_us(self) -> int | None:
        return None if self._access is None else self._access.keys.next_expiry_us(self._site.now_us())

    def _changed(self) -> tuple[int, int] | None:
        try:
            found = None if self._file is None else self._file.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_ino)


def _share(limits: Limits, strangers_max: int) -> Quota:
    """Of one principal without quotas of its own. Strangers and a tenth for others have room beside its connections at
    each listener."""
    return Quota(
        connections=max(limits.connections_max - limits.connections_max // 10 - strangers_max, 1),
        topics=_half(limits.topics_max),
        groups=_half(limits.groups_max),
        schedules=_half(limits.schedules_max),
        members=_half(limits.members_max),
    )


def _half(total: int) -> int:
    return max(total // 2, 1)


_NO_RULES = Rules(None)


def _everything() -> Rules:
    return _NO_RULES
