"""Every operation of a client while leaders move all the time: no error reaches the caller, no answer lacks anything.

What may be in doubt by its contract, and is told so, is no error here: a change that must not be made twice, and whose
answer was lost with the leader.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import httpx
import pytest

import penstock
from cluster_nodes import LocalCluster, found
from penstock import aio
from penstock.broker.topic import Topic
from penstock.client.client import Client
from penstock.client.cluster_requests import ElectLeaders, SurveyCluster
from penstock.errors import Fatal, LeaseError, PenstockError, SyncFailed
from penstock.net.connecting import transport_to
from penstock.server.config import Address
from penstock.server.native import NativeDoor

TOPICS = {"many": 3, "one": 1}
MOVES = 100


class Churn:
    """What was asked for, and what went wrong."""

    def __init__(self, q: Client, door: httpx.AsyncClient) -> None:
        self.q = q
        self.door = door
        self.moves = 0
        self.asked: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.moves >= MOVES or bool(self.wrong)

    async def repeat(self, what: str, work: Callable[[], Awaitable[None]], *, may_be_in_doubt: bool = False) -> None:
        # Each at least twice, however slow the machine.
        while not self.is_over or (self.asked[what] < 2 and not self.wrong):
            try:
                async with asyncio.timeout(40):
                    await work()
            except (PenstockError, AssertionError, TimeoutError, httpx.HTTPError) as error:
                in_doubt = isinstance(error, LeaseError) or (isinstance(error, PenstockError) and error.in_doubt)
                if not (may_be_in_doubt and in_doubt):
                    self.wrong.append(f"{what}: {type(error).__name__} {error}")
            self.asked[what] += 1
            await asyncio.sleep(0)

    # --- leaders -----------------------------------------------------------------------------------------

    async def move(self, address: str) -> None:
        transport = await transport_to(address)
        try:
            for turn in count():
                if self.is_over:
                    return
                for topic, partitions in TOPICS.items():
                    report = await transport.call(SurveyCluster())
                    partition = found(report, topic, turn % partitions)
                    others = sorted(set(partition.in_sync) - {partition.leader})
                    if others:
                        with suppress(PenstockError):
                            await transport.call(
                                ElectLeaders(topic, turn % partitions, others[turn // partitions % len(others)])
                            )
                            self.moves += 1
        finally:
            await transport.close()

    # --- what a client does ------------------------------------------------------------------------------

    async def publish(self) -> None:
        for topic in TOPICS:
            await self.q.publish(topic, b"x", key=b"%d" % self.asked["publish"])

    async def produce(self) -> None:
        async with self.q.producer("many") as producer:
            for number in range(20):
                await producer.send(b"y", key=b"%d" % number)

    async def consume(self) -> None:
        """Also comes and goes."""
        async with self.q.consumer("acking", list(TOPICS)) as consumer:
            for message in await consumer.poll(max=5, wait="100ms"):
                await message.extend("30s")
                await message.ack()

    async def give_back(self) -> None:
        async with self.q.consumer(
            "nacking", list(TOPICS), backoff={"initial": "1ms", "max": "10ms"}, max_retries=100
        ) as consumer:
            messages = await consumer.poll(max=3, wait="100ms")
            for message, answer in zip(messages, ("nack", "reject", "release"), strict=False):
                await getattr(message, answer)(*(["no"] if answer == "reject" else []))

    async def read(self) -> None:
        for topic in TOPICS:
            assert [message async for message in self.q.reader(topic)]

    async def look(self) -> None:
        lag = await self.q.lag("idle")
        assert {topic: len(numbers) for topic, numbers in lag.items()} == TOPICS
        groups = {group.name: group for group in await self.q.groups()}
        assert groups["idle"].lag.keys() == TOPICS.keys()
        assert (await self.q.group("idle")).lag.keys() == TOPICS.keys()

    async def look_at_topics(self) -> None:
        topics = {topic.name: len(topic.partitions) for topic in await self.q.topics() if topic.name in TOPICS}
        assert topics == TOPICS
        for name, partitions in TOPICS.items():
            assert len((await self.q.topic(name)).partitions) == partitions

    async def look_back(self) -> None:
        for topic in TOPICS:
            message = await self.q.message(f"{topic}:0:{await self._first(topic)}")
            assert (await self.q.trace(message.id)).id == message.id
            await self.q.why(message.id, "idle")
            await self.q.state_at("idle", topic, message.append_time)
            await self.q.parked_keys("idle")
            await self.q.scheduled.list(topic)
            await self.q.dead_letters.list(topic)

    async def _first(self, topic: str) -> int:
        async for message in self.q.reader(topic, partitions=[0]):
            return message.offset
        raise AssertionError("there is nothing to look at")

    async def change(self) -> None:
        await self.q.seek("sought", "many", to="latest")

    # --- over HTTP ---------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, json: Any = None) -> Any:
        reply = await self.door.request(method, path, json=json)
        assert reply.status_code in (200, 201, 204), reply.text
        return reply.json() if reply.content else None

    async def publish_by_http(self) -> None:
        await self.ask("POST", "/v1/topics/one/publish", {"text": "x"})

    async def consume_by_http(self) -> None:
        for wait in ("0s", "100ms"):
            given = {"topics": ["one"], "consumer": "c", "max": 3, "wait": wait}
            messages = (await self.ask("POST", "/v1/groups/http/poll", given))["messages"]
            if messages:
                receipts = [message["receipt"] for message in messages]
                told = await self.ask("POST", "/v1/groups/http/ack", {"receipts": receipts})
                assert not told["failed"], told


@pytest.mark.timeout(240)
def test_no_operation_fails_and_no_answer_is_incomplete_while_leaders_move(
    tmp_path_factory: pytest.TempPathFactory, etcd: str
) -> None:
    cluster = LocalCluster(tmp_path_factory.mktemp("nodes"), etcd)

    async def work() -> Churn:
        http = f"http://{cluster.nodes['c'].where.http}"
        async with aio.connect(cluster.address) as q, httpx.AsyncClient(base_url=http, timeout=40) as door:
            churn = Churn(q, door)
            for group in ("idle", "sought"):
                async with q.consumer(group, list(TOPICS)) as consumer:
                    await consumer.join()
            await churn.publish()
            for topic, partitions in TOPICS.items():
                for partition in range(partitions):
                    await q.publish(topic, b"first", partition=partition)
            await asyncio.gather(
                churn.move(cluster.address),
                churn.repeat("publish", churn.publish),
                churn.repeat("produce", churn.produce),
                churn.repeat("consume", churn.consume),
                churn.repeat("give back", churn.give_back, may_be_in_doubt=True),
                churn.repeat("read", churn.read),
                churn.repeat("look", churn.look),
                churn.repeat("look at topics", churn.look_at_topics),
                churn.repeat("look back", churn.look_back),
                churn.repeat("change", churn.change, may_be_in_doubt=True),
                churn.repeat("publish by http", churn.publish_by_http),
                churn.repeat("consume by http", churn.consume_by_http),
            )
            return churn

    try:
        cluster.start("a", "b", "c", http=Address("127.0.0.1", 0))
        for topic, partitions in TOPICS.items():
            cluster.create(topic, partitions, replicas=3)
        churn = asyncio.run(work())
    finally:
        cluster.close()
    assert not churn.wrong, churn.asked
    assert min(churn.asked.values()) >= 2, churn.asked


def test_a_publish_whose_leader_has_lost_its_disk_is_stored_by_the_next_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t", 1, replicas=3)
    leader = cluster.partition("t", 0).leader
    (door,) = [door for door in cluster.nodes[leader].server._doors if isinstance(door, NativeDoor)]
    failing = door.site.broker.topic("t")
    storing = Topic.storing

    def failed(topic: Topic, *arguments: Any, **more: Any) -> Any:
        if topic is failing:
            raise SyncFailed("fdatasync: Input/output error")
        return storing(topic, *arguments, **more)

    monkeypatch.setattr(Topic, "storing", failed)
    running = cluster.nodes.pop(leader)
    with penstock.connect(cluster.address) as q:
        q.publish("t", b"kept")
        assert [message.value for message in q.reader("t")] == [b"kept"]

    async def ended() -> None:
        with pytest.raises(Fatal):
            await running.task

    # It is that node whose disk has failed, and no other.
    cluster.run(ended())
    assert all(not each.task.done() for each in cluster.nodes.values())
