from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.assignor import Part
from penstock.broker.members import HISTORY_MAX, MEMBERS_MAX, Change, Members
from penstock.errors import MemberNotFound, Overloaded

SESSION = 100
REJOIN = 300
ORDERS = frozenset({"orders"})


def sticky() -> Members:
    return Members(mode="sticky")


def join(members: Members, *names: str, at: int = 0, partitions: int = 4) -> list[Change]:
    return [c for name in names for c in members.join(name, ORDERS, {"orders": partitions}, at, SESSION)]


def leasable(members: Members, member: str, at: int, partitions: int = 4) -> list[int]:
    return [n for n in range(partitions) if members.may_lease(member, Part("orders", n), at)]


def moves(changes: list[Change]) -> list[tuple[int, str | None, str | None, str]]:
    return [(change.part.number, change.old, change.new, change.reason) for change in changes]


def test_the_first_member_gets_everything_at_once() -> None:
    members = sticky()
    assert moves(join(members, "ann")) == [(n, None, "ann", "joined ann") for n in range(4)]
    assert leasable(members, "ann", at=0) == [0, 1, 2, 3]
    assert members.assigned("ann") == [Part("orders", n) for n in range(4)]
    assert members.generation == 1


def test_partitions_change_hands_at_once_and_only_those_that_have_to() -> None:
    members = sticky()
    join(members, "ann")
    assert moves(join(members, "bob", at=10)) == [(2, "ann", "bob", "joined bob"), (3, "ann", "bob", "joined bob")]
    assert (leasable(members, "ann", at=10), leasable(members, "bob", at=10)) == ([0, 1], [2, 3])
    assert moves(members.leave(["bob"], 20)) == [(2, "bob", "ann", "left bob"), (3, "bob", "ann", "left bob")]
    assert (leasable(members, "ann", at=20), leasable(members, "bob", at=20)) == ([0, 1, 2, 3], [])


def test_a_member_that_comes_and_goes_takes_and_leaves_only_its_own() -> None:
    members = sticky()
    join(members, "eve", "bob", partitions=6)
    assert {(change.old, change.new) for change in join(members, "ann", partitions=6)} == {
        ("bob", "ann"),
        ("eve", "ann"),
    }
    assert {change.old for change in members.leave(["ann"], 10)} == {"ann"}


def test_a_member_that_falls_silent_may_not_lease_and_loses_its_partitions() -> None:
    members = sticky()
    join(members, "ann", "bob")
    members.heartbeat("ann", 60)
    assert leasable(members, "bob", at=SESSION - 1) == [2, 3]
    assert leasable(members, "bob", at=SESSION) == []
    assert members.expire(SESSION - 1) == []
    reason = "session of bob ran out"
    assert moves(members.expire(SESSION)) == [(2, "bob", "ann", reason), (3, "bob", "ann", reason)]
    assert members.names() == ["ann"]
    with pytest.raises(MemberNotFound):
        members.heartbeat("bob", SESSION)


def test_a_late_heartbeat_is_in_time_while_nothing_was_given_away() -> None:
    members = sticky()
    join(members, "ann")
    members.heartbeat("ann", SESSION + 5)
    assert members.expire(SESSION + 5) == []
    assert leasable(members, "ann", at=SESSION + 5) == [0, 1, 2, 3]


def test_several_that_fall_silent_together_are_one_change() -> None:
    members = sticky()
    join(members, "ann", "bob", "eve")
    generation = members.generation
    members.heartbeat("eve", 50)
    changes = members.expire(SESSION)
    assert {change.reason for change in changes} == {"session of ann (and 1 more) ran out"}
    assert {change.new for change in changes} == {"eve"}
    assert members.generation == generation + 1


def test_a_member_of_the_same_process_has_no_session_to_run_out() -> None:
    members = sticky()
    members.join("ann", ORDERS, {"orders": 4}, 0, None)
    members.heartbeat("ann", 1)
    assert members.next_due() is None
    assert members.expire(1 << 60) == []
    assert leasable(members, "ann", at=1 << 60) == [0, 1, 2, 3]


def test_to_join_again_with_the_same_topics_is_a_heartbeat() -> None:
    members = sticky()
    join(members, "ann")
    assert join(members, "ann", at=50) == []
    assert members.generation == 1
    assert members.next_due() == 50 + SESSION


def test_whoever_joins_again_may_bring_news_of_partitions() -> None:
    members = sticky()
    join(members, "ann")
    assert moves(join(members, "ann", at=50, partitions=5)) == [(4, None, "ann", "partitions changed")]


def test_a_member_may_change_its_topics() -> None:
    members = sticky()
    join(members, "ann", partitions=1)
    changes = members.join("ann", frozenset({"clicks"}), {"clicks": 1, "orders": 1}, 10, SESSION)
    assert [(change.part.topic, change.old, change.new) for change in changes] == [
        ("clicks", None, "ann"),
        ("orders", "ann", None),
    ]
    assert {change.reason for change in changes} == {"topics of ann changed"}


