"""Clients at work: producers, consumers of a group and somebody who looks on. Everything they do is in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
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
# Short, so that what is abandoned comes back within a run.
VISIBILITY = "2s"
GROUP_SETTINGS: dict[str, Any] = {
    "visibility": VISIBILITY,
    "max_retries": 4,
    "backoff": {"initial": "100ms", "max": "500ms"},
}
_KEYS = 16
_CHUNK, _WAITING_MAX = 5, 100
# A node that answers so has not carried it out, and never will.
_NOT_DONE = (NotLeader, NotEnoughReplicas, DiskFull, LogFollows, TopicNotFound)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_poison(value: str) -> bool:
    """Nobody ever acknowledges these."""
    return crc32(value.encode()) % 25 == 0


class Load:
    """Between `start` and `stop`. Belongs to one event loop."""

    def __init__(self, address: str, nodes: dict[str, str], recorder: Recorder, seed: int) -> None:
        """`nodes` are the addresses of each."""
        self._address = address
        self._nodes = nodes
        self._recorder = recorder
        self._seed = seed
        self._ends = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self.is_draining = False
        self.sent = 0
        self.acked = 0
        # Told by whoever has something to tell, for those who wait until enough has happened.
        self._news = asyncio.Condition()
        self._drained = asyncio.Event()

    async def start(self) -> None:
        self._recorder.note(GROUP, "group", "ok", group=GROUP, topics=[TOPIC])
        work: list[tuple[Callable[..., Coroutine[Any, Any, None]], str, list[asyncio.Task[None]]]] = [
            (self._produce, "p1", self._producing),
            (self._produce, "p2", self._producing),
            (self._produce_raw, "raw", self._producing),
            (self._consume, "c1", self._consuming),
            (self._consume, "c2", self._consuming),
            (self._consume, "c3", self._consuming),
            (self._look_on, "looker", self._consuming),
        ]
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
        """Until everything has been acknowledged or given up."""
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
        """A few at a time, whatever has become of those before; but no more than `_WAITING_MAX` wait for a leader."""
        counter = 0
        waiting: set[asyncio.Task[None]] = set()
        async with (
            await connect_async(self._address) as client,
            client.producer(TOPIC, linger="5ms", retry_for="90s") as producer,
        ):
            while not self._ends.is_set():
                for _ in range(_CHUNK):
                    task = asyncio.create_task(self._send(producer, name, f"{name}-{counter}", rng))
                    counter += 1
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                if len(waiting) > _WAITING_MAX:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # The pace of the load; nobody waits for this.
                await asyncio.sleep(0.05)
            await asyncio.gather(*waiting)

    async def _send(self, producer: Producer, name: str, value: str, rng: Random) -> None:
        key = f"user-{rng.randrange(_KEYS)}"
        due_us = now_us() + rng.randrange(200_000, 2_500_000) if rng.random() < 0.1 else None
        fields: dict[str, Any] = {"key": key}
        if due_us is not None:
            fields["deliver_at"] = _EPOCH + timedelta(microseconds=due_us)
        self._recorder.note(name, "send", "invoke", value=value, topic=TOPIC, key=key, deliver_at=due_us)
        try:
            stored = await (await producer.send(value.encode(), **fields))
        except PenstockError as error:
            self._recorder.note(name, "send", "info", value=value, error=f"{error.code}: {error.message}")
        else:
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

    async def _consume(self, name: str, rng: Random) -> None:
        async with await connect_async(self._address) as client:
            consumer = client.consumer(GROUP, TOPIC, name=name, prefetch=20, **GROUP_SETTINGS)
            try:
                while True:
                    messages = await self._poll(name, consumer)
                    await asyncio.gather(*[self._answer(name, message, rng) for message in messages])
                    if not messages and self.is_draining and await self._is_drained(client):
                        self._drained.set()
            finally:
                await consumer.close()

    async def _poll(self, name: str, consumer: Consumer) -> list[Received]:
        self._recorder.note(name, "poll", "invoke", group=GROUP)
        try:
            messages = await consumer.poll(20, "300ms")
        except PenstockError as error:
            self._recorder.note(name, "poll", "info", group=GROUP, error=f"{error.code}: {error.message}")
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
        self._recorder.note(name, "poll", "ok", group=GROUP, messages=told)
        return messages

    async def _answer(self, name: str, message: Received, rng: Random) -> None:
        dice = rng.random()
        if is_poison((message.value or b"").decode()):
            if dice < 0.3:
                await self._told(name, "nack", message, message.reject("poison"))
            else:
                await self._told(name, "nack", message, message.nack("50ms", reason="poison"))
        elif self.is_draining or dice < 0.9:
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

    async def _is_drained(self, client: Client) -> bool:
        try:
            lag = await client.lag(GROUP)
        except PenstockError:
            return False
        return len(lag.get(TOPIC, [])) == PARTITIONS and not any(lag[TOPIC])

    # --- looking on --------------------------------------------------------------------------------------

    async def _look_on(self, name: str, rng: Random) -> None:
        async with await connect_async(self._address) as client:
            while True:
                try:
                    committed = await client._transport.call(FindOffsets(TOPIC, "latest"))
                    self._recorder.note(name, "look", "ok", topic=TOPIC, committed=committed)
                    partition = rng.randrange(PARTITIONS)
                    await self._read(client, name, partition, max(0, committed[partition] - 50))
                except PenstockError as error:
                    self._recorder.note(name, "look", "info", error=f"{error.code}: {error.message}")
                # The pace of the load; nobody waits for this.
                await asyncio.sleep(0.1)

    async def _read(self, client: Client, name: str, partition: int, offset: int) -> None:
        """What is newest: that is where something may still change that must not."""
        values: list[list[Any]] = []
        async for one in client.reader(TOPIC, partitions=[partition], from_offset={partition: offset}):
            values.append([one.offset, (one.value or b"").decode()])
        self._recorder.note(name, "read", "ok", topic=TOPIC, partition=partition, values=values)
