"""Clients that connect to a cluster by real sockets: any node that answers will do to find the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from net.routing.fakes import Cluster, FakeNode, cluster_of
from penstock import aio
from penstock.client.placement import NodeInfo
from penstock.client.requests import CreateTopic
from penstock.errors import ConnectionLost, InvalidInput, Unsupported
from penstock.local.transport import LocalTransport
from penstock.net.address import places_of
from penstock.net.remote import RemoteTransport
from penstock.net.routing.transport import RoutedTransport
from penstock.server.gate import Gate
from penstock.server.native import NativeDoor
from served import Served, serve


class Doors:
    """One for each node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._doors: dict[str, NativeDoor] = {}

    async def open(self, name: str) -> None:
        node = self.cluster.nodes[name]
        site = cast(LocalTransport, node)
        door = self._doors[name] = NativeDoor(site, Gate(site, None), name=name, cluster="ours")
        node.info = NodeInfo(name, f"127.0.0.1:{await door.open('127.0.0.1', 0)}")
        node.is_down = False

    async def shut(self, name: str) -> None:
        self.cluster.nodes[name].is_down = True
        door = self._doors.pop(name)
        for session in list(door.sessions):
            session.abort()
        await door.close()

    def address(self, *names: str) -> str:
        nodes: list[FakeNode] = [self.cluster.nodes[name] for name in names or ("a", "b", "c")]
        return "penstock://" + ",".join(node.info.native for node in nodes)

    async def close(self) -> None:
        for door in list(self._doors.values()):
            await door.close()


@asynccontextmanager
async def doors_of() -> AsyncIterator[Doors]:
    async with cluster_of() as cluster:
        doors = Doors(cluster)
        try:
            for name in cluster.nodes:
                await doors.open(name)
            await cluster.site.call(CreateTopic("t", 3, {}))
            yield doors
        finally:
            await doors.close()


def run(work: Callable[[Doors], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), doors_of() as doors:
            await work(doors)

    asyncio.run(main())


def routed(client: Any) -> RoutedTransport:
    transport = getattr(client, "_inner", client)._transport
    assert isinstance(transport, RoutedTransport)
    return transport


def test_a_broker_on_its_own_is_talked_to_as_ever(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        nobody = "127.0.0.1:1"
        async with await aio.connect(f"{nobody},127.0.0.1:{here.place.port}") as client:
            assert isinstance(client._transport, RemoteTransport)
        with pytest.raises(Unsupported):
            seed = NodeInfo("", f"127.0.0.1:{here.place.port}")
            await RoutedTransport.to([seed], lambda node: RemoteTransport(here.place, here.site._clock))

    serve(tmp_path, work)


def test_a_client_finds_all_nodes_by_any_of_them() -> None:
    async def work(doors: Doors) -> None:
        async with await aio.connect(doors.address("c")) as client:
            routed(client)
            for number in range(3):
                await client.publish("t", b"%d" % number, partition=number)
            assert len((await client.topic("t")).partitions) == 3
            consumer = client.consumer("g", "t")
            values = set()
            while len(values) < 3:
                message = await consumer.next()
                assert message is not None
                values.add(message.value)
                await message.ack()
            assert sum((await client.lag("g"))["t"]) == 0
        assert all(node.asked["publish"] for node in doors.cluster.nodes.values())

    run(work)


def test_it_is_enough_that_one_of_several_addresses_answers() -> None:
    async def work(doors: Doors) -> None:
        await doors.shut("a")
        address = doors.address("a", "b")
        async with await aio.connect(address) as client:
            assert client.place == address
            assert len(await client.topics()) == 1
        with pytest.raises(ConnectionLost):
            await aio.connect("penstock://127.0.0.1:1,127.0.0.1:2")

    run(work)


def test_a_client_lives_on_when_a_node_goes_and_when_it_comes_back_elsewhere() -> None:
    async def work(doors: Doors) -> None:
        async with await aio.connect(doors.address()) as client:
            for number in range(30):
                if number == 10:
                    doors.cluster.move("t", 0, "b")
                    await doors.shut("a")
                if number == 20:
                    await doors.open("a")
                    doors.cluster.revision += 1
                    doors.cluster.move("t", 0, "a")
                await client.publish("t", b"%d" % number, partition=0)
            values = [message.value async for message in client.reader("t", partitions=[0])]
            assert values == [b"%d" % number for number in range(30)]

    run(work)


def test_a_blocking_client_publishes_on_its_own_thread_to_each_leader_and_takes_the_long_way_when_it_moves() -> None:
    async def work(doors: Doors) -> None:
        def publish(client: penstock.Client, numbers: range, partition: int) -> None:
            for number in numbers:
                client.publish("t", b"%d" % number, partition=partition)

        client = await asyncio.to_thread(penstock.connect, doors.address())
        try:
            transport, sent = routed(client), 0
            ways: list[Any] = []
            until = time.monotonic() + 30
            # A connection that was slow to open is tried again.
            while not sent or sum(way._express.is_open for way in ways) < 3:
                assert time.monotonic() < until
                for partition in range(3):
                    await asyncio.to_thread(publish, client, range(sent, sent + 10), partition)
                sent += 10
                ways = list(transport._nodes._made.values())
            doors.cluster.move("t", 0, "c")
            await asyncio.to_thread(publish, client, range(sent, sent + 10), 0)
            rows = await asyncio.to_thread(lambda: [row.value for row in client.reader("t", partitions=[0])])
            assert rows == [b"%d" % number for number in range(sent + 10)]
        finally:
            await asyncio.to_thread(client.close)

    run(work)


def test_several_addresses_share_a_scheme_and_a_context() -> None:
    first, second, third = places_of("penstocks://a:7000,b,[::1]:7001/", key="k")
    assert [str(place) for place in (first, second)] == ["penstocks://a:7000", "penstocks://b:7420"]
    assert (third.host, third.port, third.key) == ("::1", 7001, "k")
    assert first.tls is second.tls is third.tls is not None
    assert [place.host for place in places_of("a,b:1")] == ["a", "b"]


@pytest.mark.parametrize("address", ["a:1,b:many", "penstock://a,http://b", "a,,b", "penstock://a,b/c", "key@a,b"])
def test_one_of_several_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        penstock.connect(address)
