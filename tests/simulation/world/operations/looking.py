"""What only looks: traces, states of the past, lists, reports."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.client.cluster_requests import SurveyCluster
from penstock.errors import PenstockError
from simulation.world.operations.context import Context, Place, Tap, passes


async def look(context: Context) -> None:
    """What is told of a message fits what has become of it."""
    topic, group, rng, client = "look", "lookers", context.rng, context.client
    await context.create_topic(topic, 2)
    tap = Tap(context, group, topic)
    done: list[Place] = []
    async with context.producer(topic) as producer:
        while not context.is_over:
            done += await context.send_some(producer, tap)
            await tap.settle()
            id = ":".join(map(str, rng.choice(done)))
            trace = await context.surely("trace", partial(client.trace, id))
            steps = [] if trace is None else [step.what for step in trace.steps if step.group in (None, group)]
            if "PUBLISHED" not in steps or "ACKNOWLEDGED" not in steps:
                context.wrong("a trace lacks what has happened", f"{steps} of {id}")
            why = await context.surely("why", partial(client.why, id, group))
            if why is None or why.code != "acknowledged":
                context.wrong("another answer than acknowledged", f"{why} of {id}")
            states = await context.surely("state", partial(client.state_at, group, topic, context.now_us()))
            if context.has_true_dates and any(state.unacknowledged or state.leased for state in states or ()):
                context.wrong("a state of the past that was not", f"{states} of {group}")
            await context.surely("message", partial(client.message, id))
            await _glance(context, topic, group)
            await context.pause()
    await tap.close()


async def _glance(context: Context, topic: str, group: str) -> None:
    """What is not known now may be left out."""
    client = context.client
    asks = (
        partial(client.topics, partial=True),
        partial(client.groups, partial=True),
        partial(client.group, group, partial=True),
        partial(client.parked_keys, group, partial=True),
        partial(client.scheduled.list, topic),
        partial(client._transport.call, SurveyCluster()),
    )
    for ask in asks:
        try:
            await ask()
        except PenstockError as error:
            if not passes(error):
                raise
            context.note(f"{error.code}: {error.message}")
        else:
            context.counts["glance"] += 1
    try:
        async for _ in client.deliveries(topic).batches():
            await asyncio.sleep(0)
    except PenstockError as error:
        if not passes(error):
            raise


OPERATIONS = (look,)
