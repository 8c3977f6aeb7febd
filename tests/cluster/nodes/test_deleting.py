"""What retention and compaction remove goes from all replicas, and does not come back with another leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

import penstock
from cluster_nodes import WITHIN_S, LocalCluster, found, local_cluster, node_of
from penstock.broker.partition import DELIVERIES, MESSAGES
from penstock.client.cluster_requests import ElectLeaders
from penstock.client.requests import FindOffsets
from penstock.cluster.hosted import Hosted
from replicas import rows_by_offset


class Copies:
    """Those of a topic's first partition."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._identity = cluster.partition(topic, 0).id

    @property
    def leader(self) -> str:
        return self._cluster.partition(self._topic, 0).leader

    def of(self, name: str) -> Hosted:
        return node_of(self._cluster, name).hosted[self._identity]

    @property
    def all(self) -> list[Hosted]:
        return [self.of(name) for name in self._cluster.nodes]

    def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0)

        self._cluster.run(wait())

    def until_same_ends(self) -> None:
        self.until(lambda: len({tuple(log.end_offset for log in each.logs) for each in self.all}) == 1)
        leader = self.of(self.leader)
        self.until(lambda: leader.replica.committed == leader.replica.site.ends)

    def starts(self, number: int) -> list[int]:
        return [each.logs[number].start_offset for each in self.all]

    def roll(self) -> None:
        """The leader's messages so far can be compacted."""
        self._cluster.run(_done(self.of(self.leader).logs[MESSAGES].roll))

    def maintain(self) -> None:
        """As the leader does once a minute, and then the others."""
        self._cluster.run(node_of(self._cluster, self.leader).queue.maintain())
        for name in self._cluster.nodes:
            self._cluster.run(node_of(self._cluster, name).tidy())

    def maintain_until(self, holds: Callable[[], bool]) -> None:
        """A follower that has not heard yet what its leader removed asks again the next minute."""

        async def looked() -> bool:
            return holds()

        deadline = monotonic() + WITHIN_S
        while not self._cluster.run(looked()):
            assert monotonic() < deadline
            self.maintain()

    def hand_over(self) -> str:
        heir = next(name for name in self._cluster.nodes if name != self.leader)
        self._cluster.call(ElectLeaders(self._topic, 0, heir))
        for name in self._cluster.nodes:
            address = f"penstock://{self._cluster.nodes[name].native}"
            self._cluster.until(lambda report: found(report, self._topic, 0).leader == heir, address)
        self.until(lambda: self.of(heir).is_shown)
        return heir


async def _done(work: Callable[[], None]) -> None:
    work()


def values(cluster: LocalCluster, topic: str) -> list[bytes | None]:
    with penstock.connect(cluster.address) as q:
        return [message.value for message in q.reader(topic)]


def test_followers_of_a_topic_that_nobody_writes_to_delete_as_its_leader_does(cluster: LocalCluster) -> None:
    cluster.create("t", 1, min_isr=2, retention_age_us=1)
    copies = Copies(cluster, "t")
    with penstock.connect(cluster.address) as q:
        for number in range(20):
            q.publish("t", b"%d" % number + bytes(1_000))
    copies.until_same_ends()

    copies.maintain()

    copies.until(lambda: copies.starts(MESSAGES) == [21, 21, 21])
    assert {each.logs[MESSAGES].size for each in copies.all} == {64}, "the header of an empty segment"
    copies.hand_over()
    assert cluster.call(FindOffsets("t", "earliest")) == [21]
    with (
        penstock.connect(cluster.address) as q,
        q.consumer("late", "t", start="earliest", until_idle="200ms") as consumer,
    ):
        assert [message.value for message in consumer] == []


def test_a_leader_deletes_nothing_that_a_replica_in_sync_has_not_deleted(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t", 1, min_isr=2, retention_age_us=1)
    copies = Copies(cluster, "t")
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"old")
    copies.until_same_ends()
    leader = copies.of(copies.leader)
    slow = next(each for each in copies.all if each is not leader)
    waiting: list[object] = []
    monkeypatch.setattr(slow, "_job", waiting.append)
    before = leader.logs[MESSAGES].start_offset

    copies.maintain()

    others = [each for each in copies.all if each not in (leader, slow)]
    copies.until(lambda: [each.logs[MESSAGES].start_offset for each in others] == [2])
    copies.until(lambda: bool(waiting))
    # On a busy machine it may have left the ISR by now: it does not keep up.
    in_sync = {member.node for member in leader.record.isr} if leader.record is not None else set()
    assert leader.logs[MESSAGES].start_offset == before < 2 or slow.replica.site.node not in in_sync
    monkeypatch.undo()
    for job in waiting:
        cluster.run(_done(lambda job=job: slow._job(job)))
    copies.until(lambda: copies.starts(MESSAGES) == [2, 2, 2])


