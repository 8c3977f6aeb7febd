"""A leader that is cut off or stopped while others take its place must stop serving its clients in time.

`Invariants` looks whether it does; a leader with the only replica has no successor, and is asked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from penstock.client.cluster_requests import Reassign
from penstock.client.placement import FindPlacement, Placed
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.address import place_of
from penstock.net.remote import RemoteTransport
from simulation.world.etcd import HOST
from simulation.world.operations.context import Context
from simulation.world.world import PORT, TTL_S, Machine

# How long it is watched after it had to stop.
_WATCHED_S = 3.0
_REASSIGNED_WITHIN_S = 5.0
# A process that stood still may answer what arrived meanwhile before it looks at the time.
_STAND_STILL = "pause", "stall_disk", "slow_disk", "drift_clock"


async def cut_off(context: Context) -> None:
    number = 0
    while not context.is_over:
        number += 1
        replicas, min_isr, happens = context.rng.choice(_CASES)
        if happens is _from_one_follower and len(context.world.machines) < 5:
            continue
        topic = f"cut_off{number}"
        await context.create_topic(topic, 1, replicas=replicas, min_isr=min_isr)
        placed: list[Placed] = []
        await context.until(f"{topic} is led", partial(_find, context, topic, placed))
        leader, machines = str(placed[0].leader), context.world.machines
        if {leader, *placed[0].replicas} <= machines.keys():
            context.counts[happens.__name__.removeprefix("_")] += 1
            followers = [name for name in placed[0].replicas if name != leader]
            await happens(context, topic, machines[leader], followers)
        await context.delete_topic(topic)
        await context.pause()


async def _find(context: Context, topic: str, placed: list[Placed]) -> bool:
    placement = await context.client._transport.call(FindPlacement((topic,)))
    placed[:] = [part for each in placement.topics for part in each.partitions if part.leader]
    return bool(placed)


async def _from_all(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """Both replicas are needed, so an operator adds another one to the successor."""
    others = _others(context, leader.name)
    with _cut(context, [leader.name], [HOST, *others]):
        await _wait(context, TTL_S + 1)
        third = next(name for name in others if name not in followers)
        await _reassign(context, topic, (*followers, third))
        await _wait(context, TTL_S + _WATCHED_S)


async def _from_etcd(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """Its followers follow another leader, and their nodes still send heartbeats to it."""
    with _cut(context, [leader.name], [HOST]):
        await _wait(context, 3 * TTL_S + _WATCHED_S)


async def _for_a_while(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """From its followers, which could not report that they have left."""
    with _cut(context, [leader.name], [HOST]):
        with _cut(context, [leader.name], _others(context, leader.name)):
            await _wait(context, 2 * TTL_S)
        await _wait(context, TTL_S + _WATCHED_S)


async def _from_one_follower(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """And from etcd, together with the other follower. The first one leads, and an operator replaces these two."""
    heir, loyal = followers
    others = [name for name in _others(context, leader.name) if name != loyal]
    with _cut(context, [leader.name, loyal], [HOST, *others]):
        await _wait(context, TTL_S + 1)
        await _reassign(context, topic, (heir, *[name for name in others if name != heir]))
        await _wait(context, TTL_S + _WATCHED_S)


async def _with_the_only_replica(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """Its topic may be another one by the time that its session has ended."""
    environment = context.world.client(f"op.{context.name}")
    transport = RemoteTransport(
        place_of(f"{leader.name}:{PORT}"), environment.clock, patience_s=0, new_id=environment.new_id
    )
    process = leader.process
    try:
        with _cut(context, [leader.name], [HOST]):
            await _wait(context, TTL_S + 0.5)
            for _ in range(10):
                if context.is_over:
                    # It came here too early.
                    break
                frame = Frame.of_message(Message(b"late"), now_us=context.now_us())
                try:
                    async with asyncio.timeout(1):
                        stored = await transport.publish_frame(topic, 0, frame, "leader")
                except (PenstockError, TimeoutError):
                    pass
                else:
                    if not any(context.had_fault(kind) for kind in _STAND_STILL) and leader.process is process:
                        context.wrong(
                            "a leader without a session stores messages", f"{topic} on {leader.name}: {stored}"
                        )
                await _wait(context, _WATCHED_S / 10)
    finally:
        await transport.close()


async def _while_it_is_stopped(context: Context, topic: str, leader: Machine, followers: list[str]) -> None:
    """What it receives when it goes on was sent before: the answer to a keepalive, and fetches."""
    process, network, others = leader.process, context.world.network, _others(context, leader.name)
    assert process is not None
    ways = [(other, leader.name) for other in (HOST, *others)]
    for way in ways:
        network.slow(*way, 400_000, 10_000_000)
    await _wait(context, context.rng.uniform(1, 2))
    process.pause()
    # A fetch that is held is repeated.
    await _wait(context, 0.7)
    for way in ways:
        network.speed_up(*way)
    with _cut(context, [leader.name], [HOST, *others]):
        await _wait(context, 2 * TTL_S)
        process.resume()
        await _wait(context, _WATCHED_S)


_CASES = (
    (2, 2, _from_all),
    (3, 2, _from_etcd),
    (3, 2, _for_a_while),
    (3, 2, _from_one_follower),
    (1, 1, _with_the_only_replica),
    (3, 2, _while_it_is_stopped),
)


async def _wait(context: Context, s: float) -> None:
    await context.pause(s, s)


def _others(context: Context, name: str) -> list[str]:
    return [other for other in sorted(context.world.machines) if other != name]


async def _reassign(context: Context, topic: str, nodes: tuple[str, ...]) -> None:
    try:
        async with asyncio.timeout(_REASSIGNED_WITHIN_S):
            request = Reassign(topic, None, nodes, 0)
            await context.surely("reassign", partial(context.client._transport.call, request))
    except (PenstockError, TimeoutError) as error:
        # Other faults may be in the way.
        context.note(f"{topic} is not reassigned: {error!r}")


@contextmanager
def _cut(context: Context, some: Collection[str], others: Collection[str]) -> Iterator[None]:
    """Unless another fault has done so: that one mends it."""
    network = context.world.network
    ways = [way for one in some for other in others for way in ((one, other), (other, one))]
    fresh = [way for way in ways if not network.is_cut(*way)]
    for way in fresh:
        network.cut(*way)
    try:
        yield
    finally:
        for way in fresh:
            network.mend(*way)


OPERATIONS = (cut_off,)
