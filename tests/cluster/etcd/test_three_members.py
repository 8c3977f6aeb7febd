"""A real etcd of three members: whichever is killed or paused, the client goes on with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from etcd_support import needs_etcd, opened, post, run
from penstock.cluster.etcd.client import EtcdStore
from penstock.cluster.etcd.process import EtcdProcess, free_port
from penstock.cluster.etcd.session import BootTime
from penstock.cluster.etcd.store import ABSENT, Lost, Put, Won
from penstock.cluster.etcd.view import View
from penstock.errors import EtcdUnavailable, OutcomeUnknown

T = TypeVar("T")

pytestmark = needs_etcd
NAMES = ("a", "b", "c")


def distinct_ports() -> set[int]:
    found: set[int] = set()
    while len(found) < len(NAMES):
        found.add(free_port())
    return found


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdProcess]]:
    directory: Path = tmp_path_factory.mktemp("members")
    ports = dict(zip(NAMES, distinct_ports(), strict=True))
    cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in ports.items())
    processes = [
        EtcdProcess(
            directory / name,
            peer_port=ports[name],
            # The last of two that say different things counts.
            arguments=[
                f"--name={name}",
                f"--initial-cluster={cluster}",
                "--heartbeat-interval=50",
                "--election-timeout=500",
            ],
        )
        for name in NAMES
    ]
    try:
        with ThreadPoolExecutor() as threads:
            # None of them is healthy before it has another.
            list(threads.map(EtcdProcess.start, processes))
        yield processes
    finally:
        for process in processes:
            process.kill()


def leader_first(members: list[EtcdProcess]) -> list[EtcdProcess]:
    def leads(process: EtcdProcess) -> bool:
        said = post(process, "/v3/maintenance/status", {})
        return bool(said["header"]["member_id"] == said.get("leader"))

    return sorted(members, key=leads, reverse=True)


async def put(store: EtcdStore, key: str, value: bytes) -> None:
    """Until it is there, whoever answers, and with each outcome as it is told."""
    while True:
        try:
            found = (await store.get(key)).items.get(key)
            if found and found.value == value:
                return
            answer: Won | Lost = await store.commit({key: found.revision if found else ABSENT}, [Put(key, value)])
            if isinstance(answer, Won):
                return
        except (EtcdUnavailable, OutcomeUnknown):
            await asyncio.sleep(0)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """There are moments in which nobody leads."""
    while True:
        try:
            return await work()
        except EtcdUnavailable:
            await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_the_client_goes_on_when_the_member_it_talks_to_and_which_leads_is_gone(
    members: list[EtcdProcess], how: str
) -> None:
    prefix = f"/{how}/"

    async def work() -> None:
        leader, *others = leader_first(members)
        addresses = [leader.address, *(other.address for other in others)]
        async with opened(addresses, connect_s=1.0, request_s=1.0) as store:
            view = View(store, prefix, BootTime(), reconcile_us=500_000)
            await patiently(view.start)
            session = await patiently(lambda: store.session(60))
            await put(store, prefix + "before", b"1")
            if how == "killed":
                await asyncio.to_thread(leader.kill)
            else:
                leader.pause()
            try:
                for number in range(5):
                    await put(store, f"{prefix}{number}", b"1")
                found = await patiently(lambda: store.get(prefix))
                assert found.items.keys() == {prefix + "before", *(f"{prefix}{number}" for number in range(5))}
                # The watch was at the member that is gone. If it only says nothing, a full read finds out.
                await view.reached(max(item.revision for item in found.items.values()))
                assert view.items == found.items
                assert session.is_valid()
            finally:
                if how == "killed":
                    await asyncio.to_thread(leader.start)
                else:
                    leader.resume()
            await view.close()
            await session.close()

    run(work)


def test_without_a_majority_nothing_is_changed_and_nobody_is_told_that_it_was(members: list[EtcdProcess]) -> None:
    async def work() -> None:
        last, *others = members
        async with opened(last.address, connect_s=0.7, request_s=0.7) as store:
            await put(store, "/alone", b"before")
            for other in others:
                other.pause()
            try:
                with pytest.raises((OutcomeUnknown, EtcdUnavailable)):
                    await store.commit({}, [Put("/alone", b"after")])
                with pytest.raises(EtcdUnavailable):
                    await store.get("/alone")
            finally:
                for other in others:
                    other.resume()
            await put(store, "/alone", b"at last")

    run(work)
