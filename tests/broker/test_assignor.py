from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.assignor import Part, assign

TOPICS = ["clicks", "orders", "payments", "views"]
MEMBERS = [f"m{n}" for n in range(8)]


@dataclass(frozen=True)
class Situation:
    members: dict[str, frozenset[str]]
    partitions: dict[str, int]
    owners: dict[Part, str]

    def assign(self) -> dict[Part, str]:
        return assign(self.members, self.partitions, self.owners)

    def kept(self, assigned: Mapping[Part, str]) -> int:
        return sum(self.owners.get(part) == owner for part, owner in assigned.items())


@st.composite
def situations(draw: st.DrawFn, *, same_topics: bool = False) -> Situation:
    """Owners and partitions that are gone are among them."""
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12)))
    subscriptions = st.frozensets(st.sampled_from(TOPICS))
    if same_topics:
        subscriptions = st.just(draw(subscriptions))
    members = draw(st.dictionaries(st.sampled_from(MEMBERS), subscriptions, max_size=6))
    parts = [Part(topic, number) for topic in TOPICS for number in range(partitions.get(topic, 0) + 1)]
    had = st.sampled_from([None, *draw(st.lists(st.sampled_from(MEMBERS), max_size=5))])
    owners = zip(parts, draw(st.lists(had, min_size=len(parts), max_size=len(parts))), strict=True)
    return Situation(members, partitions, {part: owner for part, owner in owners if owner is not None})


def loads(situation: Situation, assigned: Mapping[Part, str]) -> dict[str, int]:
    return {member: list(assigned.values()).count(member) for member in situation.members}


@settings(max_examples=300)
@given(situations())
def test_every_partition_of_a_topic_somebody_wants_has_an_owner_who_wants_it(situation: Situation) -> None:
    assigned = situation.assign()
    wanted = frozenset[str]().union(*situation.members.values())
    assert assigned.keys() == {
        Part(t, n) for t, count in situation.partitions.items() if t in wanted for n in range(count)
    }
    assert all(part.topic in situation.members[owner] for part, owner in assigned.items())


@settings(max_examples=300)
@given(situations())
def test_no_partition_is_better_off_elsewhere(situation: Situation) -> None:
    assigned = situation.assign()
    load = loads(situation, assigned)
    for part, owner in assigned.items():
        for member, topics in situation.members.items():
            assert part.topic not in topics or load[owner] - load[member] < 2


@settings(max_examples=300)
@given(situations(same_topics=True))
def test_members_with_the_same_topics_differ_by_one_at_most_and_keep_all_they_can(situation: Situation) -> None:
    assigned = situation.assign()
    load = loads(situation, assigned)
    assert max(load.values(), default=0) - min(load.values(), default=0) <= 1

    # The most that any balanced assignment can leave where it is: each member keeps up to the rounded-down average,
    # and as many members as the division leaves over keep one more.
    had = Counter(owner for part, owner in situation.owners.items() if part in assigned and owner in situation.members)
    average, left_over = divmod(len(assigned), max(len(situation.members), 1))
    one_more = sum(count > average for count in had.values())
    assert situation.kept(assigned) == sum(min(count, average) for count in had.values()) + min(left_over, one_more)


@settings(max_examples=300)
@given(situations())
def test_what_is_balanced_stays(situation: Situation) -> None:
    assigned = situation.assign()
    assert assign(situation.members, situation.partitions, assigned) == assigned


@settings(max_examples=300)
@given(situations())
def test_two_partitions_of_a_topic_are_never_swapped(situation: Situation) -> None:
    """Whoever gets a partition of a topic has not given one of it away."""
    assigned = situation.assign()
    moved = {part: owner for part, owner in assigned.items() if situation.owners.get(part) != owner}
    got = {(part.topic, owner) for part, owner in moved.items()}
    gave = {(part.topic, situation.owners.get(part)) for part in moved}
    assert not got & gave


