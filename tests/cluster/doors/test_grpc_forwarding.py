"""What is asked of the gRPC door of a node that leads nothing: every method there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from cluster_nodes import LocalCluster
from grpc_served import failure, listed, pb, polled, publish, stub_of
from penstock.client.placement import FindPlacement
from penstock.errors import ConnectionLost
from penstock.server.forwarding.way import Way
from penstock.server.grpc.table import SERVICES

HOUR_US = 3_600_000_000
WAIT_US = 5_000_000

Work = Callable[[Any, str], Awaitable[None]]
# Methods that were asked for.
asked: set[str] = set()


class Stub:
    """Notes what is asked for."""

    def __init__(self, stub: SimpleNamespace) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        asked.add(name)
        return getattr(self._stub, name)


@pytest.fixture
def through(cluster: LocalCluster, topic: str) -> Callable[[Work], None]:
    """Runs something with a client of the node that leads nothing, and the name of a topic."""

    async def run(work: Work) -> None:
        address = str(cluster.nodes["c"].where.grpc)
        async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            await work(Stub(stub_of(channel)), topic)

    return lambda work: cluster.run(run(work))


async def taken(q: Any, topic: str, group: str, count: int, **fields: Any) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        wanted = polled(group, "c", (topic,), max_messages=count - len(found), wait_us=WAIT_US, **fields)
        found += (await q.Poll(wanted)).messages
    return found


def receipts(messages: list[Any]) -> list[bytes]:
    return [one.receipt for one in messages]


def test_publishing_and_reading(through: Callable[[Work], None]) -> None:
    async def work(q: Any, topic: str) -> None:
        one = await q.Publish(pb.PublishRequest(topic=topic, message=pb.NewMessage(value=b"one", key=b"k")))
        values = [b"%d" % number for number in range(20)]
        messages = [pb.NewMessage(value=value, key=value) for value in values]
        batch = await q.PublishBatch(pb.PublishBatchRequest(topic=topic, messages=messages))
        assert set(batch.partitions) == {0, 1, 2}
        stream = q.PublishStream()
        for name in (topic, "nowhere", topic):
            await stream.write(pb.PublishBatchRequest(topic=name, partition=1, messages=messages[:3]))
        await stream.done_writing()
        first, wrong, second = await listed(stream)
        assert [*second.offsets] == [offset + 3 for offset in first.offsets]
        assert wrong.failure.code == "topic_not_found"
        found = await listed(q.Read(pb.ReadRequest(topic=topic)))
        assert sorted(message.value for message in found) == sorted([b"one", *values, *2 * values[:3]])
        assert (await q.GetMessage(pb.GetMessageRequest(id=one.id))).value == b"one"
        assert (await q.TraceMessage(pb.TraceMessageRequest(id=one.id))).steps
        await q.CreateGroup(pb.CreateGroupRequest(name="why"))
        assert (await q.WhyMessage(pb.WhyMessageRequest(id=one.id, group="why"))).answer

    through(work)


def test_a_batch_whose_answer_is_lost_on_the_way_is_stored_once(
    through: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_frame, lost = Way.publish_frame, 0

    async def lose(way: Way, *given: Any) -> Any:
        nonlocal lost
        answer = await publish_frame(way, *given)
        if lost < 3:
            lost += 1
            raise ConnectionLost("the leader was killed before it could answer")
        return answer

    async def work(q: Any, topic: str) -> None:
        monkeypatch.setattr(Way, "publish_frame", lose)
        messages = [pb.NewMessage(value=b"%d" % number, key=b"%d" % number) for number in range(20)]
        batch = await q.PublishBatch(pb.PublishBatchRequest(topic=topic, messages=messages))
        stream = q.PublishStream()
        for number in range(5):
            one = pb.NewMessage(value=b"streamed %d" % number)
            await stream.write(pb.PublishBatchRequest(topic=topic, partition=1, messages=[one]))
        await stream.done_writing()
        streamed = [answer.offsets[0] for answer in await listed(stream)]
        found = await listed(q.Read(pb.ReadRequest(topic=topic)))
        at = {(message.partition, message.offset): message.value for message in found}
        assert len(at) == 25
        assert [at[place] for place in zip(batch.partitions, batch.offsets, strict=True)] == [
            message.value for message in messages
        ]
        assert [at[1, offset] for offset in streamed] == [b"streamed %d" % number for number in range(5)]
        assert streamed == sorted(streamed)

    through(work)
    assert lost == 3


def test_polling_and_answering(through: Callable[[Work], None]) -> None:
    async def work(q: Any, topic: str) -> None:
        for number in range(3):
            request = pb.PublishBatchRequest(topic=topic, partition=number, messages=[pb.NewMessage(value=b"x")] * 2)
            await q.PublishBatch(request)
        settings = pb.GroupSettings(backoff_initial_us=0, backoff_jitter=0)
        got = await taken(q, topic, "polled", 6, settings=settings)
        told = await q.Ack(pb.AckRequest(group="polled", receipts=[*receipts(got[:2]), b"oops"]))
        assert (told.done, [one.failure.code for one in told.failed]) == (2, ["invalid_receipt"])
        again = await q.Ack(pb.AckRequest(group="polled", receipts=receipts(got[:3])))
        assert (again.done, len(again.failed)) == (1, 2)
        assert (await q.Nack(pb.NackRequest(group="polled", receipts=receipts(got[3:4]), delay_us=0))).done == 1
        assert (await q.Release(pb.ReleaseRequest(group="polled", receipts=receipts(got[4:5])))).done == 1
        extend = pb.ExtendRequest(group="polled", receipts=receipts(got[5:]), visibility_us=HOUR_US)
        assert (await q.Extend(extend)).done == 1
        back = await taken(q, topic, "polled", 2)
        assert {one.message.id: one.attempt for one in back} == {got[3].message.id: 2, got[4].message.id: 1}
        assert (await q.Reject(pb.RejectRequest(group="polled", receipts=receipts(back), reason="bad"))).done == 2
        await q.Leave(pb.LeaveRequest(group="polled", consumer="c"))
        assert not (await q.GetGroup(pb.GetGroupRequest(name="polled"))).members

    through(work)


def test_a_subscription_is_pushed_what_comes_and_answers_for_it(through: Callable[[Work], None]) -> None:
    async def work(q: Any, topic: str) -> None:
        stream = q.Subscribe()
        wanted = pb.Subscription(group="pushed", consumer="c", topics=[topic], credit=4)
        await stream.write(pb.SubscribeRequest(subscribe=wanted))
        assert (await stream.read()).HasField("subscribed")
        sent = [await publish(q, topic, b"x") for _ in range(6)]
        got: list[Any] = []
        while len(got) < 4:
            got += (await stream.read()).delivered.messages
        await stream.write(pb.SubscribeRequest(ack=pb.AckRequest(receipts=receipts(got))))
        assert (await stream.read()).answered.done == 4
        await stream.write(pb.SubscribeRequest(credit=pb.Credit(messages=4)))
        while len(got) < 6:
            got += (await stream.read()).delivered.messages
        assert {one.message.id for one in got} == {one for (one,) in sent}
        await stream.done_writing()
        assert await listed(stream) == []
        # What it had not answered for is given back at once.
        assert len(await taken(q, topic, "pushed", 2)) == 2

    through(work)


def test_topics_groups_and_where_they_are(through: Callable[[Work], None], cluster: LocalCluster) -> None:
    async def work(q: Any, topic: str) -> None:
        made = await q.CreateTopic(pb.CreateTopicRequest(name="of-grpc", partitions=2))
        assert len(made.partitions) == 2
        assert await q.GetTopic(pb.GetTopicRequest(name="of-grpc")) == made
        grown = await q.UpdateTopic(pb.UpdateTopicRequest(name="of-grpc", partitions=4))
        assert [part.number for part in grown.partitions] == [0, 1, 2, 3]
        assert {"of-grpc", topic} <= {one.name for one in (await q.ListTopics(pb.ListTopicsRequest())).topics}
        await q.Archived(pb.ArchivedRequest(topic="of-grpc", topic_id=made.id, offsets={3: 0}))
        await q.DeleteTopic(pb.DeleteTopicRequest(name="of-grpc"))
        assert (await failure(q.GetTopic(pb.GetTopicRequest(name="of-grpc"))))[0] is StatusCode.NOT_FOUND

        sent = {*(await publish(q, topic, b"1", b"2", key=b"a")), *(await publish(q, topic, b"3", key=b"b"))}
        latest = (await q.FindOffsets(pb.FindOffsetsRequest(topic=topic, edge=pb.EDGE_LATEST))).offsets
        earliest = (await q.FindOffsets(pb.FindOffsetsRequest(topic=topic, edge=pb.EDGE_EARLIEST))).offsets
        assert sum(latest) - sum(earliest) >= 3
        settings = pb.GroupSettings(ordering="key", on_poison="park", max_retries=0)
        await q.CreateGroup(pb.CreateGroupRequest(name="of-grpc", settings=settings))
        changed = pb.GroupSettings(visibility_us=HOUR_US)
        await q.UpdateGroup(pb.UpdateGroupRequest(name="of-grpc", settings=changed))
        (one,) = [one for one in await taken(q, topic, "of-grpc", 2) if one.message.value == b"1"]
        await q.Reject(pb.RejectRequest(group="of-grpc", receipts=[one.receipt], reason="bad"))
        (parked,) = (await q.ListParkedKeys(pb.ListParkedKeysRequest(group="of-grpc"))).keys
        assert parked.key == b"a"
        assert (await q.ReleaseKey(pb.ReleaseKeyRequest(group="of-grpc", topic=topic, key=b"a"))).released == 1
        await q.Seek(pb.SeekRequest(group="of-grpc", topic=topic, edge=pb.EDGE_LATEST))
        (found,) = [each for each in (await q.ListGroups(pb.ListGroupsRequest())).groups if each.name == "of-grpc"]
        assert (found.settings.visibility_us, sum(found.lag[0].messages)) == (HOUR_US, 0)
        await q.Replay(pb.ReplayRequest(topic=topic, group="of-grpc-again", from_us=0))
        assert {each.message.id for each in await taken(q, topic, "of-grpc-again", 3)} == sent
        await q.DeleteGroup(pb.DeleteGroupRequest(name="of-grpc"))
        assert (await failure(q.GetGroup(pb.GetGroupRequest(name="of-grpc"))))[0] is StatusCode.NOT_FOUND

    through(work)
    assert {placed.leader for one in cluster.call(FindPlacement()).topics for placed in one.partitions} <= {"a", "b"}


def test_what_comes_later_and_what_was_given_up(through: Callable[[Work], None]) -> None:
    async def work(q: Any, topic: str) -> None:
        (one,), (other,) = [await publish(q, topic, b"x", delay_us=HOUR_US, key=key) for key in (b"a", b"b")]
        scheduled = await listed(q.ListScheduled(pb.ListScheduledRequest(topic=topic)))
        assert {each.id for each in scheduled} == {one, other}
        assert (await q.GetScheduled(pb.GetScheduledRequest(id=one))).value == b"x"
        await q.CancelScheduled(pb.CancelScheduledRequest(id=other))
        await q.Reschedule(pb.RescheduleRequest(id=one, delay_us=0))
        (got,) = await taken(q, topic, "later", 1)
        assert got.message.id == one
        message = pb.NewMessage(value=b"go")
        await q.CreateSchedule(pb.CreateScheduleRequest(name="of-grpc", topic=topic, cron="@hourly", message=message))
        assert "of-grpc" in {each.name for each in (await q.ListSchedules(pb.ListSchedulesRequest())).schedules}
        await q.DeleteSchedule(pb.DeleteScheduleRequest(name="of-grpc"))

        await q.Reject(pb.RejectRequest(group="later", receipts=[got.receipt], reason="bad"))
        letters: list[Any] = []
        while not letters:
            letters = await listed(q.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)))
        assert (await q.GetDeadLetter(pb.GetDeadLetterRequest(id=letters[0].id))).reason == "bad"
        redriven = await q.Redrive(pb.RedriveRequest(topic=topic))
        assert [*redriven.in_place, *redriven.copied] == [letters[0].id]
        assert (await taken(q, topic, "later", 1))[0].message.value == b"x"
        await q.Discard(pb.DiscardRequest(topic=topic))

    through(work)


def test_every_method_was_asked_for() -> None:
    """By the tests above, which come first."""
    if len(asked) < 10:
        pytest.skip("they have not been run")
    assert asked == {method for methods in SERVICES.values() for method in methods}
