"""Consumers who came through the doors of this node, as members of their groups.

They join at whoever coordinates the group, for a session, and are heard of there as often as that takes while they are
here. A consumer may come to another node the next time: nobody but itself takes it out of its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.broker.catalog import GroupRecord
from penstock.broker.joins import Joins
from penstock.client.placement import Coordinator, KeepAlive
from penstock.errors import PenstockError
from penstock.server.forwarding.way import Way

# Of a session: so often somebody is heard of, at least. One that is not a member any more, and does not know it, gets
# nothing until then.
_SHARE, _HEARD_S_MAX = 5, 2.0
# A coordinator that has not answered by then may hang.
ANSWER_S = 3.0
# Until a group is known here, which others have made a moment ago.
_SESSION_US = 1_000_000
# Those who have not been heard of for a while are forgotten when there are so many.
_MANY = 10_000
# So many at a time join anew when the coordinator of their group has changed.
_JOINING_MAX = 50

Member = tuple[str, str]


class Groups(Protocol):
    """What this node knows of them."""

    def coordinator(self, group: str) -> Coordinator: ...

    def group_record(self, group: str) -> GroupRecord | None: ...

    def way(self, node: str) -> Way: ...


# Joins at the coordinator of the group, whoever that is.
Join = Callable[[str, str, Sequence[str], Mapping[str, Any], str], Awaitable[None]]


@dataclass(slots=True)
class _Joined:
    """`generation` is that of the group, once it is known here: another one has the same name when it is made anew."""

    topics: tuple[str, ...]
    settings: Mapping[str, Any]
    owner: str
    coordinator: str
    heard_at: float
    generation: int | None


class Standing:
    """Belongs to one event loop."""

    def __init__(self, groups: Groups, join: Join) -> None:
        self._groups = groups
        self._join = join
        self._loop = asyncio.get_running_loop()
        self._joined: dict[Member, _Joined] = {}
        self._joins = Joins()
        self._many = _MANY
        self._due: set[Member] = set()
        self._keeping: asyncio.Task[None] | None = None

    async def join(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """To join again with the same is a heartbeat, which costs nothing if there was one a moment ago."""
        known = self._joined.get((group, consumer))
        if known is not None and (known.topics, known.settings) == (tuple(topics), settings):
            if self._is_current(group, known) and not self._is_due(group, known):
                return
            with self._joins.begin(group, consumer) as join:
                is_member = self._is_current(group, known) and await self._is_alive(group, consumer, known)
                # It may have left while the coordinator was asked.
                join.check()
            if is_member:
                return
        await self._anew(group, consumer, tuple(topics), dict(settings), owner)

    async def again(self, group: str, consumer: str) -> bool:
        """Whether it could, because it had joined before."""
        known = self._joined.pop((group, consumer), None)
        if known is not None:
            await self._anew(group, consumer, known.topics, known.settings, known.owner)
        return known is not None

    async def _anew(
        self, group: str, consumer: str, topics: tuple[str, ...], settings: Mapping[str, Any], owner: str
    ) -> None:
        now = self._loop.time()
        coordinator = self._groups.coordinator(group).node
        with self._joins.begin(group, consumer) as join:
            await self._join(group, consumer, topics, settings, owner)
            # The coordinator may have let it join before it heard that it leaves.
            join.check()
        record = self._groups.group_record(group)
        generation = None if record is None else record.generation
        self._joined[group, consumer] = _Joined(topics, settings, owner, coordinator, now, generation)
        if len(self._joined) > self._many:
            self._forget_old()
            self._many = max(_MANY, 2 * len(self._joined))

    def has(self, group: str, consumer: str) -> bool:
        """It has joined, and its session is not over by what is known here."""
        known = self._joined.get((group, consumer))
        return known is not None and self._loop.time() - known.heard_at <= self._session_s(group)

    def forget(self, group: str, consumer: str) -> None:
        """It leaves."""
        self._joins.invalidate(group, consumer)
        self._joined.pop((group, consumer), None)

    # --- what is known -----------------------------------------------------------------------------------

    def _is_current(self, group: str, known: _Joined) -> bool:
        record = self._groups.group_record(group)
        if known.generation is None and record is not None:
            known.generation = record.generation
        generation = None if record is None else record.generation
        return known.coordinator == self._groups.coordinator(group).node and known.generation == generation

    def _is_due(self, group: str, known: _Joined) -> bool:
        return self._loop.time() - known.heard_at > min(self._session_s(group) / _SHARE, _HEARD_S_MAX)

    def _session_s(self, group: str) -> float:
        record = self._groups.group_record(group)
        return (_SESSION_US if record is None else record.settings.session_us) / 1e6

    async def _is_alive(self, group: str, consumer: str, known: _Joined) -> bool:
        """Heard of, and still a member. If nobody can be asked, it is one for as long as it can't be missed."""
        now = self._loop.time()
        try:
            async with asyncio.timeout(ANSWER_S):
                (is_member,) = await self._groups.way(known.coordinator).call(KeepAlive(((group, consumer),)))
        except (PenstockError, TimeoutError):
            return now - known.heard_at < self._session_s(group) / 2
        if is_member:
            known.heard_at = now
        return is_member

    def _forget_old(self) -> None:
        """Whose session is over, unless somebody else has heard of them."""
        now = self._loop.time()
        for (group, consumer), known in list(self._joined.items()):
            record = self._groups.group_record(group)
            if record is None or now - known.heard_at > record.settings.session_us / 1e6:
                del self._joined[group, consumer]

    # --- those who wait here -----------------------------------------------------------------------------

    def heartbeat(self, group: str, consumer: str) -> None:
        known = self._joined.get((group, consumer))
        if known is not None and (not self._is_current(group, known) or self._is_due(group, known)):
            self._due.add((group, consumer))
            if self._keeping is None:
                self._keeping = self._loop.create_task(self._keep())
                self._keeping.add_done_callback(self._kept)

    async def _keep(self) -> None:
        """One question for all that one node coordinates."""
        due, self._due = self._due, set()
        now = self._loop.time()
        by_node: dict[str, list[Member]] = {}
        lost: list[Member] = []
        for member in due:
            known = self._joined.get(member)
            if known is not None and self._is_current(member[0], known):
                by_node.setdefault(known.coordinator, []).append(member)
            elif known is not None:
                lost.append(member)
        for node, members in by_node.items():
            try:
                async with asyncio.timeout(ANSWER_S):
                    alive = await self._groups.way(node).call(KeepAlive(tuple(members)))
            except (PenstockError, TimeoutError):
                # Whoever coordinates them next is known at the next round, or this one answers then.
                continue
            for member, is_member in zip(members, alive, strict=True):
                if not is_member:
                    lost.append(member)
                elif member in self._joined:
                    self._joined[member].heard_at = now
        for at in range(0, len(lost), _JOINING_MAX):
            await asyncio.gather(*[self._rejoined(member) for member in lost[at : at + _JOINING_MAX]])

    async def _rejoined(self, member: Member) -> None:
        known = self._joined.get(member)
        try:
            if known is not None:
                await self._anew(*member, known.topics, known.settings, known.owner)
        except PenstockError:
            # What is wrong will be heard by whoever asks for messages.
            self._joined.pop(member, None)

    def _kept(self, task: asyncio.Task[None]) -> None:
        self._keeping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "heartbeats failed", "exception": error, "task": task})

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
