"""A partition that nobody leads: only what is about that one waits for it, and says which it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from net.routing.fakes import QUICK, Cluster, run
from penstock.client import requests as r
from penstock.client.answers import Ack
from penstock.client.client import Client
from penstock.client.reader import Reader
from penstock.errors import (
    ConnectionLost,
    GroupNotFound,
    NotEnoughReplicas,
    NotLeader,
    PartitionNotFound,
    PenstockError,
    TopicNotFound,
)
from penstock.message import Message
from penstock.net.routing import scattering
from penstock.net.routing.transport import RoutedTransport

# Whoever waits for it is told soon that it was in vain.
HASTY = replace(QUICK, patience_s=0.05, partial_s=0.02)
# Long enough for a busy machine.
PATIENT = replace(QUICK, partial_s=0.4)


async def without_a_leader(cluster: Cluster) -> None:
    """A topic of three partitions, one message in each. Nobody leads partition 1 any more."""
    await cluster.site.call(r.CreateTopic("t", 3, {}))
    for number in range(3):
        await cluster.site.publish("t", Message(b"%d" % number), number)
    cluster.move("t", 1, "")


async def values(reader: Reader) -> list[bytes | None]:
    return [message.value async for message in reader]


def test_a_new_client_publishes_to_the_other_partitions_and_reads_them() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        stored = await transport.publish("t", Message(b"new"), 0)
        assert (stored.offset, stored.partitions) == (1, 3)
        assert await values(Reader(transport, "t", partitions=[0])) == [b"0", b"new"]
        assert await values(Reader(transport, "t", partitions=[2, 0], from_time="2020-01-01T00:00:00Z")) == [
            b"2",
            b"0",
            b"new",
        ]
        assert await values(Reader(transport, "t", partitions=[0], from_offset={0: 1, 2: 0})) == [b"new"]

    run(work, pace=HASTY)


async def partitions_of(cluster: Cluster) -> Counter[int]:
    """How many messages each partition has."""
    return Counter({number: one.messages.end_offset for number, one in cluster.site.broker.topic("t").numbered})


def test_messages_without_a_key_go_to_partitions_that_are_led() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        client = Client(transport)
        for _ in range(9):
            await client.publish("t", b"alone")
        producer = client.producer("t", linger="0s", batch_messages=2)
        for _ in range(9):
            await producer.send(b"gathered")
            await producer.flush()
            await producer.send_batch(pa.table({"value": pa.array([b"table"], pa.binary())}))
        counts = await partitions_of(cluster)
        assert counts[1] == 1
        assert min(counts[0], counts[2]) > 5
        # Led again: it has its turn, though nothing that waits for it asks where it is.
        cluster.move("t", 1, "a")
        while (await partitions_of(cluster))[1] == 1:
            await client.publish("t", b"again")
        await client.close()

    run(work, pace=replace(HASTY, suspect_s=0.01))


def test_messages_without_a_key_do_not_wait_for_a_node_that_is_down() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        client = Client(transport)
        await client.publish("t", b"first", partition=0)
        down = cluster.leader("t", 1)
        cluster.nodes[down].is_down = True
        cluster.revision += 1
        producer = client.producer("t", linger="0s")
        for _ in range(9):
            await producer.send(b"x")
            await producer.flush()
        assert (await partitions_of(cluster))[1] == 0
        await client.close()

    run(work, pace=HASTY)


def test_messages_without_a_key_wait_if_no_partition_is_led() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        for number in (0, 2):
            cluster.move("t", number, "")
        client = Client(transport)
        publishing = asyncio.ensure_future(client.publish("t", b"x"))
        await asyncio.wait([publishing], timeout=0.1)
        assert not publishing.done()
        for number in range(3):
            cluster.move("t", number, "a")
        await publishing
        await client.close()

    run(work)


@pytest.mark.parametrize("error", [NotEnoughReplicas, NotLeader])
def test_one_that_can_not_be_served_keeps_no_other_of_its_leader_from_being_told_of_however_long_others_take(
    error: type[PenstockError],
) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        cluster.move("t", 1, "a")
        leader, slow = cluster.nodes["a"], cluster.nodes["c"]
        check = leader._check

        def refuse(topic: str, number: int) -> None:
            if number == 1:
                raise error("1 of 2, or another one leads", topic=topic, partition=number)
            check(topic, number)

        leader._check = refuse
        slow.hangs = asyncio.Event()
        asyncio.get_running_loop().call_later(5 * HASTY.partial_s, slow.hangs.set)
        info = await transport.call(r.DescribeTopic("t", partial=True))
        assert ([one.number for one in info.partitions], info.unknown) == ([0, 2], (1,))

    run(work, pace=HASTY)


def test_partitions_that_are_asked_for_one_by_one_do_not_all_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattering, "_AT_ONCE", 5)

    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 20, {}))
        for number in range(20):
            cluster.move("t", number, "a")
        leader, most = cluster.nodes["a"], 0
        check = leader._check

        def refuse(topic: str, number: int) -> None:
            nonlocal most
            most = max(most, len(leader._deaths))
            if number == 1:
                raise NotEnoughReplicas("1 of 2", topic=topic, partition=number)
            check(topic, number)

        leader._check = refuse
        info = await transport.call(r.DescribeTopic("t", partial=True))
        assert (len(info.partitions), info.unknown) == (19, (1,))
        assert most == 5

    run(work, pace=HASTY)


def test_what_is_about_the_one_without_a_leader_is_told_which_it_is() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        for request in (r.DescribeTopic("t"), r.FindOffsets("t", "latest"), r.FindOffsets("t", "latest", (0, 1))):
            with pytest.raises(NotLeader, match="nobody leads partition 1 of t yet") as raised:
                await transport.call(request)
            assert raised.value.details["partition"] == 1
        with pytest.raises(NotLeader, match="nobody leads partition 1 of t yet"):
            await transport.read("t", 1, 0, 1, 1_000)
        with pytest.raises(NotLeader, match="nobody leads partition 1 of t yet"):
            await values(Reader(transport, "t", partitions=[0, 1]))

    run(work, pace=HASTY)


def test_who_asks_for_what_is_known_hears_of_the_others_and_which_is_not() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        await cluster.site.call(r.CreateTopic("whole", 1, {}))
        (info, whole) = await transport.call(r.ListTopics(partial=True))
        assert ([one.number for one in info.partitions], info.unknown, whole.unknown) == ([0, 2], (1,), ())
        assert await transport.call(r.DescribeTopic("t", partial=True)) == info
        with pytest.raises(NotLeader, match="nobody leads partition 1 of t yet"):
            await transport.call(r.ListTopics())
        for number in (0, 2):
            cluster.move("t", number, "")
        (nothing, _) = await transport.call(r.ListTopics(partial=True))
        assert (nothing.partitions, nothing.unknown, nothing.settings) == ((), (0, 1, 2), info.settings)

    run(work, pace=HASTY)


def test_the_lag_of_a_group_is_told_where_it_is_known() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        await cluster.site.join("g", "m", ["t"], {})
        for number in range(3):
            await cluster.site.publish("t", Message(b"x"), number)
        cluster.move("t", 1, "")
        (listed,) = await transport.call(r.ListGroups(partial=True))
        for info in (listed, await transport.call(r.DescribeGroup("g", partial=True))):
            assert (info.lag, info.partitions, info.unknown) == ({"t": [1, 1]}, {"t": [0, 2]}, {"t": [1]})
            assert info.lags_of("t") == [1, None, 1]
        for request in (r.ListGroups(), r.DescribeGroup("g")):
            with pytest.raises(NotLeader, match="nobody leads partition 1 of t yet"):
                await transport.call(request)
        changed = await transport.call(r.ChangeGroup("g", {"max_retries": 7}))
        assert (changed.settings["max_retries"], changed.unknown) == (7, {"t": [1]})

    run(work, pace=HASTY)


def test_groups_are_told_of_without_a_node_that_is_gone_and_of_which_etcd_can_not_say_so() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        await cluster.site.join("g", "m", ["t"], {})
        for number in range(3):
            await cluster.site.publish("t", Message(b"x"), number)
        for node in cluster.nodes.values():
            node.frozen = cluster.placement(())
        cluster.nodes["c"].kill()
        (listed,) = await transport.call(r.ListGroups(partial=True))
        for info in (listed, await transport.call(r.DescribeGroup("g", partial=True))):
            assert (info.lags_of("t"), info.unknown, list(info.members)) == ([1, 1, None], {"t": [2]}, ["m"])
        assert await transport.call(r.ListParkedKeys("g", partial=True)) == []
        with pytest.raises(GroupNotFound):
            await transport.call(r.DescribeGroup("none", partial=True))
        for request in (r.ListGroups(), r.DescribeGroup("g"), r.ListParkedKeys("g")):
            with pytest.raises(ConnectionLost):
                await transport.call(request)

    run(work, pace=replace(HASTY, patience_s=0.3))


def test_groups_are_told_of_without_a_node_that_hangs_and_leads_nothing_of_theirs() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 1, {}))
        await cluster.site.join("g", "m", ["t"], {})
        cluster.nodes["c"].hangs = asyncio.Event()
        (listed,) = await transport.call(r.ListGroups(partial=True))
        described = await transport.call(r.DescribeGroup("g", partial=True))
        assert (listed.lag, listed.unknown) == (described.lag, described.unknown) == ({"t": [0]}, {})

    run(work, pace=replace(HASTY, ask_s=1.0))


def test_topics_of_a_group_that_nobody_leads_are_waited_for_at_the_same_time() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        names = [f"t{number}" for number in range(10)]
        for name in names:
            await cluster.site.call(r.CreateTopic(name, 2, {}))
        await cluster.site.join("g", "m", names, {})
        for name in names:
            cluster.move(name, 1, "")
        loop = asyncio.get_running_loop()
        for request in (r.ListGroups(partial=True), r.ListParkedKeys("g", partial=True)):
            began = loop.time()
            await transport.call(request)
            # Parked keys are of a group that is described first.
            assert loop.time() - began < 9 * PATIENT.partial_s
        (info,) = await transport.call(r.ListGroups(partial=True))
        assert (list(info.lag), info.unknown) == (names, {name: [1] for name in names})

    run(work, pace=PATIENT)


def test_what_was_changed_is_told_though_nobody_leads_a_partition() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        changed = await transport.call(r.ChangeTopic("t", None, {"max_delay_us": 7_000_000}))
        assert (changed.settings["max_delay_us"], changed.unknown) == (7_000_000, (1,))

    run(work, pace=HASTY)


def test_of_none_of_its_partitions_any_node_describes_a_topic() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        whole = await cluster.site.call(r.DescribeTopic("t"))
        info = await transport.call(r.DescribeTopic("t", ()))
        assert (info.partitions, info.count, info.id, info.settings) == ((), 3, whole.id, whole.settings)
        with pytest.raises(TopicNotFound):
            await transport.call(r.DescribeTopic("none", ()))

    run(work, pace=HASTY)


def test_a_node_that_has_not_heard_of_a_topic_yet_is_not_the_last_to_be_asked_about_it() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)

        def behind(what: str) -> None:
            if what == "DescribeTopic":
                raise TopicNotFound("there is no topic t", topic="t")

        cluster.nodes["a"].before = behind
        assert (await transport.call(r.DescribeTopic("t", ()))).count == 3
        assert cluster.nodes["a"].asked["DescribeTopic"] == 1

    run(work)


def test_partitions_that_are_named_are_the_only_ones_asked_for() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await without_a_leader(cluster)
        await cluster.site.publish("t", Message(b"more"), 2)
        assert await transport.call(r.FindOffsets("t", "latest", (0, 2))) == [1, 2]
        info = await transport.call(r.DescribeTopic("t", (2,)))
        assert ([one.number for one in info.partitions], info.count) == ([2], 3)
        asked = [one for node in cluster.nodes.values() for one in node.requests if isinstance(one, r.FindOffsets)]
        assert sorted(one.partitions or () for one in asked) == [(0,), (2,)]
        with pytest.raises(PartitionNotFound, match="t has partitions 0 to 2, not 3"):
            await transport.call(r.FindOffsets("t", "latest", (0, 3)))

    run(work, pace=HASTY)


@pytest.mark.parametrize("named", [3, -1, True, 1 << 70, "0"])
def test_a_reader_of_a_partition_that_is_none_is_told_so(named: Any) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        with pytest.raises(PartitionNotFound, match="t has partitions 0 to 2, not"):
            await Reader(transport, "t", partitions=[named]).offsets()

    run(work)


def test_a_reader_that_begins_at_an_offset_of_a_partition_that_is_none_is_told_so() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 3, {}))
        with pytest.raises(PartitionNotFound, match="partitions 0 to 2, not 3"):
            await Reader(transport, "t", partitions=[0], from_offset={3: 0}).offsets()

    run(work)


def test_that_too_few_replicas_are_in_sync_is_told_at_once_but_an_answer_waits_for_them() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("t", 1, {}))
        await cluster.site.publish("t", Message(b"one"), 0)
        await transport.join("g", "me", ["t"], {})
        (delivery,) = await transport.poll("g", "me", ["t"], count=1, bytes_max=1_000, wait_us=5_000_000)
        leader = cluster.node("t", 0)
        refusals = {"read": 1, "Ack": 3}

        def refuse(what: str) -> None:
            if refusals.get(what):
                refusals[what] -= 1
                raise NotEnoughReplicas("1 of 2", topic="t", partition=0)

        leader.before = refuse
        with pytest.raises(NotEnoughReplicas):
            await transport.read("t", 0, 0, 1, 1_000)
        await transport.answer("g", delivery.receipt, Ack())
        assert refusals == {"read": 0, "Ack": 0}
        assert (await transport.call(r.DescribeGroup("g"))).lag == {"t": [0]}

    run(work)
