"""Where dead letters go: to where their messages are, and to as many disks at least, also while a node is down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.broker.settings import TopicSettings
from penstock.cluster.core.election import elect, is_led
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.placing import Placing
from penstock.cluster.registration import Broker


def placed(
    topic: str, alive: str, *there: PartitionRecord, settings: TopicSettings | None = None, draining: str = ""
) -> PartitionRecord:
    """Of a topic with one partition, in a cluster of a, b and c."""
    brokers = {node: Broker(f"d{node}", f"p{node}", "") for node in alive if node not in draining}
    live = {node: Registered(f"d{node}", f"p{node}") for node in alive}
    members: Any = SimpleNamespace(usable=brokers, live=live, known=frozenset("abc"), draining=frozenset(draining))
    partitions: Any = SimpleNamespace(records=lambda: list(there))
    record: Any = SimpleNamespace(name=topic, settings=settings or TopicSettings())
    return Placing(members, partitions).place(record, {"id": 0})["id"]


def test_a_replica_of_a_node_that_is_down_is_made_when_it_is_back() -> None:
    messages = placed("orders", "abc")
    assert (len(messages.replicas), messages.min_isr) == (3, 2)
    down = messages.replicas[2]
    letters = placed("orders.dlq", "".join(node for node in "abc" if node != down), messages)
    assert letters.replicas == messages.replicas
    assert letters.min_isr == 2
    assert sorted(member.node for member in letters.isr) == sorted(set("abc") - {down})


def test_the_number_of_replicas_that_messages_were_given_keeps_no_letters_from_being_made() -> None:
    settings = TopicSettings(replicas=3, min_isr=3)
    messages = placed("orders", "abc", settings=settings)
    letters = placed("orders.dlq", "".join(messages.replicas[:1]), messages, settings=settings)
    assert (letters.replicas, letters.min_isr, letters.leader) == (messages.replicas, 3, messages.leader)


def test_where_nobody_leads_the_messages_whoever_does_then_leads_their_letters() -> None:
    messages = placed("orders", "abc", settings=TopicSettings(replicas=1))
    (only,) = messages.replicas
    others = "".join(node for node in "abc" if node != only)
    letters = placed("orders.dlq", others, messages, settings=TopicSettings(replicas=1))
    assert letters.replicas == (only,)
    assert elect(letters, {node: Registered(f"d{node}", f"p{node}") for node in others}) is None
    back = elect(letters, {only: Registered(f"d{only}", "again")})
    assert back is not None
    assert (back.leader, back.incarnation, back.isr) == (only, "again", messages.isr)


def test_letters_that_are_made_during_a_move_move_with_their_messages() -> None:
    """Also if the node that leads is one of those they move to."""
    messages = PartitionRecord("orders", 0, ("a",), 1, target=("b", "c"))
    messages = messages.elected("b", "pb", (Member("a", "da"), Member("b", "db")))
    letters = placed("orders.dlq", "bc", messages, settings=TopicSettings(replicas=1))
    assert (letters.replicas, letters.target) == (messages.replicas, messages.target)
    assert (letters.leader, {member.node for member in letters.isr}) == ("b", {"b", "c"})
    assert is_led(letters, {"b": Registered("db", "pb")})
    # Whoever is left can lead them.
    instead = elect(letters, {"c": Registered("dc", "pc")})
    assert instead is not None
    assert instead.leader == "c"


def test_nodes_that_are_drained_keep_no_letters_from_being_made_beside_their_messages() -> None:
    messages = placed("orders", "abc")
    letters = placed("orders.dlq", "abc", messages, draining="abc")
    assert (letters.replicas, letters.leader) == (messages.replicas, messages.leader)
