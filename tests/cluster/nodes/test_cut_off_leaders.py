"""A leader that etcd does not hear any more, though its clients and the other nodes do: another one is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from cluster_nodes import LocalCluster, found
from penstock.client.cluster_requests import ElectLeaders, Reassign
from penstock.client.placement import FindCoordinator
from penstock.client.requests import FindOffsets
from penstock.net.connecting import transport_to

TTL_S = 3


class Way:
    """To etcd, for one node. Once it is cut, connections end, and new ones are refused."""

    def __init__(self, etcd: str) -> None:
        self._etcd = urlsplit(etcd)
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        far_reader, far = await asyncio.open_connection(self._etcd.hostname, self._etcd.port)
        self._writers |= {writer, far}
        await asyncio.gather(_copy(reader, far), _copy(far_reader, writer))
        self._writers -= {writer, far}

    async def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        await self.cut()
        self._server.close()
        await self._server.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


class CutOff:
    """The nodes a, b and c; only a is ever cut off."""

    def __init__(self, cluster: LocalCluster, way: Way) -> None:
        self.cluster = cluster
        self._way = way

    def at(self, *names: str) -> str:
        return "penstock://" + ",".join(self.cluster.nodes[name].native for name in names)

    def lead(self, topic: str) -> None:
        """By a, and no other."""
        if self.cluster.partition(topic, 0).leader != "a":
            self.cluster.call(ElectLeaders(topic, 0, "a"))
        self.cluster.until(lambda report: found(report, topic, 0).leader == "a")

    def cut(self) -> None:
        """Returns once the session of a has ended, by what the other nodes see."""
        self.cluster.run(self._way.cut())
        self.cluster.until(
            lambda report: not any(node.id == "a" and node.is_alive for node in report.nodes), self.at("b")
        )

    def until_a_shows(self, topic: str, offset: int) -> None:
        """A client that knows of a alone sees that offset."""

        async def end() -> int:
            transport = await transport_to(self.at("a"))
            try:
                return (await transport.call(FindOffsets(topic, "latest")))[0]
            finally:
                await transport.close()

        async def wait() -> None:
            while await end() <= offset:
                await asyncio.sleep(0)

        self.cluster.run(wait())

    def group_of_a(self) -> str:
        """A group whose members a looks after."""
        return next(name for name in map("g{}".format, count()) if self.cluster.call(FindCoordinator(name)).node == "a")


def got(q: penstock.Client, group: str, count: int) -> list[bytes | None]:
    """The first messages that a consumer receives; fewer if no more come."""
    with q.consumer(group, "t", start="earliest", until_idle="15s") as consumer:
        return [(message.value, message.ack())[0] for message in islice(consumer, count)]


@pytest.fixture
def cut_off(tmp_path: Path, etcd: str) -> Iterator[CutOff]:
    cluster = LocalCluster(tmp_path, etcd)
    way = Way(etcd)
    try:
        cluster.start("a", etcd=cluster.run(way.open()), session_ttl=TTL_S)
        cluster.start("b", "c", session_ttl=TTL_S)
        yield CutOff(cluster, way)
    finally:
        for name in list(cluster.nodes):
            cluster.stop(name)
        cluster.run(way.close())
        cluster.close()


def test_a_leader_that_was_replaced_stops_serving_though_its_followers_are_still_connected(cut_off: CutOff) -> None:
    cut_off.cluster.create("t", 1, replicas=3, min_isr=2)
    cut_off.lead("t")
    group = cut_off.group_of_a()
    with penstock.connect(cut_off.at("b", "c")) as q:
        q.publish("t", b"old")
        assert got(q, group, 1) == [b"old"]
    cut_off.cut()
    cut_off.cluster.until(lambda report: found(report, "t", 0).leader in ("b", "c"), cut_off.at("b"))
    # Not by the client from before: it would ask a first, which then has something to send to its followers.
    with penstock.connect(cut_off.at("b", "c")) as q:
        new = q.publish("t", b"new")

    cut_off.until_a_shows("t", new.offset)

    with penstock.connect(cut_off.at("a")) as q:
        assert got(q, group, 1) == [b"new"]
    with penstock.connect(cut_off.at("a")) as q:
        assert q.publish("t", b"later", acks="leader").offset == new.offset + 1


def test_a_leader_with_the_only_replica_stops_serving_before_its_topic_can_be_created_again_elsewhere(
    cut_off: CutOff,
) -> None:
    cut_off.cluster.create("t", 1, replicas=1, min_isr=1)
    if cut_off.cluster.partition("t", 0).leader != "a":
        cut_off.cluster.call(Reassign("t", 0, ("a",)))
        cut_off.cluster.until(lambda report: found(report, "t", 0).leader == "a")
    cut_off.cut()
    with penstock.connect(cut_off.at("b", "c")) as q, penstock.connect(cut_off.at("a")) as by_a:
        q.delete_topic("t")
        q.create_topic("t", partitions=1, replicas=1)
        by_a.publish("t", b"by way of a")
        assert got(q, "g", 1) == [b"by way of a"]
