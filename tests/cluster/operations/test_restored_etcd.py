"""etcd is set back to a backup while all nodes are down, and some of it has changed since."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster, found, local_cluster
from etcd_support import etcd_process, needs_etcd
from penstock.client.cluster_requests import ClusterReport, DiscardCopy, ElectLeaders, QuarantinedCopy, Reassign
from penstock.cluster.etcd.process import EtcdProcess
from penstock.errors import GroupNotFound, NotEnoughReplicas

pytestmark = needs_etcd


class Restorable:
    """A cluster and its etcd, of which a backup can be taken."""

    def __init__(self, directory: Path, etcd: EtcdProcess, cluster: LocalCluster) -> None:
        self._directory = directory
        self._etcd = etcd
        self.cluster = cluster

    def stop(self) -> None:
        for name in list(self.cluster.nodes):
            self.cluster.stop(name)

    def back_up(self) -> None:
        """Also while nodes run: they go on without etcd for a moment."""
        self._etcd.kill()
        shutil.copytree(self._directory / "etcd", self._directory / "backup")
        self._etcd.start()

    def restore(self) -> None:
        self.stop()
        self._etcd.kill()
        shutil.rmtree(self._directory / "etcd")
        shutil.copytree(self._directory / "backup", self._directory / "etcd")
        self._etcd.start()

    def publish(self, topic: str, *values: bytes) -> None:
        with penstock.connect(self.cluster.address) as queue:
            for value in values:
                queue.publish(topic, value)

    def values(self, topic: str) -> list[bytes | None]:
        with penstock.connect(self.cluster.address) as queue:
            return [message.value for message in queue.reader(topic)]


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[Restorable]:
    with etcd_process(tmp_path / "etcd") as etcd, local_cluster(tmp_path, etcd.address) as cluster:
        yield Restorable(tmp_path, etcd, cluster)


def led_by(cluster: LocalCluster, topic: str, node: str) -> ClusterReport:
    return cluster.until(lambda report: found(report, topic, 0).leader == node)


def the_quarantined(cluster: LocalCluster) -> QuarantinedCopy:
    (copy,) = cluster.until(lambda report: bool(report.quarantined)).quarantined
    return copy


def test_the_only_copy_of_a_partition_that_was_moved_since_the_backup_is_kept_and_can_be_led(
    restorable: Restorable,
) -> None:
    cluster = restorable.cluster
    cluster.start("a", session_ttl=3)
    cluster.create("t", 1, replicas=1, min_isr=1)
    restorable.publish("t", b"before")
    restorable.stop()
    restorable.back_up()
    cluster.start("a", "b", session_ttl=3)
    led_by(cluster, "t", "a")
    cluster.call(Reassign("t", 0, ("b",)))
    cluster.until(lambda report: (found(report, "t", 0).leader, found(report, "t", 0).replicas) == ("b", ("b",)))
    restorable.publish("t", b"since")
    restorable.restore()
    cluster.start("a", "b", session_ttl=3)
    copy = the_quarantined(cluster)
    assert (copy.node, copy.topic, copy.number) == ("b", "t", 0)
    # What a has is nothing, and nothing is led.
    assert found(cluster.report(), "t", 0).leader == ""
    cluster.call(Reassign("t", 0, ("b",)))
    led_by(cluster, "t", "b")
    assert restorable.values("t") == [b"before", b"since"]
    cluster.until(lambda report: report.quarantined == ())


def test_a_follower_with_more_than_whoever_leads_since_the_backup_is_quarantined_until_somebody_decides(
    restorable: Restorable,
) -> None:
    cluster = restorable.cluster
    cluster.start("a", "b", session_ttl=3)
    for topic in ("kept", "given-up"):
        cluster.create(topic, 1, replicas=2, min_isr=1)
        cluster.call(Reassign(topic, 0, ("a", "b")))
        cluster.call(ElectLeaders(topic, 0, "a"))
        led_by(cluster, topic, "a")
        restorable.publish(topic, b"before")
        cluster.until(lambda report, topic=topic: len(found(report, topic, 0).in_sync) == 2)  # type: ignore[misc]
    restorable.back_up()
    cluster.stop("a")
    for topic in ("kept", "given-up"):
        led_by(cluster, topic, "b")
        restorable.publish(topic, b"b alone", b"has this")
    restorable.restore()
    # By the backup a is in sync. Nobody leads before b has come back, too, unless an operator decides.
    cluster.start("a", session_ttl=3)
    for topic in ("kept", "given-up"):
        assert found(cluster.report(), topic, 0).leader == ""
        with pytest.raises(NotEnoughReplicas, match="etcd was restored"):
            cluster.call(ElectLeaders(topic, 0, "a"))
        cluster.call(ElectLeaders(topic, 0, "a", is_unclean=True))
        led_by(cluster, topic, "a")
        restorable.publish(topic, b"new")
    cluster.start("b", session_ttl=3)
    report = cluster.until(lambda report: len(report.quarantined) == 2)
    assert {(copy.node, copy.topic) for copy in report.quarantined} == {("b", "kept"), ("b", "given-up")}
    # Either of the two becomes the topic.
    (elected,) = cluster.call(ElectLeaders("kept", 0, "b", is_unclean=True))
    assert "b's quarantined copy" in elected.loses
    led_by(cluster, "kept", "b")
    assert restorable.values("kept") == [b"before", b"b alone", b"has this"]
    (copy,) = cluster.until(lambda report: len(report.quarantined) == 1).quarantined
    cluster.until(lambda report: found(report, "given-up", 0).in_sync == ("a",))
    cluster.call(DiscardCopy("b", copy.id))
    cluster.until(lambda report: len(found(report, "given-up", 0).in_sync) == 2)
    assert restorable.values("given-up") == [b"before", b"new"]
    assert cluster.report().quarantined == ()


def test_the_copy_that_goes_furthest_leads_though_the_backup_prefers_another(restorable: Restorable) -> None:
    cluster = restorable.cluster
    cluster.start("a", "b", "c", session_ttl=3)
    for topic in ("behind", "moved"):
        cluster.create(topic, 1, replicas=3, min_isr=2)
        cluster.call(Reassign(topic, 0, ("a", "b", "c")))
        cluster.call(ElectLeaders(topic, 0, "a"))
        restorable.publish(topic, b"before")
        cluster.until(lambda report, topic=topic: len(found(report, topic, 0).in_sync) == 3)  # type: ignore[misc]
    cluster.stop("c")
    for topic in ("behind", "moved"):
        cluster.until(lambda report, topic=topic: set(found(report, topic, 0).last_in_sync) == {"a", "b"})  # type: ignore[misc]
    restorable.back_up()
    cluster.start("c", session_ttl=3)
    cluster.until(lambda report: len(found(report, "moved", 0).in_sync) == 3)
    cluster.stop("a")
    cluster.until(lambda report: found(report, "behind", 0).leader in ("b", "c"))
    restorable.publish("behind", b"since")
    cluster.stop("b")
    cluster.until(lambda report: found(report, "moved", 0).leader == "c")
    restorable.restore()
    cluster.start("a", "b", "c", session_ttl=3)
    for topic in ("behind", "moved"):
        cluster.until(lambda report, topic=topic: len(found(report, topic, 0).in_sync) == 3)  # type: ignore[misc]
        restorable.publish(topic, b"new")
    assert restorable.values("behind") == [b"before", b"since", b"new"]
    assert restorable.values("moved") == [b"before", b"new"]
    assert cluster.report().quarantined == ()


def test_an_epoch_that_was_used_twice_is_noticed_though_both_copies_end_at_the_same_offset(
    restorable: Restorable, tmp_path: Path
) -> None:
    """A node that was down since the backup starts first, and leads at the epoch that another has led at since."""
    cluster = restorable.cluster
    seen = tmp_path / "b" / "seen"
    cluster.start("a", "b", session_ttl=3)
    cluster.create("t", 1, replicas=2, min_isr=1)
    cluster.call(Reassign("t", 0, ("a", "b")))
    cluster.call(ElectLeaders("t", 0, "a"))
    led_by(cluster, "t", "a")
    restorable.publish("t", b"before")
    cluster.until(lambda report: len(found(report, "t", 0).in_sync) == 2)
    restorable.back_up()
    # As if it had been killed at that moment, and so was in sync by the backup.
    known = seen.read_bytes()
    cluster.stop("b")
    seen.write_bytes(known)
    cluster.stop("a")
    cluster.start("a", session_ttl=3)
    epoch = led_by(cluster, "t", "a").partitions[0].epoch
    restorable.publish("t", b"a alone")
    restorable.restore()
    cluster.start("b", session_ttl=3)
    assert led_by(cluster, "t", "b").partitions[0].epoch == epoch
    restorable.publish("t", b"b alone")
    cluster.start("a", session_ttl=3)
    copy = the_quarantined(cluster)
    assert (copy.topic, copy.number, copy.epoch, copy.end_offset) == ("t", 0, epoch, 4)
    # Whoever leads, either of the two can be had.
    last = {"a": b"a alone", "b": b"b alone"}
    leading = "b" if copy.node == "a" else "a"
    led_by(cluster, "t", leading)
    assert restorable.values("t") == [b"before", last[leading]]
    cluster.call(ElectLeaders("t", 0, copy.node, is_unclean=True))
    led_by(cluster, "t", copy.node)
    assert restorable.values("t") == [b"before", last[copy.node]]


def consumed(queue: penstock.Client, group: str, count: int) -> int:
    """Messages that the group was given and has acknowledged: `count` of them, unless fewer are left."""
    found = 0
    with queue.consumer(group, "t") as consumer:
        while found < count and (messages := consumer.poll(count, wait="2s")):
            for message in messages:
                message.ack()
            found += len(messages)
    return found


def test_a_group_that_the_backup_does_not_know_goes_on_where_it_was(restorable: Restorable) -> None:
    cluster = restorable.cluster
    cluster.start("a", session_ttl=3)
    cluster.create("t", 1)
    restorable.publish("t", *[b"%d" % number for number in range(20)])
    restorable.stop()
    restorable.back_up()
    cluster.start("a", session_ttl=3)
    address = cluster.address
    native = cluster.nodes["a"].where.native
    with penstock.connect(address) as queue:
        assert consumed(queue, "new", 20) == 20
        # As much as happens in a cluster in time: what the client knows is far ahead of the backup.
        for number in range(10):
            queue.create_topic(f"other-{number}")
        assert queue.lag("new") == {"t": [0]}
        restorable.restore()
        cluster.start("a", session_ttl=3, native=native)
        with pytest.raises(GroupNotFound):
            queue.lag("new")
        queue.publish("t", b"since")
        assert consumed(queue, "new", 20) == 1
        assert queue.lag("new") == {"t": [0]}
        queue.delete_group("new")
        assert consumed(queue, "new", 21) == 21


def test_a_topic_that_the_backup_does_not_know_is_kept_and_one_that_was_deleted_is_not(
    restorable: Restorable, tmp_path: Path
) -> None:
    cluster = restorable.cluster
    cluster.start("a", session_ttl=3)
    restorable.stop()
    restorable.back_up()
    cluster.start("a", session_ttl=3)
    cluster.create("t", 1)
    cluster.create("deleted", 1)
    kept, deleted = found(cluster.report(), "t", 0).id, found(cluster.report(), "deleted", 0).id
    restorable.publish("t", b"since")
    with penstock.connect(cluster.address) as queue:
        queue.delete_topic("deleted")
    cluster.until(lambda report: not (tmp_path / "a" / "partitions" / deleted).exists())
    restorable.restore()
    cluster.start("a", session_ttl=3)
    copy = the_quarantined(cluster)
    assert (copy.id, copy.topic) == (kept, "")
    assert [each.name for each in (tmp_path / "a" / "partitions").iterdir()] == [kept]
    cluster.call(DiscardCopy("a", kept))
    assert list((tmp_path / "a" / "partitions").iterdir()) == []
