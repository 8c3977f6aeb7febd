"""Groups over HTTP: how they are set, where they are, what they have parked, what they replay."""

from __future__ import annotations

from typing import Any

import pytest


def receipts_of(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {"receipts": [message["receipt"] for message in messages]}


def test_a_group_is_made_changed_and_deleted(serve: Any) -> None:
    async def work(here: Any) -> None:
        settings = {"ordering": "key", "visibility": "1m", "backoff": {"initial": "2s"}}
        made = await here.ok("POST", "/v1/groups", {"name": "g", **settings})
        assert (made["settings"]["ordering"], made["settings"]["visibility"]) == ("key", "1m")
        assert made["settings"]["backoff"]["initial"] == "2s"
        assert await here.ok("POST", "/v1/groups", {"name": "g", "ordering": "key"}) == made
        assert await here.fails("POST", "/v1/groups", {"name": "g", "ordering": "none"}) == (409, "settings_conflict")
        changed = await here.ok("PATCH", "/v1/groups/g", {"max_retries": 7})
        assert changed["settings"] == {**made["settings"], "max_retries": 7}
        assert [group["name"] for group in (await here.ok("GET", "/v1/groups"))["groups"]] == ["g"]
        assert await here.fails("PATCH", "/v1/groups/g", {"visibility": "0s"}) == (400, "invalid_setting")
        assert await here.fails("PATCH", "/v1/groups/g", {"colour": "blue"}) == (400, "invalid_input")
        await here.ok("DELETE", "/v1/groups/g")
        for method in ("GET", "DELETE", "PATCH"):
            json = {} if method == "PATCH" else None
            assert await here.fails(method, "/v1/groups/g", json) == (404, "group_not_found")

    serve(work)


@pytest.mark.parametrize(
    ("to", "texts"),
    [
        ({"to": "earliest"}, ["a", "b", "c"]),
        ({"to": 1}, ["b", "c"]),
        ({"to": 2, "partition": 0}, ["c"]),
        ({"to": "latest"}, []),
        ({"to": "1999-01-01T00:00:00Z"}, ["a", "b", "c"]),
        ({"time": "2999-01-01T00:00:00Z"}, []),
    ],
)
def test_a_group_is_moved(serve: Any, to: Any, texts: list[str]) -> None:
    async def work(here: Any) -> None:
        await here.published("t", *"abc")
        await here.ok("POST", "/v1/groups/g/ack", receipts_of(await here.polled()))
        await here.ok("POST", "/v1/groups/g/seek", {"topic": "t", **to})
        assert [message["text"] for message in await here.polled()] == texts

    serve(work)


def test_a_group_is_not_moved_to_nowhere(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.polled()
        for body, told in (
            ({"topic": "t", "to": 99}, (400, "offset_out_of_range")),
            ({"topic": "t", "to": "somewhere"}, (400, "invalid_input")),
            ({"topic": "t"}, (400, "invalid_input")),
            ({"topic": "t", "to": 0, "partition": 9}, (404, "partition_not_found")),
            ({"topic": "nowhere", "to": "latest"}, (404, "topic_not_found")),
        ):
            assert await here.fails("POST", "/v1/groups/g/seek", body) == told
        assert await here.fails("POST", "/v1/groups/x/seek", {"topic": "t", "to": 0}) == (404, "group_not_found")

    serve(work)


def test_a_parked_key_goes_on_when_it_is_released(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", "bad", "good", key="k")
        settings = {"ordering": "key", "on_poison": "park"}
        bad = await here.polled(settings=settings, max=1)
        await here.ok("POST", "/v1/groups/g/reject", {**receipts_of(bad), "reason": "broken"})
        assert await here.polled() == []
        (parked,) = (await here.ok("GET", "/v1/groups/g/parked-keys"))["keys"]
        assert (parked["key"], parked["message"], parked["reason"]) == ("k", "t:0:0", "broken")
        release = {"topic": "t", "key": "k"}
        assert await here.ok("POST", "/v1/groups/g/parked-keys/release", release) == {"released": 1}
        assert [message["text"] for message in await here.polled()] == ["good"]
        assert await here.fails("POST", "/v1/groups/g/parked-keys/release", release) == (404, "not_found")
        assert await here.fails("GET", "/v1/groups/x/parked-keys") == (404, "group_not_found")

    serve(work)


def test_a_replay_is_a_group_of_the_past(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.published("t", *"abcd")
        replay = {"topic": "t", "offsets": {"0": [1, 3]}, "settings": {"visibility": "1m"}}
        assert await here.ok("POST", "/v1/groups/again/replay", replay) == {"messages": 2}
        assert [message["text"] for message in await here.polled("again")] == ["b", "c"]
        assert await here.fails("POST", "/v1/groups/again/replay", replay) == (409, "already_exists")
        assert await here.fails("POST", "/v1/groups/x/replay", {"topic": "t", "offsets": {"0": [1, 99]}}) == (
            400,
            "offset_out_of_range",
        )
        settings = {"settings": {"lanes": "strict"}}
        assert await here.fails("POST", "/v1/groups/x/replay", {**replay, **settings}) == (400, "invalid_setting")
        assert await here.fails("POST", "/v1/groups/x/replay", {"topic": "t", "offsets": {"no": [1, 2]}}) == (
            400,
            "invalid_input",
        )

    serve(work)


def test_listings_come_in_pages(serve: Any) -> None:
    async def work(here: Any) -> None:
        for name in ("a", "b", "c"):
            await here.ok("POST", "/v1/groups", {"name": name})
            await here.ok("POST", "/v1/topics", {"name": name, "partitions": 1})
            await here.ok("POST", "/v1/schedules", {"name": name, "topic": "t", "cron": "@yearly", "text": "x"})
        for listing, field in (("groups", "groups"), ("topics", "topics"), ("schedules", "schedules")):
            found, after, sizes = [], "", []
            while True:
                page = await here.ok("GET", f"/v1/{listing}", params={"limit": 2, "after": after})
                sizes.append(len(page[field]))
                found += [one["name"] for one in page[field]]
                if page["next"] is None:
                    break
                after = page["next"]
            assert found == sorted(found)
            assert {"a", "b", "c"} <= set(found)
            assert max(sizes) == 2
        later = await here.ok("GET", "/v1/topics/t/scheduled", params={"limit": 2})
        assert len(later["scheduled"]) == 2
        rest = await here.ok("GET", "/v1/topics/t/scheduled", params={"limit": 2, "after": later["next"]})
        assert (len(rest["scheduled"]), rest["next"]) == (1, None)
        for limit in (0, 201):
            assert await here.fails("GET", "/v1/groups", params={"limit": limit}) == (400, "invalid_input")

    serve(work)
