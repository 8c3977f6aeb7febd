"""Messages that groups have given up: to look at, to try again, or to put away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.client.pages import listed
from penstock.client.requests import PAGE_MAX, DeadLetter, Discard, GetDeadLetter, ListDeadLetters, Redrive, Redriven
from penstock.client.transport import Transport
from penstock.client.words import LIMIT_DEFAULT, Bytes, Time, flag_of, limit_of, where


class DeadLetters:
    """`client.dead_letters`. Which ones are meant is said by what all of them have in common:

    `group`, `ids` (of the letter or of the message), `key`, `reason` (a part of it), `since` and `until` (when they
    were given up).
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: str | Iterable[str] | None = None,
        key: Bytes | None = None,
        reason: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        with_settled: bool = False,
        limit: int = LIMIT_DEFAULT,
    ) -> Sequence[DeadLetter]:
        """The oldest first, partition by partition; with those that were redriven or discarded, if wanted."""
        meant = where(group=group, ids=ids, key=key, reason=reason, since=since, until=until)
        request = ListDeadLetters(topic, meant, flag_of("with_settled", with_settled), PAGE_MAX)
        return await listed(self._transport, request, limit_of(limit))

    async def get(self, id: str) -> DeadLetter:
        """By the id of the letter."""
        return await self._transport.call(GetDeadLetter(id))

    async def redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: str | Iterable[str] | None = None,
        key: Bytes | None = None,
        reason: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        dry_run: bool = False,
        rate: float | None = None,
    ) -> Redriven:
        """Back to the groups that gave them up, no more than `rate` a second.

        In place where the message is still in the log: same id, same place in the order. Otherwise as a copy, which
        all groups of the topic get. With `dry_run`, only says what would be done.
        """
        meant = where(group=group, ids=ids, key=key, reason=reason, since=since, until=until)
        return await self._transport.call(Redrive(topic, meant, flag_of("dry_run", dry_run), rate))

    async def discard(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: str | Iterable[str] | None = None,
        key: Bytes | None = None,
        reason: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> int:
        """They are not listed any more, nor redriven. How many."""
        meant = where(group=group, ids=ids, key=key, reason=reason, since=since, until=until)
        return await self._transport.call(Discard(topic, meant))
