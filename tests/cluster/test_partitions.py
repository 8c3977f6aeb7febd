"""What a node hears of the records of partitions."""

from __future__ import annotations

from etcd_support import run
from penstock.cluster.core.election import first
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import encode
from penstock.cluster.etcd.store import Put, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.partitions import Partitions, Placed
from penstock.testing import FakeEtcd, ManualTime

KEYS = Keys()


def test_a_deletion_is_later_than_every_change_also_than_those_that_the_watch_has_not_told() -> None:
    async def main() -> None:
        time = ManualTime()
        etcd = FakeEtcd(time)
        view = View(etcd.store(), KEYS.prefix, time)
        partitions = Partitions(view, KEYS)
        told: list[tuple[Placed | None, int]] = []
        partitions.changed = lambda identity, placed, revision: told.append((placed, revision))
        record = encode(first("t", 0, ("a",), 1, {"a": Registered("disk", "process")}))

        def put(identity: str) -> int:
            outcome = etcd.commit({}, [Put(KEYS.partition(identity), record)], [])
            assert isinstance(outcome, Won)
            return outcome.revision

        put("read")
        put("watched")
        await view.start()
        told.clear()
        # By its leader, which knows by the answer.
        known = put("read")
        etcd.commit({}, [], [KEYS.partition("read")])
        await view.refresh()
        assert told == [(None, etcd.revision)]
        assert etcd.revision > known
        told.clear()
        etcd.commit({}, [], [KEYS.partition("watched")])
        put("another")
        await time.pass_us(0)
        assert told[0] == (None, etcd.revision - 1)
        await view.close()

    run(main)
