"""Connections to another node: as many as polls need, new ones when it has moved; they stand for no consumer."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.client.answers import Ack
from penstock.client.requests import CreateTopic, DescribeGroup
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, GroupNotFound
from penstock.limits import DEFAULT_LIMITS
from penstock.message import Message
from penstock.net.connection import Place
from penstock.server.forwarding.way import POLLS_MAX, Lines, Way
from served import Served, serve

POLL = {"count": 10, "bytes_max": 1_000_000, "wait_us": 5_000_000}


def lines_to(place: Place | None) -> Lines:
    return Lines(lambda: place, SystemClock(), DEFAULT_LIMITS)


def test_polls_that_wait_have_connections_of_their_own_with_room_for_all() -> None:
    lines = lines_to(Place("127.0.0.1", 1))
    with ExitStack() as waiting:
        found = [waiting.enter_context(lines.waiting()) for _ in range(2 * POLLS_MAX + 1)]
        assert [found.count(line) for line in dict.fromkeys(found)] == [POLLS_MAX, POLLS_MAX, 1]
        assert lines.line() not in found
    with lines.waiting() as line:
        assert line is found[0]


def test_a_node_that_is_not_alive_is_not_asked_and_one_that_moved_is_asked_there() -> None:
    places: list[Place | None] = [None]
    lines = Lines(lambda: places[-1], SystemClock(), DEFAULT_LIMITS)
    with pytest.raises(ConnectionLost) as caught:
        lines.line()
    assert caught.value.details["was_sent"] is False
    places.append(Place("127.0.0.1", 1))
    first = lines.line()
    assert lines.line() is first
    places.append(Place("127.0.0.1", 2))
    assert lines.line() is not first


def test_everything_that_a_door_asks_for_goes_through(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        for way in (Way(here.site), Way(lines_to(here.place))):
            topic, group = f"t{id(way)}", f"g{id(way)}"
            await way.call(CreateTopic(topic, 1, {}))
            await way.join(group, "c", [topic], {})
            await way.publish(topic, Message(b"x", timestamp=1), 0)
            (found,) = await way.poll(group, "c", [topic], **POLL, visibility_us=60_000_000)
            assert 50_000_000 < found.deadline_us - way.monotonic_us() < 70_000_000
            await way.answer(group, found.receipt, Ack())
            assert len((await way.read(topic, 0, 0, 99, 1_000)).frames) == 1
            await way.leave(group, "c")
            assert (await way.call(DescribeGroup(group))).members == {}
            with pytest.raises(GroupNotFound):
                await way.leave("nobody", "c")
            assert way.limits == here.site.limits
            await way.close(0)
        here.site.check()

    serve(tmp_path, work)


def test_a_consumer_that_joins_for_a_session_is_not_kept_by_the_connection(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        way, settings = Way(lines_to(here.place)), {"session_us": 5_000_000}
        await way.call(CreateTopic("t", 1, {}))
        await way.join("g", "silent", ["t"], settings)
        assert list((await way.call(DescribeGroup("g"))).members) == ["silent"]
        while (await way.call(DescribeGroup("g"))).members:
            await asyncio.sleep(0)
        assert [len(session.members) for session in here.door.sessions] == [0]
        await way.close(0)

    serve(tmp_path, work)
