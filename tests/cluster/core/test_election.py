"""What controllers and operators make of a record."""

from __future__ import annotations

import pytest

from penstock.cluster.core import election
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.errors import InvalidInput


def live(names: str) -> dict[str, Registered]:
    """By words: "a" as it was, "b2" started a second time, "c!" with another disk."""
    found = {}
    for word in names.split():
        node, start = word[0], word[1:].rstrip("!") or "1"
        found[node] = Registered(f"d{node}!" if word.endswith("!") else f"d{node}", f"{node}{start}")
    return found


def record(isr: str = "a b c", **changes: object) -> PartitionRecord:
    members = tuple(Member(node, f"d{node}") for node in isr.split())
    fields = {"leader": "a", "incarnation": "a1", "epoch": 5, **changes}
    return PartitionRecord("t", 0, ("a", "b", "c"), 2, members, **fields)  # type: ignore[arg-type]


def test_a_new_partition_has_all_its_replicas_in_sync_and_the_first_leads() -> None:
    made = election.first("t", 3, ["b", "a"], 2, live("a b c"))
    assert (made.leader, made.incarnation, made.epoch) == ("b", "b1", 1)
    assert made.isr == (Member("b", "db"), Member("a", "da"))


@pytest.mark.parametrize(
    ("replicas", "min_isr"), [(["x", "a"], 1), (["a", "a"], 1), ([], 1), (["a", "b"], 3), (["a"], 0)]
)
def test_a_new_partition_needs_a_live_leader_and_enough_replicas(replicas: list[str], min_isr: int) -> None:
    with pytest.raises(InvalidInput):
        election.first("t", 0, replicas, min_isr, live("a b c"))


def test_a_node_that_is_not_alive_can_have_a_replica_of_a_new_partition_which_is_not_in_sync() -> None:
    made = election.first("t", 0, ["a", "x", "b"], 2, live("a b c"))
    assert (made.leader, made.replicas) == ("a", ("a", "x", "b"))
    assert made.isr == (Member("a", "da"), Member("b", "db"))


def copies(**ends: tuple[int, int, int]) -> dict[str, election.Copy]:
    return {node: election.Copy(epoch, (messages, rows)) for node, (epoch, messages, rows) in ends.items()}


@pytest.mark.parametrize(
    ("isr", "told", "leader"),
    [
        ("a b c", copies(a=(5, 10, 4), b=(5, 12, 4), c=(5, 11, 9)), "b"),
        ("a b c", copies(a=(5, 12, 4), b=(5, 12, 5), c=(5, 12, 4)), "b"),
        ("a b c", copies(a=(5, 99, 4), b=(6, 12, 4), c=(6, 11, 4)), "b"),
        ("a b c", copies(a=(5, 12, 4), b=(5, 12, 4), c=(5, 12, 4)), "a"),
        ("a b", copies(a=(5, 10, 4), b=(5, 10, 4), c=(6, 12, 4)), "c"),
        ("b", copies(a=(0, 0, 0), b=(5, 10, 4)), "b"),
        ("b", copies(a=(0, 0, 0)), None),
        ("a b c", copies(a=(0, 0, 0), b=(0, 0, 0)), "a"),
        ("a b c", {}, None),
    ],
)
def test_after_a_restore_of_etcd_the_copy_that_goes_furthest_leads(
    isr: str, told: dict[str, election.Copy], leader: str | None
) -> None:
    fenced = record(isr).fenced(1)
    assert fenced.is_fenced
    elected = election.elect_furthest(fenced, told, live("a2 b2 c2"))
    if leader is None:
        assert elected is None
    else:
        assert elected is not None
        assert (elected.leader, elected.incarnation, elected.epoch) == (leader, f"{leader}2", (1 << 20) + 1)
        # The others may lack something, whatever the backup says.
        assert elected.isr == (Member(leader, f"d{leader}"),)
        assert not elected.is_fenced


def test_a_record_without_a_leader_is_not_one_of_a_restored_etcd() -> None:
    assert not record(leader=None, epoch=0).is_fenced
    assert not record(leader=None, epoch=(1 << 20) + 3).is_fenced


def test_a_leader_that_is_there_stays() -> None:
    assert election.elect(record(), live("a")) is None


