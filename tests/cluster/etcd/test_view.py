"""A view on an etcd in memory: what it knows, when it hears of it, and when it gives up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing

import pytest

from etcd_support import run
from penstock.cluster.etcd import view
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import ABSENT, Changes, Item, Lost, Put, Snapshot, Store, Won
from penstock.cluster.etcd.view import RECONCILE_US, Known, View
from penstock.errors import EtcdReplaced, EtcdUnavailable, OutcomeUnknown, WatchBehind
from penstock.testing import FakeEtcd, ManualTime
from penstock.testing.fake_etcd import FakeStore

SECOND_US = 1_000_000


class Here:
    """An etcd, a view on it, and what the view has told."""

    def __init__(self, store: Callable[[FakeEtcd], Store] = FakeEtcd.store) -> None:
        self.time = ManualTime()
        self.etcd = FakeEtcd(self.time)
        self.view = View(store(self.etcd), "/v/", self.time)
        self.told: list[Known] = []
        self.view.on_change("/v/", self.told.append)

    def put(self, key: str, value: bytes) -> int:
        """By somebody else, whatever our own connection is like."""
        answer = self.etcd.commit({}, [Put(key, value)], [])
        assert isinstance(answer, Won)
        return answer.revision

    def delete(self, key: str) -> None:
        self.etcd.commit({}, [], [key])

    async def settled(self) -> None:
        await self.time.pass_us(0)

    def values(self) -> dict[str, bytes]:
        return {key: item.value for key, item in self.view.items.items()}


def on_view(work: Callable[[Here], Awaitable[None]], store: Callable[[FakeEtcd], Store] = FakeEtcd.store) -> None:
    async def main() -> None:
        here = Here(store)
        await work(here)
        await here.view.close()

    run(main)


def test_what_is_there_comes_as_a_change_from_nothing_and_then_what_happens() -> None:
    async def work(here: Here) -> None:
        first = here.put("/v/a", b"1")
        here.put("/other", b"1")
        partitions: list[Known] = []
        here.view.on_change("/v/partitions/", partitions.append)
        await here.view.start()
        item = Item("/v/a", b"1", first, first)
        assert here.told == [Known("/v/a", None, item)]
        second = here.put("/v/partitions/7", b"2")
        here.delete("/v/a")
        await here.settled()
        made = Item("/v/partitions/7", b"2", second, second)
        assert here.told[1:] == [Known("/v/partitions/7", None, made), Known("/v/a", item, None)]
        assert partitions == [Known("/v/partitions/7", None, made)]
        assert here.view.items == {"/v/partitions/7": made}
        assert here.view.get("/v/partitions/7") == made
        assert here.view.get("/v/a") is None
        assert here.view.revision == here.etcd.revision

    on_view(work)


def test_a_callback_sees_all_that_changed_together() -> None:
    async def work(here: Here) -> None:
        seen: list[dict[str, bytes]] = []
        here.view.on_change("/v/", lambda _: seen.append(here.values()))
        await here.view.start()
        here.etcd.commit({}, [Put("/v/a", b"1"), Put("/v/b", b"1")], [])
        await here.settled()
        assert seen == [{"/v/a": b"1", "/v/b": b"1"}] * 2

    on_view(work)


def test_a_watch_that_has_gone_deaf_is_found_out_by_the_next_full_read_and_made_anew() -> None:
    async def work(here: Here) -> None:
        here.put("/v/a", b"1")
        here.put("/v/b", b"1")
        await here.view.start()
        here.etcd.deaf = True
        here.put("/v/a", b"2")
        here.delete("/v/b")
        here.put("/v/c", b"3")
        await here.time.pass_us(RECONCILE_US - 1)
        assert here.values() == {"/v/a": b"1", "/v/b": b"1"}
        here.etcd.deaf = False
        await here.time.pass_us(1)
        assert here.values() == {"/v/a": b"2", "/v/c": b"3"}
        assert [(known.key, known.now and known.now.value) for known in here.told[2:]] == [
            ("/v/a", b"2"),
            ("/v/c", b"3"),
            ("/v/b", None),
        ]
        # It may yet tell; but it does not.
        await here.time.pass_us(SECOND_US)
        here.put("/v/d", b"4")
        await here.settled()
        assert "/v/d" in here.values()

    on_view(work)


def test_what_was_compacted_while_etcd_was_away_is_read() -> None:
    async def work(here: Here) -> None:
        here.put("/v/a", b"1")
        await here.view.start()
        here.etcd.down = True
        await here.time.pass_us(60 * SECOND_US)
        assert here.values() == {"/v/a": b"1"}
        for number in range(5):
            here.put("/v/b", b"%d" % number)
        here.delete("/v/a")
        here.etcd.compact(here.etcd.revision)
        here.etcd.down = False
        # Long before the next full read that is due anyway.
        await here.time.pass_us(SECOND_US)
        assert here.values() == {"/v/b": b"4"}
        here.put("/v/c", b"1")
        await here.settled()
        assert here.values() == {"/v/b": b"4", "/v/c": b"1"}

    on_view(work)


def test_a_watch_that_can_not_go_on_has_everything_read_at_once() -> None:
    async def work() -> None:
        held: list[Held] = []

        def store(etcd: FakeEtcd) -> Held:
            held.append(Held(etcd.store()))
            return held[0]

        here = Here(store)
        await here.view.start()
        read = here.view.read_us
        assert read is not None
        await here.time.pass_us(SECOND_US)
        held[0].fails = WatchBehind("compacted")
        here.put("/v/a", b"1")
        await here.settled()
        assert here.values() == {"/v/a": b"1"}
        assert here.view.read_us == read + SECOND_US
        here.put("/v/b", b"1")
        await here.settled()
        assert "/v/b" in here.values()
        await here.time.pass_us(3 * RECONCILE_US)
        assert held[0].watched == 2
        await here.view.close()

    run(work)


class Held:
    """A store whose reads are answered when told, with what was true when they were asked; and so for its watches."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.gates: list[asyncio.Event] = []
        self.holding = False
        self.watches = asyncio.Event()
        self.watches.set()
        self.watched = 0
        self.fails: Exception | None = None
        # A key of which watches do not tell.
        self.drop = ""

    async def get(self, prefix: str) -> Snapshot:
        found = await self._inner.get(prefix)
        if self.holding:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()
        return found

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        return await self._inner.commit(guards, puts, deletes)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        self.watched += 1
        async with aclosing(self._inner.watch(prefix, from_revision)) as watch:
            async for told in watch:
                await self.watches.wait()
                if self.fails:
                    error, self.fails = self.fails, None
                    raise error
                yield told._replace(changes=[change for change in told.changes if change.key != self.drop])

    async def session(self, ttl_s: int) -> Session:
        return await self._inner.session(ttl_s)

    async def close(self) -> None:
        await self._inner.close()


