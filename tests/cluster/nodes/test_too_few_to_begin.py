"""Nodes are killed: what others led goes on as promised, and of the rest is said why it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import penstock
from cluster_processes import cluster
from etcd_support import needs_etcd
from penstock.client.blocking import Client
from penstock.client.placement import FindPlacement
from penstock.errors import NotEnoughReplicas
from penstock.net.connecting import transport_to

pytestmark = needs_etcd
PARTITIONS = 3


async def leaders(address: str, is_so: Callable[[list[str]], bool] = lambda found: True) -> list[str]:
    """Of all partitions, as soon as that is so."""
    transport = await transport_to(address)
    try:
        while True:
            (topic,) = (await transport.call(FindPlacement(("t",)))).topics
            found = [partition.leader for partition in topic.partitions]
            if is_so(found):
                return found
            await asyncio.sleep(0)
    finally:
        await transport.close()


def values(q: Client, number: int) -> list[bytes | None]:
    return [message.value for message in q.reader("t", partitions=[number])]


def asked_by_http(address: str, number: int) -> tuple[int, Any]:
    connection = HTTPConnection(address, timeout=60)
    connection.request("GET", f"/v1/topics/t/messages?partition={number}")
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


def test_one_node_of_three_serves_what_it_led_and_says_of_the_rest_that_too_few_are_in_sync(tmp_path: Path) -> None:
    with cluster(tmp_path, session_ttl="6s", has_http=True) as running:
        with penstock.connect(running.address) as q:
            q.create_topic("t", partitions=PARTITIONS, replicas=3, min_isr=2)
            for number in range(PARTITIONS):
                q.publish("t", b"before", partition=number)
        led = asyncio.run(leaders(running.address))
        left = running.nodes[led[0]]
        other = next(number for number, leader in enumerate(led) if leader != left.name)
        killed = [node for node in running.nodes.values() if node is not left]
        for node in killed:
            node.kill()
        asyncio.run(leaders(f"penstock://{left.address}", lambda found: set(found) == {left.name}))

        with penstock.connect(f"penstock://{left.address}") as q:
            q.publish("t", b"alone", partition=0, acks="leader")
            assert values(q, 0) == [b"before"], "what one replica alone has is not committed"
            with q.producer("t", retry_for="0s") as producer, pytest.raises(NotEnoughReplicas) as refused:
                producer.send(b"all", partition=0).result(60)
            assert "not stored" in refused.value.message
            with pytest.raises(NotEnoughReplicas) as unread:
                values(q, other)
            for acks in ("all", "leader"):
                with (
                    q.producer("t", acks=acks, retry_for="0s") as producer,
                    pytest.raises(NotEnoughReplicas) as refused,
                ):
                    producer.send(b"none", partition=other).result(60)
                assert refused.value.details == unread.value.details
            assert unread.value.details == {"topic": "t", "partition": other, "in_sync": 1, "min_isr": 2}
        status, body = asked_by_http(left.http, 0)
        assert (status, len(body["messages"])) == (200, 1)
        status, body = asked_by_http(left.http, other)
        assert (status, body["code"], body["details"]["partition"]) == (503, "not_enough_replicas", other)

        killed[0].start()
        killed[0].wait_ready()
        with penstock.connect(running.address) as q:
            with q.producer("t", retry_for="60s") as producer:
                for number in (0, other):
                    producer.send(b"again", partition=number).result(60)
            assert values(q, 0) == [b"before", b"alone", b"again"]
            assert values(q, other) == [b"before", b"again"]


def test_a_new_client_does_without_a_killed_leader_whose_partition_it_does_not_ask_for(tmp_path: Path) -> None:
    with cluster(tmp_path, session_ttl="300s") as running:
        with penstock.connect(running.address) as q:
            q.create_topic("t", partitions=PARTITIONS, replicas=3, min_isr=2)
            for number in range(PARTITIONS):
                q.publish("t", b"before", partition=number)
        led = asyncio.run(leaders(running.address))
        running.nodes[led[0]].kill()
        for number, leader in enumerate(led):
            if leader != led[0]:
                # Nobody else leads those of the killed one while its session lasts.
                with penstock.connect(f"penstock://{running.nodes[leader].address}") as q:
                    q.publish("t", b"after", partition=number)
                    assert values(q, number) == [b"before", b"after"]


def test_a_partition_with_a_new_leader_and_too_few_replicas_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    with cluster(tmp_path, session_ttl="6s") as running:
        with penstock.connect(running.address) as q:
            q.create_topic("t", partitions=PARTITIONS, replicas=2, min_isr=2)
        led = asyncio.run(leaders(running.address))
        running.nodes[led[1]].kill()
        others = ",".join(node.address for name, node in running.nodes.items() if name != led[1])
        asyncio.run(leaders(f"penstock://{others}", lambda found: not {led[1], ""} & set(found)))
        with penstock.connect(f"penstock://{others}") as q:
            (info,) = q.topics(partial=True)
            assert 1 in info.unknown
            (served,) = {0, 2} & {number for number in range(PARTITIONS) if is_whole(running.address, number, led[1])}
            assert served in [one.number for one in info.partitions]
            with q.consumer("new", "t") as consumer:
                consumer.join()
                q.publish("t", "x", partition=served)
                assert [message.value for message in consumer.poll(1, wait="60s")] == [b"x"]
                (group,) = q.groups(partial=True)
                assert 1 in group.unknown["t"]


def is_whole(address: str, number: int, lost: str) -> bool:
    async def replicas() -> tuple[str, ...]:
        transport = await transport_to(address)
        try:
            (topic,) = (await transport.call(FindPlacement(("t",)))).topics
            return topic.partitions[number].replicas
        finally:
            await transport.close()

    return lost not in asyncio.run(replicas())
