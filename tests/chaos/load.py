"""Clients at work: producers, consumers of groups and an observer. Everything they do is in the history.

    topic    producers                        groups
    work     p1, p2, raw; wide: lax           workers: no order
    orders   wide: o1                         wide: by-key, in-turn: ordered by key, and by partition

`raw` asks any node once. `lax` publishes with acks="leader": a fail-over may lose what it published, so its history
says that the outcome is unknown; what consumers have seen of it must stay, once and in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from history.entries import Recorder, now_us
from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.received import Received
from penstock.client.requests import FindOffsets
from penstock.clock import SystemClock
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
from penstock.net.connecting import connect_async
from penstock.net.remote import RemoteTransport

TOPIC, GROUP, PARTITIONS = "work", "workers", 4
ORDERS, ORDERS_PARTITIONS = "orders", 2
# Short, so that what is abandoned comes back within a run.
VISIBILITY = "2s"
GROUP_SETTINGS: dict[str, Any] = {
    "visibility": VISIBILITY,
    "max_retries": 4,
    "backoff": {"initial": "100ms", "max": "500ms"},
}
# A message that fails holds up those behind it: consumers abandon fewer, and the group goes on without dead letters.
_ORDERED_SETTINGS: dict[str, Any] = {**GROUP_SETTINGS, "max_retries": 2, "on_poison": "skip"}
_KEYS = 16
_CHUNK, _WAITING_MAX = 5, 100
# In a long run on a busy machine, producers outrun consumers. With more than this in front of it, a delayed message
# would be late although the cluster is well.
_BACKLOG_MAX = 1_000
# A node that answers so has not carried it out, and never will.
_NOT_DONE = (NotLeader, NotEnoughReplicas, DiskFull, LogFollows, TopicNotFound)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_poison(value: str) -> bool:
    """Nobody ever acknowledges these."""
    return crc32(value.encode()) % 25 == 0


class Group(NamedTuple):
    """`acked` and `nacked` are the shares of messages that consumers answer so. They abandon the rest."""

    name: str
    topic: str
    consumers: tuple[str, ...]
    settings: dict[str, Any]
    acked: float
    nacked: float


WORKERS = Group(GROUP, TOPIC, ("c1", "c2", "c3"), GROUP_SETTINGS, 0.9, 0.06)
ORDERED = tuple(
    Group(name, ORDERS, consumers, {**_ORDERED_SETTINGS, "ordering": ordering}, 0.97, 0.025)
    for name, ordering, consumers in (
        ("by-key", "key", ("k1", "k2")),
        ("in-turn", "partition", ("t1", "t2")),
    )
)


class Load:
    """Between `start` and `stop`. Belongs to one event loop."""

    def __init__(
        self, address: str, nodes: dict[str, str], recorder: Recorder, seed: int, *, is_wide: bool = False
    ) -> None:
        """`nodes` are the addresses of each. `is_wide` adds ordered groups, and publishes with acks="leader"."""
        self._address = address
        self._nodes = nodes
        self._recorder = recorder
        self._seed = seed
        self._ends = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self.groups = (WORKERS, *ORDERED) if is_wide else (WORKERS,)
        # Faults add partitions.
        self.partitions = {TOPIC: PARTITIONS, **({ORDERS: ORDERS_PARTITIONS} if is_wide else {})}
        self._is_wide = is_wide
        self._is_behind = False
        self.is_draining = False
        self.sent = 0
        self.acked = 0
        # Notified when one of the counts has changed.
        self._news = asyncio.Condition()
        self._undrained = {group.name for group in self.groups}
        self._drained = asyncio.Event()

    async def start(self) -> None:
        work: list[tuple[Callable[..., Coroutine[Any, Any, None]], str, list[asyncio.Task[None]]]] = [
            (self._produce, "p1", self._producing),
            (self._produce, "p2", self._producing),
            (self._produce_raw, "raw", self._producing),
            (self._look_on, "looker", self._consuming),
        ]
        if self._is_wide:
            work += [
                (self._produce_in_order, "o1", self._producing),
                (self._produce_lax, "lax", self._producing),
                (self._watch_backlogs, "backlogs", self._consuming),
            ]
        for group in self.groups:
            ordering = group.settings.get("ordering", "none")
            self._recorder.note(group.name, "group", "ok", group=group.name, topics=[group.topic], ordering=ordering)
            work += [(partial(self._consume, group), name, self._consuming) for name in group.consumers]
        for run, name, tasks in work:
            tasks.append(asyncio.create_task(run(name, Random(f"{self._seed} {name}")), name=name))

    async def reached(self, *, sent: int, acked: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: (self.sent >= sent and self.acked >= acked) or self._failed())

    def _failed(self) -> bool:
        """One that has ended too early: its error is raised when it is stopped."""
        return any(task.done() for task in (*self._producing, *self._consuming))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def stop_producing(self) -> None:
        self._ends.set()
        await asyncio.gather(*self._producing)

    async def drain(self) -> None:
        """Until each message has been acknowledged or dead-lettered, in all groups."""
        self.is_draining = True
        waiting = asyncio.create_task(self._drained.wait())
        done, _ = await asyncio.wait([waiting, *self._consuming], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            task.result()

    async def stop(self) -> None:
        self._ends.set()
        for task in self._consuming:
            task.cancel()
        for outcome in await asyncio.gather(*self._producing, *self._consuming, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    # --- producers ---------------------------------------------------------------------------------------

    async def _produce(self, name: str, rng: Random) -> None:
        await self._produce_in_chunks(name, rng, TOPIC, _CHUNK)

    async def _produce_in_order(self, name: str, rng: Random) -> None:
        """For the groups with an order, which are slower."""
        await self._produce_in_chunks(name, rng, ORDERS, 1, delayed=0.0)

    async def _produce_lax(self, name: str, rng: Random) -> None:
        await self._produce_in_chunks(name, rng, TOPIC, 1, acks="leader")

    async def _produce_in_chunks(
        self, name: str, rng: Random, topic: str, chunk: int, *, delayed: float = 0.1, acks: str = "all"
    ) -> None:
        """Sends the next chunk without waiting for the one before, up to `_WAITING_MAX` unanswered messages."""
        counter = 0
        waiting: set[asyncio.Task[None]] = set()
        async with (
            await connect_async(self._address) as client,
            client.producer(topic, linger="5ms", retry_for="90s", acks=acks) as producer,
        ):
            while not self._ends.is_set():
                for _ in range(0 if self._is_behind else chunk):
                    due_us = now_us() + rng.randrange(200_000, 2_500_000) if rng.random() < delayed else None
                    sending = self._send(producer, name, topic, f"{name}-{counter}", rng, due_us, is_sure=acks == "all")
                    task = asyncio.create_task(sending)
                    counter += 1
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                if len(waiting) > _WAITING_MAX:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # The pace of the load.
                await asyncio.sleep(0.05 if chunk > 1 else 0.1)
            await asyncio.gather(*waiting)

    async def _send(
        self, producer: Producer, name: str, topic: str, value: str, rng: Random, due_us: int | None, *, is_sure: bool
    ) -> None:
        """`is_sure`: what was answered must stay."""
        key = f"user-{rng.randrange(_KEYS)}"
        fields: dict[str, Any] = {"key": key}
        if due_us is not None:
            fields["deliver_at"] = _EPOCH + timedelta(microseconds=due_us)
        self._recorder.note(name, "send", "invoke", value=value, topic=topic, key=key, deliver_at=due_us)
        try:
            stored = await (await producer.send(value.encode(), **fields))
        except PenstockError as error:
            self._recorder.note(name, "send", "info", value=value, error=f"{error.code}: {error.message}")
        else:
            if not is_sure:
                self._recorder.note(name, "send", "info", value=value, error="only the leader has confirmed it")
                return
            self._recorder.note(name, "send", "ok", value=value, partition=stored.partition, offset=stored.offset)
            self.sent += 1
        await self._tell()

    async def _produce_raw(self, name: str, rng: Random) -> None:
        """To any node, leader or not, once: what it refuses must not be stored."""
        counter = 0
        nodes = {
            node: RemoteTransport(place_of(address), SystemClock(), patience_s=0)
            for node, address in self._nodes.items()
        }
        try:
            while not self._ends.is_set():
                value, counter = f"{name}-{counter}", counter + 1
                await self._send_raw(nodes[rng.choice(sorted(nodes))], name, value, rng.randrange(PARTITIONS))
                # The pace of the load; nobody waits for this.
                await asyncio.sleep(0.05)
        finally:
            for transport in nodes.values():
                await transport.close()

    async def _send_raw(self, transport: RemoteTransport, name: str, value: str, partition: int) -> None:
        frame = Frame.of_message(Message(value.encode(), key=value.encode()), now_us=now_us())
        self._recorder.note(name, "send", "invoke", value=value, topic=TOPIC, key=value)
        try:
            async with asyncio.timeout(2):
                stored = await transport.publish_frame(TOPIC, partition, frame)
        except _NOT_DONE as error:
            self._recorder.note(name, "send", "fail", value=value, error=f"{error.code}: {error.message}")
        except (PenstockError, TimeoutError) as error:
            self._recorder.note(name, "send", "info", value=value, error=repr(error))
        else:
            self._recorder.note(name, "send", "ok", value=value, partition=stored.partition, offset=stored.offset)

    # --- consumers ---------------------------------------------------------------------------------------

    async def _consume(self, group: Group, name: str, rng: Random) -> None:
        async with await connect_async(self._address) as client:
            consumer = client.consumer(group.name, group.topic, name=name, prefetch=20, **group.settings)
            try:
                while True:
                    messages = await self._poll(group, name, consumer)
                    await asyncio.gather(*[self._answer(group, name, message, rng) for message in messages])
                    if not messages and self.is_draining and await self._is_drained(client, group):
                        self._undrained.discard(group.name)
                        if not self._undrained:
                            self._drained.set()
            finally:
                await consumer.close()

    async def _poll(self, group: Group, name: str, consumer: Consumer) -> list[Received]:
        self._recorder.note(name, "poll", "invoke", group=group.name)
        try:
            messages = await consumer.poll(20, "300ms")
        except PenstockError as error:
            self._recorder.note(name, "poll", "info", group=group.name, error=f"{error.code}: {error.message}")
            return []
        # Deadlines are on this process's monotonic clock.
        ahead_us = now_us() - SystemClock().monotonic_us()
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
        self._recorder.note(name, "poll", "ok", group=group.name, messages=told)
        return messages

    async def _answer(self, group: Group, name: str, message: Received, rng: Random) -> None:
        dice = rng.random()
        if is_poison((message.value or b"").decode()):
            if dice < 0.3:
                await self._told(group, name, "nack", message, message.reject("poison"))
            else:
                await self._told(group, name, "nack", message, message.nack("50ms", reason="poison"))
        elif self.is_draining or dice < group.acked:
            await self._told(group, name, "ack", message, message.ack())
        elif dice < group.acked + group.nacked:
            await self._told(group, name, "nack", message, message.nack("50ms", reason="later"))
        # The others are abandoned: their leases run out.

    async def _told(self, group: Group, name: str, op: str, message: Received, answer: Awaitable[None]) -> None:
        fields = {
            "group": group.name,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "lease": message.lease.id[2],
        }
        self._recorder.note(name, op, "invoke", **fields)
        try:
            await answer
        except PenstockError as error:
            # Also if it says that it was too late: it may have been told before, and the answer lost.
            self._recorder.note(name, op, "info", **fields, error=f"{error.code}: {error.message}")
            return
        self._recorder.note(name, op, "ok", **fields)
        if op == "ack":
            self.acked += 1
            await self._tell()

    async def _is_drained(self, client: Client, group: Group) -> bool:
        try:
            lag = await client.lag(group.name)
        except PenstockError:
            return False
        return len(lag.get(group.topic, [])) == self.partitions[group.topic] and not any(lag[group.topic])

    async def _watch_backlogs(self, name: str, rng: Random) -> None:
        """Producers pause while a group is known to be far behind. They go on while no node knows: faults need load."""
        async with await connect_async(self._address) as client:
            while True:
                backlog = 0
                for group in self.groups:
                    with suppress(PenstockError, TimeoutError):
                        async with asyncio.timeout(2):
                            lag = await client.lag(group.name)
                        backlog = max(backlog, sum(lag.get(group.topic, ())))
                self._is_behind = backlog > _BACKLOG_MAX
                # As often as the pace of the load needs it.
                await asyncio.sleep(0.5)

    # --- looking on --------------------------------------------------------------------------------------

    async def _look_on(self, name: str, rng: Random) -> None:
        async with await connect_async(self._address) as client:
            while True:
                topic = rng.choice(sorted(self.partitions))
                try:
                    committed = await client._transport.call(FindOffsets(topic, "latest"))
                    self._recorder.note(name, "look", "ok", topic=topic, committed=committed)
                    partition = rng.randrange(len(committed))
                    await self._read(client, name, topic, partition, max(0, committed[partition] - 50))
                except PenstockError as error:
                    self._recorder.note(name, "look", "info", error=f"{error.code}: {error.message}")
                # The pace of the load; nobody waits for this.
                await asyncio.sleep(0.1)

    async def _read(self, client: Client, name: str, topic: str, partition: int, offset: int) -> None:
        """What is newest: that is where something may still change that must not."""
        values: list[list[Any]] = []
        async for one in client.reader(topic, partitions=[partition], from_offset={partition: offset}):
            values.append([one.offset, (one.value or b"").decode()])
        self._recorder.note(name, "read", "ok", topic=topic, partition=partition, values=values)
