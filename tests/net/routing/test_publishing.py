"""Publishing to a cluster: frames go to leaders, and follow them without a loss, a duplicate or a change of order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from net.routing.fakes import QUICK, Cluster, run
from penstock.batch import Batch
from penstock.client.client import Client
from penstock.client.requests import ChangeTopic, CreateTopic
from penstock.errors import ConnectionLost, NotEnoughReplicas, NotLeader, PartitionNotFound, TopicNotFound
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.net.routing.transport import RoutedTransport


async def values_in(cluster: Cluster, topic: str) -> dict[int, list[bytes]]:
    """By partition, as they are stored."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for number, partition in cluster.site.broker.topic(topic).numbered:
        page = await cluster.site.read(topic, number, 0, partition.messages.end_offset, 1 << 30)
        for frame in page.frames:
            found[number] += [value for value in frame.batch().values() if value is not None]
    return found


def frame_of(*values: bytes, producer: Producer | None = None) -> Frame:
    batch = Batch.from_columns(list(values), now_us=1)
    return Frame.of(batch) if producer is None else Frame.of(batch, producer=producer)


def test_each_message_goes_to_the_leader_of_its_partition() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        client = Client(transport)
        for number in range(3):
            published = await client.publish("t", b"%d" % number, partition=number)
            assert published.partition == number
        assert [cluster.nodes[name].asked["publish"] for name in "abc"] == [1, 1, 1]
        assert await values_in(cluster, "t") == {0: [b"0"], 1: [b"1"], 2: [b"2"]}
        await client.close()

    run(work)


def test_that_nobody_knows_is_told_though_later_attempts_were_refused() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        node, asked = cluster.node("t", 0), 0

        def refuse(what: str) -> None:
            nonlocal asked
            asked += what == "publish"
            if what == "publish" and asked > 1:
                raise NotEnoughReplicas("too few")

        node.before = refuse
        node.loses["publish"] = 1
        with pytest.raises(ConnectionLost) as caught:
            await transport.publish_frame("t", 0, frame_of(b"x", producer=Producer(1, 0, 0)))
        assert (asked, caught.value.in_doubt) == (2, True)
        assert await values_in(cluster, "t") == {0: [b"x"]}

    run(work)


def test_nothing_is_lost_doubled_or_put_out_of_order_while_leaders_move_and_answers_are_lost() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        asked = 0

        def disturb(what: str) -> None:
            nonlocal asked
            asked += what == "publish"
            if what == "publish" and asked % 3 == 0:
                number = asked % 3
                cluster.move("t", asked // 3 % 3, "abc"[asked // 2 % 3])
                cluster.nodes["abc"[number]].loses["publish"] += asked % 2

        for node in cluster.nodes.values():
            node.before = disturb
        client = Client(transport)
        producer = client.producer("t", linger="0s", batch_messages=5)
        keys = [b"k%d" % number for number in range(7)]
        for round_ in range(60):
            for key in keys:
                await producer.send(b"%s-%d" % (key, round_), key=key)
            await asyncio.sleep(0)
        await producer.flush()
        stored = await values_in(cluster, "t")
        for key in keys:
            of_key = [value for some in stored.values() for value in some if value.startswith(key + b"-")]
            assert of_key == [b"%s-%d" % (key, round_) for round_ in range(60)]
        assert asked > 40
        await client.close()

    run(work)


def test_a_producer_goes_on_when_the_node_that_it_publishes_to_vanishes() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 2, {}))
        client = Client(transport)
        for number in range(40):
            if number == 20:
                cluster.nodes["a"].kill()
                cluster.move("t", 0, "")
                asyncio.get_running_loop().call_later(0.01, cluster.move, "t", 0, "c")
            await client.publish("t", b"%d" % number, partition=number % 2)
        stored = await values_in(cluster, "t")
        assert stored == {half: [b"%d" % number for number in range(half, 40, 2)] for half in (0, 1)}
        await client.close()

    run(work)


def test_all_who_ask_where_a_partition_is_share_one_question() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        frames = [frame_of(b"%d" % number, producer=Producer(number + 1, 0, 0)) for number in range(100)]
        await transport.publish_frame("t", 0, frame_of(b"first"))
        before = sum(node.asked["FindPlacement"] for node in cluster.nodes.values())
        cluster.move("t", 0, "c")
        await asyncio.gather(*[transport.publish_frame("t", 0, frame) for frame in frames])
        asked = sum(node.asked["FindPlacement"] for node in cluster.nodes.values()) - before
        assert asked < 5
        assert len((await values_in(cluster, "t"))[0]) == 101

    # None of them takes its leader for one that hangs meanwhile.
    run(work, pace=replace(QUICK, suspect_s=30.0))


def test_a_partition_that_nobody_leads_is_waited_for_and_then_given_up() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        cluster.move("t", 0, "")
        with pytest.raises(NotLeader, match="nobody leads partition 0 of t yet"):
            await transport.publish_frame("t", 0, frame_of(b"x", producer=Producer(1, 0, 0)))
        assert await values_in(cluster, "t") == {}

    run(work, pace=replace(QUICK, patience_s=0.05))