@settings(max_examples=300)
@given(situations(), st.data())
def test_the_order_in_which_things_are_told_does_not_matter(situation: Situation, data: st.DataObject) -> None:
    members = dict(data.draw(st.permutations(list(situation.members.items()))))
    partitions = dict(data.draw(st.permutations(list(situation.partitions.items()))))
    owners = dict(data.draw(st.permutations(list(situation.owners.items()))))
    assert list(assign(members, partitions, owners).items()) == list(situation.assign().items())


def test_a_newcomer_gets_its_share_of_every_topic_and_nothing_else_moves() -> None:
    both = frozenset({"clicks", "orders"})
    partitions = {"clicks": 6, "orders": 6}
    before = assign({"ann": both, "bob": both}, partitions, {})
    after = assign({"ann": both, "bob": both, "eve": both}, partitions, before)
    moved = {part: owner for part, owner in after.items() if before[part] != owner}
    assert Counter((part.topic, owner) for part, owner in moved.items()) == {("clicks", "eve"): 2, ("orders", "eve"): 2}


def test_what_a_member_leaves_behind_goes_to_those_with_least_and_nothing_else_moves() -> None:
    topics = frozenset({"orders"})
    before = assign(dict.fromkeys(("ann", "bob", "eve"), topics), {"orders": 7}, {})
    after = assign(dict.fromkeys(("ann", "eve"), topics), {"orders": 7}, before)
    assert {part for part in after if after[part] != before[part]} == {p for p in before if before[p] == "bob"}
    assert sorted(Counter(after.values()).values()) == [3, 4]


def test_a_member_with_few_topics_is_spared_what_others_can_take() -> None:
    members = {"all": frozenset({"clicks", "orders"}), "some": frozenset({"orders"})}
    assigned = assign(members, {"clicks": 3, "orders": 3}, {})
    assert assigned == {Part(t, n): "all" if t == "clicks" else "some" for t in ("clicks", "orders") for n in range(3)}


def test_topics_with_few_takers_are_given_out_first_so_that_nothing_has_to_move() -> None:
    members = {"ann": frozenset({"a", "b"}), "bob": frozenset({"a", "b"}), "eve": frozenset({"a"})}
    assigned = assign(members, {"a": 2, "b": 1}, {Part("a", 1): "ann"})
    assert assigned == {Part("a", 0): "eve", Part("a", 1): "ann", Part("b", 0): "bob"}


def test_every_process_gets_the_same_answer() -> None:
    """Sets of strings are in another order in every process."""
    program = """if True:
        from penstock.broker.assignor import Part, assign
        topics = [f"t{n}" for n in range(20)]
        members = {f"m{n}": frozenset(topics[n:]) for n in range(7)}
        print(assign(members, {topic: 3 for topic in topics}, {Part("t9", 1): "m1"}))
    """

    def answer(seed: int) -> bytes:
        env = os.environ | {"PYTHONHASHSEED": str(seed)}
        return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout

    assert answer(1) == answer(2) == answer(3)


def test_more_members_than_partitions_leaves_some_with_none() -> None:
    assigned = assign(dict.fromkeys(MEMBERS, frozenset({"orders"})), {"orders": 3}, {})
    assert assigned == {Part("orders", n): f"m{n}" for n in range(3)}


def test_a_thousand_partitions_and_a_hundred_members_take_a_moment() -> None:
    """The worst there is: one member had everything. One topic, many topics, and members who differ in theirs."""
    names = [f"m{n:03}" for n in range(100)]
    many = {f"t{n:04}": 1 for n in range(1000)}
    some = {f"t{n:02}": 10 for n in range(100)}
    mixed = {name: frozenset(list(some)[n % 10 : n % 10 + 50 + n // 3]) for n, name in enumerate(names)}
    for members, partitions in (
        (dict.fromkeys(names, frozenset({"orders"})), {"orders": 1000}),
        (dict.fromkeys(names, frozenset(many)), many),
        (mixed | {"m000": frozenset(some)}, some),
    ):
        owners = {Part(topic, number): "m000" for topic, count in partitions.items() for number in range(count)}
        took = []
        for _ in range(3):
            start = time.thread_time()
            assign(members, partitions, owners)
            took.append(time.thread_time() - start)
        # Around 20 ms; the rest is for machines that are slow or busy.
        assert min(took) < 0.1, took
