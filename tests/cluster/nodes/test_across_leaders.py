"""Every request, through each node of a cluster, about a topic whose partitions are led by different nodes."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from cluster_nodes import LocalCluster
from penstock.client import requests as r
from penstock.client.answers import Reject
from penstock.client.cluster_requests import SurveyCluster
from penstock.client.requests import Request, Where
from penstock.client.transport import Transport
from penstock.errors import NotFound, NotScheduled
from penstock.message import Message
from penstock.net.connecting import transport_to
from penstock.net.routing.table import ROUTES
from penstock.partitioner import partition_of

R = TypeVar("R")

NUMBERS = (0, 1, 2)
# By the number of the partition that each belongs to.
KEYS = [next(b"k%d" % at for at in range(99) if partition_of(b"k%d" % at, 3) == number) for number in NUMBERS]
HOUR_US = 3_600_000_000
POLL_BYTES = 1 << 20


class Asking:
    """Asks a cluster, and remembers what was asked."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self.transport = transport
        self.topic = topic
        self.asked: set[type[Request[Any]]] = set()

    async def __call__(self, request: Request[R]) -> R:
        self.asked.add(type(request))
        return await self.transport.call(request)

    def id(self, number: int, offset: int) -> str:
        return f"{self.topic}:{number}:{offset}"

    async def publish(self, number: int, **given: Any) -> int:
        message = Message(b"x", key=KEYS[number], **given)
        return (await self.transport.publish(self.topic, message, number)).offset

    # --- topics ------------------------------------------------------------------------------------------

    async def create(self) -> None:
        made = await self(r.CreateTopic(self.topic, 3, {}))
        assert [one.number for one in made.partitions] == [*NUMBERS]
        self.firsts = [await self.publish(number) for number in NUMBERS]

    async def describe(self) -> None:
        changed = await self(r.ChangeTopic(self.topic, None, {"archive": "required"}))
        assert (changed.settings["archive"], len(changed.partitions)) == ("required", 3)
        described = await self(r.DescribeTopic(self.topic))
        # Where the logs end may differ: a leader that was elected since has begun an epoch.
        assert replace(described, partitions=()) == replace(changed, partitions=())
        assert [part.number for part in described.partitions] == [0, 1, 2]
        assert self.topic in {info.name for info in await self(r.ListTopics())}
        for at in ("earliest", "latest", 0):
            assert len(await self(r.FindOffsets(self.topic, at))) == 3  # type: ignore[arg-type]

    async def archive(self) -> None:
        info = await self(r.Archived(self.topic, None, {number: self.firsts[number] + 1 for number in NUMBERS}))
        assert [one.archived for one in info.partitions] == [first + 1 for first in self.firsts]
        info = await self(r.Archived(self.topic, info.id, {0: 0, 2: 0}, lowers=True))
        assert [one.archived for one in info.partitions] == [0, self.firsts[1] + 1, 0]
        found = await self(r.FindArchive(self.topic))
        assert (found.topic_id, len(found.whole_from)) == (info.id, 3)

    # --- groups and dead letters -------------------------------------------------------------------------

    async def give_up(self, reason: str) -> None:
        """The first message of each partition."""
        given_up: set[int] = set()
        while len(given_up) < 3:
            for one in await self.transport.poll(
                "g", "me", [self.topic], count=10, bytes_max=POLL_BYTES, wait_us=100_000
            ):
                await self.transport.answer("g", one.receipt, Reject(reason))
                given_up.add(one.receipt.partition)

    async def consume(self) -> None:
        await self(r.CreateGroup("g", {"ordering": "key", "on_poison": "park"}))
        changed = await self(r.ChangeGroup("g", {"max_retries": 9}))
        assert changed.settings["max_retries"] == 9
        await self.transport.join("g", "me", [self.topic], {})
        await self(r.Seek("g", self.topic, "latest", None, None, None))
        assert (await self(r.DescribeGroup("g"))).lag == {self.topic: [0, 0, 0]}
        await self(r.Seek("g", self.topic, "earliest", None, None, None))
        assert (await self(r.DescribeGroup("g"))).lag == {self.topic: [1, 1, 1]}
        await self.give_up("bad")
        parked = await self(r.ListParkedKeys("g"))
        assert [(key.partition, key.key) for key in parked] == [*zip(NUMBERS, KEYS, strict=True)]
        assert await self(r.ReleaseKey("g", self.topic, KEYS[1], None)) == 1
        assert [info.name for info in await self(r.ListGroups())] == ["g"]

    async def letters(self) -> list[r.DeadLetter]:
        """One of each partition. They are written in the background, and the first one creates their topic."""
        while len(letters := await self(r.ListDeadLetters(self.topic, Where(), False, 100))) < 3:
            pass
        return letters

    async def redrive(self) -> None:
        letters = await self.letters()
        assert [letter.original for letter in letters] == [self.id(number, self.firsts[number]) for number in NUMBERS]
        for letter in letters:
            assert await self(r.GetDeadLetter(letter.id)) == letter
        states = await self(r.GetStateAt("g", self.topic, self.transport.now_us() + HOUR_US))
        assert [(state.partition, list(state.dead)) for state in states] == [
            (number, [self.firsts[number]]) for number in NUMBERS
        ]
        done = await self(r.Redrive(self.topic, Where(), False, None))
        assert (sorted(done.in_place), done.copied) == (sorted(letter.id for letter in letters), ())
        await self.give_up("bad again")
        await self.letters()
        assert await self(r.Discard(self.topic, Where())) == 3
        await self.transport.leave("g", "me")

    async def replay(self) -> None:
        assert await self(r.Replay(self.topic, "again", 0, None, None, False, False, {})) == 3
        assert (await self(r.DescribeGroup("again"))).lag == {self.topic: [1, 1, 1]}
        for group in ("g", "again"):
            await self(r.DeleteGroup(group))
        assert await self(r.ListGroups()) == []

    # --- messages ----------------------------------------------------------------------------------------

    async def look(self) -> None:
        for number, (start, end) in enumerate(await self(r.FindDeliveries(self.topic))):
            happened = await self(r.ReadDeliveries(self.topic, number, start, end, POLL_BYTES))
            assert happened.next_offset == end
            identity = self.id(number, self.firsts[number])
            assert (await self(r.GetMessage(identity))).message.key == KEYS[number]
            assert (await self(r.GetTrace(identity))).steps
            assert (await self(r.AskWhy(identity, "g"))).code

    async def delay(self) -> None:
        later_us = self.transport.now_us() + HOUR_US
        ids = [self.id(number, await self.publish(number, deliver_at=later_us)) for number in NUMBERS]
        assert sorted(one.id for one in await self(r.ListScheduled(self.topic, 10))) == ids
        for identity in ids:
            await self(r.Reschedule(identity, later_us + HOUR_US))
            assert (await self(r.GetScheduled(identity))).deliver_at == later_us + HOUR_US
            await self(r.CancelScheduled(identity))
            with pytest.raises(NotScheduled):
                await self(r.CancelScheduled(identity))
        assert await self(r.ListScheduled(self.topic, 10)) == []

    async def schedule(self) -> None:
        for number in NUMBERS:
            message = Message(b"tick", key=KEYS[number])
            made = await self(r.CreateSchedule(f"s{number}", self.topic, "@daily", "UTC", message))
            assert made.pending.startswith(f"{self.topic}:{number}:")
        assert [one.name for one in await self(r.ListSchedules())] == ["s0", "s1", "s2"]
        assert len(await self(r.ListScheduled(self.topic, 10))) == 3
        for number in NUMBERS:
            await self(r.DeleteSchedule(f"s{number}"))
            with pytest.raises(NotFound):
                await self(r.DeleteSchedule(f"s{number}"))
        assert await self(r.ListSchedules()) == []
        assert await self(r.ListScheduled(self.topic, 10)) == []

    async def delete(self) -> None:
        for topic in (self.topic, self.topic + ".dlq"):
            await self(r.DeleteTopic(topic))
        assert await self(r.ListTopics()) == []


@pytest.mark.parametrize("home", ["a", "b", "c"])
def test_every_request_reaches_the_leaders_it_is_for(cluster: LocalCluster, home: str) -> None:
    topic = f"of-{home}"

    async def work() -> None:
        transport = await transport_to("penstock://" + cluster.nodes[home].native)
        asking = Asking(transport, topic)
        try:
            await asking.create()
            report = await transport.call(SurveyCluster())
            assert {one.leader for one in report.partitions if one.topic == topic} == {"a", "b", "c"}
            await asking.describe()
            await asking.archive()
            await asking.consume()
            await asking.look()
            await asking.redrive()
            await asking.replay()
            await asking.delay()
            await asking.schedule()
            await asking.delete()
        finally:
            await transport.close()
        assert asking.asked == {kind for kind in ROUTES if kind.__module__ == r.__name__}, "a request is not tried here"

    cluster.run(work())
