"""What every operation has: a client in a process of its own, its randomness, and a place to report violations."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from history.entries import of
from history.violation import Violation
from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.received import Received
from penstock.errors import (
    AlreadyExists,
    GroupNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    SettingsConflict,
    TopicNotFound,
)
from penstock.published import Published
from simulation.world.clocks import true_us
from simulation.world.faults import Stage
from simulation.world.notes import Notes
from simulation.world.workload import Shape
from simulation.world.world import Machine, World

R = TypeVar("R")
_STALE = TopicNotFound, GroupNotFound, AlreadyExists, SettingsConflict

_RETRY_S = 0.3
# What is lost on its way comes again soon, and nothing becomes a dead letter.
GROUP: dict[str, Any] = {"visibility": "2s", "max_retries": 1_000, "backoff": {"initial": "100ms"}}
# By topic, partition and offset.
Place = tuple[str, int, int]
# Called with a message and when the poll began that returned it.
Check = Callable[[Received, int], None]


class Context:
    """An operation goes on until `is_over`, then finishes and checks what has become of it.

    `is_over` is set once the faults are healed. `doing` says what is waited for, if that takes too long.
    """

    client: Client
    stage: Stage

    def __init__(self, name: str, world: World, notes: Notes, shape: Shape) -> None:
        self.name = name
        self.world = world
        self.shape = shape
        self.rng = Random(f"operation {name} {world.seed}")
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.doing = "connecting"
        self._over = asyncio.Event()
        self._notes = notes
        self._values = 0

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        self._over.set()

    def now_us(self) -> int:
        return true_us(self.world.loop)

    @property
    def has_true_dates(self) -> bool:
        """Whether what a node does by its clock can be checked by another one."""
        clocks = [machine.clock for machine in self.world.machines.values()]
        return not self.world.skew_us_max and all(each.is_even and each.wrong_us == (0, 0) for each in clocks)

    def had_fault(self, kind: str) -> bool:
        return any(entry["fault"].startswith(kind) for entry in of(self._notes.entries, "fault"))

    def wrong(self, kind: str, what: str) -> None:
        self.note(f"WRONG {kind}: {what}")
        self.violations.append(Violation(kind, f"{self.name}: {what}"))

    def note(self, line: str) -> None:
        self.world.loop.note(f"{self.name}: {line}")

    def note_clock(self, machine: Machine) -> None:
        """As it is from the beginning: faults spare machines that come later."""
        behind_us, ahead_us = machine.clock.wrong_us
        self._notes.note(machine.name, "clock", "ok", behind_us=-behind_us, ahead_us=ahead_us)

    def new_value(self) -> str:
        self._values += 1
        return f"{self.name}-{self._values}"

    async def pause(self, s_min: float = 0.1, s_max: float = 1.5) -> None:
        """Shorter if it is over."""
        try:
            async with asyncio.timeout(self.rng.uniform(s_min, s_max)):
                await self._over.wait()
        except TimeoutError:
            pass

    async def surely(
        self, what: str, ask: Callable[[], Awaitable[R]], *, done: type[PenstockError] | None = None
    ) -> R | None:
        """Until it is carried out. None if it was, by an attempt whose outcome is unknown: `done` says so."""
        self.doing = what
        is_in_doubt = False
        while True:
            try:
                result = await ask()
            except PenstockError as error:
                self.note(f"{what}: {error.code}: {error.message}")
                if done is not None and isinstance(error, done) and is_in_doubt:
                    self.counts[f"{what} in doubt"] += 1
                    return None
                if not passes(error):
                    raise
                is_in_doubt = is_in_doubt or error.retriable or is_unknown(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self.note(f"{what}: ok")
                self.counts[what] += 1
                return result

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        self.doing = what
        while True:
            try:
                if await holds():
                    return
            except PenstockError as error:
                if not passes(error):
                    raise
            await asyncio.sleep(_RETRY_S)

    # --- what many of them do ----------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, **settings: Any) -> None:
        await self.surely(
            "create a topic", lambda: self.client.create_topic(name, partitions, **settings), done=AlreadyExists
        )

    async def delete_topic(self, name: str) -> None:
        await self.surely("delete a topic", lambda: self.client.delete_topic(name), done=TopicNotFound)

    async def delete_group(self, name: str) -> None:
        await self.surely("delete a group", lambda: self.client.delete_group(name), done=GroupNotFound)

    def producer(self, topic: str, **options: Any) -> Producer:
        return self.client.producer(topic, **{"linger": "5ms", "retry_for": "300s", **options})

    async def send(self, producer: Producer, value: str, **fields: Any) -> Published:
        self.doing = f"send {value}"
        stored = await (await producer.send(value.encode(), **fields))
        self.note(f"{value} is at {stored.id}")
        self.counts["send"] += 1
        return stored

    async def send_some(self, producer: Producer, tap: Tap) -> list[Place]:
        places = []
        for _ in range(self.rng.randint(1, 6)):
            value = self.new_value()
            places.append(tap.owe(await self.send(producer, value), value))
        return places

    async def read(self, topic: str, **bounds: Any) -> list[tuple[int, int, str]]:
        """Partition, offset and value of all messages."""
        self.doing = f"read {topic}"
        while True:
            try:
                reader = self.client.reader(topic, **bounds)
                return [(one.partition, one.offset, (one.value or b"").decode()) async for one in reader]
            except PenstockError as error:
                # Retention may have been faster.
                if not passes(error) and not isinstance(error, OffsetOutOfRange):
                    raise
                await asyncio.sleep(_RETRY_S)


def passes(error: PenstockError) -> bool:
    """A node that learns nothing of etcd's changes for a while answers as if they had not happened."""
    return error.retriable or is_unknown(error) or isinstance(error, _STALE)


