"""Quotas of principals, at all doors: what is over one is refused with the time to wait, and nothing of it is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
import yaml

from penstock.client.client import Client
from penstock.client.requests import CreateTopic, DescribeTopic
from penstock.clock import SystemClock
from penstock.errors import LimitReached, PenstockError, QuotaExceeded
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.message import Message
from penstock.net.remote import RemoteTransport
from penstock.server.access_file import add_key, set_quota
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.keys import make
from penstock.server.metrics import rendered
from penstock.server.metrics_access import of_access
from penstock.server.quotas import CONNECTIONS, CONSUME, PRODUCER_US, PUBLISH, REQUESTS, STORAGE
from penstock.testing.clock import ManualClock
from penstock.wire import words
from penstock.wire.packets import Kind
from security.doors import Doors, knock, until

SECOND_US = 1_000_000
VALUE = bytes(1_000)


class Access:
    """An access file with keys of two principals. `shop` has the quotas."""

    def __init__(self, path: Path, **quotas: int) -> None:
        self.file = path / "access.yaml"
        self.keys: dict[str, str] = {}
        for principal in ("shop", "other"):
            self.keys[principal], kept = make(principal)
            add_key(self.file, kept)
        self.set(**quotas)

    def set(self, **quotas: int | None) -> None:
        set_quota(self.file, "shop", quotas)

    @property
    def key(self) -> str:
        return self.keys["shop"]


class Answer(NamedTuple):
    """What a door says: ok, or the code of an error and what it has with it."""

    code: str
    retry_after: float = 0.0
    quota: str = ""


OK = Answer("ok")


async def by_native(asking: Awaitable[Any]) -> Answer:
    try:
        await asking
    except QuotaExceeded as error:
        return Answer(error.code, error.details["retry_after"], error.details["quota"])
    return OK


def by_http(answer: httpx.Response) -> Answer:
    if answer.is_success:
        return OK
    body = answer.json()
    assert answer.status_code == 429
    # Whole seconds, as HTTP has them.
    assert float(answer.headers["retry-after"]) >= body["details"]["retry_after"]
    return Answer(body["code"], body["details"]["retry_after"], body["details"]["quota"])


async def by_grpc(asking: Awaitable[Any]) -> Answer:
    try:
        await asking
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(error.trailing_metadata())
        details = json.loads(told["penstock-details"])
        return Answer(str(told["penstock-code"]), details["retry_after"], details["quota"])
    return OK


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def connected(doors: Doors, key: str) -> RemoteTransport:
    return await RemoteTransport.to(doors.place._replace(key=key), SystemClock())


# --- publishing ---------------------------------------------------------------------------------------------


async def native_publish(doors: Doors, key: str) -> Answer:
    transport = await connected(doors, key)
    frame = Frame.of_message(Message(VALUE), now_us=transport.now_us(), limits=transport.limits)
    try:
        return await by_native(transport.publish_frame("t", 0, frame))
    finally:
        await transport.close()


async def http_publish(doors: Doors, key: str) -> Answer:
    body = {"value": "A" * 1_336}
    return by_http(await doors.web.post("/v1/topics/t/publish", json=body, headers=bearer(key)))


async def http_batch(doors: Doors, key: str) -> Answer:
    """All of it, or nothing."""
    body = {"messages": [{"value": "AAAA"}] * 400}
    answer = await doors.web.post("/v1/topics/t/publish/batch", json=body, headers=bearer(key))
    assert not answer.is_success or not any(one.get("error") for one in answer.json()["results"])
    return by_http(answer)


async def grpc_publish(doors: Doors, key: str) -> Answer:
    asked = pb.PublishRequest(topic="t", message=pb.NewMessage(value=VALUE))
    return await by_grpc(doors.stub.Publish(asked, metadata=[*bearer(key).items()]))


async def grpc_batch(doors: Doors, key: str) -> Answer:
    """In several partitions: all of it, or nothing."""
    messages = [pb.NewMessage(value=bytes(300), key=b"%d" % number) for number in range(6)]
    before = doors.state()["ends"]["t"]
    asked = pb.PublishBatchRequest(topic="t", messages=messages)
    answer = await by_grpc(doors.stub.PublishBatch(asked, metadata=[*bearer(key).items()]))
    stored = [after - end for after, end in zip(doors.state()["ends"]["t"], before, strict=True)]
    assert sum(stored) == (6 if answer is OK else 0)
    assert sum(count > 0 for count in stored) != 1
    return answer


PUBLISHING = [native_publish, http_publish, http_batch, grpc_publish, grpc_batch]
Way = Callable[[Doors, str], Awaitable[Answer]]


@pytest.mark.parametrize("way", PUBLISHING, ids=lambda way: way.__name__)
def test_publishing_more_bytes_than_the_quota_is_refused_until_the_balance_is_back(tmp_path: Path, way: Way) -> None:
    access, clock = Access(tmp_path, publish_bytes_per_s=1_000), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 3)
        # The balance of the first second; the frame is larger, and stored all the same.
        assert await way(doors, access.key) is OK
        refused = await way(doors, access.key)
        assert refused.code == "quota_exceeded"
        assert refused.quota == PUBLISH
        assert refused.retry_after > 0
        assert await way(doors, access.keys["other"]) is OK
        clock.advance_us(int(refused.retry_after * SECOND_US) + 1_000)
        assert await way(doors, access.key) is OK

    knock(tmp_path / "data", work, access=access.file, clock=clock)


# --- requests -----------------------------------------------------------------------------------------------


async def native_look(doors: Doors, key: str) -> Answer:
    async with doors.connection(key) as connection:
        return await by_native(connection.request(Kind.CALL, DescribeTopic("t")))


async def http_look(doors: Doors, key: str) -> Answer:
    return by_http(await doors.web.get("/v1/topics/t", headers=bearer(key)))


async def http_log(doors: Doors, key: str) -> Answer:
    """The broker is asked several times for it; it is one request."""
    return by_http(await doors.web.get("/v1/topics/t/messages", headers=bearer(key)))


async def grpc_look(doors: Doors, key: str) -> Answer:
    return await by_grpc(doors.stub.GetTopic(pb.GetTopicRequest(name="t"), metadata=[*bearer(key).items()]))


@pytest.mark.parametrize(
    "way", [native_publish, http_publish, http_batch, grpc_batch, native_look, http_look, http_log, grpc_look],
    ids=lambda way: way.__name__,
)  # fmt: skip
def test_more_requests_than_the_quota_are_refused(tmp_path: Path, way: Way) -> None:
    access, clock = Access(tmp_path, requests_per_s=3), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 3)
        answers = [await way(doors, access.key) for _ in range(4)]
        assert [one.code for one in answers] == ["ok", "ok", "ok", "quota_exceeded"]
        assert answers[-1].quota == REQUESTS
        clock.advance_us(SECOND_US)
        assert await way(doors, access.key) is OK

    knock(tmp_path / "data", work, access=access.file, clock=clock)


# --- consuming ----------------------------------------------------------------------------------------------


async def native_poll(doors: Doors, key: str) -> Answer:
    async with doors.connection(key) as connection:
        await connection.request(Kind.JOIN, words.Join("g", "native", ("t",), {}))
        return await by_native(
            connection.request(Kind.POLL, words.Poll("g", "native", ("t",), 1, 1 << 20, 0))
        )  # fmt: skip


async def http_poll(doors: Doors, key: str) -> Answer:
    body = {"topics": ["t"], "consumer": "http", "max": 1}
    return by_http(await doors.web.post("/v1/groups/g/poll", json=body, headers=bearer(key)))


async def grpc_poll(doors: Doors, key: str) -> Answer:
    asked = pb.PollRequest(group="g", consumer="grpc", topics=["t"], max_messages=1)
    return await by_grpc(doors.stub.Poll(asked, metadata=[*bearer(key).items()]))


async def native_read(doors: Doors, key: str) -> Answer:
    async with doors.connection(key) as connection:
        return await by_native(connection.request(Kind.READ, words.Read("t", 0, 0, 1 << 40, 1 << 20)))


@pytest.mark.parametrize(
    "way", [native_poll, http_poll, grpc_poll, native_read, http_log], ids=lambda way: way.__name__
)
def test_consuming_more_bytes_than_the_quota_is_refused_until_the_balance_is_back(tmp_path: Path, way: Way) -> None:
    access, clock = Access(tmp_path, consume_bytes_per_s=500), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for _ in range(5):
            await doors.site.publish("t", Message(VALUE), 0)
        assert await way(doors, access.key) is OK
        refused = await way(doors, access.key)
        assert (refused.code, refused.quota) == ("quota_exceeded", CONSUME)
        clock.advance_us(int(refused.retry_after * SECOND_US) + 1_000)
        assert await way(doors, access.key) is OK

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_a_poll_that_may_wait_waits_for_its_quota(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, consume_bytes_per_s=20_000), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for _ in range(3):
            await doors.site.publish("t", Message(bytes(21_000)), 0)
        async with doors.connection(access.key) as connection:
            await connection.request(Kind.JOIN, words.Join("g", "c", ("t",), {}))
            poll = words.Poll("g", "c", ("t",), 1, 1 << 20, 10 * SECOND_US)
            assert words.decoded((await connection.request(Kind.POLL, poll)).header, words.Delivered).given
            second = asyncio.ensure_future(connection.request(Kind.POLL, poll))
            await until(lambda: doors.gate.quotas.meter("shop").throttled[CONSUME] > 0)
            assert not second.done()
            clock.advance_us(SECOND_US)
            assert words.decoded((await second).header, words.Delivered).given

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_acknowledgements_are_counted_and_never_refused(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, requests_per_s=4), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for _ in range(6):
            await doors.site.publish("t", Message(b"x"), 0)
        async with doors.connection(access.key) as connection:
            await connection.request(Kind.JOIN, words.Join("g", "c", ("t",), {}))
            poll = words.Poll("g", "c", ("t",), 6, 1 << 20, 0)
            (given,) = words.decoded((await connection.request(Kind.POLL, poll)).header, words.Delivered).given
            for offset in range(6):
                acked = words.Acked("g", "t", 0, [(given.lease, [offset, 1])])
                await connection.request(Kind.ACKS, acked)
            with pytest.raises(QuotaExceeded):
                await connection.request(Kind.POLL, poll)
        assert doors.gate.quotas.meter("shop").used[REQUESTS] == 8
        assert doors.site.broker.group("g", "t").lag() == [0]

    knock(tmp_path / "data", work, access=access.file, clock=clock)


# --- connections --------------------------------------------------------------------------------------------


def test_native_connections_over_the_quota_are_refused_until_one_is_closed(tmp_path: Path) -> None:
    access = Access(tmp_path, connections=2)

    async def work(doors: Doors) -> None:
        async with doors.connection(access.key), doors.connection(access.keys["other"]):
            async with doors.connection(access.key):
                with pytest.raises(QuotaExceeded, match="connections of 2"):
                    await connected(doors, access.key)
            await until(lambda: doors.gate.quotas.meter("shop").connections == 1)
            async with doors.connection(access.key):
                pass

    knock(tmp_path / "data", work, access=access.file)


def test_http_connections_over_the_quota_are_refused_until_one_is_closed(tmp_path: Path) -> None:
    access = Access(tmp_path, connections=1)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        assert await http_look(doors, access.key) is OK
        assert await http_look(doors, access.key) is OK
        async with httpx.AsyncClient(base_url=doors.web.base_url) as second:
            assert by_http(await second.get("/v1/topics/t", headers=bearer(access.key))).quota == CONNECTIONS
            assert (await second.get("/v1/topics/t", headers=bearer(access.keys["other"]))).is_success
            await doors.web.aclose()
            await until(lambda: doors.gate.quotas.meter("shop").connections == 0)
            assert (await second.get("/v1/topics/t", headers=bearer(access.key))).is_success

    knock(tmp_path / "data", work, access=access.file)


def test_grpc_connections_with_calls_under_way_count_for_the_quota(tmp_path: Path) -> None:
    access = Access(tmp_path, connections=1)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        metadata = [*bearer(access.key).items()]
        stream = doors.stub.Subscribe(metadata=metadata)
        await stream.write(pb.SubscribeRequest(subscribe=pb.Subscription(group="g", consumer="c", topics=["t"])))
        await stream.read()
        # On the same connection.
        assert await grpc_look(doors, access.key) is OK
        async with doors.channel() as channel:
            look = channel.unary_unary(
                "/penstock.v1.Topics/GetTopic",
                request_serializer=pb.GetTopicRequest.SerializeToString,
                response_deserializer=pb.Topic.FromString,
            )
            asked = pb.GetTopicRequest(name="t")
            assert (await by_grpc(look(asked, metadata=metadata))).quota == CONNECTIONS
            stream.cancel()
            await until(lambda: doors.gate.quotas.meter("shop").connections == 0)
            assert await by_grpc(look(asked, metadata=metadata)) is OK

    knock(tmp_path / "data", work, access=access.file)


# --- storage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [native_publish, http_publish, grpc_publish], ids=lambda way: way.__name__)
def test_publishes_to_topics_of_a_principal_that_stores_too_much_are_refused(tmp_path: Path, way: Way) -> None:
    access = Access(tmp_path, storage_bytes=3_000)

    async def work(doors: Doors) -> None:
        transport = await connected(doors, access.key)
        # What a client says about the owner does not count.
        await transport.call(CreateTopic("t", 1, {}, owner="other"))
        await transport.close()
        assert doors.site.broker.topic("t").record.owner == "shop"
        await doors.site.broker.create_topic("free", 1)
        stored = 0
        while await way(doors, access.key) is OK:
            await doors.gate.refresh()
            stored += 1
        assert 1 <= stored <= 3
        # Whoever publishes: it is the topic's owner that stores too much.
        refused = await way(doors, access.keys["other"])
        assert (refused.code, refused.quota) == ("quota_exceeded", STORAGE)
        await doors.site.publish("free", Message(VALUE), 0)
        assert doors.gate.quotas.meter("shop").throttled[STORAGE] >= 2
        assert doors.gate.quotas.meter("shop").stored_bytes >= 3_000
        access.set(storage_bytes=100_000)
        await refreshed(doors)
        assert await way(doors, access.key) is OK

    knock(tmp_path / "data", work, access=access.file)


def test_the_owner_of_a_topic_is_kept_over_a_restart(tmp_path: Path) -> None:
    access = Access(tmp_path, storage_bytes=1_000)

    async def create(doors: Doors) -> None:
        async with doors.client(access.key) as client:
            await client.create_topic("t", 1)
            await client.publish("t", VALUE)

    async def fail(doors: Doors) -> None:
        await doors.gate.refresh()
        with pytest.raises(QuotaExceeded):
            await doors.site.publish("t", Message(VALUE), 0)

    knock(tmp_path / "data", create, access=access.file)
    knock(tmp_path / "data", fail, access=access.file)


# --- the file, and what is shown ----------------------------------------------------------------------------


async def refreshed(doors: Doors) -> None:
    """The file was changed: its time may be the same as before for a moment."""
    doors.gate._stamp = None
    await doors.gate.refresh()


# --- what is created ----------------------------------------------------------------------------------------


async def _create_topic(q: Client, number: int) -> None:
    await q.create_topic(f"t{number}", partitions=1)


async def _create_group(q: Client, number: int) -> None:
    await q.create_group(f"g{number}")


async def _join_a_new_group(q: Client, number: int) -> None:
    async with q.consumer(f"g{number}", "t") as consumer:
        await consumer.poll(1, wait="0s")


async def _replay(q: Client, number: int) -> None:
    await q.replay("t", group=f"g{number}", offsets={0: (0, 0)})


async def _create_schedule(q: Client, number: int) -> None:
    await q.schedules.create(f"s{number}", "t", "@daily", b"x")


CREATING = {
    _create_topic: "topics",
    _create_group: "groups",
    _join_a_new_group: "groups",
    _replay: "groups",
    _create_schedule: "schedules",
}


@pytest.mark.parametrize("create", CREATING, ids=lambda create: create.__name__)
def test_a_principal_has_as_much_as_its_quota_however_it_is_created(
    tmp_path: Path, create: Callable[[Client, int], Awaitable[None]]
) -> None:
    kind = CREATING[create]
    access = Access(tmp_path, **{kind: 3})

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        # Another's does not count.
        async with doors.client(access.keys["other"]) as other:
            await create(other, 9)
        async with doors.client(access.key) as q:
            made = await asyncio.gather(*(create(q, number) for number in range(5)), return_exceptions=True)
            errors = [one for one in made if isinstance(one, PenstockError)]
            assert [error.details for error in errors] == [{"limit": kind, "maximum": 3}] * 2
            assert all(isinstance(error, LimitReached) for error in errors)
        shown = rendered(of_access(doors.gate)).splitlines()
        assert f'penstock_quota_used{{principal="shop",quota="{kind}"}} 3' in shown

    async def again(doors: Doors) -> None:
        """After a restart, and with room again."""
        async with doors.client(access.key) as q:
            with pytest.raises(LimitReached):
                await create(q, 7)
            access.set(**{kind: 4})
            await doors.gate.refresh()
            await create(q, 7)

    knock(tmp_path / "data", work, access=access.file)
    knock(tmp_path / "data", again, access=access.file)


@pytest.mark.parametrize("create", CREATING, ids=lambda create: create.__name__)
def test_without_a_quota_a_principal_has_half_of_what_the_broker_allows(
    tmp_path: Path, create: Callable[[Client, int], Awaitable[None]]
) -> None:
    kind, access = CREATING[create], Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        async with doors.client(access.key) as q, doors.client(access.keys["other"]) as other:
            for number in range(3):
                await create(q, number)
            with pytest.raises(LimitReached) as caught:
                await create(q, 3)
            assert caught.value.details == {"limit": kind, "maximum": 3}
            await create(other, 4)
            # A quota is no share.
            access.set(**{kind: 4})
            await refreshed(doors)
            await create(q, 3)

    limits = Limits(**{f"{kind}_max": 6})
    knock(tmp_path / "data", work, access=access.file, limits=limits)


def test_without_a_quota_a_principal_has_half_of_the_members_that_the_broker_allows(tmp_path: Path) -> None:
    access = Access(tmp_path)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        site = doors.gate.admit(access.key)
        for number in range(2):
            await site.join("g", f"c{number}", ["t"], {})
        with pytest.raises(LimitReached):
            await site.join("h", "c2", ["t"], {})
        await doors.gate.admit(access.keys["other"]).join("h", "c3", ["t"], {})

    knock(tmp_path / "data", work, access=access.file, limits=Limits(members_max=4))


def test_a_group_that_is_there_can_be_joined_by_a_principal_that_may_create_none(tmp_path: Path) -> None:
    access = Access(tmp_path, groups=1)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        await doors.site.broker.create_group("g8")
        async with doors.client(access.key) as q:
            await _join_a_new_group(q, 1)
            for group in (1, 8):
                await _join_a_new_group(q, group)
                await _create_group(q, group)

    knock(tmp_path / "data", work, access=access.file)


@pytest.mark.parametrize("leaves", [True, False])
def test_members_of_a_principal_are_bounded_until_some_have_left(tmp_path: Path, leaves: bool) -> None:
    access = Access(tmp_path, members=2)

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        site = doors.gate.admit(access.key)
        for number in range(2):
            await site.join("g", f"c{number}", ["t"], {})
        await site.join("g", "c0", ["t"], {})
        with pytest.raises(LimitReached):
            await site.join("h", "c2", ["t"], {})
        if leaves:
            await site.leave("g", "c0")
        else:
            # As when its session is over.
            doors.site.broker.leave("g", "c0")
        await site.join("h", "c2", ["t"], {})
        await doors.gate.admit(access.keys["other"]).join("h", "c3", ["t"], {})

    knock(tmp_path / "data", work, access=access.file)


def test_producers_of_a_principal_are_bounded_until_some_have_been_silent_for_long(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, producers=2), ManualClock()

    async def publish(doors: Doors, key: str, producer: int, sequence: int = 0) -> Answer:
        frame = Frame.of_message(Message(VALUE), now_us=1, producer=Producer(producer, 0, sequence))
        async with doors.connection(key) as connection:
            word = words.PublishFrame("t", 0, "all")
            return await by_native(connection.request(Kind.PUBLISH, word, [frame.data]))

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        assert await publish(doors, access.key, 1) is OK
        assert await publish(doors, access.key, 2) is OK
        refused = await publish(doors, access.key, 3)
        assert (refused.code, refused.quota) == ("quota_exceeded", "producers")
        assert await publish(doors, access.key, 2, 1) is OK
        assert await publish(doors, access.keys["other"], 3) is OK
        clock.advance_us(PRODUCER_US)
        assert await publish(doors, access.key, 3) is OK

    knock(tmp_path / "data", work, access=access.file, clock=clock)


# --- changes ------------------------------------------------------------------------------------------------


def test_a_quota_that_is_changed_applies_to_connections_that_are_open(tmp_path: Path) -> None:
    access, clock = Access(tmp_path), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        async with doors.connection(access.key) as connection:
            for _ in range(10):
                await connection.request(Kind.CALL, DescribeTopic("t"))
            access.set(requests_per_s=1)
            await refreshed(doors)
            await connection.request(Kind.CALL, DescribeTopic("t"))
            with pytest.raises(QuotaExceeded):
                await connection.request(Kind.CALL, DescribeTopic("t"))
            access.set(requests_per_s=None)
            await refreshed(doors)
            await connection.request(Kind.CALL, DescribeTopic("t"))

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_metrics_show_quotas_what_was_used_and_what_was_refused(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, requests_per_s=2, connections=5, storage_bytes=1_000_000), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1, owner="shop")
        for _ in range(3):
            await http_publish(doors, access.key)
        await doors.gate.refresh()
        shown = rendered(of_access(doors.gate)).splitlines()
        size = doors.site.broker.topic("t").partitions[0].messages.size
        for line in (
            'penstock_quota_limit{principal="shop",quota="requests_per_s"} 2',
            'penstock_quota_throttled_total{principal="shop",quota="requests_per_s"} 1',
            'penstock_quota_used_total{principal="shop",quota="requests_per_s"} 2',
            'penstock_quota_used{principal="shop",quota="connections"} 1',
            f'penstock_quota_used{{principal="shop",quota="storage_bytes"}} {size}',
        ):
            assert line in shown

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_defaults_are_for_each_principal_by_itself(tmp_path: Path) -> None:
    access, clock = Access(tmp_path), ManualClock()
    content = yaml.safe_load(access.file.read_text(encoding="utf-8"))
    content["quotas"] = [{"principals": ["*"], "requests_per_s": 1}]
    access.file.write_text(yaml.safe_dump(content), encoding="utf-8")

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for key in access.keys.values():
            assert await http_look(doors, key) is OK
            assert (await http_look(doors, key)).quota == REQUESTS

    knock(tmp_path / "data", work, access=access.file, clock=clock)


# --- the client ---------------------------------------------------------------------------------------------


async def pass_time(doors: Doors, clock: ManualClock) -> None:
    """A second, each time something is throttled."""
    throttled = doors.gate.quotas.meter("shop").throttled
    while True:
        seen = throttled.total()
        while throttled.total() == seen:
            await asyncio.sleep(0.001)
        clock.advance_us(SECOND_US)


def test_the_client_waits_as_long_as_the_broker_says_and_loses_nothing(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, publish_bytes_per_s=20_000, consume_bytes_per_s=20_000), ManualClock()

    async def work(doors: Doors) -> None:
        meter, passing = doors.gate.quotas.meter("shop"), asyncio.ensure_future(pass_time(doors, clock))
        async with doors.client(access.key) as client:
            await client.create_topic("t", 1)
            for number in range(4):
                await client.publish("t", b"%d" % number + bytes(11_000))
            alone = meter.throttled[PUBLISH]
            assert alone > 0
            async with client.producer("t") as producer:
                for number in range(4, 8):
                    await producer.send(b"%d" % number + bytes(21_000))
                    await producer.flush()
            assert meter.throttled[PUBLISH] > alone
            got: list[int] = []
            async with client.consumer("g", "t") as consumer:
                while len(got) < 8:
                    for message in await consumer.poll(max=1, wait="10s"):
                        got.append(int(message.value[:1]))
                        await message.ack()
        assert got == list(range(8))
        assert meter.throttled[CONSUME] > 0
        passing.cancel()

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_requests_of_the_client_wait_for_their_quota(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, requests_per_s=20), ManualClock()

    async def work(doors: Doors) -> None:
        passing = asyncio.ensure_future(pass_time(doors, clock))
        async with doors.client(access.key) as client:
            await client.create_topic("t", 1)
            for _ in range(30):
                await client.topic("t")
            for _ in range(20):
                await client.change_topic("t", dead_letters=True)
        assert doors.gate.quotas.meter("shop").throttled[REQUESTS] >= 2
        passing.cancel()

    knock(tmp_path / "data", work, access=access.file, clock=clock)


def test_a_quota_that_is_not_back_within_the_retry_budget_is_an_error(tmp_path: Path) -> None:
    access, clock = Access(tmp_path, publish_bytes_per_s=1_000), ManualClock()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        async with doors.client(access.key) as client, client.producer("t", retry_for="1s") as producer:
            await producer.send(bytes(10_000))
            await producer.flush()
            await producer.send(VALUE)
            with pytest.raises(QuotaExceeded):
                await producer.flush()

    knock(tmp_path / "data", work, access=access.file, clock=clock)
