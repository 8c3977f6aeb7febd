"""Topics over HTTP: making them, publishing to them in every form, reading them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from typing import Any

import pytest

from penstock.local.transport import LocalTransport

SETTINGS = {"retention": {"hours": 2, "bytes": None}, "cleanup": "delete", "max_delay": "1d"}


def test_a_topic_is_made_changed_and_deleted(serve: Any) -> None:
    async def work(here: Any) -> None:
        made = await here.ok("POST", "/v1/topics", {"name": "orders", "partitions": 2, **SETTINGS})
        assert made["name"] == "orders"
        assert [part["number"] for part in made["partitions"]] == [0, 1]
        assert made["settings"].items() >= SETTINGS.items()
        assert made["created_at"].endswith("Z")
        assert made["id"] == here.site.broker.topic("orders").record.id
        assert await here.fails("POST", "/v1/topics", {"name": "orders"}) == (409, "already_exists")
        changed = await here.ok("PATCH", "/v1/topics/orders", {"partitions": 3, "config": {"retention": {"hours": 1}}})
        assert len(changed["partitions"]) == 3
        assert changed["settings"]["retention"] == {"hours": 1, "bytes": None}
        assert changed == await here.ok("GET", "/v1/topics/orders")
        assert (changed["settings"]["durability"], changed["settings"]["sync_interval"]) == ("fsync", "1s")
        lazy = {"durability": "interval", "sync_interval": "250ms"}
        changed = await here.ok("PATCH", "/v1/topics/orders", {"config": lazy})
        assert changed["settings"].items() >= lazy.items()
        assert here.site.broker.topic("orders").partition(0).messages.sync_within_us == 250_000
        alone = {"replicas": 1, "min_isr": None}
        changed = await here.ok("PATCH", "/v1/topics/orders", alone)
        assert changed["settings"].items() >= alone.items()
        listed = await here.ok("GET", "/v1/topics")
        assert [topic["name"] for topic in listed["topics"]] == ["orders", "t"]
        await here.ok("DELETE", "/v1/topics/orders")
        assert await here.fails("GET", "/v1/topics/orders") == (404, "topic_not_found")

    serve(work)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"name": "x", "max_delay": "5"}, "invalid_setting"),
        ({"name": "x", "cleanup": "burn"}, "invalid_setting"),
        ({"name": "x", "durability": "maybe"}, "invalid_setting"),
        ({"name": "x", "durability": None}, "invalid_input"),
        ({"name": "x", "durability": "interval", "sync_interval": "0s"}, "invalid_setting"),
        ({"name": "x", "durability": "interval", "sync_interval": "often"}, "invalid_setting"),
        ({"name": "x", "replicas": 3}, "invalid_setting"),
        ({"name": "x", "min_isr": 2}, "invalid_setting"),
        ({"name": "x", "replicas": "3"}, "invalid_input"),
        ({"name": "x", "retention": {"hours": -1}}, "invalid_setting"),
        ({"name": "x", "partitions": 0}, "invalid_input"),
        ({"name": "x", "partitions": "2"}, "invalid_input"),
        ({"name": "x", "colour": "blue"}, "invalid_input"),
        ({"name": "x", "config": {"colour": "blue"}}, "invalid_input"),
        ({}, "invalid_input"),
    ],
)
def test_settings_that_make_no_sense_are_refused(serve: Any, given: Any, code: str) -> None:
    async def work(here: Any) -> None:
        assert await here.fails("POST", "/v1/topics", given) == (400, code)

    serve(work)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"value": "/wA=", "encoding": "base64"}, {"value": "/wA=", "encoding": "base64"}),
        ({"value": "YWJj"}, {"text": "abc"}),
        ({"value": None}, {"value": None}),
        ({"text": "grüße"}, {"text": "grüße"}),
        ({"json": {"a": [1, None]}}, {"text": '{"a":[1,null]}'}),
        ({"json": None}, {"text": "null"}),
        ({"text": "x", "key": "k"}, {"text": "x", "key": "k"}),
        ({"text": "x", "key_base64": "/w=="}, {"key": None, "key_base64": "/w=="}),
        ({"text": "x", "headers": {"a": "b"}}, {"headers": {"a": "b"}}),
        (
            {"text": "x", "headers_base64": [["a", "/w=="], ["b", "Yg=="]]},
            {"headers": {"b": "b"}, "headers_base64": [["a", "/w=="], ["b", "Yg=="]]},
        ),
        ({"text": "x", "priority": "high"}, {"priority": "high"}),
        ({"text": "x", "timestamp": "2026-01-14T15:00:00Z"}, {"timestamp": "2026-01-14T15:00:00.000000Z"}),
        ({"text": "x", "partition": 0}, {"partition": 0}),
        ({"text": "x", "expires_at": "2100-01-14T15:00:00Z"}, {"expires_at": "2100-01-14T15:00:00.000000Z"}),
    ],
)
def test_a_message_comes_back_as_it_went_in(serve: Any, given: Any, shown: Any) -> None:
    async def work(here: Any) -> None:
        sent = await here.ok("POST", "/v1/topics/t/publish", given)
        assert sent.keys() == {"id", "partition", "offset", "timestamp"}
        read = await here.ok("GET", f"/v1/messages/{sent['id']}?as=text")
        assert read.items() >= shown.items()
        (polled,) = await here.polled()
        assert polled.items() >= shown.items()
        assert polled["attempt"] == 1

    serve(work)


def test_values_are_base64_unless_asked_for_otherwise(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/topics/t/publish/batch", {"messages": [{"json": {"a": 1}}, {"text": "no json"}]})
        plain, text, json = [
            (await here.ok("GET", f"/v1/topics/t/messages{query}"))["messages"]
            for query in ("", "?as=text", "?as=json")
        ]
        assert [one["value"] for one in plain] == [b64encode(b'{"a":1}').decode(), b64encode(b"no json").decode()]
        assert [one["text"] for one in text] == ['{"a":1}', "no json"]
        assert json[0]["json"] == {"a": 1}
        assert json[1]["value"] == b64encode(b"no json").decode()
        assert not any("text" in one or "json" in one for one in plain)

    serve(work)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "invalid_message"),
        ({"text": "x", "json": 1}, "invalid_message"),
        ({"value": "/wA="}, "invalid_message"),
        ({"text": "x", "encoding": "base64"}, "invalid_message"),
        ({"value": "abc", "encoding": "text"}, "invalid_input"),
        ({"text": "x", "ttl": "1h", "expires_at": "2100-01-14T15:00:00Z"}, "invalid_message"),
        ({"value": 5}, "invalid_input"),
        ({"text": None}, "invalid_input"),
        ({"text": "x", "delay": 5}, "invalid_input"),
        ({"text": "x", "delay": "soon"}, "invalid_input"),
        ({"text": "x", "delay": "1s", "deliver_at": "2030-01-01T00:00:00Z"}, "invalid_message"),
        ({"text": "x", "priority": "urgent"}, "invalid_message"),
        ({"text": "x", "partition": -1}, "invalid_input"),
        ({"text": "x", "ttl": "0"}, "invalid_message"),
        ({"text": "x", "key": "k", "key_base64": "aw=="}, "invalid_message"),
        ({"text": "x", "headers": {"a": 1}}, "invalid_input"),
        ({"text": "x", "kee": "misspelt"}, "invalid_input"),
        ({"text": "x", "acks": "none"}, "invalid_input"),
        ({"text": "x", "acks": "some"}, "invalid_input"),
        ([], "invalid_input"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(serve: Any, given: Any, code: str) -> None:
    async def work(here: Any) -> None:
        assert await here.fails("POST", "/v1/topics/t/publish", given) == (400, code)
        assert (await here.ok("GET", "/v1/topics/t/messages"))["messages"] == []

    serve(work)


@pytest.mark.parametrize("value", ["test", "hello", "not base64!", "grün", "{}"])
def test_plain_text_in_value_is_refused_with_what_to_do(serve: Any, value: str) -> None:
    async def work(here: Any) -> None:
        reply = await here.http.post("/v1/topics/t/publish", json={"value": value})
        assert (reply.status_code, reply.json()["details"]) == (400, {"field": "value"})
        assert "publish plain text as text, and JSON as json" in reply.json()["message"]

    serve(work)


@pytest.mark.parametrize("as_", ["", "?as=text", "?as=json"])
def test_values_that_were_read_can_be_published_as_they_are(serve: Any, as_: str) -> None:
    async def work(here: Any) -> None:
        for value in (b"", b"abc", b"\xff\x00", b'{"a":1}', "grün".encode()):
            given = {"value": b64encode(value).decode(), "encoding": "base64"}
            sent = await here.ok("POST", "/v1/topics/t/publish", given)
            read = await here.ok("GET", f"/v1/messages/{sent['id']}{as_}")
            again = {name: read[name] for name in ("value", "encoding", "text", "json") if name in read}
            copied = await here.ok("POST", "/v1/topics/t/publish", again)
            assert (await here.ok("GET", f"/v1/messages/{copied['id']}"))["value"] == given["value"]

    serve(work)


def test_the_broker_hears_how_far_a_message_is_to_be_stored(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Any) -> None:
        heard: list[str] = []
        publish = LocalTransport.publish

        async def spied(site: Any, topic: str, message: Any, partition: Any, acks: str = "all") -> Any:
            heard.append(acks)
            return await publish(site, topic, message, partition, acks)

        monkeypatch.setattr(LocalTransport, "publish", spied)
        for offset, given in enumerate(({}, {"acks": "all"}, {"acks": "leader"})):
            sent = await here.ok("POST", "/v1/topics/t/publish", {"text": "x", **given})
            assert sent["offset"] == offset
        batch = {"messages": [{"text": "x", "acks": "leader"}, {"text": "x"}, {"text": "x", "acks": "none"}]}
        results = (await here.ok("POST", "/v1/topics/t/publish/batch", batch))["results"]
        assert [result.get("offset") for result in results] == [3, 4, None]
        assert results[2]["error"]["code"] == "invalid_input"
        assert heard == ["all", "all", "leader", "leader", "all"]

    serve(work)


def test_publishing_where_nothing_is_says_so(serve: Any) -> None:
    async def work(here: Any) -> None:
        message = {"text": "x"}
        assert await here.fails("POST", "/v1/topics/nowhere/publish", message) == (404, "topic_not_found")
        assert await here.fails("POST", "/v1/topics/t/publish", {**message, "partition": 7}) == (
            404,
            "partition_not_found",
        )
        batch = {"messages": [message]}
        assert await here.fails("POST", "/v1/topics/nowhere/publish/batch", batch) == (404, "topic_not_found")
        assert await here.fails("POST", "/v1/topics/t/publish?x=1", message) == (400, "invalid_input")

    serve(work)


def test_a_batch_has_a_result_for_each_message(serve: Any) -> None:
    async def work(here: Any) -> None:
        messages: list[Any] = [{"text": str(number)} for number in range(200)]
        messages[3] = {"text": "x", "priority": "urgent"}
        messages[5] = 7
        sent = await here.ok("POST", "/v1/topics/t/publish/batch", {"messages": messages})
        results = sent["results"]
        assert [results[row]["error"]["code"] for row in (3, 5)] == ["invalid_message", "invalid_input"]
        stored = [result["id"] for row, result in enumerate(results) if row not in (3, 5)]
        assert stored == [f"t:0:{offset}" for offset in range(198)]
        # In one write of the log, not in 198.
        frames = list(here.site.broker.topic("t").partitions[0].messages.read(0, bytes_max=1 << 20))
        assert len(frames) < 5
        too_many = {"messages": [{"text": ""}] * 10_001}
        assert await here.fails("POST", "/v1/topics/t/publish/batch", too_many) == (413, "batch_too_large")
        assert await here.fails("POST", "/v1/topics/t/publish/batch", {"messages": []}) == (400, "invalid_input")

    serve(work)


def test_all_partitions_are_read_in_pages_to_the_end(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/topics", {"name": "many", "partitions": 3})
        for number in range(9):
            await here.ok("POST", "/v1/topics/many/publish", {"text": str(number), "partition": (0, 0, 2)[number % 3]})
        seen, goes_on = [], ""
        while goes_on is not None:
            page = await here.ok("GET", f"/v1/topics/many/messages?limit=4&as=text{goes_on and f'&next={goes_on}'}")
            seen += [one["id"] for one in page["messages"]]
            goes_on = page["next"]
        assert seen == [f"many:0:{offset}" for offset in range(6)] + [f"many:2:{offset}" for offset in range(3)]
        for query in ("next=x", "next=0:0&partition=0", "next=0:0&offset=0"):
            assert await here.fails("GET", f"/v1/topics/many/messages?{query}") == (400, "invalid_input")
        assert await here.fails("GET", "/v1/topics/many/messages?next=7:0") == (404, "partition_not_found")

    serve(work)


def test_the_log_is_read_in_pages_and_by_time(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", *(str(number) for number in range(10)))
        seen, offset = [], 0
        while True:
            page = await here.ok("GET", f"/v1/topics/t/messages?partition=0&offset={offset}&limit=4&as=text")
            seen += [one["text"] for one in page["messages"]]
            if not page["messages"]:
                break
            offset = page["next_offset"]
        assert seen == [str(number) for number in range(10)]
        times = [one["append_time"] for one in (await here.ok("GET", "/v1/topics/t/messages"))["messages"]]
        some = await here.ok(
            "GET", "/v1/topics/t/messages", params={"from_time": times[4], "to_time": times[7], "as": "text"}
        )
        assert [one["text"] for one in some["messages"]] == ["4", "5", "6"]
        for query, code in (
            ("offset=3", (400, "invalid_input")),
            ("partition=0&offset=99", (400, "offset_out_of_range")),
            ("partition=9", (404, "partition_not_found")),
            ("limit=0", (400, "invalid_input")),
            ("limit=x", (400, "invalid_input")),
            ("from_time=now", (400, "invalid_input")),
            ("as=xml", (400, "invalid_input")),
            ("partition=0&partition=0", (400, "invalid_input")),
        ):
            assert await here.fails("GET", f"/v1/topics/t/messages?{query}") == code

    serve(work)


def test_delayed_messages_are_listed_moved_and_cancelled(serve: Any) -> None:
    async def work(here: Any) -> None:
        first, second = await here.published("t", "first", delay="1h"), await here.published("t", "second", delay="2h")
        listed = (await here.ok("GET", "/v1/topics/t/scheduled?as=text"))["scheduled"]
        assert [(one["id"], one["text"]) for one in listed] == [(first[0], "first"), (second[0], "second")]
        await here.ok("PATCH", f"/v1/scheduled/{first[0]}", {"deliver_at": "2030-01-01T00:00:00Z"})
        moved = await here.ok("GET", f"/v1/scheduled/{first[0]}")
        assert moved["deliver_at"] == "2030-01-01T00:00:00.000000Z"
        await here.ok("DELETE", f"/v1/scheduled/{first[0]}")
        assert await here.fails("GET", f"/v1/scheduled/{first[0]}") == (404, "not_scheduled")
        assert await here.fails("PATCH", f"/v1/scheduled/{second[0]}", {}) == (400, "invalid_input")
        await here.ok("PATCH", f"/v1/scheduled/{second[0]}", {"delay": 0})
        (message,) = await here.polled(wait="5s")
        assert message["text"] == "second"

    serve(work)


def test_single_messages_at_the_same_time_are_written_together(serve: Any) -> None:
    async def work(here: Any) -> None:
        sent = await asyncio.gather(*[here.published("t", str(number)) for number in range(100)])
        assert sorted(int(one[0].rpartition(":")[2]) for one in sent) == list(range(100))

    serve(work)


@pytest.mark.parametrize("size", [1, 20_000])
def test_messages_without_a_key_reach_all_partitions_alone_and_in_batches(serve: Any, size: int) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/topics", {"name": "six", "partitions": 6})
        message = {"text": "x" * size}
        alone = [await here.ok("POST", "/v1/topics/six/publish", message) for _ in range(60)]
        batches = [
            await here.ok("POST", "/v1/topics/six/publish/batch", {"messages": [message] * 40}) for _ in range(15)
        ]
        for published in (alone, [one for batch in batches for one in batch["results"]]):
            counts = Counter(one["partition"] for one in published)
            assert len(counts) == 6
            assert max(counts.values()) <= 2 * len(published) / 6

    serve(work)
