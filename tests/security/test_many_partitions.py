"""What costs as much as a topic has partitions, or as many consumers wait for it, is done a little at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import polling
from penstock.broker.bell import _AT_ONCE, Bell
from penstock.server import members
from security.doors import Doors, knock


class _Turns:
    """How often something is called between two turns of others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._turn = 0
        self.calls = Counter[int]()
        called: Callable[..., Any] = getattr(owner, name)

        def counted(*given: Any) -> Any:
            self.calls[self._turn] += 1
            return called(*given)

        monkeypatch.setattr(owner, name, counted)
        self._others = asyncio.ensure_future(self._turns())

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self._turn += 1

    def close(self) -> None:
        self._others.cancel()


def test_polls_of_many_partitions_look_at_them_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_FEW", 2)

    async def work(doors: Doors) -> None:
        site = doors.site
        await site.broker.create_topic("t", 3)
        await site.join_for_a_session("g", "c", ["t"], {})
        turns = _Turns(monkeypatch, site.broker.consumers, "leasable")
        polls = [site.poll("g", "c", ["t"], count=1, bytes_max=1, wait_us=wait) for wait in (0, 1_000) * 50]
        assert not any(await asyncio.gather(*polls))
        assert turns.calls.total() >= 100
        # One looks for messages, and for when there will be some.
        assert max(turns.calls.values()) <= 2
        turns.close()

    knock(tmp_path, work)


def test_consumers_of_many_partitions_join_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_FEW", 2)

    async def work(doors: Doors) -> None:
        site = doors.site
        await site.broker.create_topic("t", 3)
        await site.join_for_a_session("g", "c", ["t"], {})
        turns = _Turns(monkeypatch, site.broker.consumers, "join")
        await asyncio.gather(*[site.join_for_a_session("g", f"c{number}", ["t"], {}) for number in range(50)])
        assert turns.calls.total() == 50
        assert max(turns.calls.values()) == 1
        turns.close()

    knock(tmp_path, work)


def test_a_group_is_assigned_once_however_many_consumers_of_one_connection_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(doors: Doors) -> None:
        site, here = doors.site, members.Members(doors.site)
        await site.broker.create_topic("t", 3)
        for number in range(20):
            await site.join_for_a_session("g", f"c{number}", ["t"], {})
            here.add("g", f"c{number}", ["t"])
        turns = _Turns(monkeypatch, site.broker.consumers, "leave")
        here.leave()
        assert turns.calls.total() == 1
        assert not any(site.is_member("g", f"c{number}") for number in range(20)), "at once: one may join again"
        turns.close()

    knock(tmp_path, work)


def test_of_many_who_wait_some_are_woken_at_a_time() -> None:
    async def run() -> None:
        bell, loop = Bell(), asyncio.get_running_loop()
        rings = [loop.create_future() for _ in range(3 * _AT_ONCE)]
        for number, ring in enumerate(rings):
            bell.wait(f"g{number}", ring, ("p",))
        bell.ring(at="p")
        for turn in range(1, 4):
            assert sum(ring.done() for ring in rings) == turn * _AT_ONCE
            await asyncio.sleep(0)

    asyncio.run(run())
