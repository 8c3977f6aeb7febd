"""A node whose parts fail, or wait for what never comes: it ends, and what it led is free for others."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from etcd_support import run
from lone_node import LoneNode, on_node
from penstock.broker.catalog import Catalog
from penstock.broker.settings import TopicSettings
from penstock.cluster.core.election import first
from penstock.cluster.core.events import Registered, Unanswered
from penstock.cluster.core.record import encode
from penstock.cluster.etcd.store import Put
from penstock.cluster.hosted import Hosted
from penstock.errors import EtcdError, EtcdUnavailable, EtcdVersionRefused, Fatal, NotLeader, SessionLost

ORPHAN = "00" * 16


def brokers(lone: LoneNode) -> list[str]:
    return list(lone.etcd.read(lone.node.keys.brokers).items)


async def led(lone: LoneNode) -> Hosted:
    """A partition of no topic, which the node would lead if there were one."""
    lone.put(ORPHAN)
    await lone.until(lambda: ORPHAN in lone.node.hosted)
    hosted = lone.node.hosted[ORPHAN]
    await lone.until(lambda: hosted._opening_epoch and not hosted._jobs)
    return hosted


@pytest.mark.parametrize("task", ["_tick", "_tidy", "controller.run", "presence.keep"])
def test_a_task_of_the_node_that_dies_breaks_it(task: str) -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        owner: Any = lone.node
        *path, name = task.split(".")
        for each in path:
            owner = getattr(owner, each)

        async def die(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        setattr(owner, name, die)
        await lone.join()
        error = await lone.broken.get()
        assert isinstance(error, Fatal)
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert lone.node.failure is error
        await lone.close()

    run(main)


def test_a_partition_that_can_not_be_opened_or_removed_because_of_a_bug_breaks_the_node() -> None:
    async def work(lone: LoneNode) -> None:
        def fail(identity: str) -> Any:
            raise ZeroDivisionError("a bug")

        lone.node._open_copy = fail  # type: ignore[method-assign]
        lone.put(ORPHAN)
        assert isinstance((await lone.broken.get()).__cause__, ZeroDivisionError)

    on_node(work)

    async def work_on_removal(lone: LoneNode) -> None:
        def fail(identity: str) -> None:
            raise ZeroDivisionError("a bug")

        await led(lone)
        lone.node._remove_copy = fail  # type: ignore[method-assign]
        lone.delete(ORPHAN)
        assert isinstance((await lone.broken.get()).__cause__, ZeroDivisionError)

    on_node(work_on_removal)


def test_a_step_of_a_replica_that_fails_breaks_the_node_whoever_asked_for_it() -> None:
    async def work(lone: LoneNode) -> None:
        hosted = await led(lone)

        def step(now_us: int, event: object) -> Any:
            raise ZeroDivisionError("a bug")

        hosted.replica.step = step  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            hosted.step(Unanswered())
        assert isinstance(lone.broken.get_nowait().__cause__, ZeroDivisionError)

    on_node(work)


def test_a_node_closes_while_it_leads_a_partition_whose_topic_never_comes() -> None:
    async def work(lone: LoneNode) -> None:
        await led(lone)
        await lone.node.close()
        assert lone.node.hosted == {}
        assert lone.broken.empty()

    on_node(work)


def test_requests_that_come_before_the_first_tick_after_a_pause_find_no_partition() -> None:
    async def work(lone: LoneNode) -> None:
        node = lone.node
        await node.queue.create_topic("t", 1)
        await lone.until(lambda: 0 in node.queue.topic("t").here)
        boot_us = node.now_us
        # Without a turn of the event loop: whatever comes first after a pause of an hour.
        node.now_us = lambda: boot_us() + 3600 * 1_000_000  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as other:
            # Only the event loop hides partitions: waiters of theirs belong to it.
            assert 0 in other.submit(node.queue.topic, "t").result().here
        with pytest.raises(NotLeader):
            node.queue.topic("t").partition(0)
        node.now_us = boot_us  # type: ignore[method-assign]
        # The session is still valid.
        await lone.until(lambda: 0 in node.queue.topic("t").here)

    on_node(work)


def test_a_partition_of_no_topic_is_given_up_when_its_record_is_deleted() -> None:
    async def work(lone: LoneNode) -> None:
        await led(lone)
        lone.delete(ORPHAN)
        await lone.until(lambda: ORPHAN not in lone.node.hosted and not lone.node._dropping)
        assert await lone.node.on_a_thread(lone.node.queue.directories.names) == []
        assert lone.broken.empty()

    on_node(work)


def test_the_session_ends_before_replicas_are_closed_so_that_nobody_waits_for_them() -> None:
    async def work(lone: LoneNode) -> None:
        hosted = await led(lone)
        registered: list[list[str]] = []
        close = hosted.close

        async def closing() -> None:
            registered.append(brokers(lone))
            await close()

        hosted.close = closing  # type: ignore[method-assign]
        assert brokers(lone)
        await lone.node.close()
        assert registered == [[]]

    on_node(work)


def test_a_node_that_leaves_is_not_announced_again() -> None:
    async def work(lone: LoneNode) -> None:
        await lone.node.leave()
        assert brokers(lone) == []
        assert lone.node.session_left_s() == 0
        assert lone.node._keeping is not None
        assert lone.node._keeping.cancelled()

    on_node(work)


def test_while_etcd_is_away_a_node_waits_and_opens_and_joins_when_it_is_back() -> None:
    async def main() -> None:
        lone = LoneNode()
        said: list[EtcdError] = []

        async def unreachable(error: EtcdError) -> None:
            said.append(error)
            lone.etcd.down = len(said) % 2 == 1

        lone.etcd.down = True
        await lone.open(unreachable=unreachable)
        assert [type(error) for error in said] == [EtcdUnavailable] * 2
        lone.etcd.down = True
        await lone.join()
        assert [type(error) for error in said] == [EtcdUnavailable] * 4
        assert len(brokers(lone)) == 1
        await lone.close()

    run(main)


def test_an_etcd_that_must_not_be_used_is_not_waited_for() -> None:
    async def main() -> None:
        lone = LoneNode()

        async def unreachable(error: EtcdError) -> None:
            raise AssertionError("it was reached")

        def refuse() -> None:
            raise EtcdVersionRefused("etcd 3.5.2 can corrupt its data")

        lone.etcd.must_be_up = refuse  # type: ignore[method-assign]
        with pytest.raises(EtcdVersionRefused):
            await lone.open(unreachable=unreachable)
        lone.etcd.must_be_up = lambda: _raise(EtcdUnavailable("TLS", is_of_tls=True))  # type: ignore[method-assign]
        with pytest.raises(EtcdUnavailable):
            await lone.open(unreachable=unreachable)

    def _raise(error: Exception) -> None:
        raise error

    run(main)


def test_who_is_not_told_to_wait_hears_that_etcd_is_away() -> None:
    async def main() -> None:
        lone = LoneNode()
        lone.etcd.down = True
        with pytest.raises(EtcdUnavailable):
            await lone.open()
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_a_node_without_etcd_refuses_changes_and_is_ready_only_while_it_serves_what_it_leads() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open(ttl_s=1)
        node = lone.node
        with pytest.raises(SessionLost, match="not joined"):
            node.check_ready()
        await lone.join()
        # Its follower never comes, so only the session lets it serve.
        live = {**node.members.live, "b": Registered("disk-b", "process-b")}
        record = first("t", 0, ("a", "b"), 1, live)
        lone.etcd.commit({}, [Put(node.keys.partition(ORPHAN), encode(record))], [])
        await lone.until(lambda: ORPHAN in node.hosted and node.hosted[ORPHAN].serves_until_us > node.now_us())
        node.check_ready()
        node.check_etcd()

        lone.etcd.down = True
        await lone.until(lambda: node.is_cut_off)
        with pytest.raises(EtcdUnavailable, match="node a has not reached etcd"):
            await node.catalog.carry_out(asyncio.to_thread, Catalog.create_topic, "t", 1, TopicSettings())
        await lone.until(lambda: node.hosted[ORPHAN].serves_until_us <= node.now_us())
        with pytest.raises(SessionLost, match="serves nothing"):
            node.check_ready()

        lone.etcd.down = False
        await lone.until(lambda: not node.is_cut_off)
        node.check_ready()
        node.check_etcd()
        await lone.close()

    run(main)
