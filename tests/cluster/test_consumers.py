"""Who may lease from what, in a cluster: by what the partitions know, and by nobody else's word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.bell import Bell
from penstock.broker.members import Change
from penstock.broker.settings import GroupSettings
from penstock.client.placement import Owner
from penstock.cluster.consumers import ClusterConsumers
from penstock.errors import NotCoordinator
from penstock.testing import ManualClock


class Told:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, group: str, change: Change, is_lasting: bool) -> None:
        assert group == "g"
        assert is_lasting is (change.new is not None)
        self.changes.append(change)

    def owners(self) -> dict[int, str | None]:
        return {change.part.number: change.new for change in self.changes}


def consumers(told: Told, *, count: int = 4, here: dict[int, str | None] | None = None) -> ClusterConsumers:
    groups = {
        number: SimpleNamespace(
            groups=SimpleNamespace(
                owner=lambda group, member=member: SimpleNamespace(member=member), has=lambda group: group == "g"
            )
        )
        for number, member in (here or {}).items()
    }
    topic: Any = SimpleNamespace(count=count, numbered=list(groups.items()), here=groups, bell=Bell())
    catalog: Any = SimpleNamespace(group=lambda name: SimpleNamespace(settings=GroupSettings()))
    made = ClusterConsumers({"t": topic}, ManualClock(), catalog)
    made.decided = told
    return made


def test_a_coordinator_shares_out_partitions_wherever_they_are_led() -> None:
    told = Told()
    group = consumers(told)
    group.begin("g", GroupSettings(), [], term=7)
    group.join("g", GroupSettings(), "m1", ["t"], 1_000_000)
    assert told.owners() == dict.fromkeys(range(4), "m1")
    group.join("g", GroupSettings(), "m2", ["t"], 1_000_000)
    assert sorted(told.owners().values()) == ["m1", "m1", "m2", "m2"]
    # Two partitions have moved, and the others have not even been told.
    assert len(told.changes) == 6


def test_what_a_later_coordinator_says_has_a_later_generation() -> None:
    first, second = Told(), Told()
    one, other = consumers(first), consumers(second)
    one.begin("g", GroupSettings(), [], term=7)
    for member in ("m1", "m2", "m3"):
        one.join("g", GroupSettings(), member, ["t"], 1_000_000)
    other.begin("g", GroupSettings(), [], term=8)
    other.join("g", GroupSettings(), "m1", ["t"], 1_000_000)
    assert min(change.generation for change in second.changes) > max(change.generation for change in first.changes)


def test_members_that_join_again_at_another_coordinator_have_what_they_had() -> None:
    told = Told()
    group = consumers(told)
    owners = [Owner("t", number, f"m{number % 2}", 5 << 24, True) for number in range(4)]
    group.begin("g", GroupSettings(), owners, term=6)
    group.join("g", GroupSettings(), "m0", ["t"], 1_000_000)
    group.join("g", GroupSettings(), "m1", ["t"], 1_000_000)
    assert told.changes == []


def test_a_node_that_does_not_coordinate_says_so() -> None:
    group = consumers(Told())
    with pytest.raises(NotCoordinator):
        group.join("g", GroupSettings(), "m1", ["t"], 1_000_000)
    with pytest.raises(NotCoordinator):
        group.heartbeat("g", "m1")


def test_a_leader_leases_to_the_owner_that_its_log_names() -> None:
    group = consumers(Told(), here={0: "m1", 2: "m2", 3: None})
    assert group.leasable("g", "m1", "t") == [0]
    assert group.leasable("g", "m2", "t") == [2]
    assert group.leasable("g", "m3", "t") == []
    # It has not begun there: where it does is for its coordinator to say.
    assert group.leasable("another", "m1", "t") == []