def is_unknown(error: PenstockError) -> bool:
    return error.in_doubt or isinstance(error, OutcomeUnknown)


class Tap:
    """A consumer that acknowledges what it gets, and knows what it is to get: what it is owed, by place."""

    def __init__(
        self, context: Context, group: str, topic: str, check: Check = lambda message, began_us: None, **settings: Any
    ) -> None:
        self.owed: dict[Place, str] = {}
        # Not to come before something else has happened.
        self.hidden: set[Place] = set()
        self._check = check
        self._context = context
        self._topic = topic
        self._group = group
        self._acked: dict[Place, str] = {}
        # With an acknowledgement whose outcome is unknown: each may be redelivered, or not.
        self._perhaps: set[Place] = set()
        self._consumer: Consumer = context.client.consumer(group, topic, **{**GROUP, **settings})

    def again(self, **settings: Any) -> Tap:
        """Another consumer of the same group."""
        other = Tap(self._context, self._group, self._topic, self._check, **settings)
        other.owed, other._acked, other._perhaps = self.owed, self._acked, self._perhaps
        return other

    async def close(self) -> None:
        try:
            await self._consumer.close()
        except PenstockError:
            # Its leases expire.
            pass

    def owe(self, stored: Published, value: str) -> Place:
        place = stored.topic, stored.partition, stored.offset
        self.owed[place] = value
        return place

    def owe_again(self, is_meant: Callable[[Place], bool]) -> None:
        """What was acknowledged is to come again."""
        for place in [place for place in self._acked if is_meant(place)]:
            self.owed[place] = self._acked.pop(place)
            self._perhaps.discard(place)

    def doubt(self, place: Place) -> None:
        """It comes, or it does not."""
        self._perhaps.add(place)

    async def poll(self) -> list[Received]:
        """What may not be delivered is a violation."""
        acked, began_us = self._acked.keys() - self._perhaps, self._context.now_us()
        try:
            found = await self._consumer.poll(20, "300ms")
        except PenstockError as error:
            if not passes(error):
                raise
            await asyncio.sleep(_RETRY_S)
            return []
        for message in found:
            place, value = place_of(message), (message.value or b"").decode()
            self._context.note(f"{self._group} got {message.id} {value} attempt {message.attempt}")
            known = self.owed.get(place, self._acked.get(place))
            if known is None:
                self._context.wrong("delivered, and not meant", f"{message.id} {value} to {self._group}")
            elif known != value:
                self._context.wrong("two values at one offset", f"{message.id} is {known}, and {value} was delivered")
            if place in self.hidden:
                self._context.wrong("delivered, and its key is parked", f"{message.id} {value} to {self._group}")
            if place in acked:
                self._context.wrong(
                    "delivered again after an acknowledgement that was answered",
                    f"{message.id} {value} to {self._group}, attempt {message.attempt}",
                )
            self._check(message, began_us)
        return found

    async def ack(self, message: Received) -> None:
        place = place_of(message)
        try:
            await message.ack()
        except PenstockError as error:
            # Also if it says that it was too late: an earlier attempt may have been carried out, its reply lost.
            self._context.note(f"ack of {message.id}: {error.code}: {error.message}")
            self._perhaps.add(place)
            return
        self._perhaps.discard(place)
        self._acked[place] = self.owed.pop(place, (message.value or b"").decode())
        self._context.counts["ack"] += 1

    async def reject(self, place: Place) -> None:
        """Until it is a dead letter."""
        id = ":".join(map(str, place))
        while True:
            self._context.doing = f"reject {id} by {self._group}"
            for message in await self.poll():
                if place_of(message) != place:
                    await self.ack(message)
                    continue
                try:
                    await message.reject("regretted")
                except PenstockError as error:
                    self._context.note(f"reject of {id}: {error.code}: {error.message}")
            try:
                if await self._context.client.dead_letters.list(self._topic, ids=id):
                    del self.owed[place]
                    return
            except PenstockError as error:
                if not passes(error):
                    raise

    async def settle(self, is_meant: Callable[[Place], bool] = lambda _: True) -> None:
        """Until nothing of that is owed that surely comes."""
        while any(map(is_meant, self.owed)):
            self._context.doing = f"consume {sorted(self.owed)[:5]} by {self._group}"
            for message in await self.poll():
                await self.ack(message)
            open_ = [place for place in self.owed if is_meant(place)]
            if self._perhaps.issuperset(open_) and await self._is_drained():
                for place in open_:
                    self._acked[place] = self.owed.pop(place)

    async def _is_drained(self) -> bool:
        try:
            lag = await self._context.client.lag(self._group)
        except PenstockError:
            return False
        return not any(lag.get(self._topic, [1]))


def place_of(message: Received) -> Place:
    return message.topic, message.partition, message.offset