def test_a_read_that_took_long_does_not_take_back_what_the_watch_has_told_and_yet_finds_what_it_missed() -> None:
    async def work() -> None:
        held: list[Held] = []

        def store(etcd: FakeEtcd) -> Held:
            held.append(Held(etcd.store()))
            return held[0]

        here = Here(store)
        here.put("/v/changed", b"old")
        here.put("/v/deleted", b"old")
        await here.view.start()
        held[0].drop = "/v/missed"
        here.put("/v/missed", b"1")
        held[0].holding = True
        reading = asyncio.create_task(here.view.refresh())
        await here.settled()
        here.put("/v/changed", b"new")
        here.delete("/v/deleted")
        here.put("/v/made", b"new")
        await here.settled()
        told = {"/v/changed": b"new", "/v/made": b"new"}
        assert here.values() == told
        revision = here.view.revision
        held[0].gates[0].set()
        await reading
        assert here.values() == told | {"/v/missed": b"1"}
        assert here.view.revision == revision
        # Nothing is told twice.
        await here.settled()
        assert [known.key for known in here.told[2:]] == ["/v/changed", "/v/deleted", "/v/made", "/v/missed"]
        await here.view.close()

    run(work)


def test_what_a_watch_tells_after_a_read_knew_better_is_left_alone() -> None:
    async def work() -> None:
        held: list[Held] = []

        def store(etcd: FakeEtcd) -> Held:
            held.append(Held(etcd.store()))
            return held[0]

        here = Here(store)
        here.put("/v/a", b"1")
        await here.view.start()
        # Behind by one put, one change and two deletions.
        held[0].watches.clear()
        here.put("/v/b", b"1")
        here.put("/v/a", b"2")
        here.delete("/v/a")
        here.delete("/v/b")
        await here.settled()
        await here.view.refresh()
        assert here.values() == {}
        told = len(here.told)
        held[0].watches.set()
        await here.settled()
        assert here.values() == {}
        assert len(here.told) == told
        # It was late, and told all the same: no reason to make it anew.
        await here.time.pass_us(2 * RECONCILE_US)
        assert held[0].watched == 1
        await here.view.close()

    run(work)


