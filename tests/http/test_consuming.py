"""Consuming over HTTP: polls, receipts, long polls, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.deliveries import events_of
from penstock.broker.events import Acknowledged
from penstock.broker.group import Group
from penstock.client.answers import Ack
from penstock.client.transport import Receipt
from penstock.codec import ZSTD
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.server.http import consuming, receipts, waiting
from penstock.server.receipts import key_of


def receipts_of(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {"receipts": [message["receipt"] for message in messages]}


def test_a_poll_makes_the_group_and_an_ack_ends_it(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "one", "two")
        messages = await here.polled(consumer="ann")
        assert [message["text"] for message in messages] == ["one", "two"]
        assert [message["id"] for message in messages] == ["t:0:0", "t:0:1"]
        assert await here.polled() == []
        group = await here.ok("GET", "/v1/groups/g")
        assert group["members"].keys() == {"ann", "http"}
        assert await here.ok("POST", "/v1/groups/g/ack", receipts_of(messages)) == {"done": 2, "failed": []}
        assert (await here.ok("GET", "/v1/groups/g"))["lag"] == {"t": [0]}
        again = await here.ok("POST", "/v1/groups/g/ack", receipts_of(messages))
        assert again["done"] == 0
        assert [one["code"] for one in again["failed"]] == ["lease_not_found"] * 2
        assert [one["receipt"] for one in again["failed"]] == receipts_of(messages)["receipts"]

    serve(work)


def test_a_hundred_acks_of_one_lease_are_one_row(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/topics/t/publish/batch", {"messages": [{"text": "x"}] * 100})
        messages = await here.polled()
        assert (await here.ok("POST", "/v1/groups/g/ack", receipts_of(messages)))["done"] == 100
        log = here.site.broker.topic("t").partitions[0].deliveries
        assert len([event for event, _ in events_of(log, 0) if isinstance(event, Acknowledged)]) == 1

    serve(work)


def test_what_can_not_be_answered_for_fails_alone(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "a", "b", "c")
        texts = receipts_of(await here.polled())["receipts"]
        await here.ok("POST", "/v1/groups/g/ack", {"receipts": texts[:1]})
        key = key_of(here.site.broker.secret, "g")
        place = receipts.read(texts[1], key)
        made_up = [
            "",
            "x",
            "ü",
            texts[1][:-2],
            texts[1] + "=",
            texts[1].swapcase(),
            receipts.written(place, key_of("another", "g")),
            receipts.written(place._replace(lease=7), key),
            receipts.written(place._replace(offset=(1 << 64) - 1), key),
            receipts.written(place._replace(partition=99), key),
            receipts.written(place._replace(topic="nowhere"), key),
            receipts.written(place._replace(topic="../etc"), key),
        ]
        answered = await here.ok("POST", "/v1/groups/g/ack", {"receipts": [*texts, *made_up, texts[1]]})
        assert answered["done"] == 2
        codes = {one["receipt"]: one["code"] for one in answered["failed"]}
        assert codes == dict(
            zip(
                [texts[0], *made_up],
                [
                    "not_leased",
                    *["invalid_receipt"] * 7,
                    "lease_not_found",
                    "not_leased",
                    "partition_not_found",
                    "topic_not_found",
                    "invalid_name",
                ],
                strict=True,
            )
        )
        other = await here.ok("POST", "/v1/groups/nobody/ack", {"receipts": texts})
        assert [one["code"] for one in other["failed"]] == ["invalid_receipt"] * 3
        for body in ({}, {"receipts": []}, {"receipts": "x"}, {"receipts": [1]}, {"receipts": texts, "delay": "1s"}):
            assert await here.fails("POST", "/v1/groups/g/ack", body) == (400, "invalid_input")

    serve(work)


def test_nack_reject_release_and_extend(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "a")
        messages = await here.polled(visibility="1m")
        assert (await here.ok("POST", "/v1/groups/g/extend", {**receipts_of(messages), "visibility": "5m"}))[
            "done"
        ] == 1
        assert (await here.ok("POST", "/v1/groups/g/release", receipts_of(messages)))["done"] == 1
        messages = await here.polled()
        assert messages[0]["attempt"] == 1
        nack = {**receipts_of(messages), "delay": "0s", "reason": "busy"}
        assert (await here.ok("POST", "/v1/groups/g/nack", nack))["done"] == 1
        messages = await here.polled(wait="5s")
        assert messages[0]["attempt"] == 2
        assert (await here.ok("POST", "/v1/groups/g/reject", {**receipts_of(messages), "reason": "bad"}))["done"] == 1
        (letter,) = (await here.ok("GET", "/v1/topics/t/dead-letters"))["dead_letters"]
        assert (letter["reason"], letter["original"]) == ("bad", "t:0:0")
        assert await here.fails("POST", "/v1/groups/g/nack", {**nack, "delay": "soon"}) == (400, "invalid_input")
        assert (await here.ok("POST", "/v1/groups/g/nack", {**nack, "delay": "9000d"}))["failed"]

    serve(work)


def test_visibility_is_that_of_the_poll(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "a")
        assert len(await here.polled(visibility="1ms")) == 1
        (message,) = await here.polled(wait="5s")
        assert message["attempt"] == 2

    serve(work)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topics": ["nowhere"]}, (404, "topic_not_found")),
        ({"topics": []}, (400, "invalid_input")),
        ({"topics": "t", "max": 0}, (400, "invalid_input")),
        ({"topics": "t", "max": 1001}, (400, "invalid_input")),
        ({"topics": "t", "wait": "6m"}, (400, "invalid_input")),
        ({"topics": "t", "wait": 5}, (400, "invalid_input")),
        ({"topics": "t", "visibility": "0s"}, (400, "invalid_input")),
        ({"topics": "t", "consumer": "a/b"}, (400, "invalid_name")),
        ({"topics": "t", "settings": {"ordering": "sometimes"}}, (400, "invalid_setting")),
        ({"topics": "t", "settings": {"ordering": "key"}}, (409, "settings_conflict")),
        ({}, (400, "invalid_input")),
    ],
)
def test_a_poll_that_makes_no_sense_is_refused(serve: Any, given: Any, told: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/groups", {"name": "g"})
        assert await here.fails("POST", "/v1/groups/g/poll", given) == told

    serve(work)


# --- long polls ---------------------------------------------------------------------------------------------


def test_a_long_poll_ends_when_a_message_comes(serve: Any) -> None:
    async def work(here: Any) -> None:
        polling = asyncio.create_task(here.polled(wait="20s"))
        await here.until(lambda: bool(here.door._desk.waiting._tasks))
        await here.published("t", "now")
        assert [message["text"] for message in await polling] == ["now"]
        assert await here.polled(wait="10ms") == []

    serve(work)


def test_a_long_poll_whose_client_goes_has_leased_nothing(serve: Any) -> None:
    async def work(here: Any) -> None:
        for _ in range(10):
            async with httpx.AsyncClient(base_url=here.http.base_url) as other:
                body = {"topics": "t", "wait": "20s"}
                polling = asyncio.create_task(other.post("/v1/groups/g/poll", json=body))
                await here.until(lambda: bool(here.door._desk.waiting._tasks))
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)
            await here.until(lambda: not here.door._desk.waiting._tasks)
        await here.published("t", *(str(number) for number in range(10)))
        messages = await here.polled()
        assert [message["text"] for message in messages] == [str(number) for number in range(10)]
        assert {message["attempt"] for message in messages} == {1}

    serve(work)


def test_a_consumer_that_waits_is_alive(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/groups", {"name": "g", "session": "3s"})
        waits = [asyncio.create_task(here.polled(consumer=name, wait="5s")) for name in ("a", "b")]
        assert await asyncio.gather(*waits) == [[], []]
        members = here.site.broker.consumers.of("g")
        assert not any("ran out" in change.reason for change in members.history)
        assert members.names() == ["a", "b"]

    serve(work)


def test_only_so_many_may_wait(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 1)

    async def work(here: Any) -> None:
        polling = asyncio.create_task(here.polled(wait="20s"))
        await here.until(lambda: bool(here.door._desk.waiting._tasks))
        reply = await here.http.post("/v1/groups/g/poll", json={"topics": "t", "wait": "20s"})
        assert (reply.status_code, reply.json()["code"]) == (503, "overloaded")
        assert reply.headers["retry-after"] == "1"
        assert await here.fails("POST", "/v1/groups/g/stream?topics=t") == (503, "overloaded")
        await here.published("t", "x")
        assert len(await polling) == 1

    serve(work)


def test_closing_ends_long_polls_and_answers_what_is_under_way(serve: Any) -> None:
    async def work(here: Any) -> None:
        polling = asyncio.create_task(here.polled(wait="20s"))
        await here.until(lambda: bool(here.door._desk.waiting._tasks))
        publishing = asyncio.create_task(here.published("t", "last", partition=0))
        await here.until(lambda: len(here.door._state.tasks) > 1)
        await here.door.close()
        messages = await polling
        assert await publishing == ["t:0:0"]
        assert here.in_flight() == len(messages)
        with pytest.raises(httpx.ConnectError):
            await here.http.get("/health")

    serve(work)


# --- streams ------------------------------------------------------------------------------------------------


async def _events(lines: Any) -> Any:
    """Messages, as they come."""
    async for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_a_stream_gives_messages_as_they_come(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "before")
        async with here.http.stream("POST", "/v1/groups/g/stream?topics=t&consumer=ann&as=text") as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            events = _events(reply.aiter_lines())
            first = await anext(events)
            await here.ok("POST", "/v1/topics/t/publish", {"json": {"a": "\n"}})
            second = await anext(events)
            assert [first["text"], second["text"]] == ["before", '{"a":"\\n"}']
            assert (await here.ok("POST", "/v1/groups/g/ack", receipts_of([first, second])))["done"] == 2
        await here.until(lambda: not here.door._desk.waiting.members)
        # The client has gone; what comes now is for others.
        await here.published("t", "after")
        assert [message["text"] for message in await here.polled(consumer="ann")] == ["after"]

    serve(work)


def test_a_stream_gives_no_more_than_may_be_in_flight(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", *"abcde")
        async with here.http.stream("POST", "/v1/groups/g/stream?topics=t&max_in_flight=2&as=text") as reply:
            events = _events(reply.aiter_lines())
            seen = [await anext(events), await anext(events)]
            assert here.in_flight() == 2
            await here.ok("POST", "/v1/groups/g/ack", receipts_of(seen[:1]))
            seen.append(await anext(events))
            assert here.in_flight() == 2
            await here.ok("POST", "/v1/groups/g/ack", receipts_of(seen[1:]))
            seen += [await anext(events), await anext(events)]
            assert [message["text"] for message in seen] == [*"abcde"]

    serve(work)


def test_a_stream_says_that_it_is_there_and_ends_with_the_door(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "KEEP_ALIVE_S", 0.01)

    async def work(here: Any) -> None:
        async with here.http.stream("POST", "/v1/groups/g/stream?topics=t") as reply:
            lines = reply.aiter_lines()
            while await anext(lines) != ": still here":
                pass
            closing = asyncio.create_task(here.door.close())
            async for line in lines:
                assert line in ("", ": still here")
            await closing

    serve(work)


def test_a_stream_ends_with_an_error_when_its_topic_is_deleted(serve: Any) -> None:
    async def work(here: Any) -> None:
        async with here.http.stream("POST", "/v1/groups/g/stream?topics=t") as reply:
            lines = reply.aiter_lines()
            assert await anext(lines) == "retry: 1000"
            await here.until(lambda: bool(here.door._desk.waiting._tasks))
            await here.ok("DELETE", "/v1/topics/t")
            rest = [line async for line in lines]
            assert "event: error" in rest
            assert '"code":"topic_not_found"' in "".join(rest)
        assert await here.fails("POST", "/v1/groups/g/stream?topics=t") == (404, "topic_not_found")
        assert await here.fails("POST", "/v1/groups/g/stream") == (400, "invalid_input")
        assert (await here.http.head("/v1/groups/g/stream?topics=t")).status_code == 405

    serve(work)


def test_a_stream_whose_client_does_not_read_leases_no_more(serve: Any) -> None:
    async def work(here: Any) -> None:
        batch = {"messages": [{"text": "x" * 100_000}] * 100}
        await here.ok("POST", "/v1/topics/t/publish/batch", batch)
        await here.ok("POST", "/v1/topics/t/publish/batch", batch)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port, limit=1)
        writer.write(
            b"POST /v1/groups/g/stream?topics=t&max_in_flight=1000 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        )
        await here.until(lambda: here.in_flight() > 0)
        # Cut off, since it takes nothing.
        await here.until(lambda: not here.door._desk.waiting.members)
        assert here.in_flight() < 200
        reader.feed_eof()
        writer.close()

    serve(work, limits=Limits(stuck_us=200_000))


def test_a_poll_gives_no_more_than_fits_into_an_answer(serve: Any) -> None:
    async def work(here: Any) -> None:
        # A few KiB on disk.
        frame = Frame.of(Batch.from_columns([bytes(500_000)] * 15, now_us=1), codec=ZSTD)
        await here.site.publish_frame("t", 0, frame)
        seen = []
        for count in (9, 6):
            messages = await here.polled()
            assert len(messages) == count
            assert here.in_flight() == count
            seen += [(message["offset"], message["attempt"]) for message in messages]
            await here.ok("POST", "/v1/groups/g/ack", receipts_of(messages))
        assert seen == [(offset, 1) for offset in range(15)]

    serve(work)


def test_leaving_gives_the_partitions_to_others(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.polled(consumer="a")
        await here.polled(consumer="b")
        await here.ok("DELETE", "/v1/groups/g/members/a")
        assert (await here.ok("GET", "/v1/groups/g"))["members"] == {"b": [{"topic": "t", "partition": 0}]}
        assert await here.fails("DELETE", "/v1/groups/nobody/members/a") == (404, "group_not_found")

    serve(work)


def test_a_receipt_is_good_for_its_own_group_only(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "x")
        messages = await here.polled("g")
        await here.polled("other")
        answered = await here.ok("POST", "/v1/groups/other/ack", receipts_of(messages))
        assert [one["code"] for one in answered["failed"]] == ["invalid_receipt"]
        place = receipts.read(messages[0]["receipt"], key_of(here.site.broker.secret, "g"))
        await here.site.answer("g", Receipt(*place[:3], BitMap64([place.offset])), Ack())

    serve(work)


def test_a_client_that_goes_while_it_joins_is_given_nothing(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "x")
        start, has_begun, may_go_on = Group.start, asyncio.Event(), asyncio.Event()

        async def slow(group: Group) -> None:
            has_begun.set()
            await may_go_on.wait()
            await start(group)

        monkeypatch.setattr(Group, "start", slow)
        polling = asyncio.ensure_future(here.polled(consumer="ann"))
        await has_begun.wait()
        polling.cancel()
        await asyncio.wait([polling])
        await here.until(lambda: not here.site.broker.consumers.joins)
        may_go_on.set()
        assert [message["text"] for message in await here.polled(consumer="bob")] == ["x"]
        assert set((await here.ok("GET", "/v1/groups/g"))["members"]) == {"bob"}

    serve(work)
