"""What waits for a consumer to ask: served in the order of the answers, and cut only where that does no harm."""

from __future__ import annotations

from pyroaring import BitMap64

from penstock.client.transport import Delivery, Receipt, Terms
from penstock.net.routing.held import Held


def delivery(partition: int, *offsets: int, lease: int = 1, ordering: str = "none") -> Delivery:
    receipt = Receipt("t", partition, lease, BitMap64(offsets))
    return Delivery(receipt, [], {}, 0, Terms(ordering, "park", "strict"))


def taken(held: Held, count: int) -> list[tuple[int, list[int]]]:
    return [(one.receipt.partition, list(one.receipt.offsets)) for one in held.take(count, 1 << 20)]


def test_nodes_are_served_in_the_order_in_which_they_answered() -> None:
    held = Held()
    held.add("b", [delivery(1, 0)])
    held.add("a", [delivery(0, 0), delivery(0, 1, lease=2)])
    assert taken(held, 2) == [(1, [0]), (0, [0])]
    assert held.has("a")
    assert not held.has("b")
    assert taken(held, 5) == [(0, [1])]
    assert not held
    assert taken(held, 5) == []


def test_without_an_order_what_is_too_much_is_cut_and_the_rest_comes_next() -> None:
    held = Held()
    held.add("a", [delivery(0, 3, 5, 7, 9)])
    assert taken(held, 3) == [(0, [3, 5, 7])]
    assert taken(held, 3) == [(0, [9])]


def test_of_an_ordered_group_a_lease_is_never_cut() -> None:
    held = Held()
    same = [delivery(0, 1, 2, ordering="key"), delivery(0, 8, ordering="key")]
    held.add("a", [*same, delivery(0, 9, lease=2, ordering="key")])
    assert taken(held, 1) == [(0, [1, 2]), (0, [8])]
    assert taken(held, 1) == [(0, [9])]


def test_what_is_dropped_is_told_so_that_it_can_be_given_back() -> None:
    held = Held()
    held.add("a", [delivery(0, 1)])
    assert held.nodes() == ["a"]
    assert [one.receipt.partition for one in held.drop("a")] == [0]
    assert held.drop("a") == []
