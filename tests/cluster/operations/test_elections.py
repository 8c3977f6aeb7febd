"""Who leads: the preferred one, a named one, or, if nobody in sync is left, whoever an operator says."""

from __future__ import annotations

import pytest

import penstock
from cluster_nodes import LocalCluster, found
from penstock.client.cluster_requests import ClusterReport, ElectLeaders, FollowerReport, Reassign
from penstock.errors import (
    InvalidInput,
    LogTruncated,
    NodeNotFound,
    NotEnoughReplicas,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)


def test_a_named_node_leads_and_then_the_preferred_one_again(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    first, second, _ = cluster.partition("orders", 0).replicas
    (elected,) = cluster.call(ElectLeaders("orders", 0, second))
    assert (elected.before, elected.leader) == (first, second)
    report = cluster.until(lambda report: found(report, "orders", 0).leader == second)
    assert len(found(report, "orders", 0).in_sync) == 3
    assert cluster.call(ElectLeaders("orders", 0, second)) == []
    (elected,) = cluster.call(ElectLeaders(None))
    assert elected.leader == first
    cluster.until(lambda report: found(report, "orders", 0).leader == first)


def test_who_can_not_lead_is_refused(cluster: LocalCluster) -> None:
    cluster.create("orders", 2, replicas=2)
    partition = cluster.partition("orders", 0)
    (other,) = set("abc") - set(partition.replicas)
    for request, error in (
        (ElectLeaders("nothing"), TopicNotFound),
        (ElectLeaders("orders", 7), PartitionNotFound),
        (ElectLeaders("orders", 0, "x"), NodeNotFound),
        (ElectLeaders("orders", 0, other), InvalidInput),
        (ElectLeaders("orders", 0, is_unclean=True), InvalidInput),
        (ElectLeaders("orders", is_unclean=True), InvalidInput),
        (ElectLeaders(None, is_unclean=True), InvalidInput),
    ):
        with pytest.raises(error):
            cluster.call(request)
    assert cluster.partition("orders", 0).epoch == partition.epoch


def test_a_preferred_leader_that_is_not_there_is_told_with_who_could_lead(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    first, *others = cluster.partition("orders", 0).replicas
    cluster.stop(first)
    cluster.until(lambda report: found(report, "orders", 0).leader in others)
    with pytest.raises(
        NodeNotFound, match=f"{first}, the preferred leader of partition 0 of orders, is not alive"
    ) as told:
        cluster.call(ElectLeaders("orders"))
    assert told.value.message.endswith(f"(--node): {', '.join(others)}")


def test_an_unclean_election_gives_up_what_only_the_lost_node_had_and_says_so(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("orders", 1, replicas=2, min_isr=1)
    partition = cluster.partition("orders", 0)
    leader, follower = partition.replicas
    with penstock.connect(cluster.address) as q:
        q.publish("orders", "both have it")
        cluster.until(lambda report: all(not each.messages_behind for each in found(report, "orders", 0).followers))
        cluster.stop(follower)
        q.publish("orders", "only the leader has it")
    end = cluster.partition("orders", 0).end_offset
    cluster.stop(leader)
    cluster.start(follower)
    report = cluster.until(lambda report: any(node.id == follower and node.is_alive for node in report.nodes))
    assert found(report, "orders", 0).leader == ""
    with pytest.raises(NotEnoughReplicas):
        cluster.call(ElectLeaders("orders", 0, follower))
    (would,) = cluster.call(ElectLeaders("orders", 0, is_unclean=True, is_dry=True))
    assert would.leader == follower
    assert f"only {leader} " in would.loses
    assert cluster.partition("orders", 0).leader == ""
    cluster.call(ElectLeaders("orders", 0, follower, is_unclean=True))
    cluster.until(lambda report: found(report, "orders", 0).leader == follower)
    with penstock.connect(cluster.address) as q:
        q.publish("orders", "again")
        values = [message.value for message in q.reader("orders")]
    assert values == [b"both have it", b"again"]
    # Who comes back with more than there is cuts it off, and follows.
    cluster.start(leader)
    report = cluster.until(lambda report: len(found(report, "orders", 0).in_sync) == 2)
    assert found(report, "orders", 0).leader == follower
    assert found(report, "orders", 0).end_offset <= end + 2
    assert f"orders:0 is cut off at offset {end - 1}, and ended at {end}: an unclean election" in caplog.text
    with pytest.raises(InvalidInput, match="no need"):
        cluster.call(ElectLeaders("orders", 0, is_unclean=True))


def test_what_an_unclean_election_would_be_is_told_of_all_that_nobody_in_sync_is_left_of(cluster: LocalCluster) -> None:
    for topic, partitions, nodes in ("orders", 2, ("a", "b")), ("bills", 1, ("a",)), ("well", 1, ("c",)):
        cluster.create(topic, partitions, replicas=len(nodes), min_isr=1)
        cluster.call(Reassign(topic, None, nodes))
        cluster.until(lambda report, topic=topic, nodes=nodes: is_on(report, topic, nodes))
    cluster.stop("b")
    with penstock.connect(cluster.address) as q:
        q.publish("orders", "only a has it", partition=0)
    cluster.stop("a")
    cluster.start("b")
    report = cluster.until(lambda report: any(node.id == "b" and node.is_alive for node in report.nodes))
    lost = [each for each in report.partitions if each.topic != "well"]
    assert {(each.leader, each.in_sync, each.last_in_sync) for each in lost} == {("", (), ("a",))}
    with pytest.raises(InvalidInput, match="no need"):
        cluster.call(ElectLeaders("well", is_unclean=True, is_dry=True))
    with pytest.raises(NotEnoughReplicas, match="copy of partition 0 of bills is alive; those that have one: a"):
        cluster.call(ElectLeaders("bills", is_unclean=True, is_dry=True))
    with pytest.raises(NodeNotFound, match="c is not alive, or has no copy of partition 0 of orders"):
        cluster.call(ElectLeaders("orders", node="c", is_unclean=True, is_dry=True))
    for topic in ("orders", None):
        with pytest.raises(InvalidInput, match="of one partition"):
            cluster.call(ElectLeaders(topic, is_unclean=True))
    would = cluster.call(ElectLeaders(None, is_unclean=True, is_dry=True))
    assert [(each.topic, each.number, each.leader) for each in would] == [("orders", 0, "b"), ("orders", 1, "b")]
    assert {each.leader for each in cluster.report().partitions} == {"", "c"}
    for each in would:
        assert cluster.call(ElectLeaders("orders", each.number, each.leader, is_unclean=True)) == [each]
    report = cluster.until(lambda report: all(found(report, "orders", number).leader == "b" for number in range(2)))
    assert found(report, "bills", 0).leader == ""
    with pytest.raises(NotEnoughReplicas):
        cluster.call(ElectLeaders(None, is_unclean=True, is_dry=True))


def test_groups_that_had_come_further_than_the_elected_copy_get_what_is_published_since(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Of both logs a copy gets 2 MiB at a time: it has all deliveries long before it has all messages."""
    cluster.create("t", 1, replicas=1, min_isr=1)
    (leader,) = cluster.partition("t", 0).replicas
    follower = min(set(cluster.nodes) - {leader})
    with penstock.connect("penstock://" + cluster.nodes[follower].native) as q:
        with q.producer("t") as producer:
            for _ in range(300):
                producer.send(bytes(20_000))
        with q.consumer("g", "t", start="earliest") as consumer:
            for _, message in zip(range(300), consumer, strict=False):
                message.ack()
    cluster.call(Reassign("t", 0, (follower,), throttle=64 * 1024))
    cluster.until(
        lambda report: any(each.node == follower and has_begun(each) for each in found(report, "t", 0).followers)
    )
    cluster.stop(leader)
    cluster.until(lambda report: found(report, "t", 0).leader == "")
    (would,) = cluster.call(ElectLeaders("t", 0, follower, is_unclean=True, is_dry=True))
    reached = would.groups["g"]
    assert 0 < would.end < reached <= 301
    assert f"Groups that had come further are set back to offset {would.end}: g (at offset {reached})" in would.loses
    assert cluster.call(ElectLeaders("t", 0, follower, is_unclean=True)) == [would]
    cluster.until(lambda report: found(report, "t", 0).leader == follower)
    sent = [b"%d" % number for number in range(400)]
    with penstock.connect("penstock://" + cluster.nodes[follower].native) as q:
        for value in sent:
            q.publish("t", value)
        with q.consumer("g", "t") as consumer:
            got = []
            for _, message in zip(sent, consumer, strict=False):
                got.append(message.value)
                message.ack()
    assert got == sent
    assert f"group g is set back from offset {reached} to {would.end} of t:0" in caplog.text


def has_begun(follower: FollowerReport) -> bool:
    """It has what came with the first answer, and waits for the next."""
    return 0 < follower.messages_behind < 300


def is_on(report: ClusterReport, topic: str, nodes: tuple[str, ...]) -> bool:
    """Moved there, all of it in sync."""
    return all(
        sorted(each.replicas) == sorted(each.in_sync) == sorted(nodes) and each.leader in nodes and not each.target
        for each in report.partitions
        if each.topic == topic
    )


@pytest.mark.parametrize("since", [0, 20])
@pytest.mark.parametrize("had", [1, 6])
def test_who_reads_what_an_unclean_election_gave_up_is_told_so(cluster: LocalCluster, had: int, since: int) -> None:
    """Whether it had read something of that or was to, and though others are at the same offsets by then."""
    cluster.create("orders", 1, replicas=2, min_isr=1)
    leader, follower = cluster.partition("orders", 0).replicas
    with penstock.connect(cluster.address) as q:
        q.publish("orders", "both have it")
        cluster.until(lambda report: all(not each.messages_behind for each in found(report, "orders", 0).followers))
        end = cluster.partition("orders", 0).end_offset
        cluster.stop(follower)
        # Of which a reader gets one at a time.
        for _ in range(8):
            q.publish("orders", bytes(900_000))
        reading = iter(q.reader("orders"))
        for _ in range(had):
            next(reading)
        cluster.lead_without_all("orders", leader, follower)
        # A producer whose messages are lost hears so, once.
        with penstock.connect(cluster.address) as another:
            for number in range(since):
                another.publish("orders", str(number))
        with pytest.raises(LogTruncated, match="that did not have everything: what was at offset") as told:
            list(reading)
        assert told.value.details["end"] == end
        values = [message.value for message in q.reader("orders")]
        assert values == [b"both have it", *(str(number).encode() for number in range(since))]


@pytest.mark.parametrize("since", [0, 20])
def test_who_reads_on_later_with_the_epochs_of_before_is_told_if_what_it_had_was_given_up(
    cluster: LocalCluster, since: int
) -> None:
    cluster.create("orders", 1, replicas=2, min_isr=1)
    leader, follower = cluster.partition("orders", 0).replicas
    with penstock.connect(cluster.address) as q:
        q.publish("orders", "both have it")
        cluster.until(lambda report: all(not each.messages_behind for each in found(report, "orders", 0).followers))
        end = cluster.partition("orders", 0).end_offset
        early = q.reader("orders")
        assert len(list(early)) == 1
        cluster.stop(follower)
        for number in range(5):
            q.publish("orders", f"lost {number}")
        late = q.reader("orders")
        *_, last = late
        assert last.value == b"lost 4"
        quiet = q.reader("orders", from_offset="latest")
        assert list(quiet) == []
        had = {"late": late.epochs(), "quiet": quiet.epochs()}
        cluster.lead_without_all("orders", leader, follower)
        with penstock.connect(cluster.address) as another:
            for number in range(since):
                another.publish("orders", str(number))
        for epochs in had.values():
            for whole in (False, True):
                again = q.reader("orders", from_offset={0: last.offset + 1}, epochs=epochs, whole=whole)
                with pytest.raises(LogTruncated, match="that did not have everything: what was at offset") as told:
                    list(again)
                assert told.value.details["end"] == end
        # Nothing of what this one had is lost.
        for whole in (False, True):
            after = q.reader("orders", from_offset={0: end}, epochs=early.epochs(), whole=whole)
            assert [message.value for message in after] == [str(number).encode() for number in range(since)]
        # Without them it is not known.
        if not since:
            with pytest.raises(OffsetOutOfRange):
                list(q.reader("orders", from_offset={0: last.offset + 1}))
        # Whoever begins anew gets what is there.
        assert len(list(late)) == 1 + since
        with pytest.raises(InvalidInput, match="epochs are by partition"):
            q.reader("orders", epochs={"0": 1})  # type: ignore[dict-item]


def test_a_node_without_a_copy_is_no_candidate_for_an_unclean_election(cluster: LocalCluster) -> None:
    cluster.create("orders", 1, replicas=1)
    (only,) = cluster.partition("orders", 0).replicas
    (other, *_) = set("abc") - {only}
    cluster.stop(only)
    cluster.until(lambda report: not found(report, "orders", 0).leader)
    with pytest.raises(NodeNotFound):
        cluster.call(ElectLeaders("orders", 0, other, is_unclean=True))
    with pytest.raises(NotEnoughReplicas):
        cluster.call(ElectLeaders("orders", 0, is_unclean=True))
