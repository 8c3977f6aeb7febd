"""A topic in a cluster, as its users see it: nodes come and go, and nothing is lost or done twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.client.blocking import Received
from penstock.clock import SystemClock
from penstock.cluster import hosted
from penstock.errors import AlreadyExists, InvalidSetting, LogCorrupt
from penstock.storage.log import Log


def values_on_disk(directory: Path, partition: str) -> list[tuple[int, bytes | None]]:
    log = Log.open(directory / "partitions" / partition / "messages")
    try:
        found = []
        for frame in log.frames(log.start_offset):
            batch = frame.batch()
            found += zip(frame.offsets(batch).tolist(), batch.values(), strict=True)
        return found
    finally:
        log.close()


def ack(messages: list[Received]) -> None:
    for message in messages:
        message.ack()


def leader_of(cluster: LocalCluster, topic: str, number: int = 0) -> str:
    leader = cluster.partition(topic, number).leader
    assert leader
    return leader


def test_every_node_has_every_message_at_the_same_place(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create("t", 2)
    with penstock.connect(cluster.address) as q:
        for number in range(50):
            q.publish("t", b"%d" % number, key=str(number))
    cluster.until(lambda report: all(len(each.in_sync) == 3 for each in report.partitions))
    for node in ("a", "b", "c"):
        cluster.stop(node)
    partitions = sorted(path.name for path in (tmp_path / "a" / "partitions").iterdir())
    assert len(partitions) == 2
    copies = {node: [values_on_disk(tmp_path / node, each) for each in partitions] for node in ("a", "b", "c")}
    assert copies["a"] == copies["b"] == copies["c"]
    assert sum(map(len, copies["a"])) == 50


def test_messages_published_while_leaders_go_come_once_each(cluster: LocalCluster) -> None:
    cluster.create("t", 3)
    with penstock.connect(cluster.address) as q, q.producer("t", linger="1ms") as producer:
        for number in range(300):
            producer.send(b"%d" % number, key=str(number))
            if number == 100:
                producer.flush()
                cluster.stop("a")
            if number == 200:
                producer.flush()
                cluster.start("a")
        producer.flush()
        with q.consumer("g", "t") as consumer:
            got: Counter[bytes] = Counter()
            while sum(got.values()) < 300:
                batch = consumer.poll(max=300, wait="10s")
                assert batch, f"{300 - sum(got.values())} messages do not come"
                got.update(message.value for message in batch)
                ack(batch)
    assert got == Counter(b"%d" % number for number in range(300))


def test_what_was_acknowledged_does_not_come_again_from_another_leader(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        for number in range(20):
            q.publish("t", b"%d" % number)
        with q.consumer("g", "t") as consumer:
            first = consumer.poll(max=10, wait="10s")
            ack(first)
        cluster.stop(leader_of(cluster, "t"))
        with q.consumer("g", "t") as consumer:
            rest: list[bytes] = []
            while len(rest) < 20 - len(first):
                batch = consumer.poll(max=20, wait="10s")
                assert batch
                rest += [message.value for message in batch]
                ack(batch)
    assert sorted([message.value for message in first] + rest) == sorted(b"%d" % number for number in range(20))


def test_a_lease_holds_though_another_node_leads(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"once")
        with q.consumer("g", "t") as consumer:
            (message,) = consumer.poll(max=1, wait="10s")
            cluster.stop(leader_of(cluster, "t"))
            # Nobody else gets it, and its answer counts.
            message.ack()
            assert not consumer.poll(max=1, wait="200ms")


def test_a_delayed_message_comes_when_it_is_due_from_whoever_leads(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        published = q.publish("t", b"later", delay="2s")
        cluster.stop(leader_of(cluster, "t"))
        with q.consumer("g", "t") as consumer:
            (message,) = consumer.poll(max=1, wait="20s")
            assert message.value == b"later"
            assert message.id == published.id
            message.ack()


def test_a_message_that_is_given_up_is_one_dead_letter_whoever_leads(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"poison")
        with q.consumer("g", "t", max_retries=0) as consumer:
            (message,) = consumer.poll(max=1, wait="10s")
            message.reject("bad")
        cluster.until(lambda report: any(each.topic == "t.dlq" and each.end_offset > 1 for each in report.partitions))
        cluster.stop(leader_of(cluster, "t"))
        cluster.until(lambda report: all(each.leader for each in report.partitions))
        assert [letter.message.value for letter in q.dead_letters.list("t")] == [b"poison"]


def test_a_trace_tells_on_which_nodes_a_message_was(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"first")
        published = q.publish("t", b"traced")
        steps = {step.what: step for step in q.trace(published.id).steps}
    assert sorted((steps["REPLICATED"].place or "").split(", ")) == ["a", "b", "c"]
    assert steps["PUBLISHED"].time_us <= steps["REPLICATED"].time_us


def test_a_trace_tells_so_whoever_leads(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it was at once, however busy this machine is.
    monkeypatch.setattr(hosted, "_TOLD_WITHIN_US", 60_000_000)
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"first")
        traced = q.publish("t", b"traced").id
        # With this one, those who follow hear that the one before is committed.
        q.publish("t", b"next")
        before = {step.what: step for step in q.trace(traced).steps}["REPLICATED"]
        now_us = SystemClock().now_us()
        cluster.stop(leader_of(cluster, "t"))
        after = {step.what: step for step in q.trace(traced).steps}["REPLICATED"]
    assert after.place == before.place
    assert before.time_us <= after.time_us <= now_us


def test_the_steps_of_a_trace_are_in_their_order_whoever_leads(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "_TOLD_WITHIN_US", 60_000_000)
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
        consumer.poll(max=1, wait="1ms")
        sent = []
        for number in range(5):
            sent.append(q.publish("t", b"%d" % number).id)
            (message,) = consumer.poll(max=1, wait="30s")
            message.ack()
        cluster.stop(leader_of(cluster, "t"))
        traces = [q.trace(each).steps for each in sent]
    for steps in traces:
        assert [step.what for step in steps[:3]] == ["PUBLISHED", "REPLICATED", "DELIVERED"]
        assert [step.time_us for step in steps] == sorted(step.time_us for step in steps)


def test_nothing_is_said_to_be_replicated_only_when_another_leads(cluster: LocalCluster) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        last = [q.publish("t", b"%d" % number).id for number in range(3)][-1]
        now_us = SystemClock().now_us()
        cluster.stop(leader_of(cluster, "t"))
        q.publish("t", b"more")
        step = {step.what: step for step in q.trace(last).steps}["REPLICATED"]
        # Whoever follows may not have been told. Then it is not known when.
        assert step.time_us <= now_us
        assert (step.place is None) == (step.reason == "time not known")


def test_a_topic_that_is_deleted_leaves_nothing_on_any_node(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create("t", 2)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"gone")
        q.delete_topic("t")
        q.create_topic("t", partitions=1)
        q.publish("t", b"new")
        with q.consumer("g", "t") as consumer:
            (message,) = consumer.poll(max=1, wait="10s")
            assert message.value == b"new"
    cluster.until(lambda report: len(report.partitions) == 1)
    copies = [tmp_path / node / "partitions" for node in ("a", "b", "c")]
    cluster.until(lambda report: all(len(list(each.iterdir())) == 1 for each in copies))
    for node in ("a", "b", "c"):
        cluster.stop(node)
        assert len(list((tmp_path / node / "partitions").iterdir())) == 1


def test_a_group_that_is_deleted_and_made_anew_begins_anew(cluster: LocalCluster) -> None:
    cluster.create("t", 3)
    with penstock.connect(cluster.address) as q:
        for number in range(9):
            q.publish("t", b"%d" % number, key=str(number))
        for _ in range(2):
            got: list[bytes] = []
            with q.consumer("g", "t") as consumer:
                while len(got) < 9:
                    batch = consumer.poll(max=9, wait="10s")
                    assert batch
                    got += [message.value for message in batch]
                    ack(batch)
            assert sorted(got) == [b"%d" % number for number in range(9)]
            q.delete_group("g")


def test_everything_is_there_when_all_nodes_have_been_away(cluster: LocalCluster) -> None:
    cluster.create("t", 2)
    with penstock.connect(cluster.address) as q:
        for number in range(10):
            q.publish("t", b"%d" % number, key=str(number))
    for node in ("a", "b", "c"):
        cluster.stop(node)
    cluster.start("a", "b", "c")
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"10", key="10")
        read = sorted((message.value for message in q.reader("t")), key=int)
    assert read == [b"%d" % number for number in range(11)]


def test_a_second_node_of_the_same_name_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists, match="there is a node a already"):
        cluster.start("a", data=str(tmp_path / "elsewhere"))


def test_the_directory_of_a_node_is_not_for_a_broker_on_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.stop("c")
    with pytest.raises(InvalidSetting, match="node of a cluster"):
        cluster.start_alone(tmp_path / "c")


def test_a_node_whose_copy_of_a_partition_is_gone_does_not_go_on_without(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create("t", 1)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"kept")
    cluster.stop("b")
    (copy,) = (tmp_path / "b" / "partitions").iterdir()
    shutil.rmtree(copy)
    with pytest.raises(LogCorrupt, match="not there any more"):
        cluster.start("b")
    # The others have it, and b begins anew with an empty directory.
    shutil.rmtree(tmp_path / "b")
    cluster.start("b")
    cluster.until(lambda report: all(sorted(each.in_sync) == ["a", "b", "c"] for each in report.partitions))
    with penstock.connect(cluster.address) as q:
        assert [message.value for message in q.reader("t")] == [b"kept"]
