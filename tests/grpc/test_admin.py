"""Topics, groups, single messages, what comes later and what was given up, over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from grpc_served import Served, failure, listed, pb, polled, publish, serve, topic
from penstock.broker.settings import GroupSettings, TopicSettings

HOUR_US = 3_600_000_000
NO_TOPIC = (StatusCode.NOT_FOUND, "topic_not_found")
NO_GROUP = (StatusCode.NOT_FOUND, "group_not_found")
REFUSED = StatusCode.INVALID_ARGUMENT


def test_settings_have_the_names_that_the_broker_has_for_them() -> None:
    assert [field.name for field in pb.TopicSettings.DESCRIPTOR.fields] == list(TopicSettings.__struct_fields__)
    assert [field.name for field in pb.GroupSettings.DESCRIPTOR.fields] + ["is_replay"] == list(
        GroupSettings.__struct_fields__
    )


def test_topics_are_made_listed_changed_and_deleted(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        made = await topic(q, "a", 2, retention_age_us=HOUR_US, cleanup="compact")
        assert (made.name, [one.number for one in made.partitions]) == ("a", [0, 1])
        assert (made.settings.retention_age_us, made.settings.retention_bytes) == (HOUR_US, -1)
        assert (made.settings.cleanup, made.settings.dead_letters) == ("compact", True)
        assert len((await q.CreateTopic(pb.CreateTopicRequest(name="b"))).partitions) == 6
        again = q.CreateTopic(pb.CreateTopicRequest(name="a"))
        assert await failure(again) == (StatusCode.ALREADY_EXISTS, "already_exists")
        await publish(q, "a", b"1", b"2", key=b"k")
        found = await q.GetTopic(pb.GetTopicRequest(name="a"))
        assert found.id == made.id == here.site.broker.topic("a").record.id
        assert sum(one.end_offset - one.start_offset for one in found.partitions) == 2
        settings = pb.TopicSettings(retention_age_us=-1, retention_bytes=1_000_000, dead_letters=False)
        changed = await q.UpdateTopic(pb.UpdateTopicRequest(name="a", partitions=3, settings=settings))
        assert len(changed.partitions) == 3
        assert (changed.settings.retention_age_us, changed.settings.retention_bytes) == (-1, 1_000_000)
        assert (changed.settings.cleanup, changed.settings.dead_letters) == ("compact", False)
        assert (changed.settings.durability, changed.settings.sync_interval_us) == ("fsync", 1_000_000)
        lazy = pb.TopicSettings(durability="interval", sync_interval_us=5_000)
        changed = await q.UpdateTopic(pb.UpdateTopicRequest(name="a", settings=lazy))
        assert (changed.settings.durability, changed.settings.sync_interval_us) == ("interval", 5_000)
        assert here.site.broker.topic("a").partition(0).messages.sync_within_us == 5_000
        alone = pb.TopicSettings(replicas=1, min_isr=0)
        changed = await q.UpdateTopic(pb.UpdateTopicRequest(name="a", settings=alone))
        assert (changed.settings.replicas, changed.settings.min_isr) == (1, 0)
        assert here.site.broker.topic("a").settings.min_isr is None
        assert [one.name for one in (await q.ListTopics(pb.ListTopicsRequest())).topics] == ["a", "b"]
        await q.DeleteTopic(pb.DeleteTopicRequest(name="a"))
        assert await failure(q.GetTopic(pb.GetTopicRequest(name="a"))) == NO_TOPIC
        assert await failure(q.UpdateTopic(pb.UpdateTopicRequest(name="a"))) == NO_TOPIC
        assert await failure(q.DeleteTopic(pb.DeleteTopicRequest(name="a"))) == NO_TOPIC

    serve(tmp_path, work)


@pytest.mark.parametrize(
    "request_",
    [
        pb.CreateTopicRequest(name="t", partitions=0),
        pb.CreateTopicRequest(name="t", partitions=-1),
        pb.CreateTopicRequest(name="t", partitions=1_001),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(cleanup="burn")),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(retention_bytes=0)),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(max_delay_us=-1)),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(durability="maybe")),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(sync_interval_us=0)),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(replicas=3)),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(replicas=-1)),
        pb.CreateTopicRequest(name="t", settings=pb.TopicSettings(min_isr=2)),
        pb.CreateGroupRequest(name="g", settings=pb.GroupSettings(ordering="up")),
        pb.CreateGroupRequest(name="g", settings=pb.GroupSettings(backoff_factor=float("nan"))),
        pb.CreateGroupRequest(name="g", settings=pb.GroupSettings(session_us=-1)),
    ],
)
def test_settings_that_can_t_be_are_refused(tmp_path: Path, request_: Message) -> None:
    async def work(here: Served, q: Any) -> None:
        make = q.CreateTopic if isinstance(request_, pb.CreateTopicRequest) else q.CreateGroup
        assert await failure(make(request_)) == (REFUSED, "invalid_setting")
        assert not (await q.ListTopics(pb.ListTopicsRequest())).topics
        assert not (await q.ListGroups(pb.ListGroupsRequest())).groups

    serve(tmp_path, work)


def test_groups_are_made_listed_changed_and_deleted(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=2)
        settings = pb.GroupSettings(ordering="key", max_retries=7, visibility_us=HOUR_US)
        made = await q.CreateGroup(pb.CreateGroupRequest(name="g", settings=settings))
        assert (made.settings.ordering, made.settings.max_retries, made.is_replay) == ("key", 7, False)
        other = q.CreateGroup(pb.CreateGroupRequest(name="g", settings=pb.GroupSettings(max_retries=1)))
        assert await failure(other) == (StatusCode.FAILED_PRECONDITION, "settings_conflict")
        await q.Poll(polled())
        await publish(q, "t", b"1", b"2", b"3")
        found = await q.GetGroup(pb.GetGroupRequest(name="g"))
        ((lag,), (member,)) = found.lag, found.members
        assert (lag.topic, sum(lag.messages)) == ("t", 3)
        assert (member.consumer, [one.partition for one in member.assigned]) == ("c", [0, 1])
        changed = await q.UpdateGroup(pb.UpdateGroupRequest(name="g", settings=pb.GroupSettings(max_retries=0)))
        assert (changed.settings.max_retries, changed.settings.ordering) == (0, "key")
        assert [one.name for one in (await q.ListGroups(pb.ListGroupsRequest())).groups] == ["g"]
        await q.DeleteGroup(pb.DeleteGroupRequest(name="g"))
        assert await failure(q.GetGroup(pb.GetGroupRequest(name="g"))) == NO_GROUP
        assert await failure(q.UpdateGroup(pb.UpdateGroupRequest(name="g"))) == NO_GROUP
        assert await failure(q.DeleteGroup(pb.DeleteGroupRequest(name="g"))) == NO_GROUP

    serve(tmp_path, work)


def test_what_is_archived_is_told_and_shown(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        settings = pb.TopicSettings(archive="required")
        made = await q.CreateTopic(pb.CreateTopicRequest(name="kept", partitions=1, settings=settings))
        assert made.settings.archive == "required"
        await publish(q, "kept", b"1", b"2")
        told = await q.Archived(pb.ArchivedRequest(topic="kept", topic_id=made.id, offsets={0: 2}))
        assert [part.archived for part in told.partitions] == [2]
        assert [part.archived for part in (await q.GetTopic(pb.GetTopicRequest(name="kept"))).partitions] == [2]
        other = pb.ArchivedRequest(topic="kept", topic_id="another", offsets={0: 2})
        assert await failure(q.Archived(other)) == (StatusCode.FAILED_PRECONDITION, "archive_conflict")
        far = pb.ArchivedRequest(topic="kept", offsets={0: 3})
        assert await failure(q.Archived(far)) == (StatusCode.OUT_OF_RANGE, "offset_out_of_range")

    serve(tmp_path, work)


def test_offsets_are_found_and_groups_moved(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2", b"3")
        (second,) = await publish(q, "t", b"4")
        time_us = (await q.GetMessage(pb.GetMessageRequest(id=second))).append_time_us
        wanted = ({"edge": pb.EDGE_EARLIEST}, {"edge": pb.EDGE_LATEST}, {"time_us": time_us})
        offsets = [(await q.FindOffsets(pb.FindOffsetsRequest(topic="t", **at))).offsets[0] for at in wanted]
        assert offsets == [0, 4, 3]
        assert len((await q.Poll(polled())).messages) == 4
        for to, first in (({"offset": 2, "partition": 0}, b"3"), ({"time_us": time_us}, b"4"), (wanted[0], b"1")):
            await q.Seek(pb.SeekRequest(group="g", topic="t", **to))
            assert (await q.Poll(polled())).messages[0].message.value == first
        nowhere = pb.SeekRequest(group="g", topic="t")
        assert await failure(q.Seek(nowhere)) == (REFUSED, "invalid_input")
        assert await failure(q.FindOffsets(pb.FindOffsetsRequest(topic="t"))) == (REFUSED, "invalid_input")
        far = pb.SeekRequest(group="g", topic="t", offset=5, partition=0)
        assert await failure(q.Seek(far)) == (StatusCode.OUT_OF_RANGE, "offset_out_of_range")
        assert await failure(q.Seek(pb.SeekRequest(group="h", topic="t", edge=pb.EDGE_LATEST))) == NO_GROUP

    serve(tmp_path, work)


def test_a_replay_is_a_group_of_its_own(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2", b"3")
        some = [pb.OffsetRange(partition=0, first=1, last=3)]
        assert (await q.Replay(pb.ReplayRequest(topic="t", group="again", offsets=some))).messages == 2
        values = [one.message.value for one in (await q.Poll(polled("again"))).messages]
        assert values == [b"2", b"3"]
        assert (await q.GetGroup(pb.GetGroupRequest(name="again"))).is_replay
        assert (await q.Replay(pb.ReplayRequest(topic="t", group="all", from_us=0))).messages == 3
        for fields, code in (
            ({"group": "none"}, (REFUSED, "invalid_input")),
            ({"group": "twice", "offsets": some * 2}, (REFUSED, "invalid_input")),
            ({"group": "both", "offsets": some, "from_us": 0}, (REFUSED, "invalid_input")),
            ({"group": "again", "offsets": some}, (StatusCode.ALREADY_EXISTS, "already_exists")),
        ):
            assert await failure(q.Replay(pb.ReplayRequest(topic="t", **fields))) == code

    serve(tmp_path, work)


def test_parked_keys_are_listed_and_released(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2", key=b"k")
        ordered = pb.GroupSettings(ordering="key", on_poison="park")
        (one,) = (await q.Poll(polled(max_messages=1, settings=ordered))).messages
        await q.Reject(pb.RejectRequest(group="g", receipts=[one.receipt], reason="bad"))
        await here.site.broker.settle()
        (parked,) = (await q.ListParkedKeys(pb.ListParkedKeysRequest(group="g"))).keys
        assert (parked.topic, parked.partition, parked.key, parked.offset) == ("t", 0, b"k", 0)
        assert parked.reason == "bad"
        release = pb.ReleaseKeyRequest(group="g", topic="t", key=b"k")
        assert (await q.ReleaseKey(release)).released == 1
        assert [one.message.value for one in (await q.Poll(polled(wait_us=5_000_000))).messages] == [b"2"]
        assert await failure(q.ListParkedKeys(pb.ListParkedKeysRequest(group="h"))) == NO_GROUP

    serve(tmp_path, work)


def test_what_happened_to_a_message_is_told(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        (id,) = await publish(q, "t", b"1")
        assert (await q.WhyMessage(pb.WhyMessageRequest(id=id, group="g"))).answer
        (one,) = (await q.Poll(polled())).messages
        await q.Ack(pb.AckRequest(group="g", receipts=[one.receipt]))
        trace = await q.TraceMessage(pb.TraceMessageRequest(id=id))
        published, delivered, acknowledged = trace.steps[:3]
        assert [step.what for step in trace.steps[:3]] == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]
        assert not published.HasField("group")
        assert (delivered.group, delivered.consumer, delivered.attempt) == ("g", "c", 1)
        assert acknowledged.time_us >= published.time_us
        for method, request in (
            (q.GetMessage, pb.GetMessageRequest),
            (q.TraceMessage, pb.TraceMessageRequest),
            (q.WhyMessage, pb.WhyMessageRequest),
        ):
            more = {"group": "g"} if request is pb.WhyMessageRequest else {}
            for wrong in ("", "t", "t:0:x", "t:0:-1", "../t:0:0", "t:0:0:0"):
                assert (await failure(method(request(id=wrong, **more))))[0] is REFUSED
            missing = (StatusCode.NOT_FOUND, "message_not_found")
            if request is not pb.WhyMessageRequest:
                assert await failure(method(request(id="t:0:9", **more))) == missing

    serve(tmp_path, work)


def test_the_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=2)
        for value in (b"1", b"2", b"3"):
            for number in (0, 1):
                request = pb.PublishBatchRequest(topic="t", partition=number, messages=[pb.NewMessage(value=value)])
                await q.PublishBatch(request)

        async def read(**fields: Any) -> list[bytes]:
            return [one.value for one in await listed(q.Read(pb.ReadRequest(topic="t", **fields)))]

        assert await read() == [b"1", b"2", b"3"] * 2
        assert await read(limit=4) == [b"1", b"2", b"3", b"1"]
        assert await read(partition=1, from_offset=1) == [b"2", b"3"]
        assert await read(partition=1, from_offset=1, to_offset=2) == [b"2"]
        time_us = (await q.GetMessage(pb.GetMessageRequest(id="t:0:1"))).append_time_us
        assert await read(from_time_us=time_us) == [b"2", b"3", b"2", b"3"]
        assert await read(partition=0, to_time_us=time_us) == [b"1"]
        for fields, expected in (
            ({"from_offset": 1}, (REFUSED, "invalid_input")),
            ({"limit": -1}, (REFUSED, "invalid_input")),
            ({"partition": 2}, (StatusCode.NOT_FOUND, "partition_not_found")),
            ({"partition": 0, "from_offset": 9}, (StatusCode.OUT_OF_RANGE, "offset_out_of_range")),
            ({"from_time_us": -9}, (REFUSED, "invalid_input")),
        ):
            assert await failure(listed(q.Read(pb.ReadRequest(topic="t", **fields)))) == expected
        assert await failure(listed(q.Read(pb.ReadRequest(topic="nowhere")))) == NO_TOPIC

    serve(tmp_path, work)


def test_delayed_messages_are_listed_moved_and_cancelled(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        later, last = [(await publish(q, "t", b"x", delay_us=HOUR_US * hours))[0] for hours in (2, 3)]

        async def waiting(**fields: Any) -> list[str]:
            return [one.id for one in await listed(q.ListScheduled(pb.ListScheduledRequest(topic="t", **fields)))]

        assert (await waiting(), await waiting(limit=1)) == ([later, last], [later])
        assert (await q.GetTopic(pb.GetTopicRequest(name="t"))).scheduled == 2
        await q.Reschedule(pb.RescheduleRequest(id=last, delay_us=HOUR_US))
        assert await waiting() == [last, later]
        due_us = here.site.now_us() + 5 * HOUR_US
        await q.Reschedule(pb.RescheduleRequest(id=last, deliver_at_us=due_us))
        assert (await q.GetScheduled(pb.GetScheduledRequest(id=last))).deliver_at_us == due_us
        await q.CancelScheduled(pb.CancelScheduledRequest(id=later))
        assert await waiting() == [last]
        await q.Reschedule(pb.RescheduleRequest(id=last, delay_us=0))
        (one,) = (await q.Poll(polled(wait_us=10_000_000))).messages
        assert one.message.id == last
        gone = (StatusCode.NOT_FOUND, "not_scheduled")
        assert await failure(q.GetScheduled(pb.GetScheduledRequest(id=later))) == gone
        assert await failure(q.CancelScheduled(pb.CancelScheduledRequest(id=later))) == gone
        assert await failure(q.Reschedule(pb.RescheduleRequest(id=later, delay_us=1))) == gone
        for fields in ({}, {"delay_us": -1}, {"deliver_at_us": 5}):
            assert await failure(q.Reschedule(pb.RescheduleRequest(id=last, **fields))) == (REFUSED, "invalid_input")
        for limit in (-1, 100_001):
            many = q.ListScheduled(pb.ListScheduledRequest(topic="t", limit=limit))
            assert await failure(listed(many)) == (REFUSED, "invalid_input")

    serve(tmp_path, work)


def test_schedules_are_made_listed_and_deleted(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        message = pb.NewMessage(value=b"x", key=b"k", headers=[pb.Header(name="a", value=b"b")])
        request = pb.CreateScheduleRequest(name="s", topic="t", cron="@hourly", message=message)
        made = await q.CreateSchedule(request)
        assert (made.name, made.timezone, made.message.value, made.message.key) == ("s", "UTC", b"x", b"k")
        assert made.due_us > made.created_us
        assert (await q.GetScheduled(pb.GetScheduledRequest(id=made.pending))).deliver_at_us == made.due_us
        assert [one.name for one in (await q.ListSchedules(pb.ListSchedulesRequest())).schedules] == ["s"]
        assert (await failure(q.CreateSchedule(request)))[0] is StatusCode.ALREADY_EXISTS
        request = pb.CreateScheduleRequest(name="u", topic="t", cron="now and then", message=message)
        assert (await failure(q.CreateSchedule(request)))[0] is REFUSED
        await q.DeleteSchedule(pb.DeleteScheduleRequest(name="s"))
        assert (await failure(q.DeleteSchedule(pb.DeleteScheduleRequest(name="s"))))[0] is StatusCode.NOT_FOUND

    serve(tmp_path, work)


def test_dead_letters_are_listed_redriven_and_discarded(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        ids = await publish(q, "t", b"1", b"2", b"3", key=b"k")
        receipts = [one.receipt for one in (await q.Poll(polled())).messages]
        await q.Reject(pb.RejectRequest(group="g", receipts=receipts[:2], reason="bad"))
        await q.Reject(pb.RejectRequest(group="g", receipts=receipts[2:], reason="worse"))

        async def dead(**where: Any) -> list[str]:
            request = pb.ListDeadLettersRequest(topic="t", where=pb.Where(**where))
            return [one.original.id for one in await listed(q.ListDeadLetters(request))]

        assert await dead() == ids
        assert await dead(reason_contains="wor") == await dead(ids=[ids[2]]) == ids[2:]
        assert (await dead(group="h"), await dead(key=b"k", group="g")) == ([], ids)
        first, second, third = await listed(q.ListDeadLetters(pb.ListDeadLettersRequest(topic="t")))
        assert (await q.GetDeadLetter(pb.GetDeadLetterRequest(id=first.id))) == first
        ((attempt,), original) = first.failures, first.original
        assert (attempt.consumer, attempt.reason, original.value, original.key) == ("c", "bad", b"1", b"k")
        where = pb.Where(reason_contains="bad")
        would = await q.Redrive(pb.RedriveRequest(topic="t", where=where, dry_run=True))
        assert list(would.in_place) == [first.id, second.id]
        assert len(await dead()) == 3
        done = await q.Redrive(pb.RedriveRequest(topic="t", where=where, rate=1_000.0))
        assert list(done.in_place) == [first.id, second.id]
        assert (await q.Discard(pb.DiscardRequest(topic="t", where=pb.Where(ids=[third.id])))).discarded == 1
        assert await dead() == []
        settled = pb.ListDeadLettersRequest(topic="t", with_settled=True)
        assert len(await listed(q.ListDeadLetters(settled))) == 3
        assert await failure(listed(q.ListDeadLetters(pb.ListDeadLettersRequest(topic="nowhere")))) == NO_TOPIC
        assert (await failure(q.GetDeadLetter(pb.GetDeadLetterRequest(id="t.dlq:0:9"))))[0] is StatusCode.NOT_FOUND

    serve(tmp_path, work)


HOSTILE = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a b",
    "a\x00b",
    "a\nb",
    "__x",
    "%2e%2e",
    "ü",
    "x" * 201,
    "t:0:0:0",
]


def _asking(name: str) -> Iterator[tuple[str, Message]]:
    """Every method that takes one request, with that name wherever there is text for one."""
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            request = GetMessageClass(method.input_type)()
            names = {"name", "topic", "group", "consumer", "id"} & set(method.input_type.fields_by_name)
            for field in method.input_type.fields:
                if field.name in names:
                    setattr(request, field.name, name)
                if field.name == "topics":
                    request.topics.append(name)
                if field.name == "messages":
                    request.messages.add()
                if field.name == "edge":
                    request.edge = pb.EDGE_LATEST
            if not method.client_streaming and names:
                yield method.name, request


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_everywhere_and_nothing_is_made_of_them(tmp_path: Path, name: str) -> None:
    async def work(here: Served, q: Any) -> None:
        asked = 0
        for method, request in _asking(name):
            call = getattr(q, method)(request)
            reply = listed(call) if hasattr(call, "read") else call
            if method in ("Ack", "Nack", "Reject", "Release", "Extend"):
                # Without receipts there is nothing to refuse.
                assert (await reply).done == 0
                continue
            code, stable = await failure(reply)
            assert code in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND), method
            assert stable, method
            asked += 1
        assert asked > 20
        assert not (await q.ListTopics(pb.ListTopicsRequest())).topics
        assert not (await q.ListGroups(pb.ListGroupsRequest())).groups
        assert not here.broken

    serve(tmp_path, work)


def test_listings_come_in_pages(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        for name in ("a", "b", "c"):
            await topic(q, name, 1)
            await q.CreateGroup(pb.CreateGroupRequest(name=name))
        page = await q.ListTopics(pb.ListTopicsRequest(limit=2))
        assert ([one.name for one in page.topics], page.next) == (["a", "b"], "b")
        page = await q.ListTopics(pb.ListTopicsRequest(limit=2, after=page.next))
        assert ([one.name for one in page.topics], page.next) == (["c"], "")
        groups = await q.ListGroups(pb.ListGroupsRequest(limit=2, after="a"))
        assert ([one.name for one in groups.groups], groups.next) == (["b", "c"], "")
        assert await failure(q.ListGroups(pb.ListGroupsRequest(limit=-1))) == (REFUSED, "invalid_input")

    serve(tmp_path, work)
