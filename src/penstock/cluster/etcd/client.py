"""EtcdStore: the port over etcd's JSON gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from penstock.cluster.etcd import commits
from penstock.cluster.etcd.answers import Event, Header, KeyValue, RangeAnswer, TxnAnswer
from penstock.cluster.etcd.gateway import Gateway, Larger
from penstock.cluster.etcd.leases import GatewayLeases
from penstock.cluster.etcd.session import BootTime, Session, Time
from penstock.cluster.etcd.settings import EtcdSettings
from penstock.cluster.etcd.store import Change, Changes, Item, Lost, Put, Snapshot, Won
from penstock.cluster.etcd.watching import Watching
from penstock.errors import EtcdRefused, EtcdReplaced, EtcdUnavailable, WatchBehind

PAGE_KEYS = 1_000
# While etcd forgets faster than the pages can be read.
_READINGS_MAX = 5


class EtcdStore:
    def __init__(self, settings: EtcdSettings, time: Time | None = None) -> None:
        self._settings = settings
        self._time = time or BootTime()
        self._gateway = Gateway(settings)
        self._watching = Watching(self._gateway, settings.request_s, settings.response_bytes_max)

    @property
    def cluster_id(self) -> int | None:
        """As hexadecimal it is what etcd's own tools show. None before the first answer."""
        return self._gateway.seen.cluster_id

    async def get(self, prefix: str) -> Snapshot:
        commits.check_key(prefix)
        for _ in range(_READINGS_MAX):
            before = self._gateway.seen.revision
            try:
                found = await self._read(prefix.encode())
            except WatchBehind:
                continue
            self._must_not_be_below(before, found.revision)
            return found
        raise EtcdUnavailable(f"etcd was compacted {_READINGS_MAX} times while {prefix} was read")

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        commits.check(guards, puts, deletes)
        request = {
            "compare": [
                {"key": key.encode(), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
                for key, revision in guards.items()
            ],
            "success": [
                *({"request_put": _put_of(put)} for put in puts),
                *({"request_delete_range": {"key": key.encode()}} for key in deletes),
            ],
            "failure": [{"request_range": {"key": key.encode()}} for key in guards],
        }
        before = self._gateway.seen.revision
        answer = await self._gateway.tell("/v3/kv/txn", request, TxnAnswer)
        self._note(answer.header)
        self._must_not_be_below(before, answer.header.revision)
        if answer.succeeded:
            return Won(answer.header.revision)
        found = [_item_of(each) for part in answer.responses if part.response_range for each in part.response_range.kvs]
        return Lost({item.key: item for item in found}, answer.header.revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        commits.check_watch(prefix, from_revision)
        key = prefix.encode()
        async with aclosing(self._watching.results(key, _end_of(key), from_revision)) as results:
            async for result in results:
                self._note(result.header)
                if result.events:
                    changes = [_change_of(event) for event in result.events]
                    yield Changes(changes, changes[-1].revision)
                elif not result.created:
                    yield Changes([], result.header.revision)

    async def session(self, ttl_s: int) -> Session:
        return await Session.open(GatewayLeases(self._gateway), self._time, ttl_s)

    async def close(self) -> None:
        """Closes connections; sessions are closed by those who have them."""
        self._gateway.close()

    async def _read(self, prefix: bytes) -> Snapshot:
        """Page by page, all at the revision of the first, which is linearizable."""
        items: dict[str, Item] = {}
        request: dict[str, Any] = {"key": prefix, "range_end": _end_of(prefix)}
        limit, revision, size = PAGE_KEYS, 0, 0
        while True:
            try:
                answer = await self._gateway.ask("/v3/kv/range", {**request, "limit": str(limit)}, RangeAnswer)
            except Larger as error:
                if limit == 1:
                    raise EtcdRefused(
                        f"{prefix.decode()} holds a value that is larger than etcd's gateway hands out: {error}"
                    ) from error
                limit = max(1, limit // 8)
                continue
            self._note(answer.header)
            revision = revision or answer.header.revision
            for each in answer.kvs:
                item = _item_of(each)
                items[item.key] = item
                size += len(each.key) + len(each.value)
            if size > self._settings.snapshot_bytes_max:
                raise EtcdRefused(
                    f"{prefix.decode()} in etcd has more than {self._settings.snapshot_bytes_max} bytes", bytes=size
                )
            if not answer.more:
                return Snapshot(items, revision)
            request |= {"key": answer.kvs[-1].key + b"\0", "revision": str(revision)}

    def _note(self, header: Header) -> None:
        seen = self._gateway.seen
        seen.revision = max(seen.revision, header.revision)

    def _must_not_be_below(self, before: int, revision: int) -> None:
        if revision < before:
            raise EtcdReplaced(
                f"etcd is at revision {revision} and was at {before} before: it was set back to a backup, or lost data",
                revision=revision,
                before=before,
            )


def _end_of(prefix: bytes) -> bytes:
    """The first key behind all that have this prefix. UTF-8 has no byte 255, so the last one can be counted up."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _put_of(put: Put) -> dict[str, Any]:
    request: dict[str, Any] = {"key": put.key.encode(), "value": put.value}
    return request if put.session is None else request | {"lease": str(put.session.lease)}


def _item_of(found: KeyValue) -> Item:
    return Item(found.key.decode("utf-8", "surrogateescape"), found.value, found.mod_revision, found.create_revision)


def _change_of(event: Event) -> Change:
    item = _item_of(event.kv)
    return Change(item.key, None if event.type == "DELETE" else item, item.revision)
