"""`acks` while replicas are missing: who is refused, who is not, and what may become of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster, found, local_cluster
from penstock.client.blocking import Client
from penstock.client.cluster_requests import SurveyCluster
from penstock.client.patience import patiently
from penstock.client.transport import Stored
from penstock.clock import SystemClock
from penstock.errors import NotCommitted, NotEnoughReplicas
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.message import Message
from penstock.net.address import place_of
from penstock.net.connecting import transport_to
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


@pytest.fixture
def hasty(tmp_path: Path, etcd: str) -> Iterator[LocalCluster]:
    """Nodes that do not wait long for each other."""
    with local_cluster(tmp_path, etcd, "a", "b", "c", limits=Limits(commit_us=1_000_000)) as found:
        yield found


def frame(value: bytes) -> Frame:
    return Frame.of_message(Message(value), now_us=1, producer=Producer(7, 0, 0))


def publish(cluster: LocalCluster, node: str, frame: Frame, acks: str) -> Stored:
    async def publish() -> Stored:
        transport = await RemoteTransport.to(place_of(f"penstock://{cluster.nodes[node].native}"), SystemClock())
        try:
            return await transport.publish_frame("t", 0, frame, acks)
        finally:
            await transport.close()

    return cluster.run(publish())


def test_what_replicas_do_not_get_in_time_is_told_to_be_unknown_and_stored_once_when_they_are_back(
    hasty: LocalCluster,
) -> None:
    leader, follower = replicas(hasty)
    stop_follower(hasty, leader, follower)
    first = publish(hasty, leader, frame(b"once"), "leader")
    for _ in range(2):
        with pytest.raises(NotCommitted, match="taken 1s ago, and not yet on the disks of all replicas") as late:
            publish(hasty, leader, frame(b"once"), "all")
        assert late.value.retriable
    hasty.start(follower)

    async def until_stored() -> Stored:
        transport = await transport_to(hasty.address)
        try:
            return await patiently(30, lambda: transport.publish_frame("t", 0, frame(b"once"), "all"))
        finally:
            await transport.close()

    assert hasty.run(until_stored()).offset == first.offset
    with penstock.connect(hasty.address) as q:
        assert values(q) == [b"once"]


def test_an_acknowledgement_that_replicas_do_not_hear_of_waits_for_them(hasty: LocalCluster) -> None:
    leader, follower = replicas(hasty)
    with penstock.connect(hasty.address) as q, q.consumer("g", ["t"], start="earliest") as consumer:
        q.publish("t", b"first")
        first = next(iter(consumer))
        stop_follower(hasty, leader, follower)
        with ThreadPoolExecutor(1) as thread:
            acknowledging = thread.submit(first.ack)
            with pytest.raises(TimeoutError):
                acknowledging.result(1)
            hasty.start(follower)
            acknowledging.result()
        q.publish("t", b"second")
        second = next(iter(consumer))
        second.ack()
        assert (second.value, second.attempt) == (b"second", 1)
        assert q.group("g").lag == {"t": [0]}


def test_changes_that_replicas_do_not_hear_of_are_told_to_be_unknown_and_made_when_they_are_back(
    hasty: LocalCluster,
) -> None:
    leader, follower = replicas(hasty)
    with penstock.connect(hasty.address) as q:
        with q.consumer("g", ["t"], start="earliest", max_retries=0) as consumer:
            given_up = q.publish("t", b"given up").id
            next(iter(consumer)).reject("bad")
            delayed = [q.publish("t", b"%d" % number, delay="1d").id for number in range(2)]
        while not q.dead_letters.list("t"):
            pass
        stop_follower(hasty, leader, follower)
        for settle in (q.dead_letters.redrive, q.dead_letters.discard):
            with pytest.raises(NotEnoughReplicas, match="no dead letter is touched"):
                settle("t")
        assert q.dead_letters.redrive("t", dry_run=True).in_place
        for change in (
            lambda: q.seek("g", "t", "earliest"),
            lambda: q.scheduled.cancel(delayed[0]),
            lambda: q.scheduled.reschedule(delayed[1], delay="2d"),
        ):
            with pytest.raises(NotCommitted):
                change()
        # It does not wait for them, unless the node that is asked leads the partition.
        with suppress(NotCommitted):
            q.delete_group("g")
        # Whatever waits for them keeps nobody from reading, nor from other changes.
        assert [letter.original for letter in q.dead_letters.list("t")] == [given_up]
        q.create_group("another")
        hasty.start(follower)
        q.publish("t", b"after")
        assert [each.id for each in q.scheduled.list("t")] == [delayed[1]]
        with q.consumer("g", ["t"], start="earliest") as consumer:
            assert [next(iter(consumer)).value for _ in range(2)] == [b"given up", b"after"]
