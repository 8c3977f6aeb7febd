"""Other ways to publish."""

from __future__ import annotations

import asyncio
from collections import Counter

import pyarrow as pa

from penstock.batch import Batch
from penstock.client.identified import Identity
from penstock.client.received import Received
from penstock.message import Message
from simulation.world.operations.context import Context, Place, Tap, place_of

# A message may be in the buffer of its consumer when its time is over, as long as its lease lasts.
_FETCHED_AHEAD_US = 2_500_000


async def ack_leader(context: Context) -> None:
    """A fail-over may lose what only the leader had; nothing is doubled, made up, or out of order."""
    topic, rng = "ack_leader", context.rng
    await context.create_topic(topic, 2)
    sent: list[str] = []
    async with context.producer(topic, acks="leader") as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 10)):
                sent.append(context.new_value())
                await context.send(producer, sent[-1], key="one")
            await context.pause(0.1, 0.5)
    _check_order(context, sent, [value for _, _, value in await context.read(topic)], set())


async def batches(context: Context) -> None:
    """Each message of a table is where the reply says, also if only one of two replicas had it by then."""
    topic, rng = "batches", context.rng
    await context.create_topic(topic, 3, replicas=2, min_isr=1)
    sent: list[str] = []
    stored: dict[Place, str] = {}
    async with context.producer(topic, compression=rng.choice(("none", "lz4", "zstd"))) as producer:
        while not context.is_over:
            values = [context.new_value() for _ in range(rng.randint(1, 40))]
            sent += values
            keys = [f"user-{rng.randrange(8)}" for _ in values]
            context.doing = f"send {values[0]} to {values[-1]}"
            told = await producer.send_batch(pa.table({"value": values, "key": keys}))
            context.counts["send"] += len(values)
            for value, partition, offset in zip(values, told.partitions.tolist(), told.offsets.tolist(), strict=True):
                stored[topic, partition, offset] = value
            await context.pause(0.1, 0.5)
    found = {(topic, partition, offset): value for partition, offset, value in await context.read(topic)}
    if found != stored and not context.had_fault("wipe"):
        context.wrong("stored, and not where the reply says", f"{sorted(found.items() ^ stored.items())[:5]}")


async def identified(context: Context) -> None:
    """Work that is done again from its start, also by two at once, is stored once."""
    topic, rng = "identified", context.rng
    await context.create_topic(topic, 1)
    sent: list[str] = []
    number = 0
    while not context.is_over:
        number += 1
        values = [context.new_value() for _ in range(rng.randint(2, 12))]
        sent += values
        cut_short = [rng.randint(0, len(values)) for _ in range(rng.randint(0, 2))]
        for count in cut_short:
            await _write(context, topic, number, values[:count], is_finished=False)
        await asyncio.gather(
            *[_write(context, topic, number, values, is_finished=True) for _ in range(rng.randint(1, 2))]
        )
        await context.pause()
    _check_order(context, sent, [value for _, _, value in await context.read(topic)], set(sent))


async def _write(context: Context, topic: str, number: int, values: list[str], *, is_finished: bool) -> None:
    context.doing = f"write work {number}"
    async with context.client.identified(topic, Identity(number), retry_for="300s") as writer:
        for value in values:
            await writer.put(0, Batch.from_messages([Message(value.encode())], number))
            if not is_finished:
                await asyncio.sleep(0.01)
        if is_finished:
            await writer.finish()
            context.counts["write"] += 1


async def expire(context: Context) -> None:
    """A message is not delivered once its time to live is over; one that has time is."""
    topic, group, rng = "expire", "late", context.rng
    await context.create_topic(topic, 2)
    expires: dict[Place, int] = {}

    def check(message: Received, began_us: int) -> None:
        over_us = began_us - expires[place_of(message)]
        if context.has_true_dates and over_us > _FETCHED_AHEAD_US:
            context.wrong("delivered after its time to live", f"{message.id}, {over_us / 1e6:.3f} s")

    tap = Tap(context, group, topic, check)
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 6)):
                value, ttl_s = context.new_value(), rng.choice((1, 3, 600))
                expires_us = context.now_us() + ttl_s * 1_000_000
                place = tap.owe(await context.send(producer, value, ttl=f"{ttl_s}s"), value)
                expires[place] = expires_us
            await context.pause(0.1, 4)
            await tap.settle(lambda place: expires[place] > context.now_us() + 300_000_000)
    await tap.close()


async def prioritize(context: Context) -> None:
    """Lanes, strict or weighted, change the order and nothing else."""
    topic, group, rng = "prioritize", "hurried", context.rng
    await context.create_topic(topic, 2)
    tap = Tap(context, group, topic, lanes=rng.choice(("strict", "weighted", "none")))
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 30)):
                value = context.new_value()
                fields = {"priority": rng.choice(("high", "normal", "low")), "key": f"user-{rng.randrange(8)}"}
                tap.owe(await context.send(producer, value, **fields), value)
            await tap.settle()
            await context.pause()
    await tap.close()


def _check_order(context: Context, sent: list[str], found: list[str], acknowledged: set[str]) -> None:
    numbers = {value: number for number, value in enumerate(sent)}
    for value, count in Counter(found).items():
        if count > 1:
            context.wrong("one value at two offsets", f"{value}, {count} times")
        if value not in numbers:
            context.wrong("stored, and never sent", value)
    order = [numbers[value] for value in found if value in numbers]
    if order != sorted(order):
        context.wrong("out of the order in which its producer sent it", f"{found}")
    if missing := acknowledged - set(found):
        context.wrong("acknowledged and lost", f"{sorted(missing)[:5]}")


OPERATIONS = ack_leader, batches, identified, expire, prioritize
