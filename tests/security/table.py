"""Every request of every door, one of each, and the rights that it needs.

What a request needs is told by the one table of `penstock.server.guard`; only for what is published, consumed and read
it is told here. A kind of request, a route or a method that has no row fails.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
from pyroaring import BitMap64

from penstock.client import cluster_requests as c
from penstock.client import placement as p
from penstock.client import requests as r
from penstock.client.answers import Ack
from penstock.client.requests import Request
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.connection import Connection
from penstock.server.access import Kind, Operation, Right
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.table import SERVICES
from penstock.server.guard import NEEDS
from penstock.server.http import receipts
from penstock.server.http.table import ROUTES
from penstock.server.receipts import Place, key_of, written
from penstock.wire import words
from penstock.wire.conversation import failure_in
from penstock.wire.packets import Kind as Packets
from penstock.wire.packets import Packet
from penstock.wire.runs import to_runs
from security.doors import Doors

TOPIC, GROUP, ID = "acl-topic", "acl-group", "acl-topic:0:0"
SCHEDULE = "acl-schedule"
MESSAGE = Message(b"x")
HOUR_US = 3_600_000_000
LATER_US = SystemClock().now_us() + HOUR_US

# --- what the table of rights says --------------------------------------------------------------------------

SAMPLES: dict[type[Request[Any]], Request[Any]] = {
    type(request): request
    for request in (
        r.CreateTopic(TOPIC, 1, {}),
        r.ChangeTopic(TOPIC, 1, {}),
        r.DeleteTopic(TOPIC),
        r.DescribeTopic(TOPIC),
        r.ListTopics(),
        r.FindOffsets(TOPIC, "latest"),
        r.Archived(TOPIC, None, {0: 0}),
        r.FindArchive(TOPIC),
        r.CreateGroup(GROUP, {}),
        r.ChangeGroup(GROUP, {}),
        r.DeleteGroup(GROUP),
        r.DescribeGroup(GROUP),
        r.ListGroups(),
        r.Seek(GROUP, TOPIC, "latest", None, None, None),
        r.ListParkedKeys(GROUP),
        r.ReleaseKey(GROUP, TOPIC, b"k", None),
        r.Replay(TOPIC, GROUP, 0, None, None, False, False, {}),
        r.ListScheduled(TOPIC, 10),
        r.GetScheduled(ID),
        r.CancelScheduled(ID),
        r.Reschedule(ID, LATER_US),
        r.CreateSchedule(SCHEDULE, TOPIC, "@daily", "UTC", MESSAGE),
        r.ListSchedules(),
        r.DeleteSchedule(SCHEDULE),
        r.ListDeadLetters(TOPIC, r.Where(), False, 10),
        r.GetDeadLetter(ID),
        r.Redrive(TOPIC, r.Where(), False, None),
        r.Discard(TOPIC, r.Where()),
        r.GetMessage(ID),
        r.GetTrace(ID),
        r.FindDeliveries(TOPIC),
        r.ReadDeliveries(TOPIC, 0, 0, 10, 1_000),
        r.AskWhy(ID, GROUP),
        r.GetStateAt(GROUP, TOPIC, 1),
        p.DescribeCluster(),
        p.FindPlacement(),
        p.FindCoordinator(GROUP),
        c.SurveyCluster(),
        c.Reassign(TOPIC, 0, ("a",)),
        c.CancelMoves(TOPIC, 0),
        c.Rebalance(True),
        c.ElectLeaders(TOPIC, 0),
        c.DrainNode("a"),
        c.UndrainNode("a"),
        c.DiscardCopy("a", "p"),
    )
}


def needed(*kinds: type[Request[Any]]) -> list[Right]:
    return list(dict.fromkeys(right for kind in kinds for right in NEEDS[kind](SAMPLES[kind])))


PUBLISHING = [Right(Operation.PUBLISH, Kind.TOPIC, TOPIC)]
OF_GROUP = [Right(Operation.CONSUME, Kind.GROUP, GROUP)]
CONSUMING = [*OF_GROUP, Right(Operation.CONSUME, Kind.TOPIC, TOPIC)]
READING = [Right(Operation.READ, Kind.TOPIC, TOPIC)]
OF_BROKER = [Right(Operation.DESCRIBE, Kind.BROKER, "")]


# --- asking -------------------------------------------------------------------------------------------------

Ask = Callable[[Doors, str | None], Awaitable[str]]
Row = tuple[list[Right], Ask]


async def outcome(asking: Awaitable[object]) -> str:
    """ok, or the code of an error."""
    try:
        await asking
    except PenstockError as error:
        return error.code
    return "ok"


def frame() -> Frame:
    return Frame.of_message(MESSAGE, now_us=1)


def _receipt() -> tuple[str, int, int, list[int]]:
    return TOPIC, 0, 1, to_runs(BitMap64([0]))


NATIVE: dict[Packets, tuple[list[Right], object]] = {
    Packets.PUBLISH: (PUBLISHING, words.PublishFrame(TOPIC, 0)),
    Packets.JOIN: (CONSUMING, words.Join(GROUP, "c", (TOPIC,), {})),
    Packets.LEAVE: (OF_GROUP, words.Leave(GROUP, "c")),
    Packets.POLL: (CONSUMING, words.Poll(GROUP, "c", (TOPIC,), 1, 1, 0)),
    Packets.SUBSCRIBE: (CONSUMING, words.Subscribe(GROUP, "c", (TOPIC,), 1, 1_000)),
    Packets.ANSWER: (CONSUMING, words.Answered(GROUP, *_receipt(), Ack())),
    Packets.ACKS: (CONSUMING, words.Acked(GROUP, TOPIC, 0, [(1, [0, 1])])),
    Packets.READ: (READING, words.Read(TOPIC, 0, 0, 1, 1_000)),
}


# Who it is, and about requests that were allowed before.
ASKING_FOR_NOTHING = {Packets.HELLO, Packets.CANCEL, Packets.CREDIT, Packets.UNSUBSCRIBE}
# Of nodes of a cluster to each other: no key gives a right to them.
OF_NODES = {Packets.REPLICATE, Packets.FETCH}


async def connected(doors: Doors, key: str | None, ask: Callable[[Connection], Awaitable[object]]) -> None:
    async with doors.connection(key) as connection:
        await ask(connection)


def native(kind: Packets, word: object) -> Ask:
    payload = [frame().data] if kind is Packets.PUBLISH else []

    async def ask(doors: Doors, key: str | None) -> str:
        return await outcome(connected(doors, key, lambda connection: connection.request(kind, word, payload)))

    return ask


async def subscribe(doors: Doors, key: str | None) -> str:
    """It is pushed a message, or hears why not."""
    came: asyncio.Queue[Packet | None] = asyncio.Queue()

    async def ask(connection: Connection) -> None:
        connection.subscribe(NATIVE[Packets.SUBSCRIBE][1], came.put_nowait)
        packet = await came.get()
        assert packet is not None
        if packet.kind is Packets.FAILURE:
            raise failure_in(packet)

    return await outcome(connected(doors, key, ask))


def native_rows() -> Iterator[tuple[str, Row]]:
    asking = {kind for kind in Packets if kind < Packets.WELCOME}
    assert NATIVE.keys() | {Packets.CALL} | ASKING_FOR_NOTHING | OF_NODES == asking
    for kind, (rights, word) in NATIVE.items():
        yield kind.name, (rights, subscribe if kind is Packets.SUBSCRIBE else native(kind, word))
    for request in SAMPLES.values():
        yield type(request).__name__, (needed(type(request)), native(Packets.CALL, request))


def answer(doors: Doors) -> dict[str, Any]:
    """With a receipt of a lease that was never made."""
    return {"receipts": [receipts.written(Place(TOPIC, 0, 1, 0), key_of(doors.site.broker.secret, GROUP))]}


# Rights, and the body, or what makes it, or the query.
HTTP: dict[str, tuple[list[Right], Any]] = {
    "GET /v1/cluster": ([], None),
    "GET /v1/cluster/partitions": ([], None),
    "POST /v1/topics": (needed(r.CreateTopic), {"name": TOPIC, "partitions": 1}),
    "GET /v1/topics": ([], None),
    "GET /v1/topics/{topic}": (needed(r.DescribeTopic), None),
    "PATCH /v1/topics/{topic}": (needed(r.ChangeTopic), {"retention": {"hours": 1}}),
    "DELETE /v1/topics/{topic}": (needed(r.DeleteTopic), None),
    "POST /v1/topics/{topic}/archived": (needed(r.Archived), {"offsets": {"0": 0}}),
    "POST /v1/topics/{topic}/publish": (PUBLISHING, {"text": "x"}),
    "POST /v1/topics/{topic}/publish/batch": (PUBLISHING, {"messages": [{"text": "x"}]}),
    "GET /v1/topics/{topic}/messages": ([*READING, *needed(r.FindOffsets)], None),
    "POST /v1/groups/{group}/poll": (CONSUMING, {"topics": TOPIC}),
    "POST /v1/groups/{group}/stream": (CONSUMING, {"topics": TOPIC}),
    "DELETE /v1/groups/{group}/members/{consumer}": (OF_GROUP, None),
    "POST /v1/groups/{group}/ack": (CONSUMING, answer),
    "POST /v1/groups/{group}/nack": (CONSUMING, answer),
    "POST /v1/groups/{group}/reject": (CONSUMING, answer),
    "POST /v1/groups/{group}/release": (CONSUMING, answer),
    "POST /v1/groups/{group}/extend": (CONSUMING, answer),
    "POST /v1/groups": (needed(r.CreateGroup), {"name": GROUP}),
    "GET /v1/groups": ([], None),
    "GET /v1/groups/{group}": (needed(r.DescribeGroup), None),
    "PATCH /v1/groups/{group}": (needed(r.ChangeGroup), {"max_retries": 1}),
    "DELETE /v1/groups/{group}": (needed(r.DeleteGroup), None),
    "POST /v1/groups/{group}/seek": (needed(r.Seek), {"topic": TOPIC, "to": "latest"}),
    "GET /v1/groups/{group}/parked-keys": (needed(r.ListParkedKeys), None),
    "POST /v1/groups/{group}/parked-keys/release": (needed(r.ReleaseKey), {"topic": TOPIC, "key": "k"}),
    "POST /v1/groups/{group}/replay": (needed(r.Replay), {"topic": TOPIC, "from_time": "2020-01-01T00:00:00Z"}),
    "GET /v1/messages/{id}": (needed(r.GetMessage), None),
    "GET /v1/messages/{id}/trace": (needed(r.GetTrace), None),
    "GET /v1/messages/{id}/why": (needed(r.AskWhy), {"group": GROUP}),
    "GET /v1/topics/{topic}/dead-letters": (needed(r.ListDeadLetters), None),
    "GET /v1/dead-letters/{id}": (needed(r.GetDeadLetter), None),
    "POST /v1/topics/{topic}/dead-letters/redrive": (needed(r.Redrive), {}),
    "POST /v1/topics/{topic}/dead-letters/discard": (needed(r.Discard), {}),
    "GET /v1/topics/{topic}/scheduled": (needed(r.ListScheduled), None),
    "GET /v1/scheduled/{id}": (needed(r.GetScheduled), None),
    "PATCH /v1/scheduled/{id}": (needed(r.Reschedule), {"delay": "1h"}),
    "DELETE /v1/scheduled/{id}": (needed(r.CancelScheduled), None),
    "POST /v1/schedules": (
        needed(r.CreateSchedule),
        {"name": SCHEDULE, "topic": TOPIC, "cron": "@daily", "text": "x"},
    ),
    "GET /v1/schedules": (needed(r.ListSchedules), None),
    "DELETE /v1/schedules/{schedule}": (needed(r.DeleteSchedule), None),
    "GET /metrics": (OF_BROKER, None),
}
PARTS = {"topic": TOPIC, "group": GROUP, "id": ID, "consumer": "c", "schedule": SCHEDULE}


def http(route: str, given: Any) -> Ask:
    method, _, path = route.partition(" ")
    path = re.sub(r"{(\w+)}", lambda found: PARTS[found[1]], path)

    async def ask(doors: Doors, key: str | None) -> str:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        has_query = method == "GET" or path.endswith("/stream")
        content = given(doors) if callable(given) else given
        told: dict[str, Any] = {"params": content} if has_query else {"json": content}
        async with doors.web.stream(method, path, headers=headers, **told) as reply:
            if reply.status_code < 300:
                return "ok"
            await reply.aread()
            assert reply.status_code < 500, reply.text
            code: str = reply.json()["code"]
        return code

    return ask


def http_rows() -> Iterator[tuple[str, Row]]:
    closed = {f"{route.method} {route.path}" for route in ROUTES if not route.is_open}
    assert HTTP.keys() == closed | {"GET /metrics"}
    for route, (rights, given) in HTTP.items():
        yield route, (rights, http(route, given))


def sealed(doors: Doors) -> bytes:
    """A receipt of a lease that was never made."""
    return written(Place(TOPIC, 0, 1, 0), key_of(doors.site.broker.secret, GROUP))


_NEW = pb.NewMessage(value=b"x")
GRPC: dict[str, tuple[list[Right], Callable[[Doors], Any]]] = {
    "Publish": (PUBLISHING, lambda doors: pb.PublishRequest(topic=TOPIC, message=_NEW)),
    "PublishBatch": (PUBLISHING, lambda doors: pb.PublishBatchRequest(topic=TOPIC, messages=[_NEW])),
    "PublishStream": (PUBLISHING, lambda doors: pb.PublishBatchRequest(topic=TOPIC, messages=[_NEW])),
    "Poll": (CONSUMING, lambda doors: pb.PollRequest(group=GROUP, consumer="c", topics=[TOPIC])),
    "Subscribe": (
        CONSUMING,
        lambda doors: pb.SubscribeRequest(subscribe=pb.Subscription(group=GROUP, consumer="c", topics=[TOPIC])),
    ),
    "Ack": (CONSUMING, lambda doors: pb.AckRequest(group=GROUP, receipts=[sealed(doors)])),
    "Nack": (CONSUMING, lambda doors: pb.NackRequest(group=GROUP, receipts=[sealed(doors)])),
    "Reject": (CONSUMING, lambda doors: pb.RejectRequest(group=GROUP, receipts=[sealed(doors)])),
    "Release": (CONSUMING, lambda doors: pb.ReleaseRequest(group=GROUP, receipts=[sealed(doors)])),
    "Extend": (CONSUMING, lambda doors: pb.ExtendRequest(group=GROUP, receipts=[sealed(doors)])),
    "Leave": (OF_GROUP, lambda doors: pb.LeaveRequest(group=GROUP, consumer="c")),
    "CreateTopic": (needed(r.CreateTopic), lambda doors: pb.CreateTopicRequest(name=TOPIC, partitions=1)),
    "GetTopic": (needed(r.DescribeTopic), lambda doors: pb.GetTopicRequest(name=TOPIC)),
    "ListTopics": ([], lambda doors: pb.ListTopicsRequest()),
    "UpdateTopic": (needed(r.ChangeTopic), lambda doors: pb.UpdateTopicRequest(name=TOPIC)),
    "DeleteTopic": (needed(r.DeleteTopic), lambda doors: pb.DeleteTopicRequest(name=TOPIC)),
    "Archived": (needed(r.Archived), lambda doors: pb.ArchivedRequest(topic=TOPIC, offsets={0: 0})),
    "FindOffsets": (needed(r.FindOffsets), lambda doors: pb.FindOffsetsRequest(topic=TOPIC, edge=pb.EDGE_LATEST)),
    "CreateGroup": (needed(r.CreateGroup), lambda doors: pb.CreateGroupRequest(name=GROUP)),
    "GetGroup": (needed(r.DescribeGroup), lambda doors: pb.GetGroupRequest(name=GROUP)),
    "ListGroups": ([], lambda doors: pb.ListGroupsRequest()),
    "UpdateGroup": (needed(r.ChangeGroup), lambda doors: pb.UpdateGroupRequest(name=GROUP)),
    "DeleteGroup": (needed(r.DeleteGroup), lambda doors: pb.DeleteGroupRequest(name=GROUP)),
    "Seek": (needed(r.Seek), lambda doors: pb.SeekRequest(group=GROUP, topic=TOPIC, edge=pb.EDGE_LATEST)),
    "Replay": (needed(r.Replay), lambda doors: pb.ReplayRequest(topic=TOPIC, group=GROUP, from_us=0)),
    "ListParkedKeys": (needed(r.ListParkedKeys), lambda doors: pb.ListParkedKeysRequest(group=GROUP)),
    "ReleaseKey": (needed(r.ReleaseKey), lambda doors: pb.ReleaseKeyRequest(group=GROUP, topic=TOPIC, key=b"k")),
    "GetMessage": (needed(r.GetMessage), lambda doors: pb.GetMessageRequest(id=ID)),
    "TraceMessage": (needed(r.GetTrace), lambda doors: pb.TraceMessageRequest(id=ID)),
    "WhyMessage": (needed(r.AskWhy), lambda doors: pb.WhyMessageRequest(id=ID, group=GROUP)),
    "Read": ([*READING, *needed(r.FindOffsets)], lambda doors: pb.ReadRequest(topic=TOPIC)),
    "ListScheduled": (needed(r.ListScheduled), lambda doors: pb.ListScheduledRequest(topic=TOPIC)),
    "GetScheduled": (needed(r.GetScheduled), lambda doors: pb.GetScheduledRequest(id=ID)),
    "CancelScheduled": (needed(r.CancelScheduled), lambda doors: pb.CancelScheduledRequest(id=ID)),
    "Reschedule": (needed(r.Reschedule), lambda doors: pb.RescheduleRequest(id=ID, delay_us=HOUR_US)),
    "CreateSchedule": (
        needed(r.CreateSchedule),
        lambda doors: pb.CreateScheduleRequest(name=SCHEDULE, topic=TOPIC, cron="@daily", message=_NEW),
    ),
    "ListSchedules": (needed(r.ListSchedules), lambda doors: pb.ListSchedulesRequest()),
    "DeleteSchedule": (needed(r.DeleteSchedule), lambda doors: pb.DeleteScheduleRequest(name=SCHEDULE)),
    "ListDeadLetters": (needed(r.ListDeadLetters), lambda doors: pb.ListDeadLettersRequest(topic=TOPIC)),
    "GetDeadLetter": (needed(r.GetDeadLetter), lambda doors: pb.GetDeadLetterRequest(id=ID)),
    "Redrive": (needed(r.Redrive), lambda doors: pb.RedriveRequest(topic=TOPIC)),
    "Discard": (needed(r.Discard), lambda doors: pb.DiscardRequest(topic=TOPIC)),
}


def grpc_call(method: str, made: Callable[[Doors], Any]) -> Ask:
    async def ask(doors: Doors, key: str | None, tries: int = 5) -> str:
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        try:
            call = getattr(doors.stub, method)
            if method in ("PublishStream", "Subscribe"):
                call = call(metadata=metadata)
                await call.write(made(doors))
            else:
                call = call(made(doors), metadata=metadata)
            if isinstance(call, grpc.aio.UnaryUnaryCall):
                await call
            else:
                reply = await call.read()
                call.cancel()
                if method == "PublishStream" and reply.HasField("failure"):
                    return str(reply.failure.code)
        except grpc.aio.AioRpcError as error:
            if tries > 1 and "execute_batch" in (error.debug_error_string() or ""):
                # Refused while its first message was being sent: the library says that this failed, and not why.
                return await ask(doors, key, tries - 1)
            return str(dict(error.trailing_metadata() or ())["penstock-code"])
        return "ok"

    return ask


def grpc_rows() -> Iterator[tuple[str, Row]]:
    assert GRPC.keys() == {method for methods in SERVICES.values() for method in methods}
    for method, (rights, made) in GRPC.items():
        yield method, (rights, grpc_call(method, made))


ROWS = {"native": native_rows, "http": http_rows, "grpc": grpc_rows}


async def prepare(doors: Doors) -> None:
    """A topic with messages, one of which waits, and a group with a member."""
    broker = doors.site.broker
    if not any(record.name == TOPIC for record in broker.topics):
        await broker.create_topic(TOPIC, 1)
        await broker.topic(TOPIC).publish(Message(b"x", deliver_at=SystemClock().now_us() + HOUR_US))
    await broker.topic(TOPIC).publish(MESSAGE)
    if not any(record.name == GROUP for record in broker.groups):
        await broker.ensure_group(GROUP)
    await doors.site.join_for_a_session(GROUP, "c", [TOPIC], {})