def test_followers_delete_what_happened_to_messages_that_are_gone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.deliveries.SNAPSHOT_EVERY_BYTES", 500)
    cluster.create("t", 1, min_isr=2, retention_age_us=1)
    copies = Copies(cluster, "t")
    with penstock.connect(cluster.address) as q:
        for number in range(30):
            q.publish("t", b"%d" % number)
        with q.consumer("g", "t", start="earliest", until_idle="200ms") as consumer:
            for message in consumer:
                message.ack()
    cluster.run(_done(copies.of(copies.leader).logs[DELIVERIES].roll))
    copies.until_same_ends()

    copies.maintain()
    copies.until(lambda: set(copies.starts(MESSAGES)) == {31})
    copies.until_same_ends()
    # What happened is kept as long as the messages are.
    copies.maintain()

    copies.until(lambda: len(set(copies.starts(DELIVERIES))) == 1 and min(copies.starts(DELIVERIES)) > 0)
    start = copies.starts(DELIVERIES)[0]
    assert max(each.logs[DELIVERIES].segments[0].next_offset for each in copies.all) > start
    heir = copies.hand_over()
    assert copies.of(heir).logs[DELIVERIES].start_offset == start
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"new")
        with q.consumer("g", "t", until_idle="200ms") as consumer:
            assert [message.value for message in consumer] == [b"new"]


def test_followers_remove_what_their_leader_has_compacted(cluster: LocalCluster) -> None:
    cluster.create("t", 1, min_isr=2, cleanup="compact")
    copies = Copies(cluster, "t")
    sizes = []
    for round in range(3):
        with penstock.connect(cluster.address) as q:
            for number in range(30):
                q.publish("t", b"%d-%d" % (round, number) + bytes(1_000), key=b"k%d" % (number % 3))
        copies.until_same_ends()
        copies.roll()
        copies.maintain_until(lambda: [len(rows_by_offset(each.logs[MESSAGES])) for each in copies.all] == [3, 3, 3])
        sizes.append(max(each.logs[MESSAGES].size for each in copies.all))

        rows = [rows_by_offset(each.logs[MESSAGES]) for each in copies.all]
        assert rows[0] == rows[1] == rows[2]
    assert sizes[-1] < 1.2 * sizes[0], "no copy grows"
    assert max(len(each.logs[MESSAGES].segments) for each in copies.all) <= 4
    before = values(cluster, "t")
    copies.hand_over()
    assert values(cluster, "t") == before


def test_followers_keep_a_delayed_message_and_nothing_around_it(cluster: LocalCluster) -> None:
    cluster.create("t", 1, min_isr=2, retention_age_us=1)
    copies = Copies(cluster, "t")
    with penstock.connect(cluster.address) as q:
        later = q.publish("t", b"later", delay="1h")
        for _ in range(2):
            for number in range(30):
                q.publish("t", b"%d" % number + bytes(1_000))
            copies.until_same_ends()
            copies.maintain_until(
                lambda: all(list(rows_by_offset(each.logs[MESSAGES])) == [later.offset] for each in copies.all)
            )
        assert max(each.logs[MESSAGES].size for each in copies.all) < 1_000
        assert max(len(each.logs[MESSAGES].segments) for each in copies.all) <= 3
        whole_from = {each.logs[MESSAGES].whole_from for each in copies.all}
        assert min(whole_from) > later.offset

        heir = copies.hand_over()

        assert [one.message.value for one in q.scheduled.list("t")] == [b"later"]
        assert copies.of(heir).logs[MESSAGES].start_offset <= later.offset


def test_a_replica_that_was_away_removes_a_message_whose_tombstone_it_never_saw(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b") as cluster:
        cluster.create("t", 1, replicas=2, min_isr=1, cleanup="compact", tombstone_age_us=1)
        copies = Copies(cluster, "t")
        leader = copies.leader
        away = next(name for name in cluster.nodes if name != leader)
        with penstock.connect(f"penstock://{cluster.nodes[leader].native}") as q:
            q.publish("t", b"deleted", key=b"k")
            q.publish("t", b"kept", key=b"other")
            copies.until_same_ends()
            cluster.stop(away)
            q.publish("t", None, key=b"k")
            copies.roll()
            cluster.run(node_of(cluster, leader).queue.maintain())
            assert values(cluster, "t") == [b"kept"]
            cluster.start(away)
            cluster.until(lambda report: set(found(report, "t", 0).in_sync) == {leader, away})
            q.publish("t", b"last", key=b"last")
        copies.until_same_ends()

        copies.maintain_until(lambda: [len(rows_by_offset(each.logs[MESSAGES])) for each in copies.all] == [2, 2])

        copies.hand_over()
        assert values(cluster, "t") == [b"kept", b"last"]
