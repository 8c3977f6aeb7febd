"""What operators do to a cluster: the guarantees of the main workload hold meanwhile."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.client.cluster_requests import (
    CancelMoves,
    ClusterReport,
    DrainNode,
    ElectLeaders,
    Reassign,
    Rebalance,
    SurveyCluster,
    UndrainNode,
)
from penstock.client.placement import FindPlacement
from penstock.client.requests import Request
from penstock.cluster.placing import REPLICAS_DEFAULT
from penstock.errors import InvalidInput, NodeNotFound, PenstockError
from simulation.world.operations.context import Context, R
from simulation.world.workload import TOPIC
from simulation.world.world import TTL_S, Machine


async def reassign(context: Context) -> None:
    """Partitions move between nodes, and some moves are cancelled."""
    rng = context.rng
    while not context.is_over:
        topic, count = await _any_topic(context)
        if topic:
            nodes = rng.sample(sorted(context.world.machines), rng.randint(2, len(context.world.machines)))
            partition = rng.choice((None, rng.randrange(count)))
            await _try(context, "reassign", Reassign(topic, partition, tuple(nodes), rng.choice((None, 0, 10_000))))
            if rng.random() < 0.2:
                await _try(context, "cancel moves", CancelMoves(topic, partition))
        await context.pause(0.05, 2)
    # They have as many replicas as at first, and get there without a bound on how fast.
    for topic in await context.surely("list topics", partial(_topics, context)) or ():
        await context.until(f"{topic} goes to its nodes", partial(_is_moving, context, topic))
    await _moved(context)


async def _is_moving(context: Context, topic: str) -> bool:
    """Unless a node is still on its way, or about to be undrained. The topic may be deleted by now."""
    try:
        if topic in await _topics(context):
            count = context.shape.replicas if topic == TOPIC else REPLICAS_DEFAULT
            nodes = tuple(context.rng.sample(sorted(context.world.machines), count))
            await context.client._transport.call(Reassign(topic, None, nodes, 0))
    except (NodeNotFound, InvalidInput):
        return False
    return True


async def elect(context: Context) -> None:
    """Leaders change, also while partitions move."""
    rng = context.rng
    while not context.is_over:
        topic, count = await _any_topic(context)
        node = rng.choice((None, *sorted(context.world.machines)))
        if rng.random() < 0.3 or not topic:
            await _try(context, "elect the preferred", ElectLeaders(None))
        else:
            await _try(context, "elect", ElectLeaders(topic, rng.choice((None, rng.randrange(count))), node))
        await context.pause(0.05, 2)


async def rebalance(context: Context) -> None:
    while not context.is_over:
        await _try(context, "rebalance", Rebalance(context.rng.random() < 0.2))
        await context.pause(1, 5)
    await _moved(context)


async def drain(context: Context) -> None:
    """A node that is drained leads nothing after a while."""
    rng = context.rng
    while not context.is_over:
        node = rng.choice(sorted(context.world.machines))
        await _try(context, "drain", DrainNode(node))
        await context.pause(0.5, 5)
        await _undrain(context, node)
    for node in sorted(context.world.machines):
        await _undrain(context, node)


async def roll(context: Context) -> None:
    """Each node in turn is drained, stopped, started and undrained, as in an upgrade."""
    while not context.is_over:
        for name, machine in context.world.machines.items():
            async with context.stage.turns[name]:
                await _try(context, "drain", DrainNode(name))
                await context.pause(0.1, 1)
                if machine.is_alive and machine.ready.done():
                    machine.stop()
                    await machine.ended
                    context.counts["restart"] += 1
                await context.stage.start(machine)
            await _undrain(context, name)
            await context.pause(0.5, 3)


async def join(context: Context) -> None:
    """Another node joins, gets replicas, loses them, and leaves for good."""
    number = 0
    while not context.is_over:
        number += 1
        machine = Machine(context.world, f"guest{number}")
        context.note_clock(machine)
        machine.start()
        async with asyncio.timeout(300):
            await machine.ready
        context.counts["join"] += 1
        await _try(context, "rebalance", Rebalance(False))
        await context.pause(1, 6)

        async def is_empty(machine: Machine = machine) -> bool:
            if not machine.is_alive:
                # It has lost its session, and an operator's machine starts it again.
                machine.start()
                return False
            await context.client._transport.call(DrainNode(machine.name, True, 0))
            report = await context.client._transport.call(SurveyCluster())
            there = [each for each in report.partitions if machine.name in (each.leader, *each.replicas, *each.target)]
            context.doing = f"{machine.name} is empty: {there}"
            return not there and not any(each.id == machine.name and each.replicas for each in report.nodes)

        await context.until(f"{machine.name} is empty", is_empty)
        if machine.is_alive and machine.ready.done():
            machine.stop()
            await machine.ended
        elif machine.is_alive:
            machine.kill()
        # Until all know that it is gone, it must not be taken for one that gets replicas.
        await asyncio.sleep(2 * TTL_S)
        await _undrain(context, machine.name)
    await _moved(context)


async def _try(context: Context, what: str, request: Request[R]) -> None:
    """Once: what can't be done now is not done."""
    context.doing = what
    try:
        await context.client._transport.call(request)
    except PenstockError as error:
        context.note(f"{what}: {error.code}: {error.message}")
    else:
        context.note(f"{what}: ok")
        context.counts[what] += 1


async def _undrain(context: Context, node: str) -> None:
    try:
        await context.surely("undrain", partial(context.client._transport.call, UndrainNode(node)))
    except InvalidInput as error:
        # It is not being drained: an earlier attempt was carried out, or another operation undid it.
        context.note(error.message)


async def _topics(context: Context) -> dict[str, int]:
    placement = await context.client._transport.call(FindPlacement(()))
    # Dead letters go where their topic goes.
    return {topic.name: len(topic.partitions) for topic in placement.topics if not topic.name.endswith(".dlq")}


async def _any_topic(context: Context) -> tuple[str, int]:
    try:
        topics = await _topics(context)
    except PenstockError:
        return "", 0
    return context.rng.choice(sorted(topics.items())) if topics else ("", 0)


async def _moved(context: Context) -> None:
    async def are_moved() -> bool:
        report: ClusterReport = await context.client._transport.call(SurveyCluster())
        return not any(each.target for each in report.partitions)

    await context.until("all moves are over", are_moved)


OPERATIONS = reassign, elect, rebalance, drain, roll, join