def test_a_store_set_back_to_a_lower_revision_ends_the_view() -> None:
    async def work(here: Here) -> None:
        here.put("/v/a", b"1")
        backup = here.etcd.backup()
        here.put("/v/a", b"2")
        await here.view.start()
        here.etcd.restore(backup)
        failing = asyncio.create_task(here.view.failure())
        await here.time.pass_us(RECONCILE_US)
        with pytest.raises(EtcdReplaced, match=r"is at revision 2, and was at 3 before"):
            await failing
        assert here.values() == {"/v/a": b"2"}
        with pytest.raises(EtcdReplaced):
            await here.view.refresh()

    on_view(work)


@pytest.mark.parametrize("what", ["changed", "deleted", "other value"])
def test_a_store_that_was_set_back_and_went_on_past_what_was_known_is_noticed_by_its_keys(what: str) -> None:
    async def work(here: Here) -> None:
        here.put("/v/deleted", b"1")
        here.put("/v/a", b"1")
        backup = here.etcd.backup()
        if what == "changed":
            here.put("/v/a", b"2")
        elif what == "deleted":
            here.delete("/v/deleted")
        else:
            here.put("/v/b", b"2")
        await here.view.start()
        here.etcd.deaf = True
        here.etcd.restore(backup)
        if what == "other value":
            here.put("/v/b", b"3")
        for _ in range(5):
            here.put("/elsewhere", b"")
        failing = asyncio.create_task(here.view.failure())
        await here.time.pass_us(RECONCILE_US)
        with pytest.raises(EtcdReplaced, match="etcd was set back"):
            await failing

    on_view(work)


def test_after_an_unknown_outcome_a_refresh_tells_what_became_of_it() -> None:
    async def work(here: Here) -> None:
        store = here.etcd.store()
        await here.view.start()
        here.etcd.deaf = True
        here.etcd.lose_answers = 1
        with pytest.raises(OutcomeUnknown):
            await store.commit({"/v/a": ABSENT}, [Put("/v/a", b"mine")])
        await here.view.refresh()
        assert here.values() == {"/v/a": b"mine"}
        here.etcd.lose_requests = 1
        with pytest.raises(OutcomeUnknown):
            await store.commit({"/v/b": ABSENT}, [Put("/v/b", b"mine")])
        await here.view.refresh()
        assert here.values() == {"/v/a": b"mine"}

    on_view(work)


def test_one_can_wait_until_the_view_has_come_to_a_revision() -> None:
    async def work(here: Here) -> None:
        await here.view.start()
        await here.view.reached(1)
        waiting = asyncio.create_task(here.view.reached(here.etcd.revision + 2))
        here.put("/v/a", b"1")
        await here.settled()
        assert not waiting.done()
        here.put("/v/a", b"2")
        await waiting
        # Of keys elsewhere only a full read tells.
        waiting = asyncio.create_task(here.view.reached(here.put("/elsewhere", b"")))
        await here.settled()
        assert not waiting.done()
        await here.view.refresh()
        await waiting

    on_view(work)


