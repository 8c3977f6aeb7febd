"""The consumers of all groups: who joined, who is alive, and which partitions each may lease from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.broker.assignor import Part
from penstock.broker.members import Change, Members
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import MemberNotFound

# How long the partitions of an ordered group wait for the leases of the member they are taken from.
DRAIN_US = 30_000_000


class Consumers:
    """Assignments are written to the deliveries logs of the partitions, and read from there after a restart."""

    def __init__(self, topic: Callable[[str], Topic], clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._groups: dict[str, Members] = {}

    def of(self, group: str) -> Members | None:
        return self._groups.get(group)

    def join(
        self, group: str, settings: GroupSettings, member: str, topics: Iterable[str], session_us: int | None
    ) -> None:
        """Also a heartbeat."""
        subscribed = frozenset(topics)
        partitions = {name: len(self._topic(name).partitions) for name in subscribed}
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = self._restored(group, settings, partitions)
        self._write(group, members.join(member, subscribed, partitions, self._clock.now_us(), session_us))

    def _restored(self, group: str, settings: GroupSettings, partitions: dict[str, int]) -> Members:
        drain_us = DRAIN_US if settings.ordering != "none" else 0
        members = Members(mode=settings.assignment, drain_us=drain_us)
        now = self._clock.now_us()
        known = []
        for name, count in partitions.items():
            for number in range(count):
                owner = self._topic(name).partition(number).groups.member_of(group)
                if owner is not None:
                    known.append(Change(now, 0, Part(name, number), None, owner, "restart"))
        members.restore(known, partitions, now, settings.session_us)
        return members

    def heartbeat(self, group: str, member: str) -> None:
        self._known(group).heartbeat(member, self._clock.now_us())

    def leave(self, group: str, member: str) -> None:
        members = self._groups.get(group)
        if members is not None:
            self._write(group, members.leave(member, self._clock.now_us()))

    def forget(self, group: str) -> None:
        self._groups.pop(group, None)

    def tick(self) -> None:
        for group, members in self._groups.items():
            self._write(group, members.expire(self._clock.now_us()))

    def next_due(self, group: str) -> int | None:
        members = self._groups.get(group)
        return members.next_due() if members is not None else None

    def topic_changed(self, topic: str, partitions: int) -> None:
        for group, members in self._groups.items():
            self._write(group, members.partitions_changed({topic: partitions}, self._clock.now_us()))

    def leasable(self, group: str, member: str, topic: str) -> list[int]:
        """The partitions of the topic that this member may lease from now. To ask is a sign of life."""
        members, now = self._known(group), self._clock.now_us()
        members.heartbeat(member, now)
        for part in members.draining(now):
            if part.topic == topic and self._is_drained(group, part, members.owner(part)):
                members.drained(part)
        numbers = range(len(self._topic(topic).partitions))
        return [number for number in numbers if members.may_lease(member, Part(topic, number), now)]

    def _is_drained(self, group: str, part: Part, owner: str | None) -> bool:
        groups = self._topic(part.topic).partition(part.number).groups
        if not groups.has(group):
            return True
        return all(lease.consumer == owner for lease in groups.state(group).leases.values())

    def _known(self, group: str) -> Members:
        try:
            return self._groups[group]
        except KeyError:
            raise MemberNotFound(f"nobody has joined group {group} since the broker started", group=group) from None

    def _write(self, group: str, changes: list[Change]) -> None:
        for change in changes:
            topic = self._topic(change.part.topic)
            if change.part.number < len(topic.partitions):
                topic.partition(change.part.number).groups.assign(group, change.new, change.generation, change.reason)
                topic.bell.ring()
