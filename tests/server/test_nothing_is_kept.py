"""Create, use and delete everything, again and again: a server and its clients hold no more afterwards than before."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import httpx
import pytest

from grpc_served import polled as grpc_poll
from grpc_served import stub_of
from penstock.client.client import Client
from penstock.net import singles
from penstock.server.gate import Gate
from penstock.server.grpc.door import GrpcDoor
from penstock.server.http.door import HttpDoor
from reachable import sizes
from served import Served, serve

# Bounded in other ways: by a number, or by a time.
BOUNDED = {
    "Chronicle._followed",
    "Counts.connections",
    "Follower._groups",
    "Group._turns",
    "Guarded._allowed",
    "Members.history",
}


async def everything(here: Served, q: Client, http: httpx.AsyncClient, grpc_q: object, turn: int) -> None:
    topic, group = f"t{turn}", f"g{turn}"
    await q.create_topic(topic, partitions=2)
    await q.schedules.create(f"s{turn}", topic, "@hourly", b"scheduled")
    async with q.producer(topic) as producer:
        for number in range(8):
            await producer.send(b"%d" % number, key=b"%d-%d" % (turn, number))
    later = await q.publish(topic, b"later", delay="1h")
    await q.scheduled.reschedule(later.id, delay="2h")
    await q.scheduled.cancel((await q.publish(topic, b"never", delay="1h")).id)
    async with here.client() as other, other.consumer(group, topic, ordering="key", max_retries=0) as consumer:
        acked, nacked, rejected, *_ = await consumer.poll(6, wait="5s")
        await acked.ack()
        await nacked.nack()
        await rejected.reject("bad")
        waiting = asyncio.ensure_future(consumer.poll(1, wait="1m"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    await here.site.broker.settle()
    await q.trace(acked.id)
    await q.why(nacked.id, group)
    await q.replay(topic, f"r{turn}", offsets={0: (0, 1), 1: (0, 1)})
    assert await q.consumer(f"r{turn}", topic, name=f"c{turn}").poll(3, wait="5s")
    answer = await http.post(f"/v1/groups/{group}/poll", json={"topics": topic, "consumer": f"h{turn}"})
    assert answer.status_code == 200, answer.text
    await grpc_q.Poll(grpc_poll(group, f"r{turn}", (topic,)))  # type: ignore[attr-defined]
    await q.dead_letters.redrive(topic)
    await q.dead_letters.discard(topic)
    for name in (group, f"r{turn}"):
        await q.delete_group(name)
    for name in (topic, f"{topic}.dlq"):
        await q.delete_topic(name)
    await here.site.broker.settle()


def test_a_server_and_its_clients_hold_no_more_after_everything_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singles, "_PRODUCERS_MAX", 1)

    async def work(here: Served) -> None:
        doors = HttpDoor(here.site, Gate(here.site, None)), GrpcDoor(here.site, Gate(here.site, None))
        ports = [await door.open("127.0.0.1", 0) for door in doors]
        connections = doors[1]._reception.admitted.__self__  # type: ignore[attr-defined]
        try:
            async with (
                here.client() as q,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}") as http,
                grpc.aio.insecure_channel(f"127.0.0.1:{ports[1]}") as channel,
            ):

                async def held(turns: range) -> dict[str, int]:
                    for turn in turns:
                        await everything(here, q, http, stub_of(channel), turn)
                    await here.site.broker.tick()
                    # Sockets are found by a timer otherwise, sooner or later.
                    await connections.scan()
                    gc.collect()
                    return sizes(here.site, here.door, *doors, q)

                before = await held(range(2))
                after = await held(range(2, 6))
                grown = {name: (before[name], size) for name, size in after.items() if size > before[name]}
                assert {name: both for name, both in grown.items() if name not in BOUNDED} == {}
                assert len(list(tmp_path.rglob("partitions/*"))) == 0
        finally:
            for door in doors:
                await door.close()

    serve(tmp_path, work)