def test_it_is_known_when_the_last_full_read_was_sent() -> None:
    async def work(here: Here) -> None:
        assert here.view.read_us is None
        began = here.time.now_us()
        await here.view.start()
        assert here.view.read_us == began
        await here.time.pass_us(RECONCILE_US + SECOND_US)
        assert here.view.read_us == began + RECONCILE_US
        here.etcd.down = True
        await here.time.pass_us(10 * RECONCILE_US)
        assert here.view.read_us == began + RECONCILE_US

    on_view(work)


def test_a_view_does_not_start_without_etcd() -> None:
    async def work(here: Here) -> None:
        here.etcd.down = True
        with pytest.raises(EtcdUnavailable):
            await here.view.start()

    on_view(work)


def test_a_callback_that_fails_ends_the_view() -> None:
    async def work(here: Here) -> None:
        await here.view.start()
        here.view.on_change("/v/bad", lambda known: 1 / 0)
        here.put("/v/good", b"1")
        await here.settled()
        failing = asyncio.create_task(here.view.failure())
        waiting = asyncio.create_task(here.view.reached(1_000))
        await here.settled()
        here.put("/v/bad", b"1")
        for task in (failing, waiting):
            with pytest.raises(ZeroDivisionError):
                await task

    on_view(work)


def test_a_callback_that_fails_during_a_read_that_somebody_asked_for_ends_the_view_too() -> None:
    async def work(here: Here) -> None:
        await here.view.start()
        here.etcd.deaf = True
        here.view.on_change("/v/bad", lambda known: 1 / 0)
        failing = asyncio.create_task(here.view.failure())
        here.put("/v/bad", b"1")
        with pytest.raises(ZeroDivisionError):
            await here.view.refresh()
        with pytest.raises(ZeroDivisionError):
            await failing

    on_view(work)


def test_what_a_deaf_watch_does_not_tell_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_WATCH_S", 0)

    async def work(here: Here) -> None:
        await here.view.start()
        here.etcd.deaf = True
        await here.view.shows(here.put("/v/a", b"1"))
        assert here.values() == {"/v/a": b"1"}

    on_view(work)


def test_what_was_put_below_a_prefix_is_known_whatever_the_watch_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_WATCH_S", 0)

    async def work(here: Here) -> None:
        await here.view.start()
        await here.view.knows("/v/brokers/")
        here.etcd.deaf = True
        here.put("/v/a", b"1")
        await here.view.knows("/v/brokers/")
        assert here.values() == {}
        here.put("/v/brokers/b", b"2")
        await here.view.knows("/v/brokers/")
        assert here.values() == {"/v/a": b"1", "/v/brokers/b": b"2"}

    on_view(work)


def test_waiting_for_the_failure_of_a_view_ends_when_it_is_closed() -> None:
    async def work(here: Here) -> None:
        await here.view.start()
        failing = asyncio.create_task(here.view.failure())
        waiting = asyncio.create_task(here.view.reached(1_000))
        await here.settled()
        await here.view.close()
        await failing
        with pytest.raises(EtcdUnavailable, match="closed here"):
            await waiting

    on_view(work)


KEYS = [f"/v/{name}" for name in "abc"]


class Truth:
    """What each key was at each time; and that whoever tells of it never tells of an earlier time than before."""

    def __init__(self) -> None:
        self._was: dict[str, list[tuple[int, Item | None]]] = {key: [(0, None)] for key in [*KEYS, "/v/z"]}
        self._told: dict[str, int] = dict.fromkeys(self._was, 0)

    def happened(self, key: str, item: Item | None, revision: int) -> None:
        self._was[key].append((revision, item))

    def told(self, key: str, item: Item | None) -> None:
        at = [i for i, (_, was) in enumerate(self._was[key]) if was == item and i >= self._told[key]]
        assert at, f"{key} went back to {item}, from {self._was[key][self._told[key]]}"
        self._told[key] = at[0]


