"""Sessions on an etcd in memory, and a clock that moves when told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from etcd_support import run
from penstock.cluster.etcd.session import Granted, Session
from penstock.cluster.etcd.store import Put
from penstock.errors import EtcdRefused, EtcdUnavailable, InternalError, SessionLost
from penstock.testing import FakeEtcd, ManualTime

SECOND_US = 1_000_000


def on_etcd(work: Callable[[FakeEtcd, ManualTime], Awaitable[None]]) -> None:
    async def main() -> None:
        time = ManualTime()
        await work(FakeEtcd(time), time)

    run(main)


class Slow:
    """Leases whose answers take a while, or fail."""

    def __init__(self, time: ManualTime, takes_us: int) -> None:
        self._time = time
        self.takes_us = takes_us
        self.fails: Exception | None = None
        self.revoking: Exception = EtcdUnavailable("away")
        self.kept = 0

    async def grant(self, ttl_s: int) -> Granted:
        await self._time.sleep_us(self.takes_us)
        return Granted(1, ttl_s)

    async def keep(self, lease: int, within_us: int) -> int:
        await self._time.sleep_us(self.takes_us)
        if self.fails:
            raise self.fails
        self.kept += 1
        return 6

    async def revoke(self, lease: int) -> None:
        raise self.revoking


def test_a_session_is_valid_from_when_it_was_asked_for_and_not_from_the_answer() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        leases, began = Slow(time, 300_000), time.now_us()
        opening = asyncio.create_task(Session.open(leases, time, 6))
        await time.pass_us(300_000)
        session = await opening
        assert session.valid_until_us() == began + 5 * SECOND_US
        # A third of its time later the first keepalive is sent, and answered 0.3 s after.
        await time.pass_us(2 * SECOND_US + 200_000)
        assert session.valid_until_us() == began + 5 * SECOND_US
        await time.pass_us(100_000)
        assert session.valid_until_us() == began + 300_000 + 2 * SECOND_US + 5 * SECOND_US
        await session.close()

    on_etcd(work)


def test_a_session_is_kept_by_a_keepalive_every_third_of_its_time() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        leases = Slow(time, 0)
        opening = asyncio.create_task(Session.open(leases, time, 6))
        await time.pass_us(0)
        session = await opening
        for _ in range(30):
            await time.pass_us(SECOND_US)
            assert session.is_valid()
        assert leases.kept == 15
        await session.close()

    on_etcd(work)


def test_without_etcd_a_session_is_not_valid_but_not_lost_and_goes_on_when_etcd_is_back() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        session = await etcd.store().session(6)
        etcd.down = True
        await time.pass_us(5 * SECOND_US - 1)
        assert session.is_valid()
        await time.pass_us(1)
        assert not session.is_valid()
        await time.pass_us(60 * SECOND_US)
        assert not session.lost.is_set()
        etcd.down = False
        # Tried again twelve times in its time to live.
        await time.pass_us(SECOND_US // 2)
        assert session.is_valid()
        await session.close()

    on_etcd(work)


def test_a_session_that_etcd_let_go_is_lost_and_so_are_its_keys() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        store = etcd.store()
        session = await store.session(6)
        await store.commit({}, [Put("/a", b"1", session)])
        etcd.expire(session.lease)
        # Until the next keepalive nobody here knows.
        assert session.is_valid()
        assert (await store.get("/a")).items == {}
        await time.pass_us(2 * SECOND_US)
        assert session.lost.is_set()
        assert not session.is_valid()
        assert isinstance(session.failure, SessionLost)
        await session.close()

    on_etcd(work)


def test_a_session_that_etcd_refuses_to_keep_says_why() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        leases = Slow(time, 0)
        opening = asyncio.create_task(Session.open(leases, time, 6))
        await time.pass_us(0)
        session = await opening
        leases.fails = EtcdRefused("permission denied")
        await time.pass_us(2 * SECOND_US)
        await session.lost.wait()
        assert session.failure is leases.fails
        assert not session.is_valid()
        await session.close()

    on_etcd(work)


@pytest.mark.parametrize("error", [EtcdUnavailable("away"), EtcdRefused("permission denied")])
def test_a_session_that_can_not_be_given_back_ends_here_all_the_same(error: Exception) -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        leases = Slow(time, 0)
        opening = asyncio.create_task(Session.open(leases, time, 6))
        await time.pass_us(0)
        session = await opening
        leases.revoking = error
        await session.close()
        assert session.lost.is_set()
        assert not session.is_valid()

    on_etcd(work)


def test_a_bug_while_a_session_is_kept_is_not_silent() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        leases = Slow(time, 0)
        opening = asyncio.create_task(Session.open(leases, time, 6))
        await time.pass_us(0)
        session = await opening
        leases.fails = ZeroDivisionError("a bug")
        await time.pass_us(2 * SECOND_US)
        await session.lost.wait()
        assert isinstance(session.failure, InternalError)
        assert not session.is_valid()
        with pytest.raises(ZeroDivisionError):
            await session.close()

    on_etcd(work)


def test_a_keepalive_that_was_answered_late_does_not_shorten_what_is_known() -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        session = await etcd.store().session(6)
        await time.pass_us(2 * SECOND_US)
        valid = session.valid_until_us()
        assert valid == time.now_us() + 5 * SECOND_US
        etcd.down = True
        await time.pass_us(4 * SECOND_US)
        assert session.valid_until_us() == valid
        await session.close()

    on_etcd(work)


def test_an_etcd_that_is_away_is_told_of_once_and_once_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    async def work(etcd: FakeEtcd, time: ManualTime) -> None:
        session = await etcd.store().session(6)
        etcd.down = True
        await time.pass_us(4 * SECOND_US)
        assert caplog.messages == []
        for _ in range(2):
            await time.pass_us(20 * SECOND_US)
            (told,) = caplog.records
            assert told.levelno == logging.WARNING
            assert "etcd can't be reached" in told.message
            assert "it is down" in told.message
        etcd.down = False
        await time.pass_us(SECOND_US)
        assert session.is_valid()
        assert caplog.messages[1:] == ["etcd is reached again"]
        await time.pass_us(20 * SECOND_US)
        assert len(caplog.messages) == 2
        await session.close()

    with caplog.at_level(logging.INFO, "penstock.cluster"):
        on_etcd(work)
