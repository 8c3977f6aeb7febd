"""What is asked of the HTTP door of a node that leads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from cluster_doors import Door
from cluster_nodes import LocalCluster
from penstock.server.http.table import ROUTES


@pytest.fixture
def leader(cluster: LocalCluster) -> Iterator[Door]:
    leader = Door(cluster, "a")
    yield leader
    leader.http.close()


# --- topics, and what is in them ----------------------------------------------------------------------------


def test_topics_are_made_told_of_changed_and_deleted(door: Door) -> None:
    made = door.topic("made", 4, retention={"hours": 5})
    assert [part["number"] for part in made["partitions"]] == [0, 1, 2, 3]
    assert door.ok("GET", "/v1/topics/made") == made
    assert made in door.ok("GET", "/v1/topics")["topics"]
    assert door.fails("POST", "/v1/topics", {"name": "made"}) == (409, "already_exists")
    changed = door.ok("PATCH", "/v1/topics/made", {"partitions": 6, "retention": {"hours": 7}})
    assert len(changed["partitions"]) == 6
    assert changed["settings"]["retention"]["hours"] == 7
    assert len(door.ok("POST", "/v1/topics/made/archived", {"offsets": {"5": 0}})["partitions"]) == 6
    door.ok("DELETE", "/v1/topics/made")
    assert door.fails("GET", "/v1/topics/made") == (404, "topic_not_found")
    assert door.fails("POST", "/v1/topics/made/publish", {"text": "x"}) == (404, "topic_not_found")


def test_what_was_made_at_another_node_is_known_at_once(door: Door, leader: Door) -> None:
    """Whichever it is: nobody waits until the news of it has come."""
    for number in range(10):
        there, here = (door, leader) if number % 2 else (leader, door)
        there.topic(f"seen-{number}", 2)
        (message,) = here.published(f"seen-{number}", "x", key="k")
        assert there.ok("GET", f"/v1/messages/{message}?as=text")["text"] == "x"
        there.ok("POST", "/v1/groups", {"name": f"seen-{number}"})
        assert here.ok("GET", f"/v1/groups/{f'seen-{number}'}")["name"] == f"seen-{number}"


def test_messages_are_published_alone_or_together_and_read(door: Door, topic: str) -> None:
    ids = door.published(topic, "one", "two", partition=2)
    assert ids == [f"{topic}:2:{offset}" for offset in _offsets(ids)]
    given = [{"text": f"b{number}", "key": f"k{number}"} for number in range(20)] + [{"oops": 1}]
    results = door.ok("POST", f"/v1/topics/{topic}/publish/batch", {"messages": given})["results"]
    assert [result["error"]["code"] for result in results if result.get("error")] == ["invalid_input"]
    assert len({result["id"].split(":")[1] for result in results[:20]}) == 3
    log = door.ok("GET", f"/v1/topics/{topic}/messages?as=text")
    assert {one["text"] for one in log["messages"]} == {"one", "two", *(f"b{number}" for number in range(20))}
    last = door.ok("GET", f"/v1/topics/{topic}/messages?as=text&partition=2&offset={_offsets(ids)[1]}")["messages"]
    assert last[0]["text"] == "two"
    assert door.fails("POST", f"/v1/topics/{topic}/publish", {"text": "x", "partition": 3}) == (
        404,
        "partition_not_found",
    )
    assert door.fails("POST", f"/v1/topics/{topic}/publish", {"text": "x", "priority": "odd"})[0] == 400


def _offsets(ids: list[str]) -> list[int]:
    return [int(one.rpartition(":")[2]) for one in ids]


# --- consuming ----------------------------------------------------------------------------------------------


def test_messages_of_all_leaders_are_polled_and_acknowledged(door: Door, topic: str) -> None:
    sent = door.published(topic, *"abcdefghijkl")
    got = door.polled_all(topic, 12)
    assert {message["id"] for message in got} == set(sent)
    assert {message["attempt"] for message in got} == {1}
    assert door.answered("ack", got) == {"done": 12, "failed": []}
    assert door.polled(topic) == []
    assert sum(door.ok("GET", "/v1/groups/g")["lag"][topic]) == 0


def test_a_poll_has_no_more_than_it_asked_for(door: Door, topic: str) -> None:
    door.published(topic, *"abcdefghijkl")
    counts = [len(door.polled(topic, group="few", max=5, wait="5s")) for _ in range(3)]
    assert sum(counts) == 12
    assert max(counts) == 5


def test_a_poll_waits_until_something_comes(door: Door, topic: str) -> None:
    came: list[dict[str, Any]] = []
    door.polled(topic, group="late")
    waiting = Thread(target=lambda: came.extend(door.polled(topic, group="late", wait="20s")))
    waiting.start()
    sent = door.published(topic, "x", partition=1)
    waiting.join()
    assert [message["id"] for message in came] == sent


def test_a_poll_says_for_how_long_it_has_its_messages(door: Door, topic: str) -> None:
    door.published(topic, "x")
    (first,) = door.polled_all(topic, 1, group="short", visibility="1s")
    (again,) = door.polled_all(topic, 1, group="short", visibility="5m")
    assert again["id"] == first["id"]
    assert (first["attempt"], again["attempt"]) == (1, 2)
    assert door.answered("ack", [first], "short")["failed"][0]["code"] == "lease_not_found"
    assert door.answered("ack", [again], "short")["done"] == 1


def test_answers_of_every_kind_come_to_whoever_leads(door: Door, topic: str) -> None:
    door.published(topic, *"abcdef")
    door.ok("POST", "/v1/groups", {"name": "kinds", "max_retries": 5})
    got = door.polled_all(topic, 6, group="kinds")
    acked, nacked, released, extended = got[:2], got[2:3], got[3:4], got[4:5]
    assert door.answered("ack", acked, "kinds")["done"] == 2
    assert door.answered("nack", nacked, "kinds", delay="0s", reason="busy")["done"] == 1
    assert door.answered("release", released, "kinds")["done"] == 1
    assert door.answered("extend", extended, "kinds", visibility="1h")["done"] == 1
    back = {message["id"]: message["attempt"] for message in door.polled_all(topic, 2, group="kinds")}
    assert back == {nacked[0]["id"]: 2, released[0]["id"]: 1}
    assert door.answered("reject", got[5:], "kinds", reason="no")["done"] == 1


def test_a_receipt_that_is_not_good_any_more_fails_alone(door: Door, topic: str) -> None:
    door.published(topic, *"abcd", partition=0)
    door.published(topic, *"efgh", partition=1)
    got = door.polled_all(topic, 8, group="some")
    done = [message for message in got if message["offset"] == min(each["offset"] for each in got)]
    door.answered("ack", done, "some")
    reply = door.ok("POST", "/v1/groups/some/ack", {"receipts": ["oops", *(message["receipt"] for message in got)]})
    assert reply["done"] == 8 - len(done)
    assert {failed["receipt"]: failed["code"] for failed in reply["failed"]} == {
        "oops": "invalid_receipt",
        **{message["receipt"]: "not_leased" for message in done},
    }


def test_a_stream_has_what_comes_and_no_more_than_it_may_hold(door: Door, topic: str) -> None:
    sent = door.published(topic, *"abcdef")
    query = {"topics": topic, "consumer": "s", "max_in_flight": "4", "as": "text"}
    got: list[dict[str, Any]] = []
    with door.http.stream("POST", "/v1/groups/streamed/stream", params=query) as events:
        lines = events.iter_lines()
        while len(got) < 4:
            got += _message(next(lines))
        assert door.answered("ack", got, "streamed")["done"] == 4
        while len(got) < 6:
            got += _message(next(lines))
    assert {message["id"] for message in got} == set(sent)


def _message(line: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else []


def test_what_a_client_that_is_gone_had_asked_for_comes_to_others(door: Door, topic: str) -> None:
    door.polled(topic, group="gone")
    with door.http.stream("POST", "/v1/groups/gone/stream", params={"topics": topic, "consumer": "c"}) as events:
        next(events.iter_lines())
    sent = door.published(topic, *"abc")
    assert {message["id"] for message in door.polled_all(topic, 3, group="gone", consumer="c")} == set(sent)


def test_members_come_and_go(door: Door, topic: str) -> None:
    sent = door.published(topic, *"abcdef", key="k")
    door.polled(topic, group="pair", consumer="one", max=1)
    door.polled(topic, group="pair", consumer="two", max=1)
    assert set(door.ok("GET", "/v1/groups/pair")["members"]) == {"one", "two"}
    door.ok("DELETE", "/v1/groups/pair/members/one")
    assert set(door.ok("GET", "/v1/groups/pair")["members"]) == {"two"}
    assert door.fails("DELETE", "/v1/groups/nobody/members/one") == (404, "group_not_found")
    assert len(sent) == 6


def test_a_member_that_falls_silent_leaves_its_group(door: Door, topic: str) -> None:
    settings = {"session": "300ms"}
    door.polled(topic, group="silent", consumer="one", settings=settings)
    while door.ok("GET", "/v1/groups/silent")["members"]:
        pass
    sent = door.published(topic, *"abc")
    assert {message["id"] for message in door.polled_all(topic, 3, group="silent", consumer="two")} == set(sent)


def test_a_member_that_waits_stays_in_its_group(door: Door, topic: str) -> None:
    """Longer than a session, and nothing is heard of it but that it waits."""
    given = {"topics": [topic], "consumer": "one", "wait": "6s", "settings": {"session": "4s"}}
    assert door.ok("POST", "/v1/groups/patient/poll", given)["messages"] == []
    assert set(door.ok("GET", "/v1/groups/patient")["members"]) == {"one"}


def test_a_group_that_was_deleted_is_made_again(door: Door, topic: str) -> None:
    door.published(topic, "x")
    assert len(door.polled_all(topic, 1, group="anew")) == 1
    door.ok("DELETE", "/v1/groups/anew")
    assert len(door.polled_all(topic, 1, group="anew")) == 1


def test_settings_of_a_poll_must_be_those_of_the_group(door: Door, topic: str) -> None:
    door.polled(topic, group="strict", settings={"max_retries": 3})
    given = {"topics": [topic], "consumer": "c", "settings": {"max_retries": 4}}
    assert door.fails("POST", "/v1/groups/strict/poll", given) == (409, "settings_conflict")
    given = {"topics": ["nowhere"], "consumer": "c"}
    assert door.fails("POST", "/v1/groups/strict/poll", given) == (404, "topic_not_found")


# --- groups -------------------------------------------------------------------------------------------------


def test_groups_are_made_told_of_changed_sought_and_deleted(door: Door, topic: str) -> None:
    sent = door.published(topic, *"abcdef")
    door.ok("POST", "/v1/groups", {"name": "kept", "visibility": "1m"})
    assert door.ok("PATCH", "/v1/groups/kept", {"visibility": "2m"})["settings"]["visibility"] == "2m"
    assert "kept" in {group["name"] for group in door.ok("GET", "/v1/groups")["groups"]}
    got = door.polled_all(topic, 6, group="kept")
    door.answered("ack", got, "kept")
    door.ok("POST", "/v1/groups/kept/seek", {"topic": topic, "to": "earliest"})
    assert sum(door.ok("GET", "/v1/groups/kept")["lag"][topic]) == 6
    assert {message["id"] for message in door.polled_all(topic, 6, group="kept")} == set(sent)
    door.ok("DELETE", "/v1/groups/kept")
    assert door.fails("GET", "/v1/groups/kept") == (404, "group_not_found")


def test_a_replay_has_what_was_in_all_partitions(door: Door, topic: str) -> None:
    sent = door.published(topic, *"abcdef")
    asked = {"topic": topic, "from_time": "2020-01-01T00:00:00Z"}
    assert door.ok("POST", "/v1/groups/replayed/replay", asked)["messages"] >= 6
    assert {message["id"] for message in door.polled_all(topic, 6, group="replayed")} == set(sent)


def test_parked_keys_are_told_of_and_released(door: Door, topic: str) -> None:
    door.ok("POST", "/v1/groups", {"name": "parking", "ordering": "key", "on_poison": "park", "max_retries": 0})
    door.published(topic, "x", "y", key="k")
    (got,) = door.polled_all(topic, 1, group="parking")
    door.answered("reject", [got], "parking", reason="bad")
    (parked,) = door.ok("GET", "/v1/groups/parking/parked-keys")["keys"]
    assert (parked["topic"], parked["key"]) == (topic, "k")
    released = door.ok("POST", "/v1/groups/parking/parked-keys/release", {"topic": topic, "key": "k"})
    assert released["released"] == 1


# --- what happened, and what is to come ---------------------------------------------------------------------


def test_a_message_is_traced_wherever_it_is(door: Door, topic: str) -> None:
    for number in range(3):
        (sent,) = door.published(topic, "x", partition=number)
        assert door.ok("GET", f"/v1/messages/{sent}?as=text")["text"] == "x"
        assert door.ok("GET", f"/v1/messages/{sent}/trace")["steps"][0]["what"] == "PUBLISHED"
        door.ok("POST", "/v1/groups", {"name": "why"})
        assert door.ok("GET", f"/v1/messages/{sent}/why?group=why")["code"]
    assert door.fails("GET", f"/v1/messages/{topic}:0:9999") == (404, "message_not_found")
    assert door.fails("GET", "/v1/messages/oops")[0] == 400


def test_dead_letters_of_all_partitions_are_listed_redriven_and_discarded(door: Door, topic: str) -> None:
    sent = [*door.published(topic, "x", partition=0), *door.published(topic, "y", partition=1)]
    got = door.polled_all(topic, 2, group="dying")
    door.answered("reject", got, "dying", reason="bad")
    letters: list[dict[str, Any]] = []
    while len(letters) < 2:
        letters = door.ok("GET", f"/v1/topics/{topic}/dead-letters")["dead_letters"]
    assert {letter["original"] for letter in letters} == set(sent)
    assert door.ok("GET", f"/v1/dead-letters/{letters[0]['id']}")["id"] == letters[0]["id"]
    redriven = door.ok("POST", f"/v1/topics/{topic}/dead-letters/redrive", {})
    assert len([*redriven["in_place"], *redriven["copied"]]) == 2
    door.ok("POST", f"/v1/topics/{topic}/dead-letters/discard", {})
    assert door.ok("GET", f"/v1/topics/{topic}/dead-letters")["dead_letters"] == []


def test_delayed_messages_are_listed_moved_and_cancelled(door: Door, topic: str) -> None:
    first, second = door.published(topic, "x", "y", delay="1h")
    assert {one["id"] for one in door.ok("GET", f"/v1/topics/{topic}/scheduled")["scheduled"]} == {first, second}
    assert door.ok("GET", f"/v1/scheduled/{first}?as=text")["text"] == "x"
    door.ok("PATCH", f"/v1/scheduled/{first}", {"delay": "0s"})
    assert [message["id"] for message in door.polled_all(topic, 1)] == [first]
    door.ok("DELETE", f"/v1/scheduled/{second}")
    assert door.fails("GET", f"/v1/scheduled/{second}")[0] == 404


def test_schedules_are_made_listed_and_deleted(door: Door, topic: str) -> None:
    made = {"name": "nightly", "topic": topic, "cron": "0 2 * * *", "text": "go"}
    door.ok("POST", "/v1/schedules", made)
    assert "nightly" in {one["name"] for one in door.ok("GET", "/v1/schedules")["schedules"]}
    door.ok("DELETE", "/v1/schedules/nightly")
    assert door.ok("GET", "/v1/schedules")["schedules"] == []


# --- the node itself ----------------------------------------------------------------------------------------


def test_a_node_that_has_joined_is_ready(door: Door) -> None:
    assert door.ok("GET", "/ready") == {"status": "ready"}
    assert door.http.get("/metrics").status_code == 200


def test_the_cluster_is_told_of(door: Door, topic: str, cluster: LocalCluster) -> None:
    told = door.ok("GET", "/v1/cluster")
    assert (told["mode"], told["node"], told["controller"] in cluster.nodes) == ("cluster", "c", True)
    nodes = {node["name"]: node for node in told["nodes"]}
    assert {name: node["native"] for name, node in nodes.items()} == {
        name: running.native for name, running in cluster.nodes.items()
    }
    assert nodes["c"]["leads"] == 0
    assert nodes["a"]["leads"] + nodes["b"]["leads"] == told["partitions"]
    placed = door.ok("GET", f"/v1/cluster/partitions?topic={topic}")["partitions"]
    assert [one["partition"] for one in placed] == [0, 1, 2]
    assert {one["leader"] for one in placed} <= {"a", "b"}


def test_every_route_was_asked_for(asked: set[str]) -> None:
    """By the tests above, which come first."""
    if len(asked) < 10:
        pytest.skip("they have not been run")
    assert {f"{route.method} {route.path}" for route in ROUTES} - asked <= {"GET /health"}