def once(seed: int) -> None:
    """Many things happen, good and bad; no key goes back, and in the end the view knows everything."""
    chance = random.Random(seed)

    async def work() -> None:
        held: list[Held] = []

        def store(etcd: FakeEtcd) -> Held:
            held.append(Held(etcd.store()))
            return held[0]

        here, truth = Here(store), Truth()

        def check(known: Known) -> None:
            assert here.view.get(known.key) == known.now
            truth.told(known.key, known.now)

        here.view.on_change("", check)
        await here.view.start()
        reads = []
        for _ in range(120):
            key = chance.choice(KEYS)
            match chance.randrange(12):
                case 0 | 1 | 2 | 3:
                    revision = here.put(key, b"x")
                    truth.happened(key, here.etcd.read(key).items[key], revision)
                case 4 | 5:
                    if key in here.etcd.read("/v/").items:
                        here.delete(key)
                        truth.happened(key, None, here.etcd.revision)
                case 6:
                    here.etcd.deaf = chance.randrange(4) == 0
                case 7:
                    here.etcd.down = chance.randrange(4) == 0
                case 8:
                    here.etcd.compact(here.etcd.revision - chance.randrange(3))
                case 9:
                    held[0].holding = chance.randrange(4) > 0
                    (held[0].watches.clear if chance.randrange(2) else held[0].watches.set)()
                case 10:
                    for gate in chance.sample(held[0].gates, chance.randint(0, len(held[0].gates))):
                        gate.set()
                    reads.append(asyncio.create_task(here.view.refresh()))
                case _:
                    await here.time.pass_us(chance.randrange(12 * SECOND_US))
            if chance.randrange(3) == 0:
                await here.settled()
        here.etcd.deaf = here.etcd.down = held[0].holding = False
        held[0].watches.set()
        for gate in held[0].gates:
            gate.set()
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            assert outcome is None or isinstance(outcome, EtcdUnavailable), repr(outcome)
        await here.time.pass_us(2 * RECONCILE_US)
        assert here.view.items == here.etcd.read("/v/").items
        # A watch that went deaf after all was known is found out by what it does not tell.
        for value, wait_us in ((b"last but one", RECONCILE_US + 2 * SECOND_US), (b"last", 0)):
            revision = here.put("/v/z", value)
            truth.happened("/v/z", here.etcd.read("/v/z").items["/v/z"], revision)
            await here.time.pass_us(wait_us)
            assert here.values()["/v/z"] == value
        assert not here.view._failed.done()
        await here.view.close()

    run(work)


def test_whatever_happens_no_key_goes_back_and_in_the_end_everything_is_known(
    scale: float, request: pytest.FixtureRequest
) -> None:
    one = request.config.getoption("--seed")
    for seed in [one] if one is not None else range(int(30 * scale)):
        try:
            once(seed)
        except BaseException as error:
            error.add_note(f"replay: pytest {request.node.nodeid} --seed {seed}")
            raise


def test_callers_share_a_full_read_that_begins_after_they_have_called() -> None:
    began: list[asyncio.Event] = []

    class Slow(FakeStore):
        async def get(self, prefix: str) -> Snapshot:
            answered = asyncio.Event()
            found = await super().get(prefix)
            began.append(answered)
            await answered.wait()
            return found

    async def work(here: Here) -> None:
        first = asyncio.ensure_future(here.view.refresh())
        await here.settled()
        here.put("/v/a", b"1")
        # These must not be content with the first one.
        others = [asyncio.ensure_future(here.view.refresh()) for _ in range(1_000)]
        await here.settled()
        assert len(began) == 1
        began[0].set()
        await first
        await here.settled()
        assert (here.values(), len(began)) == ({}, 2)
        others[0].cancel()
        began[1].set()
        await asyncio.gather(*others[1:])
        assert (here.values(), len(began)) == ({"/v/a": b"1"}, 2)

    on_view(work, Slow)


def test_each_caller_of_a_full_read_that_fails_receives_the_error() -> None:
    class Away(FakeStore):
        async def get(self, prefix: str) -> Snapshot:
            raise EtcdUnavailable("etcd does not answer")

    async def work(here: Here) -> None:
        outcomes = await asyncio.gather(*[here.view.refresh() for _ in range(3)], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EtcdUnavailable] * 3
        with pytest.raises(EtcdUnavailable):
            await here.view.refresh()

    on_view(work, Away)
