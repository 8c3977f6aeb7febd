"""Which member of a group gets which partition.

First how many, then which. A member's share is a number of partitions of each topic it subscribes to: it starts with
what the member has, partitions without an owner go to the lightest share, and the heaviest share gives to the lightest
until no gift would improve the balance. Only then are the partitions themselves dealt out, to their owners first. So
two partitions of a topic are never swapped, and where all subscribe to the same topics, as few move as can.

Everything is looked at in the order of its name: the same group gets the same answer wherever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple


class Part(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class _Share:
    """How many partitions of each topic a member gets; topics of which it gets none are left out."""

    __slots__ = ("counts", "load", "member", "topics")

    def __init__(self, member: str, topics: frozenset[str]) -> None:
        self.member = member
        self.topics = topics
        self.counts: dict[str, int] = {}
        self.load = 0

    def take(self, topic: str) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + 1
        self.load += 1

    def give(self, taker: _Share) -> None:
        topic = next(topic for topic in self.counts if topic in taker.topics)
        count = self.counts.pop(topic)
        if count > 1:
            # Back in at the end: the next gift is of another topic, so that a newcomer gets some of each.
            self.counts[topic] = count - 1
        self.load -= 1
        taker.take(topic)


_load = attrgetter("load")


def assign(
    members: Mapping[str, frozenset[str]], partitions: Mapping[str, int], owners: Mapping[Part, str]
) -> dict[Part, str]:
    """An owner for every partition of every topic that somebody subscribes to.

    `members` says who subscribes to what, `partitions` how many a topic has, `owners` who has a partition now; owners
    and partitions that are gone may be among them.

    Balanced: no member has two or more partitions more than another who could take one of them.
    """
    shares = {member: _Share(member, members[member]) for member in sorted(members)}
    subscribers: dict[str, list[_Share]] = {}
    for share in shares.values():
        for topic in share.topics:
            subscribers.setdefault(topic, []).append(share)
    # Those with the fewest takers first: what is left over of the others can still go where there is room.
    topics = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic))

    orphans: list[str] = []
    for topic in topics:
        for number in range(partitions.get(topic, 0)):
            owner = owners.get(Part(topic, number))
            if owner is not None and owner in shares and topic in shares[owner].topics:
                shares[owner].take(topic)
            else:
                orphans.append(topic)
    for topic in orphans:
        min(subscribers[topic], key=_load).take(topic)
    _level(list(shares.values()))
    return _deal(shares, partitions, owners)


def _level(shares: list[_Share]) -> None:
    """Ends because every gift makes the sum of the squares of the loads smaller."""
    while _level_once(shares):
        pass


def _level_once(shares: list[_Share]) -> bool:
    """Did anything move? The heaviest gives first: one that is about right never gives what it would get back."""
    givers = list(shares)
    moved = False
    while givers:
        giver = max(givers, key=_load)
        lightest_first = sorted(shares, key=_load)
        if giver.load - lightest_first[0].load < 2:
            break
        taker = _taker(giver, lightest_first)
        if taker is None:
            # Nobody can take from it now. Later gifts of others may change that; the next round looks again.
            givers.remove(giver)
        else:
            giver.give(taker)
            moved = True
    return moved


def _taker(giver: _Share, lightest_first: list[_Share]) -> _Share | None:
    for share in lightest_first:
        if giver.load - share.load < 2:
            return None
        if not share.topics.isdisjoint(giver.counts):
            return share
    return None


def _deal(shares: dict[str, _Share], partitions: Mapping[str, int], owners: Mapping[Part, str]) -> dict[Part, str]:
    due: dict[str, dict[str, int]] = {}
    for share in shares.values():
        for topic, count in share.counts.items():
            due.setdefault(topic, {})[share.member] = count
    dealt: dict[Part, str] = {}
    for topic in sorted(due):
        left = due[topic]
        parts = [Part(topic, number) for number in range(partitions[topic])]
        for part in parts:
            owner = owners.get(part)
            if owner is not None and left.get(owner):
                dealt[part] = owner
                left[owner] -= 1
        others = [part for part in parts if part not in dealt]
        takers = [member for member, count in left.items() for _ in range(count)]
        dealt.update(zip(others, takers, strict=True))
    return dict(sorted(dealt.items()))
