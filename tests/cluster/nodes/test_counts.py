"""How many messages there are, by whoever asks: what elections leave in a log is none."""

from __future__ import annotations

import penstock
from cluster_nodes import LocalCluster, found
from penstock.client.cluster_requests import Reassign
from penstock.client.requests import GetStateAt


def elect_others(cluster: LocalCluster, topic: str, count: int) -> None:
    """Another leader for each partition: it moves away from the one that it has."""
    targets = []
    for number in range(count):
        before = cluster.partition(topic, number)
        (new,) = set("abc") - set(before.replicas)
        targets.append((new, *(node for node in before.replicas if node != before.leader)))
        cluster.call(Reassign(topic, number, targets[-1]))
    cluster.until(lambda report: [found(report, topic, number).replicas for number in range(count)] == targets)


def test_a_leader_that_stays_while_others_move_leaves_its_new_epochs_out_of_counts(cluster: LocalCluster) -> None:
    cluster.create("t", 1, replicas=2)
    leader, follower = cluster.partition("t", 0).replicas
    (other,) = set("abc") - {leader, follower}
    with penstock.connect(cluster.address) as q:
        q.create_group("g", start="earliest")
        for moves, (stays, comes) in enumerate([(leader, other), (leader, follower), (other, leader)], 1):
            q.publish("t", "x")
            before = cluster.partition("t", 0)
            cluster.call(Reassign("t", 0, (stays, comes)))
            report = cluster.until(lambda report, at=before.epoch: found(report, "t", 0).epoch > at)
            moved = found(report, "t", 0)
            assert moved.leader == (leader if leader in (stays, comes) else stays)
            q.publish("t", "x")
            (info,) = q.topic("t").partitions
            assert (info.messages, info.empty) == (moves * 2, moved.epoch)
        with q.consumer("g", "t") as consumer:
            consumer.poll(1, wait="0s")
            assert q.lag("g")["t"] == [6]
        assert q.replay("t", "all", from_time="2020-01-01T00:00:00Z") == 6


def test_counts_are_of_messages_and_not_of_what_elections_leave(cluster: LocalCluster) -> None:
    cluster.create("t", 3, replicas=2)
    with penstock.connect(cluster.address) as q:
        q.create_group("g", start="earliest")
        sent = []
        for _ in range(3):
            sent += [q.publish("t", "x", partition=number) for number in (0, 0, 1)]
            elect_others(cluster, "t", 3)
        info = q.topic("t")
        assert [each.messages for each in info.partitions] == [6, 3, 0]
        assert all(each.end_offset - each.start_offset >= each.messages + 4 for each in info.partitions)
        assert q.replay("t", "all", from_time="2020-01-01T00:00:00Z") == 9
        offsets = {each.number: (each.start_offset, each.end_offset) for each in info.partitions}
        assert q.replay("t", "offsets", offsets=offsets) == 9
        assert q.replay("t", "one", offsets={1: (sent[2].offset, sent[5].offset + 1)}) == 2
        assert q.replay("t", "none", offsets={2: offsets[2]}) == 0
        assert {name: q.lag(name)["t"] for name in ("all", "offsets", "one", "none")} == {
            "all": [6, 3, 0],
            "offsets": [6, 3, 0],
            "one": [0, 2, 0],
            "none": [0, 0, 0],
        }
        with q.consumer("all", "t") as consumer:
            got = []
            while len(got) < 9:
                for message in consumer.poll(10, wait="100ms"):
                    got.append(message.id)
                    message.ack()
        assert sorted(got) == sorted(one.id for one in sent)
        assert q.lag("all")["t"] == [0, 0, 0]
        with q.consumer("g", "t") as consumer:
            consumer.poll(1, wait="0s")
            assert q.lag("g")["t"] == [6, 3, 0]
        states = cluster.call(GetStateAt("g", "t", 1 << 51))
        assert [len(state.unacknowledged) for state in states] == [6, 3, 0]
