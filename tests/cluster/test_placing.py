"""Where replicas of new partitions go."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.placing import Load, check_enough
from penstock.cluster.registration import Broker
from penstock.errors import NotEnoughReplicas


def brokers(**racks: str) -> dict[str, Broker]:
    return {node: Broker(f"disk-{node}", f"life-{node}", "", rack=rack) for node, rack in racks.items()}


def test_leaders_and_replicas_are_spread_evenly() -> None:
    load, nodes = Load(), brokers(a="", b="", c="", d="")
    chosen = [load.choose(3, nodes) for _ in range(12)]
    assert Counter(replicas[0] for replicas in chosen) == {"a": 3, "b": 3, "c": 3, "d": 3}
    assert set(Counter(node for replicas in chosen for node in replicas).values()) == {9}
    assert all(len(set(replicas)) == 3 for replicas in chosen)


def test_replicas_are_in_different_racks_as_long_as_there_are_some() -> None:
    load, nodes = Load(), brokers(a="r1", b="r1", c="r1", d="r2")
    for _ in range(9):
        first, second, third = load.choose(3, nodes)
        assert {nodes[first].rack, nodes[second].rack} == {"r1", "r2"}
        assert third not in (first, second)


def test_what_is_there_already_counts() -> None:
    load = Load([PartitionRecord("t", number, ("a", "b"), 1) for number in range(4)])
    assert load.choose(1, brokers(a="", b="", c="")) == ("c",)
    assert load.choose(2, brokers(a="", b="", c=""))[0] in ("b", "c")


def test_a_partition_that_is_being_moved_counts_where_it_goes() -> None:
    moving = PartitionRecord("t", 0, ("a",), 1, target=("b",))
    assert Load([moving]).choose(1, brokers(a="", b="")) == ("a",)


def test_more_replicas_than_nodes_are_refused_and_the_nodes_are_named() -> None:
    with pytest.raises(NotEnoughReplicas, match=r"3 replicas are wanted, and 2 nodes are alive.*a, b"):
        check_enough(3, brokers(a="", b=""))
