"""Single messages over HTTP: traces, dead letters, schedules; and what the broker tells of itself."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Fatal


def receipts_of(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {"receipts": [message["receipt"] for message in messages]}


def test_what_happened_to_a_message(serve: Any) -> None:
    async def work(here: Any) -> None:
        (id,) = await here.published("t", "x")
        await here.ok("POST", "/v1/groups/g/ack", receipts_of(await here.polled()))
        trace = await here.ok("GET", f"/v1/messages/{id}/trace")
        assert [step["what"] for step in trace["steps"]][:3] == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]
        assert (trace["steps"][1]["group"], trace["steps"][1]["attempt"]) == ("g", 1)
        assert (await here.ok("GET", f"/v1/messages/{id}/why?group=g"))["code"] == "acknowledged"
        assert await here.fails("GET", f"/v1/messages/{id}/why") == (400, "invalid_input")
        for path in ("", "/trace"):
            assert await here.fails("GET", f"/v1/messages/t:0:99{path}") == (404, "message_not_found")
            assert await here.fails("GET", f"/v1/messages/oops{path}") == (400, "invalid_input")
            assert await here.fails("GET", f"/v1/messages/nowhere:0:0{path}") == (404, "topic_not_found")
            assert await here.fails("GET", f"/v1/messages/t:7:0{path}") == (404, "partition_not_found")

    serve(work)


def test_dead_letters_are_listed_redriven_and_discarded(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "a", "b", key="k")
        await here.ok("POST", "/v1/groups/g/reject", {**receipts_of(await here.polled()), "reason": "no good"})
        query = "group=g&reason=good&key=k&since=2020-01-01T00:00:00Z&limit=10&as=text"
        letters = (await here.ok("GET", f"/v1/topics/t/dead-letters?{query}"))["dead_letters"]
        assert [letter["message"]["text"] for letter in letters] == ["a", "b"]
        assert [letter["failures"][0]["consumer"] for letter in letters] == ["http", "http"]
        ids = [letter["id"] for letter in letters]
        assert await here.ok("GET", f"/v1/dead-letters/{ids[0]}?as=text") == letters[0]
        assert (await here.ok("GET", f"/v1/topics/t/dead-letters?ids={','.join(ids)}&group=x"))["dead_letters"] == []
        redrive = {"group": "g", "where": {"ids": ids[:1]}, "dry_run": True, "rate": 1000}
        would = await here.ok("POST", "/v1/topics/t/dead-letters/redrive", redrive)
        assert would == {"in_place": ids[:1], "copied": [], "refused": [], "already": []}
        assert await here.polled() == []
        assert await here.ok("POST", "/v1/topics/t/dead-letters/redrive", {**redrive, "dry_run": False}) == would
        assert [message["text"] for message in await here.polled(wait="5s")] == ["a"]
        assert await here.ok("POST", "/v1/topics/t/dead-letters/discard") == {"discarded": 1}
        assert (await here.ok("GET", "/v1/topics/t/dead-letters"))["dead_letters"] == []
        assert len((await here.ok("GET", "/v1/topics/t/dead-letters?with_settled=true"))["dead_letters"]) == 2
        assert await here.fails("GET", "/v1/topics/x/dead-letters") == (404, "topic_not_found")
        assert await here.fails("GET", "/v1/topics/t/dead-letters?limit=0") == (400, "invalid_input")
        assert await here.fails("POST", "/v1/topics/t/dead-letters/redrive", {"rate": -1}) == (400, "invalid_input")
        assert await here.fails("POST", "/v1/topics/x/dead-letters/discard", {}) == (404, "topic_not_found")

    serve(work)


def test_schedules_are_made_listed_and_deleted(serve: Any) -> None:
    async def work(here: Any) -> None:
        given = {"name": "nightly", "topic": "t", "cron": "0 3 * * *", "text": "go", "key": "k", "priority": "high"}
        made = await here.ok("POST", "/v1/schedules", given)
        assert (made["name"], made["timezone"], made["key"], made["priority"]) == ("nightly", "UTC", "k", "high")
        assert (await here.ok("GET", "/v1/schedules"))["schedules"] == [made]
        assert (await here.ok("GET", f"/v1/scheduled/{made['pending']}?as=text"))["text"] == "go"
        assert (await here.fails("POST", "/v1/schedules", given))[0] == 409
        assert await here.fails("POST", "/v1/schedules", {**given, "name": "x", "cron": "?"}) == (400, "invalid_input")
        await here.ok("DELETE", "/v1/schedules/nightly")
        assert (await here.fails("DELETE", "/v1/schedules/nightly"))[0] == 404

    serve(work)


def test_the_broker_tells_of_itself(serve: Any) -> None:
    async def work(here: Any) -> None:
        assert await here.ok("GET", "/health") == {"status": "ok"}
        assert await here.ok("GET", "/ready") == {"status": "ready"}
        cluster = await here.ok("GET", "/v1/cluster")
        assert (cluster["mode"], cluster["topics"], cluster["partitions"], cluster["groups"]) == ("single", 1, 1, 0)
        assert (await here.http.head("/ready")).content == b""

    serve(work)


def test_a_broken_broker_is_not_ready_and_says_so(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise Fatal("the disk is gone")

    async def work(here: Any) -> None:
        monkeypatch.setattr(here.site, "check", broken)
        assert await here.fails("GET", "/ready") == (503, "fatal")
        assert await here.ok("GET", "/health") == {"status": "ok"}
        assert await here.fails("POST", "/v1/topics/t/publish", {"text": "x"}) == (503, "fatal")
        assert [error.code for error in here.broke] == ["fatal", "fatal"]
        monkeypatch.undo()

    serve(work)
