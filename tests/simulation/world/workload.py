"""Clients at work, each in a process of its own: producers, consumers of a group and one that looks on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.placement import FindPlacement, Placement
from penstock.client.producer import Producer
from penstock.client.received import Received
from penstock.client.requests import FindOffsets
from penstock.errors import (
    DiskFull,
    LogFollows,
    NotEnoughReplicas,
    NotLeader,
    PenstockError,
    TopicNotFound,
)
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.address import place_of
from penstock.net.remote import RemoteTransport
from simulation.world.clocks import true_us
from simulation.world.notes import Notes
from simulation.world.world import PORT, World

TOPIC, GROUP = "work", "workers"
_KEYS = 8
_WAITING_MAX = 50
# A node that answers so has not carried it out, and never will.
_NOT_DONE = (NotLeader, NotEnoughReplicas, DiskFull, LogFollows, TopicNotFound)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Shape(NamedTuple):
    """What a seed has clients do."""

    partitions: int
    producers: int
    raw_producers: int
    consumers: int
    # Between one send of a producer and the next.
    pause_s: float
    delayed: float
    group: dict[str, Any]
    nodes: int = 3
    replicas: int = 3
    min_isr: int = 2

    @classmethod
    def of(cls, rng: Random, *, is_wiped: bool) -> Shape:
        """If a disk is to be wiped, everything that is acknowledged has to be on two."""
        shape = cls(
            partitions=rng.randint(1, 4),
            producers=rng.randint(1, 3),
            raw_producers=rng.randint(0, 1),
            consumers=rng.randint(1, 4),
            pause_s=rng.choice((0.1, 0.2, 0.5)),
            delayed=rng.choice((0.0, 0.1, 0.3)),
            group={
                "visibility": rng.choice(("1s", "2s", "10s")),
                "max_retries": rng.choice((2, 4)),
                "backoff": {"initial": "100ms", "max": "500ms"},
                "ordering": rng.choice(("none", "none", "key", "partition")),
                # A parked key would wait for an operator.
                "on_poison": "skip",
                "assignment": rng.choice(("sticky", "sticky", "shared")),
                # A consumer may be killed.
                "session": "5s",
            },
            nodes=rng.choice((3, 3, 3, 4, 5)),
        )
        replicas = rng.choice((3, 3, 3, min(shape.nodes, 4), 2))
        min_isr = rng.choice((2, 2, 2, 1)) if replicas > 2 else rng.choice((1, 2))
        return shape._replace(replicas=replicas, min_isr=2 if is_wiped else min_isr)

    @property
    def names(self) -> str:
        return "abcde"[: self.nodes]


def is_poison(value: str) -> bool:
    """Nobody ever acknowledges these."""
    return crc32(value.encode()) % 25 == 0


class Workload:
    """Between `start` and `stop`."""

    def __init__(self, world: World, notes: Notes, shape: Shape) -> None:
        self._world = world
        self._notes = notes
        self._shape = shape
        self._ends = asyncio.Event()
        # By name: what it does, among which tasks, and its task.
        self._clients: dict[str, tuple[Any, list[asyncio.Task[None]], asyncio.Task[None]]] = {}
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._is_draining = False
        self.sent = 0
        self.acked = 0
        self._drained = asyncio.Event()

    def start(self) -> None:
        shape = self._shape
        self._notes.note(GROUP, "group", "ok", group=GROUP, topics=[TOPIC], ordering=shape.group["ordering"])
        for number in range(shape.producers):
            self._begin(f"p{number}", self._produce, self._producing)
        for number in range(shape.raw_producers):
            self._begin(f"raw{number}", self._produce_raw, self._producing)
        for number in range(shape.consumers):
            self._begin(f"c{number}", self._consume, self._consuming)
        self._begin("looker", self._look_on, self._consuming)

    def _begin(self, name: str, work: Any, tasks: list[asyncio.Task[None]]) -> None:
        running: Coroutine[Any, Any, None] = work(name, Random(f"{name} {self._world.seed}"))
        task = self._world.start(name, running)
        tasks.append(task)
        self._clients[name] = work, tasks, task

    def kill(self, rng: Random) -> bool:
        """One client, without another step; another one takes its place. Not once the work is to end."""
        if self._ends.is_set():
            return False
        name = rng.choice(sorted(self._clients))
        work, tasks, task = self._clients.pop(name)
        process = self._world.client(name)._process
        self._world.loop.note(f"{name} is killed")
        process.kill()
        self._world.network.vanish(process)
        # Kept, so that nothing in it runs.
        self._world.loop.graveyard.append(task)
        tasks.remove(task)
        self._begin(f"{name}.next", work, tasks)
        return True

    def check(self) -> None:
        """One that has ended too early raises its error here."""
        for task in (*self._producing, *self._consuming):
            if task.done():
                task.result()

    async def stop_producing(self) -> None:
        self._ends.set()
        await asyncio.gather(*self._producing)

    async def drain(self) -> None:
        """Until everything has been acknowledged or has exhausted its retries."""
        self._is_draining = True
        waiting = asyncio.ensure_future(self._drained.wait())
        await asyncio.wait([waiting, *self._consuming], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    async def stop(self) -> None:
        self._ends.set()
        for task in self._consuming:
            task.cancel()
        for outcome in await asyncio.gather(*self._producing, *self._consuming, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    # --- producers ---------------------------------------------------------------------------------------

    async def _produce(self, name: str, rng: Random) -> None:
        counter = 0
        # By number: in the order in which they began.
        waiting: dict[int, asyncio.Task[None]] = {}
        async with (
            await self._world.connect() as client,
            client.producer(TOPIC, linger="5ms", retry_for="90s") as producer,
        ):
            while not self._ends.is_set():
                for _ in range(rng.choice((1, 1, 1, 5))):
                    task = asyncio.create_task(self._send(producer, name, f"{name}-{counter}", rng))
                    waiting[counter] = task
                    task.add_done_callback(lambda _, number=counter: waiting.pop(number))
                    counter += 1
                if len(waiting) > _WAITING_MAX:
                    await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(self._shape.pause_s * rng.uniform(0.5, 1.5))
            await asyncio.gather(*waiting.values())

    async def _send(self, producer: Producer, name: str, value: str, rng: Random) -> None:
        key = f"user-{rng.randrange(_KEYS)}"
        due_us = None
        if rng.random() < self._shape.delayed:
            due_us = true_us(self._world.loop) + rng.randrange(200_000, 2_500_000)
        fields: dict[str, Any] = {"key": key}
        if due_us is not None:
            fields["deliver_at"] = _EPOCH + timedelta(microseconds=due_us)
        self._notes.note(name, "send", "invoke", value=value, topic=TOPIC, key=key, deliver_at=due_us)
        try:
            stored = await (await producer.send(value.encode(), **fields))
        except PenstockError as error:
            self._notes.note(name, "send", "info", value=value, error=f"{error.code}: {error.message}")
        else:
            self._notes.note(name, "send", "ok", value=value, partition=stored.partition, offset=stored.offset)
            self.sent += 1

    async def _produce_raw(self, name: str, rng: Random) -> None:
        """To any node, leader or not, once: what it refuses must not be stored."""
        counter = 0
        environment = self._world.client(name)
        nodes = {
            node: RemoteTransport(
                place_of(f"{node}:{PORT}"), environment.clock, patience_s=0, new_id=environment.new_id
            )
            for node in self._world.machines
        }
        try:
            while not self._ends.is_set():
                value, counter = f"{name}-{counter}", counter + 1
                partition = rng.randrange(self._shape.partitions)
                await self._send_raw(nodes[rng.choice(sorted(nodes))], name, value, partition)
                await asyncio.sleep(self._shape.pause_s)
        finally:
            for transport in nodes.values():
                await transport.close()

    async def _send_raw(self, transport: RemoteTransport, name: str, value: str, partition: int) -> None:
        now_us = self._world.client(name).clock.now_us()
        frame = Frame.of_message(Message(value.encode(), key=value.encode()), now_us=now_us)
        self._notes.note(name, "send", "invoke", value=value, topic=TOPIC, key=value)
        try:
            async with asyncio.timeout(2):
                stored = await transport.publish_frame(TOPIC, partition, frame)
        except _NOT_DONE as error:
            self._notes.note(name, "send", "fail", value=value, error=f"{error.code}: {error.message}")
        except (PenstockError, TimeoutError) as error:
            self._notes.note(name, "send", "info", value=value, error=repr(error))
        else:
            self._notes.note(name, "send", "ok", value=value, partition=stored.partition, offset=stored.offset)

    # --- consumers ---------------------------------------------------------------------------------------

    async def _consume(self, name: str, rng: Random) -> None:
        async with await self._world.connect() as client:
            consumer = client.consumer(GROUP, TOPIC, name=name, prefetch=20, **self._shape.group)
            try:
                while True:
                    messages = await self._poll(name, consumer)
                    await asyncio.gather(*[self._answer(name, message, rng) for message in messages])
                    if not messages and self._is_draining and await self._is_drained(client):
                        self._drained.set()
            finally:
                await consumer.close()

    async def _poll(self, name: str, consumer: Consumer) -> list[Received]:
        self._notes.note(name, "poll", "invoke", group=GROUP)
        try:
            messages = await consumer.poll(20, "300ms")
        except PenstockError as error:
            self._notes.note(name, "poll", "info", group=GROUP, error=f"{error.code}: {error.message}")
            return []
        # Deadlines are on this process's monotonic clock.
        ahead_us = true_us(self._world.loop) - self._world.client(name).clock.monotonic_us()
        told = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "value": (one.value or b"").decode(),
                "attempt": one.attempt,
                "lease": one.lease.id[2],
                "deadline": one.lease.deadline_us + ahead_us,
            }
            for one in messages
        ]
        self._notes.note(name, "poll", "ok", group=GROUP, messages=told)
        return messages

    async def _answer(self, name: str, message: Received, rng: Random) -> None:
        dice = rng.random()
        if is_poison((message.value or b"").decode()):
            if dice < 0.3:
                await self._told(name, "nack", message, message.reject("poison"))
            else:
                await self._told(name, "nack", message, message.nack("50ms", reason="poison"))
        elif self._is_draining or dice < 0.9:
            await self._told(name, "ack", message, message.ack())
        elif dice < 0.96:
            await self._told(name, "nack", message, message.nack("50ms", reason="later"))
        # The others are abandoned: their leases run out.

    async def _told(self, name: str, op: str, message: Received, answer: Awaitable[None]) -> None:
        fields = {
            "group": GROUP,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "lease": message.lease.id[2],
        }
        self._notes.note(name, op, "invoke", **fields)
        try:
            await answer
        except PenstockError as error:
            # Also if it says that it was too late: an earlier attempt may have been carried out, its reply lost.
            self._notes.note(name, op, "info", **fields, error=f"{error.code}: {error.message}")
            return
        self._notes.note(name, op, "ok", **fields)
        self.acked += op == "ack"

    async def _is_drained(self, client: Client) -> bool:
        try:
            lag = await client.lag(GROUP)
        except PenstockError:
            return False
        return len(lag.get(TOPIC, [])) == self._shape.partitions and not any(lag[TOPIC])

    # --- looking on --------------------------------------------------------------------------------------

    async def _look_on(self, name: str, rng: Random) -> None:
        async with await self._world.connect() as client:
            while True:
                try:
                    committed = await client._transport.call(FindOffsets(TOPIC, "latest"))
                    self._notes.note(name, "look", "ok", topic=TOPIC, committed=committed)
                    partition = rng.randrange(self._shape.partitions)
                    await self._read(client, name, partition, max(0, committed[partition] - 50))
                except PenstockError as error:
                    self._notes.note(name, "look", "info", error=f"{error.code}: {error.message}")
                await asyncio.sleep(0.3)

    async def _read(self, client: Client, name: str, partition: int, offset: int) -> None:
        """What is newest: that is where something may still change that must not."""
        values: list[list[Any]] = []
        async for one in client.reader(TOPIC, partitions=[partition], from_offset={partition: offset}):
            values.append([one.offset, (one.value or b"").decode()])
        self._notes.note(name, "read", "ok", topic=TOPIC, partition=partition, values=values)


async def all_in_sync(client: Client, partitions: int, replicas: int) -> bool:
    """All partitions are led, and have all their replicas; those of the main topic are on so many nodes."""
    try:
        placement: Placement = await client._transport.call(FindPlacement(()))
    except PenstockError:
        return False
    parts = [part for topic in placement.topics for part in topic.partitions]
    main = [part for topic in placement.topics for part in topic.partitions if topic.name == TOPIC]
    return (
        len(main) == partitions
        and all(len(part.replicas) == replicas for part in main)
        and all(part.leader and set(part.in_sync) == set(part.replicas) for part in parts)
    )
