"""`acks` while replicas are missing: who is refused, who is not, and what may become of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

import penstock
from cluster_nodes import LocalCluster, found
from penstock.broker.topic import Topic
from penstock.client.blocking import Client
from penstock.client.cluster_requests import SurveyCluster
from penstock.client.transport import Stored
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, NotCommitted, NotEnoughReplicas
from penstock.frame import Frame, Producer
from penstock.local import overdue
from penstock.message import Message
from penstock.net.address import place_of
from penstock.net.remote import RemoteTransport


def replicas(cluster: LocalCluster) -> tuple[str, str]:
    """Of a new topic with two: the node that leads it, and the one that follows. The third one has none of it."""
    cluster.create("t", 1, replicas=2, min_isr=2)
    placed = cluster.partition("t", 0)
    (follower,) = set(placed.replicas) - {placed.leader}
    return placed.leader, follower


def stop_follower(cluster: LocalCluster, leader: str, follower: str) -> None:
    """Until the leader knows."""

    async def wait() -> None:
        transport = await RemoteTransport.to(place_of(f"penstock://{cluster.nodes[leader].native}"), SystemClock())
        while found(await transport.call(SurveyCluster()), "t", 0).in_sync != (leader,):
            await asyncio.sleep(0)
        await transport.close()

    cluster.stop(follower)
    cluster.run(wait())


def values(q: Client) -> list[bytes | None]:
    return [message.value for message in q.reader("t")]


def test_below_min_isr_all_is_refused_and_leader_is_not_and_that_ends_when_the_replica_is_back(
    cluster: LocalCluster,
) -> None:
    leader, follower = replicas(cluster)
    with penstock.connect(cluster.address) as q:
        first = q.publish("t", b"both").offset
        stop_follower(cluster, leader, follower)
        with (
            q.producer("t", retry_for="0s") as producer,
            pytest.raises(NotEnoughReplicas, match="partition 0 of t has 1 of the 2 replicas in sync") as refused,
        ):
            producer.send(b"refused").result()
        assert (refused.value.details["in_sync"], refused.value.details["min_isr"]) == (1, 2)
        assert q.publish("t", b"one", acks="leader").offset == first + 1
        with q.producer("t", acks="leader") as producer:
            assert producer.send(b"two").result().offset == first + 2
        with q.producer("t", acks="none") as producer:
            assert producer.send(b"three").result().offset == -1
        assert values(q) == [b"both"], "nobody sees what one replica alone has"
        cluster.start(follower)
        assert q.publish("t", b"four").offset == first + 4, "it is tried again until it is taken"
        assert values(q) == [b"both", b"one", b"two", b"three", b"four"]


def test_what_the_leader_alone_had_may_be_lost_with_it_and_its_producer_hears_so_and_goes_on(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader, follower = replicas(cluster)
    with penstock.connect(cluster.address) as q, q.producer("t", acks="leader") as producer:
        producer.send(b"0").result()
        q.publish("t", b"all")
        stop_follower(cluster, leader, follower)
        assert producer.send(b"1").result().offset >= 0
        cluster.stop(leader)
        # The other one leads then, without it; and with the old one back there are enough.
        cluster.start(follower)
        cluster.until(lambda report: found(report, "t", 0).leader == follower)
        cluster.start(leader)
        with caplog.at_level(logging.WARNING, "penstock.client"):
            producer.send(b"2").result()
        assert "with acks=leader, were lost with their leader" in caplog.text
        q.publish("t", b"all")
        assert values(q) == [b"0", b"all", b"2", b"all"]


def test_what_replicas_do_not_get_in_time_is_told_to_be_unknown_and_stored_once_when_they_are_back(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "PATIENCE_S", 0.2)
    leader, follower = replicas(cluster)
    frame = Frame.of_message(Message(b"once"), now_us=1, producer=Producer(7, 0, 0))

    def publish(acks: str) -> Stored:
        async def publish() -> Stored:
            transport = await RemoteTransport.to(place_of(f"penstock://{cluster.nodes[leader].native}"), SystemClock())
            try:
                return await transport.publish_frame("t", 0, frame, acks)
            finally:
                await transport.close()

        return cluster.run(publish())

    stop_follower(cluster, leader, follower)
    first = publish("leader")
    for _ in range(2):
        with pytest.raises(NotCommitted, match=r"after 0\.2 s it is on the leader's disk") as late:
            publish("all")
        assert late.value.retriable
    cluster.start(follower)
    monkeypatch.undo()
    assert publish("all").offset == first.offset
    with penstock.connect(cluster.address) as q:
        assert values(q) == [b"once"]


def test_a_producer_tries_again_for_what_replicas_do_not_get_in_time(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "PATIENCE_S", 0.2)
    leader, follower = replicas(cluster)
    with penstock.connect(cluster.address) as q:
        # The leader takes it, and then there is nobody else to have it.
        stop_follower(cluster, leader, follower)
        monkeypatch.setattr(Topic, "_check_replicas", lambda *_: None)
        with q.producer("t", retry_for="0s") as producer, pytest.raises(NotCommitted):
            producer.send(b"given up").result()
        with q.producer("t", retry_for="60s") as producer:
            sent = producer.send(b"tried again")
            with pytest.raises(TimeoutError):
                sent.result(1.0)
            cluster.start(follower)
            assert sent.result().offset >= 0
        assert values(q) == [b"given up", b"tried again"], "it was told that it may be stored yet"


def test_an_acknowledgement_that_replicas_do_not_get_in_time_may_count_and_does_when_they_are_back(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "PATIENCE_S", 0.2)
    leader, follower = replicas(cluster)
    with penstock.connect(cluster.address) as q, q.consumer("g", ["t"], start="earliest") as consumer:
        q.publish("t", b"first")
        first = next(iter(consumer))
        stop_follower(cluster, leader, follower)
        with pytest.raises(ConnectionLost, match="it may be stored yet, or not"):
            first.ack()
        cluster.start(follower)
        monkeypatch.undo()
        q.publish("t", b"second")
        second = next(iter(consumer))
        second.ack()
        assert (second.value, second.attempt) == (b"second", 1)
        assert q.group("g").lag == {"t": [0]}