@pytest.mark.parametrize(
    ("isr", "nodes", "leader"),
    [
        ("a b c", "b c", "b"),
        ("a c", "b c", "c"),
        ("a b c", "c", "c"),
        ("c b a", "a2 b c", "a"),
        ("a b c", "b! c", "c"),
        ("a b", "c", None),
        ("a b", "b! c", None),
        ("a b c", "", None),
    ],
)
def test_the_first_replica_in_sync_on_its_disk_is_elected(isr: str, nodes: str, leader: str | None) -> None:
    elected = election.elect(record(isr), live(nodes))
    assert (elected and elected.leader) == leader
    if elected:
        assert elected.epoch == 6
        assert elected.incarnation == live(nodes)[str(leader)].incarnation
        assert elected.isr == record(isr).isr


def test_a_leader_that_was_started_again_needs_another_epoch() -> None:
    elected = election.elect(record("a"), live("a2 b c"))
    assert elected is not None
    assert (elected.leader, elected.incarnation, elected.epoch) == ("a", "a2", 6)


def test_leadership_goes_back_to_the_preferred_replica_once_that_is_in_sync() -> None:
    assert election.prefer(record(leader="b", incarnation="b1", isr="b c"), live("a b c")) is None
    asked = election.prefer(record(leader="b", incarnation="b1"), live("a b c"))
    assert asked is not None
    assert (asked.successor, asked.leader, asked.epoch) == ("a", "b", 5)
    assert election.prefer(asked, live("a b c")) is None
    assert election.prefer(record(), live("a b c")) is None


def test_a_node_is_drained_of_what_it_leads() -> None:
    asked = election.drain(record(), "a", live("a b c"))
    assert asked is not None
    assert asked.successor == "b"
    assert election.drain(record(), "b", live("a b c")) is None
    assert election.drain(record("a"), "a", live("a b c")) is None


def test_a_move_keeps_all_who_have_copies_until_it_ends() -> None:
    moved = election.reassign(record(), ["b", "d"], live("a b c d"))
    assert moved is not None
    assert (moved.target, moved.leaving, moved.replicas) == (("b", "d"), (), ("a", "b", "c"))
    other = election.reassign(moved, ["b", "e"], live("a b c d e"))
    assert other is not None
    assert (other.target, other.leaving) == (("b", "e"), ("d",))
    back = election.reassign(other, ["a", "b", "c"], live("a b c d e"))
    assert back is not None
    assert (back.target, back.leaving) == (("a", "b", "c"), ("e", "d"))
    assert election.reassign(record(), ["a", "b", "c"], live("a b c")) is None


@pytest.mark.parametrize("target", [["b", "x"], ["b", "b"], ["b"]])
def test_a_move_needs_live_nodes_and_enough_of_them(target: list[str]) -> None:
    with pytest.raises(InvalidInput):
        election.reassign(record(), target, live("a b c d"))


@pytest.mark.parametrize(
    ("replicas", "nodes", "target"),
    [
        (("a", "d"), "a b c d", ("a", "d")),
        (("d", "e"), "a b c d e", ("d", "e")),
        # It has a min_isr of 2.
        (("d",), "a b c d", ("d", "a")),
        (("c", "b", "a"), "a b c", None),
        (("a", "d"), "a b c", None),
        (("b", "c"), "a", ("b", "c")),
    ],
)
def test_dead_letters_are_moved_to_where_their_messages_are(
    replicas: tuple[str, ...], nodes: str, target: tuple[str, ...] | None
) -> None:
    made = election.move_beside(record(), PartitionRecord("s", 0, replicas, 1), live(nodes))
    assert (None if made is None else made.target) == target
    if made is not None:
        assert election.move_beside(made, PartitionRecord("s", 0, replicas, 1), live(nodes)) is None


def test_an_unclean_election_is_written_down() -> None:
    elected = election.elect_unclean(record("a"), "c", live("b c"))
    assert (elected.leader, elected.epoch, elected.isr, elected.unclean) == ("c", 6, (Member("c", "dc"),), (6,))
    for node in ("a", "x"):
        with pytest.raises(InvalidInput):
            election.elect_unclean(record(), node, live("b c x"))
