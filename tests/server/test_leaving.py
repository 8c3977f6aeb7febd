"""A consumer that is closed is no member, in whatever order its join and its leave take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.group import Group
from penstock.client.requests import CreateTopic
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, MemberNotFound, NotLeader
from penstock.net.remote import RemoteTransport
from served import Served, serve


class Held:
    """Joins stop half-way until they are let go."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_go_on = asyncio.Event()


@contextmanager
def held_joins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held, start = Held(), Group.start

    async def slow(group: Group) -> None:
        held.has_begun.set()
        await held.may_go_on.wait()
        await start(group)

    with monkeypatch.context() as patch:
        patch.setattr(Group, "start", slow)
        yield held


def members(here: Served) -> list[str]:
    found = here.site.broker.consumers.of("g")
    return [] if found is None else found.names()


async def settled(here: Served) -> None:
    """Nothing is under way at the broker any more."""
    while any(session.requests for session in here.door.sessions):
        await asyncio.sleep(0)


def test_a_consumer_that_is_closed_while_it_joins_is_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t")
            with held_joins(monkeypatch) as held:
                consumer = q.consumer("g", "t")
                polling = asyncio.ensure_future(consumer.poll(wait="20s"))
                await held.has_begun.wait()
                await consumer.close()
                held.may_go_on.set()
                assert await polling == []
                await settled(here)
            assert members(here) == []
            assert not any(len(session.members) for session in here.door.sessions)

    serve(tmp_path, work)


def test_a_leave_by_another_connection_invalidates_a_join_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(here: Served) -> None:
        first = await RemoteTransport.to(here.place, SystemClock())
        second = await RemoteTransport.to(here.place, SystemClock())
        await first.call(CreateTopic("t", 1, {}))
        await second.join("g", "other", ["t"], {})
        with held_joins(monkeypatch) as held:
            joining = asyncio.ensure_future(first.join("g", "me", ["t"], {}))
            await held.has_begun.wait()
            await second.leave("g", "me")
            # One that is asked for after that is another one.
            again = asyncio.ensure_future(second.join("g", "me", ["t"], {}))
            while sum(session.requests for session in here.door.sessions) < 2:
                await asyncio.sleep(0)
            await second.leave("g", "other")
            held.may_go_on.set()
            with pytest.raises(MemberNotFound, match="left group g while it was joining"):
                await joining
            await again
        assert members(here) == ["me"]
        await first.close()
        await second.close()
        assert not len(here.site.broker.consumers.joins)

    serve(tmp_path, work)


@pytest.mark.parametrize("how", ["goodbye", "lost"])
def test_a_connection_that_ends_ends_its_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def work(here: Served) -> None:
        transport = await RemoteTransport.to(here.place, SystemClock())
        await transport.call(CreateTopic("t", 1, {}))
        (session,) = here.door.sessions
        with held_joins(monkeypatch) as held:
            connection = await transport._link.connect()
            joining = asyncio.ensure_future(transport.join("g", "me", ["t"], {}))
            await held.has_begun.wait()
            if how == "goodbye":
                await transport.close()
            else:
                connection.abort(ConnectionLost("cut"))
            joining.cancel()
            while here.door.sessions:
                await asyncio.sleep(0)
            held.may_go_on.set()
            while session.requests:
                await asyncio.sleep(0)
        assert members(here) == []
        await transport.close()

    serve(tmp_path, work)


def test_a_stopping_broker_does_not_wait_for_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        transport = await RemoteTransport.to(here.place, SystemClock(), patience_s=0)
        await transport.call(CreateTopic("t", 1, {}))
        with held_joins(monkeypatch) as held:
            joining = asyncio.ensure_future(transport.join("g", "me", ["t"], {}))
            await held.has_begun.wait()
            await here.door.close()
            with pytest.raises(ConnectionLost):
                await joining
        await transport.close()

    serve(tmp_path, work)


def test_a_consumer_leaves_though_what_it_fetched_ahead_can_not_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            for _ in range(3):
                await q.publish("t", b"x")
            consumer = q.consumer("g", "t")
            assert await consumer.next() is not None
            assert members(here) == [consumer.name]

            async def refused(*arguments: object) -> None:
                raise NotLeader("nobody leads it")

            monkeypatch.setattr(RemoteTransport, "answer", refused)
            with pytest.raises(NotLeader):
                await consumer.close()
            assert members(here) == []

    serve(tmp_path, work)
