"""Publishing over gRPC: one message, a batch, and batch after batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from grpc_served import Served, failure, listed, pb, publish, serve, topic
from penstock.errors import SyncFailed
from penstock.partitioner import partition_of
from penstock.server.gate import Gate
from penstock.server.grpc.calls import Call
from penstock.server.grpc.publishing import publish_batch

HOUR_US = 3_600_000_000


def test_a_message_is_stored_as_it_was_given(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, "orders", 3)
        message = pb.NewMessage(
            value=b"one",
            key=b"k",
            headers=[pb.Header(name="a", value=b"b"), pb.Header(name="a", value=b"\xff")],
            priority=pb.PRIORITY_LOW,
            ttl_us=HOUR_US,
            timestamp_us=1_700_000_000_000_000,
        )
        at = await q.Publish(pb.PublishRequest(topic="orders", message=message))
        assert (at.id, at.partition) == (f"orders:{at.partition}:0", partition_of(b"k", 3))
        found = await q.GetMessage(pb.GetMessageRequest(id=at.id))
        assert (found.id, found.topic, found.partition, found.offset) == (at.id, "orders", at.partition, 0)
        assert (found.value, found.key, found.tombstone) == (b"one", b"k", False)
        assert [(header.name, header.value) for header in found.headers] == [("a", b"b"), ("a", b"\xff")]
        assert (found.priority, found.timestamp_us) == (pb.PRIORITY_LOW, 1_700_000_000_000_000)
        assert found.append_time_us == at.append_time_us
        assert 0 < found.expires_at_us - HOUR_US <= found.append_time_us

    serve(tmp_path, work)


def test_no_key_an_empty_key_and_no_value_are_not_the_same(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        for message in (pb.NewMessage(), pb.NewMessage(key=b""), pb.NewMessage(key=b"k", tombstone=True)):
            await q.Publish(pb.PublishRequest(topic="t", message=message))
            await q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[message]))
        found = await listed(q.Read(pb.ReadRequest(topic="t")))
        seen = [(one.HasField("key"), one.key, one.value, one.tombstone) for one in found]
        first, second, third = (False, b"", b"", False), (True, b"", b"", False), (True, b"k", b"", True)
        assert seen == [first, first, second, second, third, third]

    serve(tmp_path, work)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"delay_us": 1, "deliver_at_us": 1_900_000_000_000_000}, "invalid_message"),
        ({"delay_us": -1}, "invalid_input"),
        ({"delay_us": (1 << 63) - 1}, "invalid_input"),
        ({"deliver_at_us": 1_700_000_000}, "invalid_input"),
        ({"ttl_us": -1}, "invalid_input"),
        ({"ttl_us": 1_000, "delay_us": 2_000}, "invalid_message"),
        ({"timestamp_us": -5}, "invalid_input"),
        ({"priority": 7}, "invalid_message"),
        ({"value": b"x", "tombstone": True}, "invalid_message"),
        ({"value": bytes(1 << 20), "key": b"k"}, "batch_too_large"),
        ({"headers": [pb.Header(name="n")] * 101}, "batch_too_large"),
    ],
)
def test_what_can_t_be_stored_is_refused(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        message = pb.NewMessage(**fields)
        one = q.Publish(pb.PublishRequest(topic="t", message=message))
        assert await failure(one) == (StatusCode.INVALID_ARGUMENT, code)
        many = q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(), message]))
        assert await failure(many) == (StatusCode.INVALID_ARGUMENT, code)
        assert await listed(q.Read(pb.ReadRequest(topic="t"))) == []

    serve(tmp_path, work)


def test_a_batch_goes_by_key_and_each_message_is_told_where(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=4)
        given = [pb.NewMessage(value=b"%d" % number, key=b"k%d" % (number % 9)) for number in range(100)]
        at = await q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=given))
        assert list(at.partitions) == [partition_of(one.key, 4) for one in given]
        stored = {(one.partition, one.offset): one.value for one in await listed(q.Read(pb.ReadRequest(topic="t")))}
        assert [stored[place] for place in zip(at.partitions, at.offsets, strict=True)] == [one.value for one in given]
        at = await q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=given[:3], partition=2))
        assert list(at.partitions) == [2, 2, 2]

    serve(tmp_path, work)


def test_batches_that_can_t_be_are_refused(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        refused = StatusCode.INVALID_ARGUMENT
        many = [pb.NewMessage()] * 10_001
        large = [pb.NewMessage(value=bytes(1_000_000))] * 9
        for messages, code in (([], "invalid_input"), (many, "batch_too_large"), (large, "frame_too_large")):
            request = pb.PublishBatchRequest(topic="t", messages=messages)
            assert await failure(q.PublishBatch(request)) == (refused, code)
        request = pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage()], partition=1)
        assert await failure(q.PublishBatch(request)) == (StatusCode.NOT_FOUND, "partition_not_found")
        request = pb.PublishBatchRequest(topic="nowhere", messages=[pb.NewMessage()])
        assert await failure(q.PublishBatch(request)) == (StatusCode.NOT_FOUND, "topic_not_found")

    serve(tmp_path, work)


def test_a_message_and_a_batch_say_how_far_they_are_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def spied(method: Any) -> Any:
        async def call(topic: str, one: Any, other: Any, acks: str = "all") -> Any:
            heard.append(acks)
            return await method(topic, one, other, acks)

        return call

    async def work(here: Served, q: Any) -> None:
        await topic(q)
        for method in ("publish", "publish_frame"):
            monkeypatch.setattr(here.site, method, spied(getattr(here.site, method)))
        message = pb.NewMessage(value=b"x")
        for fields in ({}, {"acks": "all"}, {"acks": "leader"}):
            await q.Publish(pb.PublishRequest(topic="t", message=message, **fields))
            await q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[message], **fields))
        assert heard == ["all"] * 4 + ["leader"] * 2
        for odd in ("none", "some", ""):
            one = q.Publish(pb.PublishRequest(topic="t", message=message, acks=odd))
            assert await failure(one) == (StatusCode.INVALID_ARGUMENT, "invalid_input")
            many = q.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[message], acks=odd))
            assert await failure(many) == (StatusCode.INVALID_ARGUMENT, "invalid_input")
        assert len(await listed(q.Read(pb.ReadRequest(topic="t")))) == 6

    serve(tmp_path, work)


def test_a_request_larger_than_allowed_is_not_even_read(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        request = pb.PublishRequest(topic="t", message=pb.NewMessage(value=bytes(10 << 20)))
        assert await failure(q.Publish(request)) == (StatusCode.RESOURCE_EXHAUSTED, None)
        assert len(await publish(q, "t", b"still here")) == 1

    serve(tmp_path, work)


def test_a_stream_of_batches_is_stored_and_answered_in_its_order(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=3)
        stream = q.PublishStream()
        batches = 300
        for number in range(batches):
            # In between, those that go to one partition only, and those that go to all.
            keys = [b"a"] if number % 2 else [b"a", b"b", b"c", b"d"]
            messages = [pb.NewMessage(value=b"%d" % number, key=key) for key in keys]
            await stream.write(pb.PublishBatchRequest(topic="t", messages=messages))
        await stream.done_writing()
        replies = await listed(stream)
        assert [len(reply.offsets) for reply in replies] == [1 if number % 2 else 4 for number in range(batches)]
        stored = await listed(q.Read(pb.ReadRequest(topic="t", partition=partition_of(b"a", 3))))
        of_key = [one for one in stored if one.key == b"a"]
        assert [one.value for one in of_key] == [b"%d" % number for number in range(batches)]
        assert [one.offset for one in of_key] == [reply.offsets[0] for reply in replies]

    serve(tmp_path, work)


def test_batches_that_come_at_once_are_stored_in_their_order(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=3)
        call = Call(here.door._desk, Gate(here.site, None).admit(None), None)
        # Without a network between them: one that goes to many partitions must not be overtaken by one that does not.
        batches = [[b"a", b"b", b"c", b"d"] if number % 2 == 0 else [b"a"] for number in range(20)]
        requests = [
            pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(value=b"%d" % number, key=key) for key in keys])
            for number, keys in enumerate(batches)
        ]
        await asyncio.gather(*[publish_batch(call, request) for request in requests])
        stored = await listed(q.Read(pb.ReadRequest(topic="t", partition=partition_of(b"a", 3))))
        assert [one.value for one in stored if one.key == b"a"] == [b"%d" % number for number in range(20)]

    serve(tmp_path, work)


def test_a_batch_that_fails_spoils_none_of_the_others(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        stream = q.PublishStream()
        for name in ("t", "nowhere", "../t", "t"):
            await stream.write(pb.PublishBatchRequest(topic=name, messages=[pb.NewMessage(value=b"x")]))
        await stream.write(pb.PublishBatchRequest(topic="t"))
        await stream.done_writing()
        replies = await listed(stream)
        codes = [reply.failure.code for reply in replies]
        assert codes == ["", "topic_not_found", "invalid_name", "", "invalid_input"]
        assert replies[1].failure.details_json == '{"topic": "nowhere"}'
        assert [list(reply.offsets) for reply in replies] == [[0], [], [], [1], []]

    serve(tmp_path, work)


def test_an_error_after_which_the_broker_must_not_go_on_is_told_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: Any) -> None:
        raise SyncFailed("the disk said no")

    async def work(here: Served, q: Any) -> None:
        await topic(q)
        monkeypatch.setattr(here.site, "publish", broken)
        monkeypatch.setattr(here.site, "publish_frame", broken)
        one = q.Publish(pb.PublishRequest(topic="t"))
        assert await failure(one) == (StatusCode.UNAVAILABLE, "sync_failed")
        stream = q.PublishStream()
        await stream.write(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage()]))
        assert await failure(listed(stream)) == (StatusCode.UNAVAILABLE, "sync_failed")
        assert [error.code for error in here.broken] == ["sync_failed", "sync_failed"]

    serve(tmp_path, work)


def test_a_bug_is_told_as_one_and_nothing_of_it_but_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def buggy(*arguments: Any) -> None:
        raise ZeroDivisionError("a secret")

    async def work(here: Served, q: Any) -> None:
        await topic(q)
        monkeypatch.setattr(here.site, "publish", buggy)
        one = q.Publish(pb.PublishRequest(topic="t"))
        assert await failure(one) == (StatusCode.INTERNAL, "internal_error")
        assert "secret" not in await one.details()
        assert not here.broken

    serve(tmp_path, work)


def test_messages_without_a_key_reach_all_partitions_of_each_topic(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        names = ("a", "b")
        for name in names:
            await topic(q, name, 6)
        alone: dict[str, Counter[int]] = {name: Counter() for name in names}
        batches: dict[str, Counter[int]] = {name: Counter() for name in names}
        for _ in range(12):
            # By turns: one topic's turn is not another's.
            for name in names:
                message = pb.NewMessage(value=b"x" * 20_000)
                alone[name][(await q.Publish(pb.PublishRequest(topic=name, message=message))).partition] += 1
                reply = await q.PublishBatch(pb.PublishBatchRequest(topic=name, messages=[message] * 3))
                batches[name].update(set(reply.partitions))
        for counts in (*alone.values(), *batches.values()):
            assert set(counts) == set(range(6))
            assert set(counts.values()) == {2}

    serve(tmp_path, work)
