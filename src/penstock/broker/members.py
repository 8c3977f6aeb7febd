"""Who is in a group, and who of them may lease from which partition.

`join`, `leave`, `expire` and `partitions_changed` ask the assignor anew and return the partitions that change hands;
all others go on as if nothing had happened. A partition changes hands at once; what its old owner has leased it may
still answer for.

A restart changes nothing: `restore` replays the changes that the calls returned, and the members found in them count as
members who gave their last sign of life just then. Those who join again in time have what they had; the partitions of
the others are given away when their time is up, as those of any member who falls silent. (To give them away at once and
back later would be two moves for each partition, at the worst of times.)

In a `shared` group nobody owns anything: every member may lease from every partition of its topics.

Invariant: every partition of every topic that a member subscribes to has one owner, a member who subscribes to it, and
nothing else has an owner (`shared`: nothing has). `check` says so in code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.broker.assignor import Part, assign
from penstock.errors import MemberNotFound, Overloaded

# Every change looks at every member. Kafka has no limit unless one is set (`group.max.size`).
MEMBERS_MAX = 1_000
HISTORY_MAX = 1_000


class Change(NamedTuple):
    """A partition changed hands, at a time of the monotonic clock, as all times here."""

    time_us: int
    generation: int
    part: Part
    old: str | None
    new: str | None
    reason: str


@dataclass(slots=True)
class _Member:
    topics: frozenset[str]
    session_us: int | None
    deadline_us: int | None
    # Not so: it is known from before a restart, and has not been heard of since.
    joined: bool = True
    turns: int = 0

    def is_silent(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us


class Members:
    """The membership of one group."""

    def __init__(self, *, mode: Literal["sticky", "shared"]) -> None:
        self.mode = mode
        # Goes up whenever somebody's `assigned` changes: callers may keep that while this stays.
        self.generation = 0
        self.history: deque[Change] = deque(maxlen=HISTORY_MAX)
        self._members: dict[str, _Member] = {}
        self._partitions: dict[str, int] = {}
        self._owners: dict[Part, str] = {}

    # --- what there is -----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._members)

    def has(self, name: str) -> bool:
        return name in self._members

    def names(self) -> list[str]:
        return sorted(name for name, member in self._members.items() if member.joined)

    def has_session(self, name: str) -> bool:
        """Whether it must give signs of life; otherwise it lives in this process, and as long as that."""
        member = self._members.get(name)
        return member is not None and (member.session_us is not None or not member.joined)

    @property
    def topics(self) -> frozenset[str]:
        """That anybody subscribes to."""
        return frozenset(self._partitions)

    def owner(self, part: Part) -> str | None:
        return self._owners.get(part)

    def assigned(self, member: str) -> list[Part]:
        if self.mode == "sticky":
            return sorted(part for part, owner in self._owners.items() if owner == member)
        known = self._members.get(member)
        topics = sorted(known.topics) if known else []
        return [Part(topic, number) for topic in topics for number in range(self._partitions[topic])]

    def may_lease(self, member: str, part: Part, now_us: int) -> bool:
        known = self._members.get(member)
        if known is None or not known.joined or known.is_silent(now_us):
            return False
        if self.mode == "shared":
            return part.topic in known.topics and 0 <= part.number < self._partitions[part.topic]
        return self._owners.get(part) == member

    def next_due(self) -> int | None:
        """When to call `expire` next; None if nothing is going to happen by itself."""
        deadlines = (member.deadline_us for member in self._members.values() if member.deadline_us is not None)
        return min(deadlines, default=None)

    # --- what happens ------------------------------------------------------------------------------------

    def join(
        self,
        member: str,
        topics: frozenset[str],
        partitions: Mapping[str, int],
        now_us: int,
        session_us: int | None,
    ) -> list[Change]:
        """Also to change the topics; to join again with the same ones is a heartbeat.

        `partitions` says how many there are of these topics, at least. Without a session, the member stays until it
        leaves.
        """
        known = self._members.get(member)
        if known is None and len(self._members) >= MEMBERS_MAX:
            raise Overloaded(f"the group has {MEMBERS_MAX} members already", members_max=MEMBERS_MAX)
        deadline_us = None if session_us is None else now_us + session_us
        turns = known.turns if known is not None else 0
        self._members[member] = _Member(topics, session_us, deadline_us, turns=turns)
        learnt = self._learn(partitions)
        if known is None or not known.joined:
            return self._reassign(now_us, f"joined {member}")
        if known.topics != topics:
            return self._reassign(now_us, f"topics of {member} changed")
        return self._reassign(now_us, "partitions changed") if learnt else []

    def heartbeat(self, member: str, now_us: int) -> None:
        """A member that was silent for too long is welcome until `expire` has given its partitions away."""
        known = self._members.get(member)
        if known is None or not known.joined:
            raise MemberNotFound(f"{member} is not a member (any more): join again", member=member)
        if known.session_us is not None:
            known.deadline_us = now_us + known.session_us

    def next_turn(self, member: str) -> int:
        known = self._members[member]
        known.turns += 1
        return known.turns - 1

    def leave(self, members: Iterable[str], now_us: int) -> list[Change]:
        """Assigns once, however many leave. Nothing happens to those that are gone already."""
        leaving = [member for member in members if member in self._members]
        return self._remove(leaving, now_us, f"left {leaving[0]}{_others(leaving)}") if leaving else []

    def expire(self, now_us: int) -> list[Change]:
        """Gives away what belonged to members that were silent for too long."""
        silent = sorted(name for name, member in self._members.items() if member.is_silent(now_us))
        if not silent:
            return []
        return self._remove(silent, now_us, f"session of {silent[0]}{_others(silent)} ran out")

    def partitions_changed(self, partitions: Mapping[str, int], now_us: int) -> list[Change]:
        """Of the topics named; one with 0 partitions is gone."""
        return self._reassign(now_us, "partitions changed") if self._learn(partitions) else []

    def restore(
        self, changes: Iterable[Change], partitions: Mapping[str, int], now_us: int, rejoin_us: int
    ) -> list[Change]:
        """What was returned before a restart, oldest first; the last change of each partition is enough.

        `partitions` names all topics that are still there.
        """
        assert not self._members, "a group is restored before anybody joins"
        for change in changes:
            self._apply(change)
        topics: dict[str, set[str]] = {}
        for part, owner in self._owners.items():
            topics.setdefault(owner, set()).add(part.topic)
        for owner, owned in topics.items():
            self._members[owner] = _Member(frozenset(owned), None, now_us + rejoin_us, joined=False)
        self._learn(partitions)
        return self._reassign(now_us, "restart")

    # --- how ---------------------------------------------------------------------------------------------

    def _learn(self, partitions: Mapping[str, int]) -> bool:
        """Is any of it news? Only topics that somebody subscribes to are kept."""
        before = self._partitions
        self._partitions = {topic: partitions.get(topic, before.get(topic, 0)) for topic in self._subscribed()}
        return self._partitions != before

    def _subscribed(self) -> frozenset[str]:
        return frozenset[str]().union(*(member.topics for member in self._members.values()))

    def _remove(self, names: list[str], now_us: int, reason: str) -> list[Change]:
        for name in names:
            del self._members[name]
        self._learn({})
        return self._reassign(now_us, reason)

    def _reassign(self, now_us: int, reason: str) -> list[Change]:
        owners: dict[Part, str] = {}
        if self.mode == "sticky":
            topics = {name: member.topics for name, member in self._members.items()}
            owners = assign(topics, self._partitions, self._owners)
        moved = sorted(part for part in owners.keys() | self._owners.keys() if owners.get(part) != self.owner(part))
        if moved or self.mode == "shared":
            self.generation += 1
        changes = [Change(now_us, self.generation, part, self.owner(part), owners.get(part), reason) for part in moved]
        for change in changes:
            self._apply(change)
        return changes

    def _apply(self, change: Change) -> None:
        if change.new is None:
            self._owners.pop(change.part, None)
        else:
            self._owners[change.part] = change.new
        self.generation = max(self.generation, change.generation)
        self.history.append(change)

    def check(self) -> None:
        """The invariant at the top."""
        assert len(self._members) <= MEMBERS_MAX
        assert self._partitions.keys() == self._subscribed()
        parts = {Part(topic, number) for topic, count in self._partitions.items() for number in range(count)}
        assert self._owners.keys() == (parts if self.mode == "sticky" else set()), "a partition without an owner"
        for part, owner in self._owners.items():
            assert part.topic in self._members[owner].topics, "an owner who does not subscribe"


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
