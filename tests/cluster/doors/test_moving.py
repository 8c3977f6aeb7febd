"""Leaders that change while somebody at the HTTP door of another node is in the middle of something."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

import penstock
from cluster_doors import Door
from cluster_nodes import LocalCluster, found
from cluster_processes import cluster as processes
from etcd_support import needs_etcd
from penstock.batch import Batch
from penstock.client.cluster_requests import DrainNode, ElectLeaders, Reassign
from penstock.client.identified import Identity
from penstock.client.placement import FindPlacement
from penstock.message import Message
from penstock.net.connecting import connect_async, transport_to
from penstock.server.access_file import add_key
from penstock.server.config import Address
from penstock.server.keys import make

pytestmark = needs_etcd


def _move(cluster: LocalCluster, topic: str) -> None:
    """To the other one of the two nodes that lead something."""
    leader = cluster.partition(topic, 0).leader
    other = {"a": "b", "b": "a"}[leader]
    cluster.call(Reassign(topic, 0, (other, leader)))
    cluster.until(lambda report: not found(report, topic, 0).target)
    if cluster.partition(topic, 0).leader != other:
        cluster.call(ElectLeaders(topic, 0))
    cluster.until(lambda report: found(report, topic, 0).leader == other)


def test_what_one_leader_gave_out_is_answered_for_at_the_next(door: Door, cluster: LocalCluster) -> None:
    door.topic("moved", 1)
    door.published("moved", "x", "y", "z")
    got = door.polled_all("moved", 3)
    _move(cluster, "moved")
    assert door.answered("ack", got[:1]) == {"done": 1, "failed": []}
    assert door.answered("extend", got[1:2], visibility="1h")["done"] == 1
    assert door.answered("release", got[2:])["done"] == 1
    (back,) = door.polled_all("moved", 1)
    assert (back["id"], back["attempt"]) == (got[2]["id"], 1)
    (sent,) = door.published("moved", "more")
    assert [message["id"] for message in door.polled_all("moved", 1)] == [sent]


def test_a_poll_that_waits_goes_on_at_the_next_leader(door: Door, cluster: LocalCluster) -> None:
    door.topic("waited", 1)
    assert door.polled("waited", group="patient-mover") == []
    came: list[dict[str, Any]] = []
    waiting = Thread(target=lambda: came.extend(door.polled("waited", group="patient-mover", wait="25s")))
    waiting.start()
    _move(cluster, "waited")
    (sent,) = door.published("waited", "x")
    waiting.join()
    assert [message["id"] for message in came] == [sent]


# --- a node that is killed ----------------------------------------------------------------------------------


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def test_a_stream_at_another_node_goes_on_when_a_leader_is_killed(tmp_path: Path) -> None:
    with processes(tmp_path, has_http=True) as cluster:
        with penstock.connect(cluster.address) as queue:
            queue.create_topic("t", partitions=3)
            placed = {part.number: part.leader for part in _placement(cluster.address)}
        # All lead one of the three: so one that is killed leads one, and has others wait for it.
        assert set(placed.values()) == {"a", "b", "c"}
        killed = placed[0]
        door, other = [node for name, node in cluster.nodes.items() if name != killed]
        with (
            httpx.Client(base_url=f"http://{door.http}", timeout=40) as http,
            httpx.Client(base_url=f"http://{other.http}", timeout=40) as elsewhere,
            http.stream("POST", "/v1/groups/g/stream", params={"topics": "t", "consumer": "c", "as": "text"}) as stream,
        ):
            events = _events(stream.iter_lines())
            for number in range(3):
                _publish(elsewhere, f"before {number}", number)
            assert {next(events)["text"] for _ in range(3)} == {f"before {number}" for number in range(3)}
            cluster.nodes[killed].kill()
            for number in range(3):
                _publish(elsewhere, f"after {number}", number)
            after = [next(events) for _ in range(3)]
            assert {message["text"] for message in after} == {f"after {number}" for number in range(3)}
            reply = elsewhere.post("/v1/groups/g/ack", json={"receipts": [message["receipt"] for message in after]})
            assert reply.json() == {"done": 3, "failed": []}


def _publish(http: httpx.Client, text: str, partition: int) -> None:
    reply = http.post("/v1/topics/t/publish", json={"text": text, "partition": partition})
    assert reply.status_code == 200, reply.text


def _placement(address: str) -> Any:
    async def ask() -> Any:
        transport = await transport_to(address)
        try:
            return (await transport.call(FindPlacement(("t",)))).topics[0].partitions
        finally:
            await transport.close()

    return asyncio.run(ask())


# --- who may ------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path, etcd: str) -> Iterator[tuple[Door, str]]:
    """The door of a node with rules, and a key. The other one has none: nodes let each other in by themselves."""
    key, kept = make("billing")
    rules = [
        {"principals": ["billing"], "operations": ["publish", "consume", "admin"], "topics": ["mine"]},
        {"principals": ["billing"], "operations": ["consume"], "groups": ["mine"]},
    ]
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file = tmp_path / "access.yaml"
    file.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    cluster = LocalCluster(tmp_path, etcd)
    try:
        cluster.start("a")
        cluster.create("yours", 1)
        cluster.start("z", http=Address("127.0.0.1", 0), access=str(file))
        cluster.run(_drained(cluster, DrainNode("z")))
        door = Door(cluster, "z")
        yield door, key
        door.http.close()
    finally:
        cluster.close()


async def _drained(cluster: LocalCluster, request: Any) -> None:
    transport = await transport_to(f"penstock://{cluster.nodes['a'].native}")
    try:
        await transport.call(request)
    finally:
        await transport.close()


def test_rights_are_checked_before_anything_is_forwarded(guarded: tuple[Door, str]) -> None:
    door, key = guarded
    assert door.fails("GET", "/v1/topics") == (401, "unauthenticated")
    door.http.headers["authorization"] = f"Bearer {key}"
    door.ok("POST", "/v1/topics", {"name": "mine", "partitions": 1})
    door.published("mine", "x")
    assert len(door.polled_all("mine", 1, group="mine")) == 1
    denied = (403, "forbidden")
    assert door.fails("POST", "/v1/topics/yours/publish", {"text": "x"}) == denied
    assert door.fails("POST", "/v1/topics/nowhere/publish", {"text": "x"}) == denied
    assert door.fails("POST", "/v1/groups/mine/poll", {"topics": ["yours"]}) == denied
    assert door.fails("POST", "/v1/groups/yours/poll", {"topics": ["mine"]}) == denied
    assert door.fails("GET", "/v1/topics/yours/messages") == denied


def test_in_a_cluster_with_keys_work_under_an_identity_finds_what_it_has_stored(tmp_path: Path, etcd: str) -> None:
    key, kept = make("spark")
    file = tmp_path / "access.yaml"
    add_key(file, kept)
    cluster = LocalCluster(tmp_path, etcd)

    async def work() -> None:
        async with await connect_async(f"penstock://{cluster.nodes['a'].native}", key=key) as client:
            await client.create_topic("t", 1)
            batch = Batch.from_messages([Message(value, timestamp=1) for value in (b"a", b"b")], 1)
            for _ in range(2):
                async with client.identified("t", Identity(9)) as writer:
                    await writer.put(0, batch)
                    await writer.finish()
                    assert [place.messages for place in await writer.places(0)] == [2]
            assert [message.value async for message in client.reader("t")] == [b"a", b"b"]

    try:
        cluster.start("a", access=str(file))
        cluster.run(work())
    finally:
        cluster.close()
