"""Readers that go on where they were."""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError
from simulation.world.operations.context import Context, passes


async def follow(context: Context) -> None:
    """A reader that goes on from kept offsets and epochs sees what is committed, in order, without a gap."""
    topic, partitions, rng = "follow", 2, context.rng
    await context.create_topic(topic, partitions)
    stored: dict[tuple[int, int], str] = {}
    seen: list[tuple[int, int, str]] = []
    epochs: dict[int, int] = {}
    async with context.producer(topic) as producer:
        while True:
            is_last = context.is_over
            for _ in range(rng.randint(0, 6)):
                value = context.new_value()
                told = await context.send(producer, value)
                stored[told.partition, told.offset] = value
            offsets = {number: _next(seen, number) for number in range(partitions)}
            reader = context.client.reader(topic, from_offset=offsets, epochs=epochs if rng.random() < 0.7 else None)
            context.doing = f"read from {offsets}"
            new: list[tuple[int, int, str]] = []
            try:
                async for one in reader:
                    new.append((one.partition, one.offset, (one.value or b"").decode()))
                epochs = await reader.epochs()
                context.counts["read"] += 1
            except PenstockError as error:
                if not passes(error):
                    raise
                context.note(f"read: {error.code}: {error.message}")
                await asyncio.sleep(0.3)
                is_last = False
            _check(context, offsets, new)
            seen += new
            if is_last:
                break
            await context.pause(0.05, 0.5)
    missing = stored.items() - {((partition, offset), value) for partition, offset, value in seen}
    if missing:
        context.wrong("stored, and not read", f"{sorted(missing)[:5]} of {len(seen)}")
    whole = await context.read(topic)
    if whole != sorted(seen):
        context.wrong("a later reader saw something else", f"{sorted(set(whole) ^ set(seen))[:5]}")


def _next(seen: list[tuple[int, int, str]], number: int) -> int:
    return max((offset + 1 for partition, offset, _ in seen if partition == number), default=0)


def _check(context: Context, offsets: dict[int, int], new: list[tuple[int, int, str]]) -> None:
    last = {number: offset - 1 for number, offset in offsets.items()}
    for partition, offset, value in new:
        if offset <= last[partition]:
            context.wrong("read out of order", f"{partition}:{offset} {value} behind {last[partition]}")
        last[partition] = offset


OPERATIONS = (follow,)
