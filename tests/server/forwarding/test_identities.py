"""Frames that come to a door without an identity: stored once and in order, whatever becomes of leaders and answers."""

from __future__ import annotations

import asyncio

import pytest

from net.routing.fakes import Cluster, run
from net.routing.test_publishing import frame_of, values_in
from penstock.acks import ALL
from penstock.client.requests import CreateTopic
from penstock.client.transport import Stored
from penstock.errors import ConnectionLost, InvalidMessage, SequenceGap
from penstock.frame import Frame, Producer
from penstock.net.routing.transport import RoutedTransport
from penstock.server.forwarding.identities import Identities


class Leader:
    """Notes by whom it is sent what, and answers when it is told to."""

    def __init__(self) -> None:
        self.came: list[Producer] = []
        self.fails: list[Exception] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def publish(self, topic: str, partition: int, frame: Frame, acks: str) -> Stored:
        frame.check_body()
        self.came.append(frame.producer)
        await self.may_answer.wait()
        if self.fails:
            raise self.fails.pop(0)
        return Stored(partition, 0, 0, 1)


def test_a_frame_whose_answer_is_lost_is_stored_once() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        identities = Identities(transport._plain.publish)
        cluster.node("t", 0).loses["publish"] = 2
        stored = [await identities.publish("t", 0, frame_of(b"%d" % number, b"and"), ALL) for number in range(3)]
        assert [one.offset for one in stored] == [0, 2, 4]
        assert (await values_in(cluster, "t"))[0] == [b"0", b"and", b"1", b"and", b"2", b"and"]

    run(work)


def test_frames_are_stored_once_and_in_their_order_while_leaders_move_and_answers_are_lost() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        identities = Identities(transport._plain.publish)
        asked = 0

        def disturb(what: str) -> None:
            nonlocal asked
            asked += what == "publish"
            if what == "publish" and asked % 5 == 0:
                cluster.move("t", 0, "abc"[asked // 5 % 3])
            elif what == "publish" and asked % 7 == 0:
                cluster.node("t", 0).loses["publish"] += 1

        for node in cluster.nodes.values():
            node.before = disturb
        sending = []
        for number in range(90):
            sending.append(asyncio.ensure_future(identities.publish("t", 0, frame_of(b"%d" % number), ALL)))
            if number % 3 == 0:
                await asyncio.gather(*sending, return_exceptions=True)
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        values = (await values_in(cluster, "t"))[0]
        assert values == sorted(set(values), key=int)
        told = {b"%d" % number for number, outcome in enumerate(outcomes) if isinstance(outcome, Stored)}
        assert told <= set(values)
        assert len(told) > 80
        assert asked > 100

    run(work)


def test_there_are_as_many_identities_as_frames_under_way_at_once() -> None:
    async def work() -> None:
        leader = Leader()
        identities = Identities(leader.publish)
        for number in range(4):
            await identities.publish("t", 0, frame_of(*[b"x"] * (number + 1)), ALL)
        assert [producer.sequence for producer in leader.came] == [0, 1, 3, 6]
        leader.may_answer.clear()
        sending = [asyncio.ensure_future(identities.publish("t", 0, frame_of(b"x"), ALL)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        leader.may_answer.set()
        await asyncio.gather(*sending)
        await identities.publish("t", 1, frame_of(b"x"), ALL)
        assert len({producer.id for producer in leader.came}) == 4
        assert {producer.id for producer in leader.came[:4]} == {leader.came[0].id}

    asyncio.run(work())


@pytest.mark.parametrize("error", [InvalidMessage("no"), ConnectionLost("gone")])
def test_one_that_fails_takes_its_identity_with_it_and_spoils_no_other(error: Exception) -> None:
    async def work() -> None:
        leader = Leader()
        identities = Identities(leader.publish)
        await identities.publish("t", 0, frame_of(b"x"), ALL)
        leader.fails = [error]
        with pytest.raises(type(error)):
            await identities.publish("t", 0, frame_of(b"x"), ALL)
        await identities.publish("t", 0, frame_of(b"x"), ALL)
        first, failed, after = leader.came
        assert (failed.id, failed.sequence) == (first.id, 1)
        assert (after.id != first.id, after.sequence) == (True, 0)

    asyncio.run(work())


def test_one_of_whose_past_a_leader_has_lost_something_goes_on_by_another_name() -> None:
    async def work() -> None:
        leader = Leader()
        identities = Identities(leader.publish)
        await identities.publish("t", 0, frame_of(b"x"), ALL)
        leader.fails = [SequenceGap("1 came, 0 was due")]
        await identities.publish("t", 0, frame_of(b"x"), ALL)
        await identities.publish("t", 0, frame_of(b"x"), ALL)
        first, refused, new, next_ = leader.came
        assert first.id == refused.id != new.id == next_.id
        assert [producer.sequence for producer in leader.came] == [0, 1, 0, 1]

    asyncio.run(work())


def test_names_that_are_none_leave_nothing_behind() -> None:
    async def work() -> None:
        leader = Leader()
        identities = Identities(leader.publish)
        for number in range(3):
            leader.fails.append(InvalidMessage("no such topic"))
            with pytest.raises(InvalidMessage):
                await identities.publish(f"none-{number}", 0, frame_of(b"x"), ALL)
        assert not identities._free

    asyncio.run(work())
