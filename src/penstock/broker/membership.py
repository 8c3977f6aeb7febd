"""The consumers of all groups: who joined, who is alive, and which partitions each may lease from.

A partition that changes hands moves at once, also in a group with an order: what its old owner still holds is leased,
and a leased message keeps its key, or its partition, to itself whoever asks (`ordering.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from penstock.broker.assignor import Part
from penstock.broker.joins import Joins
from penstock.broker.members import Change, Members
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import DiskFull, MemberNotFound, TopicNotFound
from penstock.limits import DEFAULT_LIMITS, check_count


class Consumers:
    """Assignments are written to the deliveries logs of the partitions, and read from there after a restart."""

    def __init__(self, topics: Mapping[str, Topic], clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self.limits = DEFAULT_LIMITS
        self._groups: dict[str, Members] = {}
        self.joins = Joins()

    def of(self, group: str) -> Members | None:
        return self._groups.get(group)

    def join(
        self, group: str, settings: GroupSettings, member: str, topics: Iterable[str], session_us: int | None
    ) -> None:
        """Also a heartbeat."""
        subscribed = frozenset(topics)
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = self._restored(group, settings)
        if not members.has(member):
            count = sum(each.count for each in self._groups.values())
            check_count("members_max", count, self.limits, "members of groups", "stop consumers")
        partitions = {name: self._on(name).count for name in subscribed}
        before = members.generation
        changes = members.join(member, subscribed, partitions, self._clock.monotonic_us(), session_us)
        self._write(group, changes)
        if members.generation != before:
            # Also in a shared group, where no partition changes hands.
            for name in subscribed:
                self._on(name).bell.ring(group)

    def _restored(self, group: str, settings: GroupSettings) -> Members:
        """Who had what before a restart, and may come back for it."""
        members = Members(mode=settings.assignment)
        now = self._clock.monotonic_us()
        known, partitions = [], {}
        for name, topic in self._topics.items():
            partitions[name] = topic.count
            for number, partition in topic.numbered:
                owner = partition.groups.owner(group)
                # A member without a session lived in the process that is no more.
                if owner is not None and owner.member is not None and owner.is_lasting:
                    known.append(Change(now, owner.generation, Part(name, number), None, owner.member, "restart"))
        self._write(group, members.restore(known, partitions, now, settings.session_us))
        return members

    def heartbeat(self, group: str, member: str) -> None:
        self._known(group).heartbeat(member, self._clock.monotonic_us())

    def next_turn(self, group: str, member: str) -> int:
        """How often it has asked: each time it begins with another topic. To ask is a sign of life."""
        members = self._known(group)
        members.heartbeat(member, self._clock.monotonic_us())
        return members.next_turn(member)

    def leave(self, group: str, settings: GroupSettings, leaving: Iterable[str]) -> None:
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = self._restored(group, settings)
        self._write(group, members.leave(leaving, self._clock.monotonic_us()))

    def forget(self, group: str) -> None:
        self._groups.pop(group, None)

    def tick(self) -> None:
        for group, members in self._groups.items():
            self._write(group, members.expire(self._clock.monotonic_us()))

    def next_due(self, group: str) -> int | None:
        members = self._groups.get(group)
        return members.next_due() if members is not None else None

    def topic_changed(self, topic: str, partitions: int) -> None:
        """0 if it is gone."""
        for group, members in self._groups.items():
            self._write(group, members.partitions_changed({topic: partitions}, self._clock.monotonic_us()))
        if topic in self._topics:
            self._topics[topic].bell.ring()

    def leasable(self, group: str, member: str, topic: str) -> list[int]:
        """The partitions of the topic that this member may lease from now. To ask is a sign of life."""
        members, now = self._known(group), self._clock.monotonic_us()
        members.heartbeat(member, now)
        numbers = range(self._on(topic).count)
        return [number for number in numbers if members.may_lease(member, Part(topic, number), now)]

    def _on(self, name: str) -> Topic:
        try:
            return self._topics[name]
        except KeyError:
            raise TopicNotFound.named(name) from None

    def _known(self, group: str) -> Members:
        try:
            return self._groups[group]
        except KeyError:
            raise MemberNotFound(f"nobody has joined group {group} since the broker started", group=group) from None

    def _write(self, group: str, changes: list[Change]) -> None:
        for change in changes:
            topic = self._topics.get(change.part.topic)
            if topic is not None and change.part.number < topic.count:
                lasting = change.new is not None and self._has_session(group, change.new)
                # Without room for it on the disk it is in memory only, as after a crash that forgets it.
                with suppress(DiskFull):
                    topic.partition(change.part.number).groups.assign(
                        group, change.new, change.generation, change.reason, is_lasting=lasting
                    )
                topic.bell.ring(group)

    def _has_session(self, group: str, member: str) -> bool:
        members = self._groups.get(group)
        return members is not None and members.has_session(member)
