"""Topics that are deleted, recreated and grown, and those of which something is deleted or compacted."""

from __future__ import annotations

from functools import partial

from penstock.client.requests import FindOffsets, TopicInfo
from simulation.world.operations.context import Context, Place, Tap

_SIZE = 2_000


async def recreate(context: Context) -> None:
    """What comes to a topic of the same name is delivered to a group that stays, and nothing of the earlier one is."""
    topic, group, rng = "recreate", "settlers", context.rng
    while not context.is_over:
        partitions = rng.randint(1, 3)
        await context.create_topic(topic, partitions)
        tap = Tap(context, group, topic)
        sent: dict[Place, str] = {}
        async with context.producer(topic) as producer:
            for _ in range(rng.randint(1, 4)):
                for place in await context.send_some(producer, tap):
                    sent[place] = tap.owed[place]
                if rng.random() < 0.7:
                    await tap.settle()
                if rng.random() < 0.3:
                    partitions += 1
                    await _grow(context, topic, partitions)
            if rng.random() < 0.5:
                await tap.settle()
        found = {(topic, partition, offset): value for partition, offset, value in await context.read(topic)}
        if found != sent:
            context.wrong("a recreated topic has other messages", f"{sorted(found.items() ^ sent.items())[:5]}")
        await context.delete_topic(topic)
        # It may have fetched ahead.
        await tap.close()
        await context.pause(0.0, 1.0)


async def _grow(context: Context, topic: str, partitions: int) -> None:
    async def grown() -> TopicInfo:
        info = await context.client.topic(topic)
        if len(info.partitions) < partitions:
            info = await context.client.change_topic(topic, partitions)
        return info

    info = await context.surely("grow a topic", grown)
    if info is None or len(info.partitions) != partitions:
        context.wrong("a topic has another number of partitions", f"{info} instead of {partitions}")


async def retain(context: Context) -> None:
    """Retention deletes the oldest; the start never goes back, and what is left has no gaps."""
    topic, group, rng = "retain", "keepers", context.rng
    await context.create_topic(topic, 1, retention={"bytes": 20_000})
    tap = Tap(context, group, topic)
    stored: dict[int, str] = {}
    start = 0
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 10)):
                value = context.new_value().ljust(_SIZE, ".")
                told = await context.send(producer, value)
                # Nothing is kept for a group that has not got it.
                tap.doubt(tap.owe(told, value))
                stored[told.offset] = value
            if rng.random() < 0.7:
                await tap.settle()
            ask = partial(context.client._transport.call, FindOffsets(topic, "earliest"))
            [first] = await context.surely("find the start", ask) or [0]
            if first < start:
                context.wrong("the start of a log went back", f"from {start} to {first}")
            start = max(start, first)
            context.counts["deleted"] = start
            found = {offset: value for _, offset, value in await context.read(topic)}
            kept = {offset: value for offset, value in stored.items() if offset >= min(found, default=0)}
            if found != kept or not found:
                context.wrong("a log with retention has other messages", f"{sorted(found.keys() ^ kept.keys())[:5]}")
            await context.pause()
        await tap.settle()
    await tap.close()


async def compact(context: Context) -> None:
    """The newest message of each key stays."""
    topic, rng = "compact", context.rng
    await context.create_topic(topic, 1, cleanup="compact")
    newest: dict[str, tuple[int, str]] = {}
    stored: dict[int, str] = {}
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 10)):
                key, value = f"user-{rng.randrange(6)}", context.new_value().ljust(_SIZE, ".")
                told = await context.send(producer, value, key=key)
                newest[key] = told.offset, value
                stored[told.offset] = value
            found = {offset: value for _, offset, value in await context.read(topic)}
            if missing := set(newest.values()) - found.items():
                context.wrong("the newest message of a key is missing", f"{sorted(offset for offset, _ in missing)}")
            if made_up := found.items() - stored.items():
                context.wrong("stored, and never sent", f"{sorted(offset for offset, _ in made_up)}")
            context.counts["compacted"] = len(stored) - len(found)
            await context.pause()


OPERATIONS = recreate, retain, compact
