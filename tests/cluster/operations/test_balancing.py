"""Where replicas should be: evenly over nodes and racks, and nothing is moved without need."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.cluster.balancing import balanced, replaced

Placed = dict[str, tuple[str, ...]]


def after(placed: Placed, racks: dict[str, str]) -> Placed:
    return {**placed, **dict(balanced(placed, racks))}


def counts(placed: Placed, nodes: list[str]) -> tuple[Counter[str], Counter[str]]:
    replicas, leaders = Counter(dict.fromkeys(nodes, 0)), Counter(dict.fromkeys(nodes, 0))
    for each in placed.values():
        replicas.update(each)
        leaders[each[0]] += 1
    return replicas, leaders


def spread(found: Counter[str]) -> int:
    return max(found.values()) - min(found.values())


def moved(before: Placed, now: Placed) -> int:
    return sum(len(set(now[name]) - set(before[name])) for name in before)


@pytest.mark.parametrize("seed", range(100))
def test_replicas_and_leaders_are_spread_evenly_by_as_few_moves_as_possible(seed: int) -> None:
    dice = Random(seed)
    nodes = [f"n{number}" for number in range(dice.randint(1, 8))]
    copies = dice.randint(1, min(3, len(nodes)))
    old = nodes[: max(copies, len(nodes) - dice.randint(0, 2))]
    placed = {str(number): tuple(dice.sample(old, copies)) for number in range(dice.randint(1, 60))}
    now = after(placed, dict.fromkeys(nodes, ""))
    assert all(len(set(each)) == len(each) == copies for each in now.values())
    replicas, leaders = counts(now, nodes)
    assert spread(replicas) <= 1
    assert spread(leaders) <= 1
    before = sorted(counts(placed, nodes)[0].values(), reverse=True)
    even, rest = divmod(sum(before), len(nodes))
    assert moved(placed, now) == sum(max(0, many - even - (at < rest)) for at, many in enumerate(before))
    assert balanced(now, dict.fromkeys(nodes, "")) == []


@pytest.mark.parametrize("seed", range(50))
def test_every_partition_is_in_as_many_racks_as_it_can_be(seed: int) -> None:
    dice = Random(seed)
    nodes = [f"n{number}" for number in range(dice.randint(2, 8))]
    racks = {node: f"r{dice.randint(0, 2)}" for node in nodes}
    copies = dice.randint(1, min(3, len(nodes)))
    placed = {str(number): tuple(dice.sample(nodes, copies)) for number in range(30)}
    now = after(placed, racks)
    most = min(copies, len(set(racks.values())))
    assert all(len({racks[node] for node in each}) == most for each in now.values())
    assert balanced(now, racks) == []


def test_a_new_node_gets_its_share_and_the_others_keep_theirs() -> None:
    placed: Placed = {str(number): ("a", "b", "c") for number in range(8)}
    now = after(placed, dict.fromkeys("abcd", ""))
    assert counts(now, list("abcd"))[0] == Counter(dict.fromkeys("abcd", 6))
    assert moved(placed, now) == 6


def test_what_is_on_a_node_that_can_not_be_used_goes_elsewhere_and_the_rest_stays() -> None:
    placed: Placed = {"0": ("a", "b"), "1": ("b", "c"), "2": ("c", "a")}
    moves = dict(replaced(placed, dict.fromkeys("acd", "")))
    assert moves == {"0": ("a", "d"), "1": ("d", "c")}


def test_what_has_nowhere_to_go_stays() -> None:
    assert replaced({"0": ("a", "b", "c")}, dict.fromkeys("ab", "")) == []


def test_what_is_not_to_be_moved_counts_all_the_same() -> None:
    fixed = [("b", "c")] * 4
    moves = dict(balanced({"0": ("a", "b"), "1": ("b", "c")}, dict.fromkeys("abc", ""), fixed=fixed))
    assert sum(node == "a" for each in moves.values() for node in each) >= 1
