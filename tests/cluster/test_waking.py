"""A node wakes its replicas no earlier than they asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from penstock.cluster.core.events import Tick
from penstock.cluster.hosted import Hosted
from penstock.cluster.node import Node
from penstock.environment import random_id
from penstock.testing import ManualClock, MemoryFiles
from penstock.testing.fake_etcd import FakeEtcd
from penstock.testing.time import ManualTime


def test_a_timer_that_is_early_is_not_taken_for_the_time_that_was_asked_for() -> None:
    async def main() -> None:
        time = ManualTime()
        store = FakeEtcd(time).store()
        node = Node("a", store, MemoryFiles(), ManualClock(), time=time, new_id=random_id, cluster="default", ttl_s=6)
        # What the node's clock says: twice the loop wakes up a little too early, as one that counts milliseconds does.
        says = iter([1_000, 1_999, 1_999, 1_999, 1_999])
        node.now_us = lambda: next(says, 2_000)  # type: ignore[method-assign]
        stepped: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        hosted = cast(Hosted, SimpleNamespace(identity="p", step=stepped.set_result))
        node.hosted["p"] = hosted
        node.wake(hosted, 2_000)
        async with asyncio.timeout(60):
            assert isinstance(await stepped, Tick)
        assert next(says, None) is None, "it was woken before its time"

    asyncio.run(main())
