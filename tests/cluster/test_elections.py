"""Unclean elections, of what nodes have reported before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.client.cluster_requests import ElectLeaders, ReplicaReport
from penstock.cluster.core.events import Registered
from penstock.cluster.elections import Elections
from penstock.cluster.keys import Keys
from penstock.errors import StaleMetadata
from replica_support import record


class Records:
    """Of one partition, whose leader and ISR are gone. Node c is behind, and alive."""

    def __init__(self) -> None:
        self.record = replace(record("a", 5, isr="a b"), leader=None)

    async def refresh(self) -> None: ...

    def named(self, topic: str, partition: int | None) -> dict[str, Any]:
        return {"p": self.record}

    async def change(self, identity: str, decide: Any, guards: Any) -> bool:
        changed = decide(self.record)
        self.record = changed or self.record
        return changed is not None


@pytest.mark.parametrize("is_wiped", [False, True])
def test_who_is_elected_at_a_loss_is_the_process_that_has_reported_what_is_lost(is_wiped: bool) -> None:
    async def main() -> None:
        records, members = Records(), SimpleNamespace(live={"c": Registered("dc", "c1")}, draining=frozenset())
        node: Any = SimpleNamespace(members=members, keys=Keys(), view=SimpleNamespace(get=lambda key: None))

        async def replicas(*asked: Any, **how: Any) -> tuple[dict[tuple[str, str], ReplicaReport], tuple[str, ...]]:
            if is_wiped:
                # It is back with an empty disk while others are still asked.
                members.live = {"c": Registered("another", "c2")}
            return {("c", "p"): ReplicaReport("p", 4, False, (0, 0), (10, 4), last_epoch=4)}, ()

        elections = Elections(node, records, SimpleNamespace(replicas=replicas))  # type: ignore[arg-type]
        electing = elections.elect(ElectLeaders("t", 0, "c", is_unclean=True))
        if is_wiped:
            with pytest.raises(StaleMetadata):
                await electing
        else:
            await electing
        assert (records.record.leader, records.record.incarnation) == ((None, "a1") if is_wiped else ("c", "c1"))

    asyncio.run(main())
