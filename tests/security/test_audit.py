"""The audit log: who was refused, which keys were used, what administrators did; and never a secret."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from penstock.broker.names import AUDIT
from penstock.broker.settings import TopicSettings
from penstock.client import cluster_requests as c
from penstock.client import requests as r
from penstock.client.requests import Request
from penstock.client.transport import Delivery
from penstock.errors import DiskFull, Forbidden, PenstockError, Unauthenticated
from penstock.message import Message
from penstock.server import audit as auditing
from penstock.server.access import Kind, Operation, Pattern, Right, Rule, Rules
from penstock.server.access_file import add_key, remove_key
from penstock.server.audit import EVENTS_MAX, KEY_USE_US, WINDOW_US, Audit, AuditTopic, action_of, object_of
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.guard import NEEDS
from penstock.server.keys import make
from penstock.testing.clock import ManualClock
from security.doors import Doors, knock, until

Events = Callable[[], list[dict[str, Any]]]
FIELDS = ("principal", "address", "action", "object", "outcome")


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Events:
    """What was recorded so far, with the host as address: ports are any."""
    caplog.set_level(logging.INFO, "penstock.audit")

    def found() -> list[dict[str, Any]]:
        lines = [vars(one) for one in caplog.records if one.name == "penstock.audit"]
        told = [{name: line[name] for name in (*FIELDS, "left_out", "dry_run") if name in line} for line in lines]
        return [{**one, "address": one["address"].rpartition(":")[0]} for one in told]

    return found


class Access:
    """An access file in which `root` may do everything, and `guest` nothing."""

    def __init__(self, path: Path) -> None:
        self.file = path / "access.yaml"
        every = {"topics": ["*"], "groups": ["*"], "broker": True}
        rule = {"principals": ["root"], "operations": [one.value for one in Operation], **every}
        self.file.write_text(yaml.safe_dump({"rules": [rule]}), encoding="utf-8")
        self.keys: dict[str, str] = {}
        for principal in ("root", "guest"):
            self.add(principal)

    def add(self, principal: str) -> None:
        self.keys[principal], kept = make(principal)
        add_key(self.file, kept)

    def identity(self, principal: str) -> str:
        return self.keys[principal].split("_")[1]


def bearer(key: str | None) -> list[tuple[str, str]]:
    return [] if key is None else [("authorization", f"Bearer {key}")]


# --- what each door is asked for ----------------------------------------------------------------------------


async def native(doors: Doors, key: str | None) -> None:
    async with doors.client(key) as client:
        with suppress(PenstockError):
            await client.delete_topic("t")


async def http(doors: Doors, key: str | None) -> None:
    await doors.web.delete("/v1/topics/t", headers=dict(bearer(key)))


async def by_grpc(doors: Doors, key: str | None) -> None:
    with suppress(grpc.aio.AioRpcError):
        await doors.stub.DeleteTopic(pb.DeleteTopicRequest(name="t"), metadata=bearer(key))


async def native_publish(doors: Doors, key: str | None) -> None:
    async with doors.client(key) as client:
        with suppress(PenstockError):
            await client.publish("t", b"x", partition=0)


async def http_publish(doors: Doors, key: str | None) -> None:
    await doors.web.post("/v1/topics/t/publish", json={"value": "AA=="}, headers=dict(bearer(key)))


async def grpc_publish(doors: Doors, key: str | None) -> None:
    asked = pb.PublishRequest(topic="t", message=pb.NewMessage(value=b"x"))
    with suppress(grpc.aio.AioRpcError):
        await doors.stub.Publish(asked, metadata=bearer(key))


Way = Callable[[Doors, str | None], Awaitable[None]]
DOORS = pytest.mark.parametrize("way", [native, http, by_grpc], ids=["native", "http", "grpc"])


@DOORS
def test_every_door_records_administrative_actions_key_use_and_refusals(
    tmp_path: Path, way: Way, events: Events
) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for key in (None, "pk_nobody_has-this-one", access.keys["guest"] + "x"):
            with suppress(Unauthenticated):
                await way(doors, key)
        for principal in ("guest", "root", "root"):
            await way(doors, access.keys[principal])

    knock(tmp_path / "data", work, access=access.file)
    guest, root = (f"key {access.identity(principal)}" for principal in ("guest", "root"))
    rows = [tuple(one[name] for name in FIELDS) for one in events()]
    assert [row for row in rows if row[2] != "describe_topic"] == [
        ("", "127.0.0.1", "authenticate", "", "unauthenticated"),
        ("", "127.0.0.1", "authenticate", "", "unauthenticated"),
        ("", "127.0.0.1", "authenticate", guest, "unauthenticated"),
        ("guest", "127.0.0.1", "authenticate", guest, "ok"),
        ("guest", "127.0.0.1", "delete_topic", "topic t", "forbidden"),
        # The key is used twice, and said to be used once.
        ("root", "127.0.0.1", "authenticate", root, "ok"),
        ("root", "127.0.0.1", "delete_topic", "topic t", "ok"),
        ("root", "127.0.0.1", "delete_topic", "topic t", "topic_not_found"),
    ]
    for key in access.keys.values():
        assert key.split("_", 2)[2] not in json.dumps(events())


# gRPC refuses a principal that may publish to no topic before it reads the request: the topic is not known then.
@pytest.mark.parametrize(("way", "named"), [(http_publish, "topic t"), (grpc_publish, "")], ids=["http", "grpc"])
def test_a_publish_that_is_refused_is_recorded_and_one_that_is_not_is_not(
    tmp_path: Path, way: Way, named: str, events: Events
) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for principal in ("root", "guest"):
            await way(doors, access.keys[principal])

    knock(tmp_path / "data", work, access=access.file)
    rows = [tuple(one[name] for name in FIELDS) for one in events() if one["action"] != "authenticate"]
    assert rows == [("guest", "127.0.0.1", "publish", named, "forbidden")]


def test_pages_of_other_sites_are_recorded(tmp_path: Path, events: Events) -> None:
    async def work(doors: Doors) -> None:
        answer = await doors.web.get("/v1/topics", headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 403

    knock(tmp_path / "data", work)
    assert [one["outcome"] for one in events()] == ["foreign_site"]


# --- which requests -----------------------------------------------------------------------------------------

ADMINISTRATIVE: list[tuple[Request[Any], str]] = [
    (r.CreateTopic("t", 1, {}), "create_topic: topic t"),
    (r.ChangeTopic("t", 1, {}), "change_topic: topic t"),
    (r.DeleteTopic("t"), "delete_topic: topic t"),
    (r.Archived("t", None, {}), "archived: topic t"),
    (r.CreateGroup("g", {}), "create_group: group g"),
    (r.ChangeGroup("g", {}), "change_group: group g"),
    (r.DeleteGroup("g"), "delete_group: group g"),
    (r.Seek("g", "t", "earliest", None, None, None), "seek: topic t, group g"),
    (r.ReleaseKey("g", "t", b"secret", 3), "release_key: topic t, group g, partition 3"),
    (r.Replay("t", "g", None, None, None, False, False, {}), "replay: topic t, group g"),
    (r.CancelScheduled("t:0:5"), "cancel_scheduled: message t:0:5"),
    (r.Reschedule("t:0:5", 1), "reschedule: message t:0:5"),
    (r.CreateSchedule("s", "t", "* * * * *", "UTC", Message(b"secret")), "create_schedule: schedule s, topic t"),
    (r.DeleteSchedule("s"), "delete_schedule: schedule s"),
    (c.Reassign("t", 2, ("n1",)), "reassign: topic t, partition 2"),
    (c.CancelMoves("t", None), "cancel_moves: topic t"),
    (c.Rebalance(False), "rebalance: broker"),
    (c.ElectLeaders("t", 1, "n1"), "elect_leaders: topic t, node n1, partition 1"),
    (c.DrainNode("n1"), "drain_node: node n1"),
    (c.UndrainNode("n1"), "undrain_node: node n1"),
    (c.DiscardCopy("n1", "abc"), "discard_copy: node n1, copy abc"),
]


@pytest.mark.parametrize(("request_", "told"), ADMINISTRATIVE, ids=lambda one: type(one).__name__)
def test_actions_and_objects_are_named_without_what_is_in_messages(request_: Request[Any], told: str) -> None:
    assert f"{action_of(request_)}: {object_of(request_)}" == told


def test_every_request_that_needs_the_right_to_administer_is_among_them() -> None:
    others = {r.Redrive, r.Discard}
    administrative = {kind for kind, needs in NEEDS.items() if Operation.ADMIN in _operations(kind, needs)}
    assert administrative == {type(request) for request, _ in ADMINISTRATIVE} | others


def _operations(kind: type[Request[Any]], needs: Callable[[Any], list[Right]]) -> set[Operation]:
    class _Any:
        def __getattr__(self, name: str) -> str:
            return "x"

    return {right.operation for right in needs(_Any())}


def test_a_dry_run_is_recorded_as_one(tmp_path: Path, events: Events) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as client:
            await client.create_topic("t", 1)
            await client.dead_letters.redrive("t", dry_run=True)

    knock(tmp_path / "data", work)
    assert [(one["action"], one["principal"], one.get("dry_run")) for one in events()] == [
        ("create_topic", "anybody", None),
        ("redrive", "anybody", True),
    ]


def test_changes_of_the_access_file_are_recorded(tmp_path: Path, events: Events) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        async def refresh() -> None:
            doors.gate._stamp = None
            await doors.gate.refresh()

        access.add("new")
        await refresh()
        remove_key(access.file, access.identity("guest"))
        await refresh()
        content = yaml.safe_load(access.file.read_text(encoding="utf-8"))
        content["quotas"] = [{"principals": ["*"], "connections": 5}]
        access.file.write_text(yaml.safe_dump({**content, "rules": []}), encoding="utf-8")
        await refresh()
        access.file.write_text("nonsense", encoding="utf-8")
        await refresh()

    knock(tmp_path / "data", work, access=access.file)
    assert [(one["action"], one["object"], one["outcome"]) for one in events()] == [
        ("add_key", f"key {access.identity('new')} of new", "ok"),
        ("remove_key", f"key {access.identity('guest')} of guest", "ok"),
        ("change_rules", "", "ok"),
        ("change_quotas", "", "ok"),
        ("change_access", "", "invalid_setting"),
    ]


# --- how many -----------------------------------------------------------------------------------------------


def test_of_too_many_events_of_a_kind_the_rest_is_counted(events: Events) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for _ in range(EVENTS_MAX + 7):
        audit.record("eve", ("::1", 5), "publish", "topic t", "forbidden")
    audit.record("bob", ("::1", 5), "publish", "topic t", "forbidden")
    audit.record("eve", ("::1", 5), "read", "topic t", "forbidden")
    assert len(events()) == EVENTS_MAX + 2
    audit.flush()
    assert len(events()) == EVENTS_MAX + 2
    clock.advance_us(WINDOW_US)
    audit.flush()
    last = events()[-1]
    assert (last["principal"], last["action"], last["left_out"]) == ("eve", "publish", 7)
    audit.flush()
    assert len(events()) == EVENTS_MAX + 3
    assert audit.counts == {"recorded": EVENTS_MAX + 3, "left_out": 7}


def test_the_count_of_what_was_left_out_is_reported_by_the_next_event_too(events: Events) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for _ in range(EVENTS_MAX + 1):
        audit.record("eve", None, "publish")
    clock.advance_us(WINDOW_US)
    audit.record("eve", None, "publish")
    assert [one.get("left_out") for one in events()][-2:] == [1, None]


def test_many_principals_and_addresses_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch, events: Events) -> None:
    monkeypatch.setattr(auditing, "_KNOWN_MAX", 10)
    audit = Audit(ManualClock())
    for number in range(1_000):
        audit.record("", (f"10.0.0.{number}", 1), "authenticate", outcome="unauthenticated")
        audit.record_key_use("k", "shop", (f"10.0.0.{number}", 1))
    assert len(audit._windows) <= 12
    assert len(audit._keys_used) <= 11
    # Each of the first has its own lines, and all others have some together.
    assert len(events()) <= 10 + 2 * EVENTS_MAX + 11


def test_the_use_of_a_key_is_recorded_again_after_a_while_or_from_elsewhere(events: Events) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        audit.record_key_use("k", "shop", (host, 1))
    clock.advance_us(KEY_USE_US)
    audit.record_key_use("k", "shop", ("10.0.0.1", 2))
    assert [one["address"] for one in events()] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]


def test_what_clients_say_is_cut(events: Events) -> None:
    Audit(ManualClock()).record("p", None, "create_topic", "topic " + "x" * 100_000)
    assert len(events()[0]["object"]) <= 300


# --- the topic ----------------------------------------------------------------------------------------------


async def stored_events(doors: Doors) -> list[dict[str, Any]]:
    page = await doors.site.read(AUDIT, 0, 0, 1 << 40, 1 << 20)
    return [json.loads(row.value or b"") for frame in page.frames for row in frame.batch().messages()]


def test_the_topic_has_the_events_if_it_is_wanted(tmp_path: Path, events: Events) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await http(doors, access.keys["root"])
        assert AUDIT not in doors.state()["topics"]
        topic = doors.gate.audit.topic = AuditTopic(doors.site, doors.gate.audit.counts)
        async with doors.client(access.keys["root"]) as client:
            await client.create_topic("t", 1)
        await topic.close()
        (stored,) = await stored_events(doors)
        assert stored.pop("time").startswith("20")
        assert stored.pop("address").startswith("127.0.0.1:")
        assert stored == {"principal": "root", "action": "create_topic", "object": "topic t", "outcome": "ok"}
        assert doors.site.broker.topic(AUDIT).count == 1
        # The rule of root is for all topics, and not for this one.
        async with doors.client(access.keys["root"]) as client:
            assert [one.name for one in await client.topics()] == ["t"]
            with pytest.raises(Forbidden):
                await client.topic(AUDIT)

    knock(tmp_path / "data", work, access=access.file)


def test_without_a_broker_that_takes_them_events_are_dropped_and_nothing_waits(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "QUEUE_MAX", 5)
    monkeypatch.setattr(auditing, "_CLOSE_S", 0.0)

    async def work(doors: Doors) -> None:
        class Full:
            broker = doors.site.broker
            asked = 0

            async def publish(self, *given: object) -> Delivery:
                self.asked += 1
                raise DiskFull("no room")

        site: Any = Full()
        audit = doors.gate.audit
        audit.topic = AuditTopic(site, audit.counts)
        async with doors.client() as client:
            for number in range(9):
                await client.create_topic(f"t{number}", 1)
        await until(lambda: site.asked > 0)
        assert audit.counts["dropped"] == 4
        await audit.topic.close()
        assert audit.counts["dropped"] == 9
        audit.record("late", None, "create_topic")
        await asyncio.sleep(0)

    knock(tmp_path / "data", work)
    assert len(events()) == 10


OWN = Right(Operation.READ, Kind.TOPIC, AUDIT)


@pytest.mark.parametrize(("name", "may"), [("*", False), (AUDIT, True), ("__*", True)])
def test_a_rule_has_to_name_the_audit_log(name: str, may: bool) -> None:
    operations = frozenset(Operation)
    rules = [Rule((Pattern.of("*"),), operations, Kind.TOPIC, (Pattern.of(name),), True)]
    assert Rules(rules).allow("bob", OWN) is may
    denied = Rule((Pattern.of("*"),), operations, Kind.TOPIC, (Pattern.of("*"),), False)
    assert not Rules([*rules, denied]).allow("bob", OWN)
    assert not Rules(rules).allow("bob", OWN._replace(operation=Operation.PUBLISH))


def test_clients_may_not_create_or_publish_to_the_audit_log(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as client:
            with pytest.raises(Forbidden):
                await client.create_topic(AUDIT, 1)
            await doors.site.broker.create_topic(AUDIT, 1, TopicSettings(dead_letters=False))
            with pytest.raises(Forbidden):
                await client.publish(AUDIT, b"forged")
            with pytest.raises(Forbidden):
                await client.schedules.create("s", AUDIT, "* * * * *", b"forged")
        answer = await doors.web.post(f"/v1/topics/{AUDIT}/publish", json={"value": "AA=="})
        assert answer.status_code == 403
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await doors.stub.Publish(pb.PublishRequest(topic=AUDIT, message=pb.NewMessage(value=b"x")))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not await stored_events(doors)

    knock(tmp_path / "data", work)


def test_what_is_refused_keeps_nothing_that_was_done_out_of_the_log(events: Events) -> None:
    audit = Audit(ManualClock())
    for _ in range(2 * EVENTS_MAX):
        audit.record("root", None, "delete_topic", "topic none", "topic_not_found")
    audit.record("root", None, "delete_topic", "topic orders")
    assert events()[-1]["object"] == "topic orders"


def test_strangers_with_many_addresses_keep_nothing_of_others_out_of_the_log(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "_KNOWN_MAX", 10)
    audit = Audit(ManualClock())
    for number in range(10 + 2 * EVENTS_MAX):
        audit.record("", (f"2001:db8::{number:x}", 1), "authenticate", outcome="unauthenticated")
    audit.record("root", ("10.0.0.1", 1), "delete_topic", "topic orders")
    audit.record("root", ("10.0.0.1", 1), "read", "topic orders", "forbidden")
    assert [event["action"] for event in events()[-2:]] == ["delete_topic", "read"]
    assert len(events()) == 10 + EVENTS_MAX + 2


def test_without_rules_no_key_changes_or_deletes_the_audit_log(tmp_path: Path) -> None:
    access = Access(tmp_path)
    content = yaml.safe_load(access.file.read_text(encoding="utf-8"))
    content.pop("rules", None)

    def allow(*names: str) -> None:
        rules = [{"principals": ["root"], "operations": ["admin"], "topics": [name]} for name in names]
        access.file.write_text(yaml.safe_dump({**content, **({"rules": rules} if rules else {})}), encoding="utf-8")

    allow()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic(AUDIT, 1, TopicSettings(dead_letters=False))
        async with doors.client(access.keys["root"]) as client:
            for change in (client.delete_topic(AUDIT), client.change_topic(AUDIT, partitions=2)):
                with pytest.raises(Forbidden, match="Add a rule"):
                    await change
            for names in (("*",), (AUDIT,)):
                doors.gate._stamp = None
                allow(*names)
                await doors.gate.refresh()
                with nullcontext() if names == (AUDIT,) else pytest.raises(Forbidden):
                    await client.delete_topic(AUDIT)
        assert AUDIT not in [record.name for record in doors.site.broker.topics]

    knock(tmp_path / "data", work, access=access.file)


def test_a_group_that_a_consumer_creates_by_joining_is_recorded_once(tmp_path: Path, events: Events) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as client:
            await client.create_topic("t", 1)
            async with client.consumer("native", "t") as consumer:
                await consumer.poll(1, wait="0s")
                await consumer.poll(1, wait="0s")
        for _ in range(2):
            await doors.web.post("/v1/groups/http/poll", json={"topics": ["t"], "consumer": "c"})
            await doors.stub.Poll(pb.PollRequest(group="grpc", consumer="c", topics=["t"]))

    knock(tmp_path / "data", work)
    created = [(one["action"], one["object"], one["outcome"]) for one in events()]
    assert created == [("create_topic", "topic t", "ok")] + [
        ("create_group", f"group {name}", "ok") for name in ("native", "http", "grpc")
    ]