def test_partitions_that_are_added_and_topics_that_go_away_disturb_no_others() -> None:
    members = sticky()
    join(members, "ann", partitions=2)
    reason = "partitions changed"
    assert moves(members.partitions_changed({"orders": 3, "unheard-of": 5}, 10)) == [(2, None, "ann", reason)]
    assert leasable(members, "ann", at=10) == [0, 1, 2]
    assert members.partitions_changed({"orders": 3}, 10) == []
    assert [change.new for change in members.partitions_changed({"orders": 0}, 10)] == [None] * 3
    assert leasable(members, "ann", at=10) == []


def test_a_topic_may_be_created_after_somebody_subscribed_to_it() -> None:
    members = sticky()
    assert members.join("ann", ORDERS, {}, 0, SESSION) == []
    assert [change.new for change in members.partitions_changed({"orders": 2}, 10)] == ["ann"] * 2


def test_in_a_shared_group_any_member_may_lease_from_any_partition_of_its_topics() -> None:
    members = Members(mode="shared")
    assert join(members, "ann", "bob", "eve", partitions=2) == []
    members.join("zoe", frozenset({"clicks"}), {"clicks": 1}, 0, SESSION)
    assert all(leasable(members, name, at=0) == [0, 1] for name in ("ann", "bob", "eve"))
    assert leasable(members, "zoe", at=0) == []
    assert members.assigned("bob") == [Part("orders", 0), Part("orders", 1)]
    generation = members.generation
    assert members.leave(["ann"], 10) == []
    assert leasable(members, "ann", at=10) == []
    assert leasable(members, "bob", at=10) == [0, 1]
    assert leasable(members, "bob", at=SESSION) == []
    assert members.generation == generation + 1


def test_after_a_restart_those_who_come_back_have_what_they_had() -> None:
    before = sticky()
    changes = join(before, "ann", "bob", "eve")
    after = sticky()
    assert after.restore(changes, {"orders": 4}, 1_000, REJOIN) == []
    assert after.generation == before.generation
    assert list(after.history) == changes
    with pytest.raises(MemberNotFound):
        after.heartbeat("bob", 1_010)
    assert leasable(after, "bob", at=1_010) == [], "it has not come back"
    assert join(after, "bob", "ann", at=1_010) == []
    assert leasable(after, "bob", at=1_010) == leasable(before, "bob", at=0) != []
    assert after.names() == ["ann", "bob"]
    after.heartbeat("ann", 1_250)
    after.heartbeat("bob", 1_250)
    assert after.next_due() == 1_300
    assert moves(after.expire(1_300)) == [(1, "eve", "ann", "session of eve ran out")]


def test_a_topic_that_is_gone_after_a_restart_has_no_owners() -> None:
    changes = join(sticky(), "ann")
    after = sticky()
    assert {change.new for change in after.restore(changes, {}, 1_000, REJOIN)} == {None}
    after.check()


def test_a_group_restored_as_shared_has_no_owners() -> None:
    changes = join(sticky(), "ann")
    after = Members(mode="shared")
    assert {change.new for change in after.restore(changes, {"orders": 4}, 1_000, REJOIN)} == {None}
    join(after, "bob", at=1_000)
    assert leasable(after, "bob", at=1_000) == [0, 1, 2, 3]
    after.check()


def test_to_leave_twice_is_to_leave() -> None:
    members = sticky()
    join(members, "ann")
    assert len(members.leave(["ann"], 10)) == 4
    assert members.leave(["ann"], 10) == []


def test_a_group_has_a_limit() -> None:
    members = Members(mode="shared")
    join(members, *(f"m{n}" for n in range(MEMBERS_MAX)))
    with pytest.raises(Overloaded):
        join(members, "one more")
    join(members, "m7")
    members.leave(["m7"], 0)
    join(members, "one more")


def test_the_history_has_a_limit() -> None:
    members = sticky()
    for at in range(HISTORY_MAX):
        join(members, "ann", at=at)
        members.leave(["ann"], at)
    assert len(members.history) == HISTORY_MAX
    assert members.history[-1].reason == "left ann"


# --- churn ------------------------------------------------------------------------------------------------

NAMES = ["ann", "bob", "eve", "joe", "zoe"]
TOPICS = ["clicks", "orders"]
PARTS = [Part(topic, number) for topic in TOPICS for number in range(6)]