def test_a_partition_that_nobody_leads_is_waited_for_no_longer_than_the_producer_is_told_to() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 2, {}))
        client = Client(transport)
        async with client.producer("t", retry_for="100ms") as producer:
            cluster.move("t", 0, "")
            with pytest.raises(NotLeader, match="nobody leads partition 0 of t yet"):
                await (await producer.send(b"x", partition=0))
            # Only that one is in a hurry, and only as long as it waits.
            asyncio.get_running_loop().call_later(0.2, cluster.move, "t", 0, "b")
            assert (await client.publish("t", b"y", partition=0)).partition == 0
            assert (await (await producer.send(b"z", partition=0))).partition == 0
        assert await values_in(cluster, "t") == {0: [b"y", b"z"]}
        await client.close()

    # Longer than the test may take.
    run(work, pace=replace(QUICK, patience_s=60.0))


def test_a_frame_without_an_identity_is_not_sent_again_if_it_may_have_arrived() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        cluster.node("t", 0).loses["publish"] = 1
        with pytest.raises(ConnectionLost):
            await transport.publish_frame("t", 0, frame_of(b"x"))
        assert await values_in(cluster, "t") == {0: [b"x"]}

    run(work)


def test_frames_without_an_identity_keep_their_order_when_the_wrong_node_refuses_some() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        await transport.publish_frame("t", 0, frame_of(b"first"))
        cluster.move("t", 0, "b")
        sending = []
        for number in range(30):
            sending.append(asyncio.ensure_future(transport.publish_frame("t", 0, frame_of(b"%d" % number))))
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        told = [b"%d" % number for number, outcome in enumerate(outcomes) if not isinstance(outcome, NotLeader)]
        assert (await values_in(cluster, "t"))[0] == [b"first", *told]
        assert len(told) > 20
        assert cluster.nodes["a"].asked["publish"] > 1

    run(work)


def test_a_leader_that_hangs_is_left_as_soon_as_there_is_another() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        cluster.nodes["a"].hangs = asyncio.Event()
        publishing = asyncio.ensure_future(transport.publish_frame("t", 0, frame_of(b"x", producer=Producer(1, 0, 0))))
        while not cluster.nodes["a"].asked["publish"]:
            await asyncio.sleep(0)
        cluster.move("t", 0, "b")
        assert (await publishing).offset == 0
        assert cluster.nodes["b"].asked["publish"] == 1
        with pytest.raises(ConnectionLost):
            cluster.nodes["a"].kill()
            cluster.nodes["a"].hangs.set()
            await cluster.nodes["a"].call(CreateTopic("u", 1, {}))

    run(work, pace=replace(QUICK, other_s=0.01))


def test_new_partitions_are_found_though_the_node_that_is_asked_does_not_know_them_yet() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        client = Client(transport)
        await client.publish("t", b"before")
        for node in cluster.nodes.values():
            node.frozen = cluster.placement([])
        await cluster.site.call(ChangeTopic("t", 3, {}))
        cluster.revision += 1
        producer = client.producer("t", linger="0s")
        assert (await client.publish("t", b"tells of them", partition=0)).partition == 0
        sending = asyncio.ensure_future(client.publish("t", b"new", partition=2))
        while cluster.nodes["b"].asked["FindPlacement"] < 3:
            await asyncio.sleep(0)
        assert not sending.done()
        for node in cluster.nodes.values():
            node.frozen = None
        assert (await sending).partition == 2
        await producer.close()
        with pytest.raises(PartitionNotFound):
            await client.publish("t", b"x", partition=3)
        await client.close()

    run(work)


def test_a_topic_that_is_not_there_is_said_not_to_be() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        with pytest.raises(TopicNotFound):
            await transport.publish("t", Message(b"x"), None)
        with pytest.raises(TopicNotFound):
            await transport.publish_frame("t", 0, frame_of(b"x"))

    run(work)


def test_a_node_that_knows_less_than_others_does_not_lead_back() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        await transport.publish_frame("t", 0, frame_of(b"0"))
        behind = cluster.placement([])
        cluster.move("t", 0, "b")
        await transport.publish_frame("t", 0, frame_of(b"1"))
        for node in cluster.nodes.values():
            node.frozen = behind
        await transport._atlas.refresh("t")
        before = cluster.nodes["a"].asked["publish"]
        await transport.publish_frame("t", 0, frame_of(b"2"))
        assert cluster.nodes["a"].asked["publish"] == before

    run(work)


def test_a_node_that_hears_of_no_changes_any_more_is_not_the_only_one_that_is_asked() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        await transport.publish_frame("t", 0, frame_of(b"0"))
        cluster.nodes["a"].frozen = cluster.placement([])
        cluster.move("t", 0, "c")
        await transport.publish_frame("t", 0, frame_of(b"1", producer=Producer(1, 0, 0)))
        assert await values_in(cluster, "t") == {0: [b"0", b"1"]}

    run(work)
