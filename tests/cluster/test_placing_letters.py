"""Where dead letters go: to where their messages are, and to as many disks at least, also while a node is down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.broker.settings import TopicSettings
from penstock.cluster.core.election import elect
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.placing import Placing
from penstock.cluster.registration import Broker


def placed(topic: str, alive: str, *there: PartitionRecord, settings: TopicSettings | None = None) -> PartitionRecord:
    """Of a topic with one partition, in a cluster of a, b and c."""
    brokers = {node: Broker(f"d{node}", f"p{node}", "") for node in alive}
    live = {node: Registered(f"d{node}", f"p{node}") for node in alive}
    members: Any = SimpleNamespace(usable=brokers, live=live, known=frozenset("abc"), draining=frozenset())
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