class MembersMachine(RuleBasedStateMachine):
    """Members come and go; the model remembers who was heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.partitions = {"clicks": 2, "orders": 3}
        self.topics: dict[str, frozenset[str]] = {}
        self.sessions: dict[str, int | None] = {}
        self.heard: dict[str, int] = {}
        self.journal: list[Change] = []

    @initialize(mode=st.sampled_from(["sticky", "sticky", "shared"]))
    def start(self, mode: Literal["sticky", "shared"]) -> None:
        self.mode = mode
        self.members = Members(mode=mode)

    # What the model says.

    def alive(self) -> list[str]:
        def lasts(name: str) -> bool:
            session = self.sessions[name]
            return session is None or self.now < self.heard[name] + session

        return [name for name in sorted(self.topics) if lasts(name)]

    def may_lease(self) -> dict[Part, list[str]]:
        return {part: [name for name in NAMES if self.members.may_lease(name, part, self.now)] for part in PARTS}

    def changed(self, before: dict[Part, list[str]], changes: list[Change]) -> None:
        """Whoever could lease still can, unless the partition is among the changes or it is gone itself."""
        self.journal += changes
        for change in changes:
            assert change.old != change.new
            assert change.new == self.members.owner(change.part)
        moved = {change.part for change in changes}
        assert len(moved) == len(changes), "nothing moves twice"
        after = self.may_lease()
        for part in PARTS:
            if part not in moved:
                wanted = [n for n in before[part] if part.topic in self.topics.get(n, ()) and self.exists(part)]
                assert set(wanted) <= set(after[part]), f"{part} was not moved, and pauses"

    def exists(self, part: Part) -> bool:
        return part.number < self.partitions[part.topic]

    # What happens.

    @rule(
        name=st.sampled_from(NAMES),
        topics=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        session=st.sampled_from([None, SESSION, SESSION]),
    )
    def join(self, name: str, topics: frozenset[str], session: int | None) -> None:
        before = self.may_lease()
        same = self.topics.get(name) == topics
        changes = self.members.join(name, topics, self.partitions, self.now, session)
        assert not (same and changes)
        self.topics[name], self.sessions[name], self.heard[name] = topics, session, self.now
        self.changed(before, changes)

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name: str) -> None:
        if name in self.topics:
            self.members.heartbeat(name, self.now)
            self.heard[name] = self.now
        else:
            with pytest.raises(MemberNotFound):
                self.members.heartbeat(name, self.now)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        before = self.may_lease()
        self.topics.pop(name, None)
        self.changed(before, self.members.leave([name], self.now))

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 6))
    def partitions_change(self, topic: str, count: int) -> None:
        before = self.may_lease()
        self.partitions[topic] = count
        self.changed(before, self.members.partitions_changed(self.partitions, self.now))

    @rule(by=st.sampled_from([1, 20, 50, SESSION]), expire=st.booleans())
    def time_passes(self, by: int, expire: bool) -> None:
        before = self.may_lease()
        self.now += by
        alive = self.alive()
        after = self.may_lease()
        for part in PARTS:
            assert {name for name in before[part] if name in alive} <= set(after[part])
        if expire:
            self.expire()

    def expire(self) -> None:
        before = self.may_lease()
        for name in self.topics.keys() - set(self.alive()):
            del self.topics[name]
        self.changed(before, self.members.expire(self.now))
        due = self.members.next_due()
        assert due is None or due > self.now

    @precondition(lambda self: self.mode == "sticky")
    @rule(again=st.lists(st.sampled_from(NAMES), unique=True))
    def restart(self, again: list[str]) -> None:
        """In whatever order those who were there come back, they have what they had."""
        old = self.members
        self.members = Members(mode="sticky")
        topics, self.topics = self.topics, {}
        assert self.members.restore(self.journal, self.partitions, self.now, REJOIN) == []
        assert self.members.generation == old.generation
        for name in again:
            if name in topics:
                assert self.members.join(name, topics[name], self.partitions, self.now, self.sessions[name]) == []
                self.topics[name], self.heard[name] = topics[name], self.now
                assert self.members.assigned(name) == old.assigned(name)

    @rule()
    def settle(self) -> None:
        """Time passes, and those who are alive stay so. Then everything is theirs."""
        self.expire()
        for _ in range(8):
            for name in self.alive():
                self.heartbeat(name)
            self.now += SESSION // 2
            self.expire()
        wanted = {topic for topics in self.topics.values() for topic in topics}
        for part, names in self.may_lease().items():
            who = [name for name in sorted(self.topics) if part.topic in self.topics[name]]
            if part.topic not in wanted or not self.exists(part):
                assert names == []
            elif self.mode == "sticky":
                assert len(names) == 1
                assert names[0] in who
            else:
                assert names == who

    # What is always so.

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "members"):
            return
        self.members.check()
        alive = self.alive()
        for part, names in self.may_lease().items():
            assert set(names) <= set(alive), "the dead do not lease"
            if self.mode == "shared":
                assert names == [name for name in alive if part.topic in self.topics[name] and self.exists(part)]
                continue
            owner = self.members.owner(part)
            assert names == ([owner] if owner in alive else []), "a partition that waits"


MembersMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
test_members_that_come_and_go_agree_with_the_model = MembersMachine.TestCase
