"""Polls at leaders that are played: what comes at the same time, too late, from the wrong one, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from pyroaring import BitMap64

from penstock.client.answers import Release
from penstock.client.transport import Delivery, Receipt, Terms
from penstock.errors import GroupNotFound, InvalidInput, NotLeader
from penstock.server.forwarding import polls as module
from penstock.server.forwarding.polls import Polls, Wanted

SECOND_US = 1_000_000
TERMS = Terms("none", "park", "none")


def lease(node: str, *offsets: int) -> Delivery:
    """One whose topic is named for its node."""
    return Delivery(Receipt(node, 0, 1, BitMap64(offsets)), (), {}, 5 * SECOND_US, TERMS)


class Leader:
    """Answers as `said` has it: each a list of deliveries, an error, or a future to be waited for."""

    def __init__(self, *said: Any) -> None:
        self._said = list(said)
        self.asked: list[dict[str, Any]] = []
        self.cancelled = 0

    def now_us(self) -> int:
        return SECOND_US

    async def poll(self, group: str, consumer: str, topics: Sequence[str], **wanted: Any) -> Sequence[Delivery]:
        self.asked.append(wanted)
        said = self._said.pop(0) if self._said else []
        if isinstance(said, asyncio.Future):
            try:
                said = await said
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(said, Exception):
            raise said
        return said


class Cluster:
    def __init__(self, patience_s: float = 0.0, **leaders: Leader) -> None:
        self.nodes: dict[str, Leader] = leaders
        self.leading = sorted(leaders)
        self.given_back: list[tuple[str, list[int]]] = []
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.polls = Polls(self, self._told, patience_s)  # type: ignore[arg-type]

    def leaders(self, topics: Sequence[str]) -> list[str]:
        return list(self.leading)

    def changed(self) -> asyncio.Future[None]:
        if self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def move(self, *leaders: str) -> None:
        self.leading = sorted(leaders)
        self._change.set_result(None)

    def way(self, node: str) -> Any:
        return self.nodes[node]

    async def _told(self, group: str, receipt: Receipt, answer: Release) -> None:
        self.given_back.append((receipt.topic, list(receipt.offsets)))

    async def poll(self, count: int = 10, wait_us: int = 0) -> list[tuple[str, list[int]]]:
        found = await self.polls.poll(Wanted("g", "c", ["t"], count, 1_000, None), wait_us)
        return [(one.receipt.topic, list(one.receipt.offsets)) for one in found]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def later() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


def test_leaders_are_asked_in_turn_for_no_more_than_is_wanted() -> None:
    async def work() -> None:
        cluster = Cluster(a=Leader([lease("a", 1, 2)], [lease("a", 3)]), b=Leader([lease("b", 1, 2)]))
        assert await cluster.poll(count=2) == [("b", [1, 2])]
        assert await cluster.poll(count=3) == [("a", [1, 2])]
        assert [asked["count"] for asked in cluster.nodes["a"].asked] == [3]
        assert [asked["count"] for asked in cluster.nodes["b"].asked] == [2, 1]

    run(work)


def test_one_that_is_cancelled_gives_back_what_it_had() -> None:
    async def work() -> None:
        cluster = Cluster(a=Leader(later()), b=Leader([lease("b", 1)]))
        polling = asyncio.ensure_future(cluster.poll())
        await until(lambda: bool(cluster.nodes["a"].asked))
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await cluster.polls.settled()
        assert cluster.given_back == [("b", [1])]
        assert cluster.nodes["a"].cancelled == 1

    run(work)


def test_of_those_that_answer_at_the_same_time_no_more_is_taken_than_was_wanted() -> None:
    async def work() -> None:
        first, second = later(), later()
        cluster = Cluster(a=Leader([], first), b=Leader([], second), c=Leader([], waits := later()))
        polling = asyncio.ensure_future(cluster.poll(count=3, wait_us=10 * SECOND_US))
        await until(lambda: all(len(leader.asked) == 2 for leader in cluster.nodes.values()))
        first.set_result([lease("a", 1, 2)])
        second.set_result([lease("b", 1, 2)])
        assert await polling == [("a", [1, 2]), ("b", [1])]
        await cluster.polls.settled()
        await until(lambda: cluster.nodes["c"].cancelled == 1)
        assert (cluster.given_back, waits.cancelled()) == ([("b", [2])], True)

    run(work)


def test_what_comes_from_one_that_does_not_lead_any_more_is_given_back() -> None:
    async def work() -> None:
        class Stubborn(Leader):
            """It has leased something already when it hears that nobody waits."""

            async def poll(self, *where: Any, **wanted: Any) -> Sequence[Delivery]:
                try:
                    return await super().poll(*where, **wanted)
                except asyncio.CancelledError:
                    return [lease("a", 7)]

        cluster = Cluster(a=Stubborn([], later()), b=Leader([lease("b", 1)]))
        cluster.leading = ["a"]
        polling = asyncio.ensure_future(cluster.poll(wait_us=10 * SECOND_US))
        await until(lambda: len(cluster.nodes["a"].asked) == 2)
        cluster.move("b")
        assert await polling == [("b", [1])]
        await until(lambda: cluster.given_back == [("a", [7])])

    run(work)


def test_one_that_fails_is_asked_again_and_others_meanwhile() -> None:
    async def work() -> None:
        cluster = Cluster(a=Leader(NotLeader("no"), NotLeader("no"), NotLeader("no"), [lease("a", 1)]))
        assert await cluster.poll(wait_us=10 * SECOND_US) == [("a", [1])]

    run(work)


@pytest.mark.parametrize("wait_us", [0, 1_000])
def test_a_poll_that_no_leader_answers_waits_for_one_longer_than_for_messages(wait_us: int) -> None:
    async def work() -> None:
        cluster = Cluster(patience_s=15.0)
        polling = asyncio.ensure_future(cluster.poll(wait_us=wait_us))
        await asyncio.wait([polling], timeout=2e-6 * wait_us)
        cluster.nodes["a"] = Leader(NotLeader("not yet"), [lease("a", 1)])
        cluster.move("a")
        assert await polling == [("a", [1])]
        # One that answers that it has nothing is an answer.
        cluster = Cluster(patience_s=15.0, a=Leader(NotLeader("not yet"), NotLeader("not yet")))
        assert await cluster.poll(wait_us=wait_us) == []

    run(work)


def test_if_nobody_leads_that_is_told_when_the_time_is_over() -> None:
    async def work() -> None:
        cluster = Cluster()
        for wait_us in (0, 1_000):
            with pytest.raises(NotLeader):
                await cluster.poll(wait_us=wait_us)
        cluster = Cluster(a=Leader(NotLeader("no")), b=Leader())
        assert await cluster.poll() == []

    run(work)


def test_what_is_wrong_with_the_question_is_raised_unless_something_was_leased() -> None:
    async def work() -> None:
        for error in (InvalidInput("odd"), GroupNotFound("gone")):
            cluster = Cluster(a=Leader(error), b=Leader([lease("b", 1)]))
            assert await cluster.poll() == [("b", [1])]
            with pytest.raises(type(error)):
                await Cluster(a=Leader(error)).poll()
            with pytest.raises(type(error)):
                await Cluster(a=Leader([], error)).poll(wait_us=SECOND_US)

    run(work)


def test_one_that_hangs_does_not_keep_the_others_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.01)

    async def work() -> None:
        cluster = Cluster(a=Leader([lease("a", 1)]), b=Leader(later()))
        assert await cluster.poll() == [("a", [1])]
        assert cluster.nodes["b"].cancelled == 1

    run(work)
