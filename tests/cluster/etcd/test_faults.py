"""A real etcd that is killed, paused, wiped or replaced under its clients."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from etcd_support import etcd_process, is_lost, needs_etcd, opened, run
from penstock.cluster.etcd.process import EtcdProcess
from penstock.cluster.etcd.session import BootTime
from penstock.cluster.etcd.store import ABSENT, Lost, Put, Won
from penstock.cluster.etcd.view import View
from penstock.errors import EtcdReplaced, EtcdUnavailable, OutcomeUnknown

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process


def test_etcd_killed_under_commits_loses_none_that_was_won_and_no_outcome_is_guessed(shared: EtcdProcess) -> None:
    async def work() -> None:
        async with opened(shared.address) as store:
            won: dict[str, int] = {}
            unknown: list[str] = []
            refused: list[str] = []
            enough = asyncio.Event()

            async def write(writer: int) -> None:
                for number in range(10_000):
                    if enough.is_set():
                        return
                    key = f"/killed/{writer}/{number}"
                    try:
                        answer = await store.commit({key: ABSENT}, [Put(key, key.encode())])
                    except OutcomeUnknown:
                        unknown.append(key)
                    except EtcdUnavailable:
                        refused.append(key)
                        await asyncio.sleep(0)
                    else:
                        assert isinstance(answer, Won), "each key is tried once"
                        won[key] = answer.revision

            async def until_won(count: int) -> None:
                while len(won) < count:
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as group:
                for writer in range(8):
                    group.create_task(write(writer))
                for _ in range(2):
                    await until_won(len(won) + 40)
                    await asyncio.to_thread(shared.kill)
                    await asyncio.to_thread(shared.start)
                await until_won(len(won) + 40)
                enough.set()
            found = (await store.get("/killed/")).items
            assert {key: found[key].revision for key in won} == won
            assert not any(key in found for key in refused)
            assert found.keys() <= {*won, *unknown}
            assert refused

    run(work)


def test_a_commit_sent_to_an_etcd_that_is_paused_is_unknown_and_reading_again_decides(shared: EtcdProcess) -> None:
    key = "/paused/a"

    async def work() -> None:
        async with opened(shared.address) as store:
            assert (await store.get(key)).items == {}
            shared.pause()
            try:
                patient = store._gateway._settings
                store._gateway._settings = replace(patient, connect_s=0.3, request_s=0.3)
                with pytest.raises(OutcomeUnknown, match=r"the answer was lost: no answer within 0\.3 s"):
                    await store.commit({key: ABSENT}, [Put(key, b"1")])
                with pytest.raises(EtcdUnavailable, match=r"no connection within 0\.3 s"):
                    await store.commit({key: ABSENT}, [Put(key, b"2")])
                with pytest.raises(
                    EtcdUnavailable, match=r"does not answer \(http://127.0.0.1:\d+: no connection within"
                ):
                    await store.get(key)
            finally:
                shared.resume()
                store._gateway._settings = patient
            # It may have been carried out, and may be until the guard of the next one says that it can't any more.
            answer: Won | Lost = Lost({}, 0)
            while isinstance(answer, Lost):
                found = (await store.get(key)).items.get(key)
                assert found is None or found.value == b"1"
                answer = await store.commit({key: found.revision if found else ABSENT}, [Put(key, b"3")])
            assert (await store.get(key)).items[key].value == b"3"

    run(work)


def test_a_commit_whose_etcd_is_killed_before_it_answers_is_unknown(shared: EtcdProcess) -> None:
    key = "/unanswered/a"

    async def work() -> None:
        async with opened(shared.address) as store:
            await store.get(key)
            shared.pause()
            sending = asyncio.create_task(store.commit({key: ABSENT}, [Put(key, b"1")]))
            # Sent at once, on the connection of the read.
            for _ in range(5):
                await asyncio.sleep(0)
            await asyncio.to_thread(shared.kill)
            with pytest.raises(OutcomeUnknown, match="the answer was lost"):
                await sending
            with pytest.raises(EtcdUnavailable, match=r"Connect call failed|Connection refused"):
                await store.commit({key: ABSENT}, [Put(key, b"1")])
            await asyncio.to_thread(shared.start)
            # What a paused process has not read dies with it.
            assert (await store.get(key)).items == {}

    run(work)


def test_a_session_outlives_an_etcd_that_was_away_for_longer_than_it_was_valid(shared: EtcdProcess) -> None:
    key = "/session/a"

    async def work() -> None:
        async with opened(shared.address) as store:
            session = await store.session(6)
            await store.commit({}, [Put(key, b"1", session)])
            await asyncio.to_thread(shared.kill)
            assert not await is_lost(session, session.valid_until_us())
            assert not session.is_valid()
            await asyncio.to_thread(shared.start)
            while not session.is_valid():
                assert not session.lost.is_set(), session.failure
                await asyncio.sleep(0)
            assert (await store.get(key)).items[key].value == b"1"
            await session.close()

    run(work)


def test_a_session_whose_etcd_is_paused_is_not_valid_beyond_what_was_confirmed(shared: EtcdProcess) -> None:
    async def work() -> None:
        async with opened(shared.address) as store:
            time = BootTime()
            opened_us = time.now_us()
            session = await store.session(1)
            assert opened_us < session.valid_until_us() <= time.now_us() + session.ttl_us * 5 // 6 + 1
            shared.pause()
            paused_us = time.now_us()
            try:
                assert not await is_lost(session, session.valid_until_us())
                assert not session.is_valid()
                # The last keepalive that was answered had been sent before the pause.
                assert session.valid_until_us() <= paused_us + session.ttl_us * 5 // 6
            finally:
                shared.resume()
            await session.close()

    run(work)


def test_a_view_goes_on_when_its_etcd_was_killed(shared: EtcdProcess) -> None:
    async def work() -> None:
        async with opened(shared.address) as store:
            seen: list[str] = []
            view = View(store, "/view/", BootTime(), reconcile_us=60_000_000)
            view.on_change("/view/", lambda known: seen.append(known.key))
            await view.start()
            answer = await store.commit({}, [Put("/view/a", b"1")])
            await view.reached(answer.revision)
            await asyncio.to_thread(shared.kill)
            await asyncio.to_thread(shared.start)
            answer = await store.commit({}, [Put("/view/b", b"1")])
            # Without waiting for the next full read: the watch was broken, and made anew.
            await view.reached(answer.revision)
            assert seen == ["/view/a", "/view/b"]
            await view.close()

    run(work)


def test_an_etcd_that_has_lost_its_data_is_noticed_by_its_revision(tmp_path: Path) -> None:
    async def work() -> None:
        with etcd_process(tmp_path / "etcd") as process:
            async with opened(process.address) as store:
                view = View(store, "/a", BootTime(), reconcile_us=100_000)
                await view.start()
                for number in range(3):
                    answer = await store.commit({}, [Put("/a", b"%d" % number)])
                await view.reached(answer.revision)
                process.kill()
                shutil.rmtree(tmp_path / "etcd" / "data")
                await asyncio.to_thread(process.start)
                with pytest.raises(EtcdReplaced, match=r"etcd is at revision 1,? and was at 4 before"):
                    await store.get("/a")
                with pytest.raises(EtcdReplaced, match="is at revision 2 and was at 4"):
                    await store.commit({"/a": ABSENT}, [Put("/a", b"new")])
                with pytest.raises(EtcdReplaced, match="set back"):
                    await view.failure()
                await view.close()

    run(work)


def test_the_etcd_of_another_cluster_is_refused(shared: EtcdProcess, tmp_path: Path) -> None:
    async def work() -> None:
        with etcd_process(tmp_path / "other", "--initial-cluster-token", "other") as other:
            async with opened([shared.address, other.address]) as store:
                await store.get("/a")
                await asyncio.to_thread(shared.kill)
                with pytest.raises(EtcdReplaced, match="the addresses are of two clusters"):
                    await store.commit({}, [Put("/a", b"1")])
            async with opened(other.address) as store:
                assert (await store.get("/a")).items == {}
            await asyncio.to_thread(shared.start)

    run(work)


def test_a_member_that_does_not_answer_is_left_for_one_that_does(shared: EtcdProcess, tmp_path: Path) -> None:
    async def work() -> None:
        with etcd_process(tmp_path / "dead") as dead:
            dead.pause()
            nobody = "http://127.0.0.1:9"
            async with opened([nobody, dead.address, shared.address], connect_s=1.5) as store:
                assert isinstance(await store.commit({}, [Put("/elsewhere", b"1")]), Won)
                begin = (await store.get("/elsewhere")).items["/elsewhere"].revision
                async with aclosing(store.watch("/elsewhere", begin)) as watch:
                    assert len((await anext(watch)).changes) == 1

    run(work)
