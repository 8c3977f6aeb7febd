"""One suite for every implementation of the `Store` port: a real etcd, and the one in memory."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from etcd_support import PATIENCE_S, changes, etcd_process, opened, post, run
from penstock.cluster.etcd.process import EtcdProcess
from penstock.cluster.etcd.store import ABSENT, Change, Item, Lost, Put, Store, Won
from penstock.errors import EtcdRequestTooLarge, EtcdUnavailable, InvalidInput, SessionLost, WatchBehind
from penstock.limits import KIB, MIB
from penstock.testing import FakeEtcd, ManualTime
from simulation.world.clocks import WorldClock
from simulation.world.etcd import WorldEtcd, WorldStore
from simulation.world.loop import Process, WorldLoop
from simulation.world.network import Network


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    directory: Path = tmp_path_factory.mktemp("etcd")
    with etcd_process(directory) as process:
        yield process


class Real:
    ttl_s_min = 1

    def __init__(self, process: EtcdProcess, prefix: str) -> None:
        self._process = process
        self.prefix = prefix

    def run(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            # More than a node allows: a machine that runs tests may stand still for a moment.
            async with opened(self._process.address, connect_s=PATIENCE_S, request_s=PATIENCE_S) as store:
                await work(store)

        run(main)

    def compact(self, revision: int) -> None:
        post(self._process, "/v3/kv/compaction", {"revision": str(revision), "physical": True})

    async def pass_s(self, seconds: float) -> None:
        """It does by itself."""

    def expire(self, lease: int) -> None:
        post(self._process, "/v3/lease/revoke", {"ID": str(lease)})


class Fake:
    ttl_s_min = 2

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def run(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            self._time = ManualTime()
            self._etcd = FakeEtcd(self._time)
            await work(self._etcd.store())

        run(main)

    def compact(self, revision: int) -> None:
        self._etcd.compact(revision)

    async def pass_s(self, seconds: float) -> None:
        await self._time.pass_us(int(seconds * 1_000_000))

    def expire(self, lease: int) -> None:
        self._etcd.expire(lease)


class Simulated(Fake):
    """In simulated time, behind a simulated network."""

    def run(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            process = Process(loop, "client", "client")
            store = WorldStore(self._world, process, WorldClock(loop, Random(self.prefix)))
            await process.start(work(store))  # type: ignore[arg-type]

        loop = WorldLoop(self.prefix)
        loop.network = Network(loop, self.prefix)
        self._world = WorldEtcd(loop, loop.network, self.prefix)
        self._etcd = self._world.fake
        try:
            loop.run(main())
        finally:
            loop.close()
            gc.enable()

    async def pass_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(params=["real", "fake", "simulated"])
def etcd(request: pytest.FixtureRequest) -> Real | Fake:
    prefix = f"/{request.node.originalname}/"
    if request.param != "real":
        return Fake(prefix) if request.param == "fake" else Simulated(prefix)
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    return Real(request.getfixturevalue("process"), prefix)


def won(answer: Won | Lost) -> int:
    assert isinstance(answer, Won), answer
    return answer.revision


def lost(answer: Won | Lost) -> dict[str, Item]:
    assert isinstance(answer, Lost), answer
    return answer.items


def test_a_prefix_that_has_nothing_is_empty(etcd: Real | Fake) -> None:
    async def work(store: Store) -> None:
        found = await store.get(etcd.prefix)
        assert found.items == {}
        assert found.revision >= 1

    etcd.run(work)


def test_what_was_put_is_read_with_the_revision_of_its_commit(etcd: Real | Fake) -> None:
    a, b, outside = etcd.prefix + "a", etcd.prefix + "b", etcd.prefix[:-1] + "0"

    async def work(store: Store) -> None:
        first = won(await store.commit({}, [Put(a, b"1"), Put(outside, b"x")]))
        second = won(await store.commit({}, [Put(b, b"2")]))
        found = await store.get(etcd.prefix)
        assert found.items == {a: Item(a, b"1", first, first), b: Item(b, b"2", second, second)}
        assert second == found.revision == first + 1

    etcd.run(work)


def test_a_guard_holds_only_at_the_revision_that_was_read(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        first = won(await store.commit({key: ABSENT}, [Put(key, b"1")]))
        second = won(await store.commit({key: first}, [Put(key, b"2")]))
        assert lost(await store.commit({key: first}, [Put(key, b"3")])) == {key: Item(key, b"2", second, first)}
        # The same value again is another revision.
        third = won(await store.commit({key: second}, [Put(key, b"2")]))
        assert lost(await store.commit({key: second}, [Put(key, b"3")])) == {key: Item(key, b"2", third, first)}

    etcd.run(work)


def test_a_key_can_be_guarded_by_its_absence(etcd: Real | Fake) -> None:
    key, other = etcd.prefix + "a", etcd.prefix + "b"

    async def work(store: Store) -> None:
        assert lost(await store.commit({key: 5}, [Put(key, b"1")])) == {}
        won(await store.commit({key: ABSENT}, [Put(other, b"1")]))
        made = won(await store.commit({key: ABSENT}, [Put(key, b"1")]))
        assert lost(await store.commit({key: ABSENT}, [Put(key, b"2")])) == {key: Item(key, b"1", made, made)}
        won(await store.commit({key: made}, deletes=[key]))
        again = won(await store.commit({key: ABSENT}, [Put(key, b"3")]))
        assert (await store.get(key)).items == {key: Item(key, b"3", again, again)}

    etcd.run(work)


def test_a_commit_of_several_keys_is_all_or_nothing(etcd: Real | Fake) -> None:
    a, b, c = (etcd.prefix + name for name in "abc")

    async def work(store: Store) -> None:
        made = won(await store.commit({}, [Put(a, b"1"), Put(b, b"1")]))
        answer = await store.commit({a: made, b: made + 7, c: ABSENT}, [Put(a, b"2"), Put(c, b"2")], [b])
        assert lost(answer) == {a: Item(a, b"1", made, made), b: Item(b, b"1", made, made)}
        assert (await store.get(etcd.prefix)).items.keys() == {a, b}
        revision = won(await store.commit({a: made, b: made, c: ABSENT}, [Put(a, b"2"), Put(c, b"2")], [b]))
        found = (await store.get(etcd.prefix)).items
        assert found == {a: Item(a, b"2", revision, made), c: Item(c, b"2", revision, revision)}

    etcd.run(work)


def test_of_many_who_race_for_a_key_one_wins(etcd: Real | Fake) -> None:
    key = etcd.prefix + "leader"

    async def work(store: Store) -> None:
        answers = await asyncio.gather(*(store.commit({key: ABSENT}, [Put(key, b"%d" % i)]) for i in range(30)))
        winners = [i for i, answer in enumerate(answers) if isinstance(answer, Won)]
        assert len(winners) == 1
        assert (await store.get(etcd.prefix)).items[key].value == b"%d" % winners[0]

    etcd.run(work)


def test_deleting_what_is_not_there_changes_nothing(etcd: Real | Fake) -> None:
    async def work(store: Store) -> None:
        before = (await store.get(etcd.prefix)).revision
        won(await store.commit({}, deletes=[etcd.prefix + "nothing"]))
        assert (await store.get(etcd.prefix)).revision == before

    etcd.run(work)


def test_values_are_bytes_and_keys_are_text(etcd: Real | Fake) -> None:
    binary = bytes(range(256)) * 3
    key = etcd.prefix + "größe/√ \n\0"

    async def work(store: Store) -> None:
        revision = won(await store.commit({key: ABSENT}, [Put(key, binary), Put(etcd.prefix + "empty", b"")]))
        found = (await store.get(etcd.prefix)).items
        assert found[key] == Item(key, binary, revision, revision)
        assert found[etcd.prefix + "empty"].value == b""

    etcd.run(work)


def test_five_thousand_keys_are_read_at_one_revision(etcd: Real | Fake) -> None:
    keys = [f"{etcd.prefix}{number:05}" for number in range(5_000)]

    async def work(store: Store) -> None:
        for begin in range(0, len(keys), 100):
            won(await store.commit({}, [Put(key, key.encode() * 10) for key in keys[begin : begin + 100]]))

        async def change() -> None:
            for _ in range(20):
                won(await store.commit({}, [Put(keys[0], b"new"), Put(keys[-1], b"new")]))

        changing = asyncio.create_task(change())
        for _ in range(3):
            found = await store.get(etcd.prefix)
            assert list(found.items) == keys
            # Both are of the same commit, or the pages would be of different times.
            assert found.items[keys[0]].value == b"new" or found.items[keys[-1]].value != b"new"
            assert max(item.revision for item in found.items.values()) <= found.revision
            first, last = found.items[keys[0]], found.items[keys[-1]]
            assert (first.value == b"new") == (last.value == b"new")
            assert first.value != b"new" or first.revision == last.revision
        await changing

    etcd.run(work)


def test_large_values_are_read_although_together_they_are_more_than_one_answer_takes(etcd: Real | Fake) -> None:
    async def work(store: Store) -> None:
        for number in range(7):
            won(await store.commit({}, [Put(f"{etcd.prefix}{number}", bytes([number]) * MIB)]))
        found = await store.get(etcd.prefix)
        assert [item.value for item in found.items.values()] == [bytes([number]) * MIB for number in range(7)]

    etcd.run(work)


def test_a_value_near_the_limit_is_taken_and_one_above_it_refused(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        near = 3 * MIB // 2 - 8 * KIB
        made = won(await store.commit({key: ABSENT}, [Put(key, bytes(near))]))
        with pytest.raises(EtcdRequestTooLarge, match="more than the 1572864 that etcd takes"):
            await store.commit({key: made}, [Put(key, bytes(3 * MIB // 2))])
        assert (await store.get(etcd.prefix)).items[key].revision == made

    etcd.run(work)


def test_a_commit_has_at_most_128_operations_and_guards(etcd: Real | Fake) -> None:
    keys = [f"{etcd.prefix}{number}" for number in range(129)]

    async def work(store: Store) -> None:
        with pytest.raises(EtcdRequestTooLarge, match="up to 128 guards, and as many puts and deletes; not 0 and 129"):
            await store.commit({}, [Put(key, b"") for key in keys])
        with pytest.raises(EtcdRequestTooLarge, match="not 129 and 1"):
            await store.commit(dict.fromkeys(keys, ABSENT), [Put(keys[0], b"")])
        assert (await store.get(etcd.prefix)).items == {}
        # So many with the largest keys that may be together are still taken.
        won(await store.commit(dict.fromkeys(keys[:128], ABSENT), [Put(key, b"x" * 10_000) for key in keys[:128]]))
        assert len((await store.get(etcd.prefix)).items) == 128

    etcd.run(work)


def test_a_commit_that_makes_no_sense_is_refused_before_it_is_sent(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        with pytest.raises(InvalidInput, match="puts or deletes something"):
            await store.commit({key: ABSENT})
        with pytest.raises(InvalidInput, match="each key once"):
            await store.commit({}, [Put(key, b"1"), Put(key, b"2")])
        with pytest.raises(InvalidInput, match="each key once"):
            await store.commit({}, [Put(key, b"1")], [key])
        with pytest.raises(InvalidInput, match="revision is positive"):
            await store.commit({key: -1}, [Put(key, b"1")])
        with pytest.raises(InvalidInput, match="1 to 4096 bytes"):
            await store.commit({}, [Put("", b"1")])
        with pytest.raises(InvalidInput, match="UTF-8"):
            await store.commit({}, [Put("\udcff", b"1")])
        with pytest.raises(InvalidInput, match="1 to 4096 bytes"):
            await store.get("")
        with pytest.raises(InvalidInput, match="from 1 on, not at 0"):
            await changes(store, etcd.prefix, 0, 1)
        assert (await store.get(etcd.prefix)).items == {}

    etcd.run(work)


def test_a_watch_tells_changes_in_order_and_those_of_one_commit_together(etcd: Real | Fake) -> None:
    a, b = etcd.prefix + "a", etcd.prefix + "b"

    async def work(store: Store) -> None:
        begin = (await store.get(etcd.prefix)).revision + 1
        first = won(await store.commit({}, [Put(a, b"1"), Put(b, b"1")]))
        async with aclosing(store.watch(etcd.prefix, begin)) as watch:
            told = await anext(watch)
            assert (told.changes, told.revision) == (
                [Change(a, Item(a, b"1", first, first), first), Change(b, Item(b, b"1", first, first), first)],
                first,
            )
            await store.commit({}, [Put(etcd.prefix[:-1] + "0", b"not watched")])
            second = won(await store.commit({}, [Put(a, b"2")], [b]))
            third = won(await store.commit({}, deletes=[a]))
            rest = []
            while len(rest) < 3:
                told = await anext(watch)
                rest += told.changes
                assert told.revision == told.changes[-1].revision
        assert sorted(rest[:2]) == [Change(a, Item(a, b"2", second, first), second), Change(b, None, second)]
        assert rest[2:] == [Change(a, None, third)]

    etcd.run(work)


def test_a_watch_goes_on_where_another_one_ended(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        revisions = [won(await store.commit({}, [Put(key, b"%d" % number)])) for number in range(50)]
        for begin in (0, 17, 49):
            found = await changes(store, etcd.prefix, revisions[begin], 50 - begin)
            assert [change.revision for change in found] == revisions[begin:]
        # From a revision that is yet to come, too.
        waiting = asyncio.create_task(changes(store, etcd.prefix, revisions[-1] + 2, 1))
        await store.commit({}, [Put(key, b"skipped")])
        later = won(await store.commit({}, [Put(key, b"told")]))
        assert await waiting == [Change(key, Item(key, b"told", later, revisions[0]), later)]

    etcd.run(work)


def test_a_watch_from_a_revision_that_was_compacted_ends_by_an_error(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        revisions = [won(await store.commit({}, [Put(key, b"%d" % number)])) for number in range(5)]
        etcd.compact(revisions[3])
        with pytest.raises(WatchBehind, match=f"before revision {revisions[3]}") as caught:
            await changes(store, etcd.prefix, revisions[1], 1)
        assert caught.value.details["compacted"] == revisions[3]
        assert [change.revision for change in await changes(store, etcd.prefix, revisions[3], 2)] == revisions[3:]
        assert (await store.get(etcd.prefix)).items[key].revision == revisions[4]

    etcd.run(work)


def test_a_watch_that_is_up_to_date_is_not_disturbed_by_compaction(etcd: Real | Fake) -> None:
    key, other = etcd.prefix + "a", etcd.prefix[:-1] + "0"

    async def work(store: Store) -> None:
        begin = won(await store.commit({}, [Put(key, b"1")]))
        async with aclosing(store.watch(etcd.prefix, begin)) as watch:
            assert len((await anext(watch)).changes) == 1
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            for _ in range(3):
                revision = won(await store.commit({}, [Put(other, b"x")]))
                await asyncio.sleep(0)
            etcd.compact(revision)
            last = won(await store.commit({}, [Put(key, b"2")]))
            assert (await following).revision == last

    etcd.run(work)


def test_much_that_has_happened_is_told_in_order(etcd: Real | Fake) -> None:
    """More than gRPC takes at once by default."""

    async def work(store: Store) -> None:
        values = [bytes([number]) * MIB for number in range(6)]
        revisions = [won(await store.commit({}, [Put(etcd.prefix + "a", value)])) for value in values]
        found = await changes(store, etcd.prefix, revisions[0], 6)
        assert [change.item.value for change in found if change.item] == values
        assert [change.revision for change in found] == revisions

    etcd.run(work)


def test_keys_of_a_session_go_when_it_is_closed(etcd: Real | Fake) -> None:
    mine, lasting = etcd.prefix + "mine", etcd.prefix + "lasting"

    async def work(store: Store) -> None:
        session = await store.session(60)
        assert session.ttl_us == 60_000_000
        assert session.is_valid()
        revision = won(await store.commit({}, [Put(mine, b"1", session), Put(lasting, b"1")]))
        await session.close()
        assert not session.is_valid()
        assert (await store.get(etcd.prefix)).items.keys() == {lasting}
        [change] = await changes(store, etcd.prefix, revision + 1, 1)
        assert (change.key, change.item) == (mine, None)
        await session.close()

    etcd.run(work)


def test_a_key_that_is_put_again_without_its_session_stays(etcd: Real | Fake) -> None:
    key = etcd.prefix + "a"

    async def work(store: Store) -> None:
        session = await store.session(60)
        await store.commit({}, [Put(key, b"1", session)])
        await store.commit({}, [Put(key, b"2")])
        await session.close()
        assert (await store.get(etcd.prefix)).items.keys() == {key}

    etcd.run(work)


def test_a_session_whose_lease_was_taken_away_hears_of_it(etcd: Real | Fake) -> None:
    key, other = etcd.prefix + "a", etcd.prefix + "b"

    async def work(store: Store) -> None:
        session = await store.session(10)
        await store.commit({}, [Put(key, b"1", session)])
        etcd.expire(session.lease)
        assert not session.lost.is_set()
        with pytest.raises(SessionLost, match="nothing was changed"):
            await store.commit({}, [Put(other, b"1"), Put(key, b"1", session)])
        await etcd.pass_s(5)
        await session.lost.wait()
        assert isinstance(session.failure, SessionLost)
        assert not session.is_valid()
        with pytest.raises(SessionLost, match="is lost; nothing was changed"):
            await store.commit({}, [Put(other, b"1"), Put(key, b"1", session)])
        assert (await store.get(etcd.prefix)).items == {}
        await session.close()

    etcd.run(work)


def test_a_session_lives_for_longer_than_its_time_to_live_and_its_keys_go_when_nobody_keeps_it(
    etcd: Real | Fake,
) -> None:
    kept, left = etcd.prefix + "kept", etcd.prefix + "left"

    async def work(store: Store) -> None:
        keeping, leaving = await store.session(5), await store.session(7)
        begin = won(await store.commit({}, [Put(kept, b"1", keeping), Put(left, b"1", leaving)])) + 1
        leaving._keeping.cancel()
        waiting = asyncio.create_task(changes(store, etcd.prefix, begin, 1))
        await etcd.pass_s(10)
        [change] = await waiting
        assert (change.key, change.item) == (left, None)
        assert not leaving.is_valid()
        assert keeping.is_valid()
        assert (await store.get(etcd.prefix)).items.keys() == {kept}
        await keeping.close()

    etcd.run(work)


def test_the_time_to_live_of_a_session_has_bounds(etcd: Real | Fake) -> None:
    async def work(store: Store) -> None:
        for ttl_s in (0, -1, 3_601):
            with pytest.raises(InvalidInput, match="1 to 3600 s"):
                await store.session(ttl_s)
        # What etcd makes of a short one is what counts.
        session = await store.session(1)
        assert session.ttl_us == etcd.ttl_s_min * 1_000_000
        await session.close()

    etcd.run(work)


def test_a_store_that_was_closed_answers_nothing(etcd: Real | Fake) -> None:
    async def work(store: Store) -> None:
        await store.close()
        with pytest.raises(EtcdUnavailable, match="was closed here"):
            await store.get(etcd.prefix)
        with pytest.raises(EtcdUnavailable, match="was closed here"):
            await store.commit({}, [Put(etcd.prefix + "a", b"1")])
        with pytest.raises(EtcdUnavailable, match="was closed here"):
            await changes(store, etcd.prefix, 1, 1)

    etcd.run(work)
