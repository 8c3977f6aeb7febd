"""What changes what a group has done: seek, replay, deletion; and leases."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.client.consumer import Consumer
from penstock.client.received import Received
from penstock.errors import AlreadyExists, LeaseError, PenstockError
from simulation.world.operations.context import GROUP, Context, Place, Tap, passes, place_of


async def seek(context: Context) -> None:
    """Back, by one partition or by all: everything behind it is redelivered, and nothing else."""
    topic, group, rng = "seek", "seekers", context.rng
    await context.create_topic(topic, 2)
    tap, go = Tap(context, group, topic), context.client.seek
    async with context.producer(topic) as producer:
        while not context.is_over:
            places = await context.send_some(producer, tap)
            await tap.settle()
            if rng.random() < 0.2:
                await context.surely("seek to the earliest", partial(go, group, topic, "earliest"))
                tap.owe_again(lambda _: True)
            else:
                sought = rng.choice(places)
                await context.surely("seek", partial(go, group, topic, sought[2], partition=sought[1]))
                tap.owe_again(partial(_is_from_on, sought))
            await context.pause()
        await tap.settle()
    await tap.close()


def _is_from_on(first: Place, place: Place) -> bool:
    return place[1] == first[1] and place[2] >= first[2]


async def replay(context: Context) -> None:
    """A new group gets the messages of a range, all of them, and nothing else."""
    topic, rng = "replay", context.rng
    await context.create_topic(topic, 2)
    stored: dict[Place, str] = {}
    number = 0
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 6)):
                value = context.new_value()
                at = await context.send(producer, value)
                stored[at.topic, at.partition, at.offset] = value
            ranges = {}
            for one in sorted({place[1] for place in stored}):
                offsets = sorted(place[2] for place in stored if place[1] == one)
                first, last = sorted((rng.choice(offsets), rng.choice(offsets)))
                ranges[one] = first, last + 1
            number += 1
            group = f"replay-{number}"
            ask = partial(context.client.replay, topic, group, offsets=ranges, **GROUP)
            count = await context.surely("replay", ask, done=AlreadyExists)
            tap = Tap(context, group, topic)
            tap.owed = {
                place: value for place, value in stored.items() if place[2] in range(*ranges.get(place[1], (0, 0)))
            }
            if count not in (None, len(tap.owed)):
                context.wrong("a replay of another number of messages", f"{count} of {len(tap.owed)} in {ranges}")
            await tap.settle()
            if rng.random() < 0.3:
                # It keeps its end.
                await context.surely("seek a replay", partial(context.client.seek, group, topic, "earliest"))
                tap.owe_again(lambda _: True)
                tap.owed |= {place: value for place, value in stored.items() if place[2] < ranges[place[1]][1]}
                await tap.settle()
            await tap.close()
            if rng.random() < 0.5:
                await context.delete_group(group)
            await context.pause()


async def delete_group(context: Context) -> None:
    """A group of the same name starts from the beginning; before that its settings change."""
    topic, group, rng = "delete_group", "forgetful", context.rng
    await context.create_topic(topic, 2)
    tap, sent = Tap(context, group, topic), {}
    async with context.producer(topic) as producer:
        while not context.is_over:
            for place in await context.send_some(producer, tap):
                sent[place] = tap.owed[place]
            await tap.settle()
            if rng.random() < 0.5:
                # A consumer that joins again must ask for the settings there are.
                await tap.close()
                visibility = rng.choice(("1s", "2s", "3s"))
                change = partial(context.client.change_group, group, visibility=visibility)
                await context.surely("change a group", change)
                info = await context.surely("describe a group", partial(context.client.group, group))
                if info is not None and info.settings["visibility"] != visibility:
                    context.wrong("a change of settings was forgotten", f"{info.settings['visibility']} of {group}")
                tap = tap.again(visibility=visibility)
            else:
                await tap.close()
                await context.delete_group(group)
                tap = Tap(context, group, topic)
                tap.owed = dict(sent)
            await context.pause()
        await tap.settle()
    await tap.close()


async def park(context: Context) -> None:
    """Behind a message that failed permanently its key waits until it is released; other keys go on."""
    topic, group, rng = "park", "parkers", context.rng
    await context.create_topic(topic, 1)
    tap = Tap(context, group, topic, ordering="key", on_poison="park")
    async with context.producer(topic) as producer:
        while not context.is_over:
            poison = context.new_value()
            place = tap.owe(await context.send(producer, poison, key="parked"), poison)
            await tap.reject(place)
            waiting, others = {}, {}
            for _ in range(rng.randint(1, 6)):
                key, value = rng.choice(("parked", "other")), context.new_value()
                (waiting if key == "parked" else others)[
                    tap.owe(await context.send(producer, value, key=key), value)
                ] = value
            tap.hidden = set(waiting)
            await tap.settle(others.__contains__)
            parked = await context.surely("list parked keys", partial(context.client.parked_keys, group))
            if parked is not None and [each.key for each in parked] != [b"parked"]:
                context.wrong("other keys are parked", f"{parked}")
            await context.surely("release a key", partial(context.client.release_key, group, topic, "parked"))
            tap.hidden = set()
            await tap.settle()
            await context.pause()
    await tap.close()


async def linger(context: Context) -> None:
    """Acknowledgements that are sent later are sent when a consumer closes, at the latest."""
    topic, group, rng = "linger", "lingerers", context.rng
    await context.create_topic(topic, 2)
    done: set[Place] = set()

    async def consume() -> None:
        consumer = context.client.consumer(group, topic, until_idle="300ms", ack_linger="500ms", **GROUP)
        acked: set[Place] = set()
        late: list[Received] = []
        context.doing = f"consume as {consumer.name}"
        try:
            async for message in consumer:
                context.note(f"got {message.id} attempt {message.attempt}")
                if place_of(message) in done:
                    context.wrong("delivered again after an acknowledgement that was answered", message.id)
                if rng.random() < 0.3:
                    late.append(message)
                else:
                    await message.ack()
                    acked.add(place_of(message))
            # It was idle, and has left the group.
            for message in late:
                await message.ack()
                acked.add(place_of(message))
            await consumer.close()
        except PenstockError as error:
            if not (passes(error) or isinstance(error, LeaseError)):
                raise
            context.note(f"{error.code}: {error.message}")
            await context.pause(0.3, 0.3)
        else:
            done.update(acked)
            context.counts["ack"] += len(acked)

    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 6)):
                await context.send(producer, context.new_value())
            await consume()

    async def is_drained() -> bool:
        await consume()
        return not any((await context.client.lag(group)).get(topic, [1]))

    await context.until("drain", is_drained)


async def hurry(context: Context) -> None:
    """Consumers that are closed while they are still joining leave nothing behind: another one gets everything."""
    topic, rng = "hurry", context.rng
    await context.create_topic(topic, 4)
    # What a member has that is not there is not given to others within a run.
    settings = {**GROUP, "session": "1h"}
    sent, number = {}, 0
    async with context.producer(topic) as producer:
        while not context.is_over:
            number += 1
            # Joining it takes longest before it is there.
            group = f"hurried-{number}"
            for passer in range(rng.randint(1, 3)):
                await _pass(context, context.client.consumer(group, topic, name=f"passer-{passer}", **settings))
            tap = Tap(context, group, topic, session="1h")
            for place in await context.send_some(producer, tap):
                sent[place] = tap.owed[place]
            tap.owed = dict(sent)
            await tap.settle()
            await tap.close()
            await context.pause()


async def _pass(context: Context, consumer: Consumer) -> None:
    context.doing = f"close {consumer.name} of {consumer.group}"
    try:
        async with asyncio.timeout(context.rng.uniform(0.0, 0.01)):
            # What it gets comes again.
            await consumer.poll(1, "1s")
    except (TimeoutError, PenstockError):
        pass
    try:
        await consumer.close()
    except PenstockError as error:
        context.note(f"close of {consumer.name}: {error.code}: {error.message}")
    context.counts["close"] += 1


async def leases(context: Context) -> None:
    """Two consumers extend, release and abandon: what one of them holds, the other does not get."""
    topic, group, rng = "leases", "lessees", context.rng
    await context.create_topic(topic, 2)
    held = _Leases(context)
    work = [
        asyncio.ensure_future(
            held.consume(
                name,
                context.client.consumer(
                    group,
                    topic,
                    name=name,
                    prefetch=5,
                    **GROUP,
                    assignment="shared",
                ),
            )
        )
        for name in ("one", "two")
    ]
    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 6)):
                stored = await context.send(producer, context.new_value())
                held.sent.add((stored.topic, stored.partition, stored.offset))
            await context.pause(0.1, 0.6)

    async def is_drained() -> bool:
        return not any((await context.client.lag(group)).get(topic, [1]))

    await context.until("drain", is_drained)
    for task in work:
        task.cancel()
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    if missing := held.sent - held.got:
        context.wrong("acknowledged to its sender, and never delivered", f"{sorted(missing)[:5]} to {group}")


class _Leases:
    """Who has what."""

    def __init__(self, context: Context) -> None:
        self.sent: set[Place] = set()
        self.got: set[Place] = set()
        self._context = context
        self._held: dict[Place, tuple[str, Received]] = {}

    async def consume(self, name: str, consumer: Consumer) -> None:
        while True:
            try:
                messages = await consumer.poll(5, "300ms")
            except PenstockError as error:
                if not passes(error):
                    raise
                await asyncio.sleep(0.3)
                continue
            for message in messages:
                self._take(name, message)
            for message in messages:
                try:
                    await self._answer(name, message)
                except PenstockError as error:
                    self._context.note(f"{name}: {message.id}: {error.code}: {error.message}")

    def _take(self, name: str, message: Received) -> None:
        place, context = place_of(message), self._context
        context.note(f"{name} got {message.id} attempt {message.attempt}")
        other, theirs = self._held.get(place, (name, message))
        if other != name and theirs.is_held:
            context.wrong("two leases on one message at the same time", f"{message.id} to {name}, while {other} has it")
        self._held[place] = name, message
        self.got.add(place)

    async def _answer(self, name: str, message: Received) -> None:
        context = self._context
        dice = 0.0 if context.is_over else context.rng.random()
        if dice < 0.65:
            if self._held.get(place_of(message), ("",))[0] == name:
                del self._held[place_of(message)]
            if dice < 0.5:
                await message.ack()
                context.counts["ack"] += 1
            else:
                await message.release()
                context.counts["release"] += 1
        elif dice < 0.85:
            await message.extend(context.rng.choice(("1s", "3s", "6s")))
            context.counts["extend"] += 1
        # The others are abandoned: their leases expire.


OPERATIONS = seek, replay, delete_group, park, linger, hurry, leases
