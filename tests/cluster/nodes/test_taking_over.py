"""A replica that follows has read what it needs by the time that it is elected."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from cluster_nodes import LocalCluster, found, node_of
from penstock.broker.recollection import Recollection
from penstock.client.cluster_requests import ElectLeaders
from penstock.cluster import node as node_module

MESSAGES = 600


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "RECOLLECT_S", 0.05)


def test_whoever_follows_has_read_the_headers_before_it_leads(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t", 1)
    leader, follower, _ = cluster.partition("t", 0).replicas
    identity = cluster.partition("t", 0).id
    left: list[int] = []
    real = Recollection.take

    def take(self: Recollection, now_us: int) -> None:
        left.append(self._log.end_offset - self.next_offset)
        real(self, now_us)

    with penstock.connect(cluster.address) as q, q.producer("t", linger=0) as producer:
        for number in range(MESSAGES):
            producer.send(str(number).encode()).result()
        hosted = node_of(cluster, follower).hosted[identity]

        async def has_read() -> None:
            while hosted.recollection.next_offset < MESSAGES - 256:
                await asyncio.sleep(0)

        cluster.run(has_read())
        assert node_of(cluster, leader).hosted[identity].recollection.next_offset == 0, "who leads has its own"
        monkeypatch.setattr(Recollection, "take", take)

        cluster.call(ElectLeaders("t", 0, follower))
        cluster.until(lambda report: found(report, "t", 0).leader == follower)
        # It knows its producer.
        producer.send(b"last").result()

        assert left, "it has been opened"
        assert left[0] <= 2 * 256
        values = [message.value for message in q.reader("t")]
    assert values == [*(str(number).encode() for number in range(MESSAGES)), b"last"]
