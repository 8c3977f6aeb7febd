"""Listings come in pages, of what a client may know of; one connection's do not hold up others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.broker.catalog import GroupRecord
from penstock.broker.settings import GroupSettings
from penstock.client import pages
from penstock.client.pages import listed
from penstock.client.requests import PAGE_MAX, ListDeadLetters, Listed, ListGroups, ListTopics, Where
from penstock.errors import Forbidden, InvalidInput, LimitReached
from penstock.limits import Limits
from penstock.local import history, paging
from penstock.local.transport import LocalTransport
from penstock.server.keys import make
from penstock.wire import words
from penstock.wire.packets import Kind
from served import Served, serve

GROUPS = 2 * PAGE_MAX + 10


def make_groups(here: Served, count: int = GROUPS, prefix: str = "g") -> list[str]:
    names = [f"{prefix}{number:05}" for number in range(count)]
    # Straight into the catalog: each by itself would be a sync of the whole file.
    catalog = here.site.broker._catalog
    made = [GroupRecord(name, GroupSettings(), 1) for name in names]
    catalog._change(groups=(*catalog._contents.groups, *made))
    return names


def test_a_client_gets_all_pages_and_a_page_is_bounded(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        names = make_groups(here)
        async with here.client() as q:
            assert [group.name for group in await q.groups()] == names
            transport = q._transport
            first = await transport.call(ListGroups(after=""))
            assert isinstance(first, Listed)
            assert [info.name for info in first.items] == names[:PAGE_MAX]
            assert first.next == names[PAGE_MAX - 1]
            last = await transport.call(ListGroups(after=names[-4], limit=3))
            assert isinstance(last, Listed)
            assert ([info.name for info in last.items], last.next) == (names[-3:], "")
            for limit in (0, -1, PAGE_MAX + 1):
                with pytest.raises(InvalidInput, match="limit is 1 to"):
                    await transport.call(ListGroups(after="", limit=limit))

    serve(tmp_path, work)


def test_a_page_ends_early_if_its_items_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "ROWS_MAX", 10)

    async def work(here: Served) -> None:
        async with here.client() as q:
            for number in range(6):
                await q.create_topic(f"t{number}", partitions=4)
            page = await q._transport.call(ListTopics(after=""))
            assert isinstance(page, Listed)
            assert ([info.name for info in page.items], page.next) == (["t0", "t1"], "t1")
            assert [topic.name for topic in await q.topics()] == [f"t{number}" for number in range(6)]

    serve(tmp_path, work)


def test_a_client_that_knows_no_pages_gets_a_list_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        names = make_groups(here, 5)
        async with here.client() as q:
            found = await q._transport.call(ListGroups())
            assert isinstance(found, list)
            assert [info.name for info in found] == names
            monkeypatch.setattr(paging, "UNPAGED_MAX", 4)
            with pytest.raises(LimitReached, match="without pages"):
                await q._transport.call(ListGroups())

    serve(tmp_path, work)


def test_pages_of_an_older_broker_are_all_there_is() -> None:
    class Older:
        async def call(self, request: Any) -> Any:
            return ["a", "b"]

    async def main() -> None:
        assert await listed(Older(), ListTopics()) == ["a", "b"]  # type: ignore[comparison-overlap]
        page: Listed[Any] = await pages.page_of(Older(), ListTopics(), "", 1)
        assert page == Listed(["a", "b"])

    asyncio.run(main())


def access(path: Path, *rules: dict[str, Any]) -> tuple[Path, str]:
    """A file of keys with one principal, and its key."""
    key, kept = make("ann")
    file = path / "access.yaml"
    content = {"keys": [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}], "rules": list(rules)}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file, key


def test_pages_are_of_what_a_client_may_know_of(tmp_path: Path) -> None:
    file, key = access(tmp_path, {"principals": ["ann"], "operations": ["describe"], "groups": ["mine*"]})

    async def work(here: Served) -> None:
        names = make_groups(here, 5, "mine")
        make_groups(here, 5, "a")
        make_groups(here, 5, "z")
        async with here.client(key) as q:
            assert [group.name for group in await q.groups()] == names
            page = await q._transport.call(ListGroups(after="", limit=3))
            assert isinstance(page, Listed)
            assert ([info.name for info in page.items], page.next) == (names[:3], names[2])
            page = await q._transport.call(ListGroups(after=names[2], limit=3))
            assert isinstance(page, Listed)
            # What is behind them is not the client's to know of: not even that there is something.
            assert ([info.name for info in page.items], page.next) == (names[3:], "")
            # Neither does it help to name them.
            page = await q._transport.call(ListGroups(after="", names=("a00001", "mine00001")))
            assert isinstance(page, Listed)
            assert [info.name for info in page.items] == names

    serve(tmp_path / "data", work, access=file)


def test_a_large_request_is_not_decoded_for_a_client_without_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, key = access(tmp_path, {"principals": ["ann"], "operations": ["describe"], "topics": ["t"]})
    decoded: list[int] = []
    request_of = words.request_of

    def noted(header: bytes) -> Any:
        decoded.append(len(header))
        return request_of(header)

    monkeypatch.setattr(words, "request_of", noted)

    async def work(here: Served) -> None:
        async with here.client(key) as q:
            with pytest.raises(Forbidden, match="may not admin"):
                await q.dead_letters.discard("t", ids=[f"t.dlq:0:{number}" for number in range(100_000)])
            with pytest.raises(Forbidden, match="not for clients"):
                connection = await q._transport._link.connect()  # type: ignore[attr-defined]
                await connection.request(Kind.CALL, {"type": "KeepAlive", "members": [("g", "c")] * 10_000})
            assert not decoded

    serve(tmp_path / "data", work, access=file)


def test_pipelined_listings_of_one_connection_do_not_hold_up_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = most = done = 0
    call = LocalTransport.call

    async def counted(self: LocalTransport, request: Any) -> Any:
        nonlocal under_way, most, done
        if not isinstance(request, ListGroups):
            return await call(self, request)
        under_way += 1
        most = max(most, under_way)
        try:
            return await call(self, request)
        finally:
            under_way -= 1
            done += 1

    monkeypatch.setattr(LocalTransport, "call", counted)

    async def work(here: Served) -> None:
        make_groups(here)
        async with here.client() as greedy, here.client() as q:
            await q.create_topic("t", partitions=1)
            await q.publish("t", b"warm")
            listings = [asyncio.create_task(greedy._transport.call(ListGroups(after=""))) for _ in range(200)]
            while not under_way:
                await asyncio.sleep(0)
            await q.publish("t", b"x")
            assert done < 200
            await asyncio.gather(*listings)
        assert (most, done) == (1, 200)

    serve(tmp_path, work)


@pytest.mark.parametrize("what", ["topics", "groups", "members", "schedules"])
def test_one_more_than_the_limit_is_refused_with_what_to_do(tmp_path: Path, what: str) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)

            async def make_one(name: str) -> None:
                match what:
                    case "topics":
                        await q.create_topic(name, partitions=1)
                    case "groups":
                        await q.create_group(name)
                    case "members":
                        await q._transport.join(name, "c", ["t"], {})
                    case "schedules":
                        await q.schedules.create(name, "t", "@hourly", b"x")

            await make_one("first")
            with pytest.raises(LimitReached, match=f"{what}_max is") as caught:
                for number in range(3):
                    await make_one(f"n{number}")
            assert caught.value.details["limit"] == f"{what}_max"
            assert f"limits: {{{what}_max: " in caught.value.message
            # What is there already goes on.
            if what != "topics":
                await make_one("first") if what != "schedules" else await q.schedules.delete("first")
            if what == "groups":
                with pytest.raises(LimitReached):
                    await q.replay("t", "again", offsets={0: (0, 0)})

    maximum = 2
    serve(tmp_path, work, limits=Limits(**{f"{what}_max": maximum}))


def test_dead_letters_are_kept_though_there_are_as_many_topics_as_may_be(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            await q.publish("t", b"x")
            async with q.consumer("g", "t") as consumer:
                (message,) = await consumer.poll(1)
                await message.reject("bad")
            assert len(await q.dead_letters.list("t")) == 1

    serve(tmp_path, work, limits=Limits(topics_max=1))


def test_scheduled_messages_dead_letters_and_parked_keys_come_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_MAX", 3)
    sizes: list[int] = []
    page_of = pages.page_of

    async def counted(*args: Any) -> Any:
        page: Listed[Any] = await page_of(*args)
        sizes.append(len(page.items))
        return page

    monkeypatch.setattr(pages, "page_of", counted)

    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=2)
            for number in range(7):
                await q.publish("t", b"%d" % number, key=b"%d" % number)
                await q.publish("t", b"later %d" % number, delay=f"{10 - number}h")
                await q.schedules.create(f"s{number}", "t", "@yearly", b"x")
            async with q.consumer("g", "t", ordering="key", on_poison="park") as consumer:
                left = 7
                while left:
                    for message in await consumer.poll(10, wait="5s"):
                        await message.reject("bad")
                        left -= 1
            letters = await q.dead_letters.list("t")
            assert sorted(letter.message.value or b"" for letter in letters) == [b"%d" % one for one in range(7)]
            places = [tuple(map(int, letter.id.split(":")[1:])) for letter in letters]
            assert places == sorted(places)
            assert [letter.id for letter in await q.dead_letters.list("t", limit=4)] == [one.id for one in letters[:4]]
            later = [one for one in await q.scheduled.list("t") if one.message.value != b"x"]
            assert [one.message.value for one in later] == [b"later %d" % number for number in range(6, -1, -1)]
            assert [one.name for one in await q.schedules.list()] == [f"s{number}" for number in range(7)]
            assert len({(key.partition, key.key) for key in await q.parked_keys("g")}) == 7
            assert max(sizes) == 3

    serve(tmp_path, work)


def test_a_page_of_dead_letters_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "BYTES_MAX", 1_000)
    monkeypatch.setattr(history, "BYTES_MAX", 1_000)

    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            for _ in range(5):
                await q.publish("t", bytes(400))
            async with q.consumer("g", "t") as consumer:
                for message in await consumer.poll(10):
                    await message.reject("bad")
            page = await q._transport.call(ListDeadLetters("t", Where(), False, PAGE_MAX, after=""))
            assert isinstance(page, Listed)
            assert (len(page.items), page.next) == (2, page.items[-1].id)
            assert len(await q.dead_letters.list("t")) == 5
            with pytest.raises(InvalidInput, match="`next` of the page before"):
                await q._transport.call(ListDeadLetters("t", Where(), False, PAGE_MAX, after="nothing"))

    serve(tmp_path, work)
