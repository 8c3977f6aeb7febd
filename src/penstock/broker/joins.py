"""Joins under way. A member that leaves a group must not become a member by a join that it asked for before.

A join takes a while: the group may have to be created, and in a cluster its coordinator asks other nodes. A leave does
not wait for that. It invalidates every join of the member that has begun and not ended, and a join checks this in the
moment in which it takes effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import MemberNotFound


class Join:
    """One join under way."""

    __slots__ = ("_group", "_member", "is_void")

    def __init__(self, group: str, member: str) -> None:
        self._group = group
        self._member = member
        self.is_void = False

    def check(self) -> None:
        """Raise MemberNotFound if the member has left since the join began."""
        if self.is_void:
            raise MemberNotFound(
                f"{self._member} left group {self._group} while it was joining: join again",
                group=self._group,
                member=self._member,
            )


class Joins:
    """Invariant: only joins under way are kept, and none that a leave has invalidated."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str], set[Join]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._under_way.values()))

    @contextmanager
    def begin(self, group: str, member: str) -> Iterator[Join]:
        join = Join(group, member)
        self._under_way.setdefault((group, member), set()).add(join)
        try:
            yield join
        finally:
            others = self._under_way.get((group, member))
            if others is not None and join in others:
                others.discard(join)
                if not others:
                    del self._under_way[group, member]

    def invalidate(self, group: str, member: str) -> None:
        """The member leaves. A join that begins later is not affected."""
        for join in self._under_way.pop((group, member), ()):
            join.is_void = True
