"""Polls over gRPC, and answers for what they gave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from grpc_served import Served, failure, listed, pb, polled, publish, serve, topic
from penstock.batch import Batch
from penstock.codec import CODECS
from penstock.frame import Frame

SETTINGS = pb.GroupSettings(backoff_initial_us=0, backoff_jitter=0)


async def waiting(here: Served, group: str = "g", consumer: str = "c") -> None:
    """Until that consumer waits at the door."""
    while not here.door._desk.members.has(group, consumer):
        await asyncio.sleep(0)


async def gone(here: Served, group: str = "g", consumer: str = "c") -> None:
    while here.door._desk.members.has(group, consumer):
        await asyncio.sleep(0)


def test_messages_are_polled_and_acknowledged(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        (id,) = await publish(q, "t", b"one", key=b"k")
        (got,) = (await q.Poll(polled())).messages
        assert (got.message.id, got.message.value, got.message.key, got.attempt) == (id, b"one", b"k", 1)
        assert got.deadline_us > got.message.append_time_us
        reply = await q.Ack(pb.AckRequest(group="g", receipts=[got.receipt]))
        assert (reply.done, list(reply.failed)) == (1, [])
        assert not (await q.Poll(polled())).messages
        assert (await q.WhyMessage(pb.WhyMessageRequest(id=id, group="g"))).code == "acknowledged"

    serve(tmp_path, work)


def test_each_answer_does_what_it_says(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"nack", b"reject", b"release", b"extend")
        got = {one.message.value: one for one in (await q.Poll(polled(settings=SETTINGS))).messages}
        receipts = {value: [one.receipt] for value, one in got.items()}
        extend = pb.ExtendRequest(group="g", receipts=receipts[b"extend"], visibility_us=3_600_000_000)
        assert (await q.Extend(extend)).done == 1
        assert (await q.Nack(pb.NackRequest(group="g", receipts=receipts[b"nack"], reason="busy"))).done == 1
        assert (await q.Reject(pb.RejectRequest(group="g", receipts=receipts[b"reject"], reason="bad"))).done == 1
        assert (await q.Release(pb.ReleaseRequest(group="g", receipts=receipts[b"release"]))).done == 1
        again = (await q.Poll(polled(wait_us=10_000_000))).messages
        assert {(one.message.value, one.attempt) for one in again} == {(b"nack", 2), (b"release", 1)}
        (letter,) = await listed(q.ListDeadLetters(pb.ListDeadLettersRequest(topic="t")))
        assert (letter.original.value, letter.reason) == (b"reject", "bad")
        await q.Nack(pb.NackRequest(group="g", receipts=[again[0].receipt], delay_us=3_600_000_000))
        assert not (await q.Poll(polled())).messages

    serve(tmp_path, work)


def test_what_can_t_be_answered_for_is_listed_and_the_rest_is_done(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2", b"3")
        receipts = [one.receipt for one in (await q.Poll(polled())).messages]
        assert (await q.Ack(pb.AckRequest(group="g", receipts=receipts[:1]))).done == 1
        odd = [b"", b"x", bytes(100), receipts[1][:-1], receipts[1] + b"x", b"\xff" * 30]
        reply = await q.Ack(pb.AckRequest(group="g", receipts=[*odd, *receipts, receipts[2]]))
        assert reply.done == 2
        failed = {one.receipt: one.failure.code for one in reply.failed}
        assert failed.pop(receipts[0]) == "not_leased"
        assert set(failed) == set(odd)
        assert set(failed.values()) == {"invalid_receipt"}
        reply = await q.Ack(pb.AckRequest(group="g", receipts=receipts[:1]))
        assert [one.failure.code for one in reply.failed] == ["lease_not_found"]

    serve(tmp_path, work)


def test_a_receipt_is_good_for_its_group_and_its_topic_only(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1")
        (one,) = (await q.Poll(polled("g"))).messages
        (other,) = (await q.Poll(polled("h"))).messages
        for group, receipt in (("g", other.receipt), ("h", one.receipt), ("nobody", one.receipt)):
            (failed,) = (await q.Ack(pb.AckRequest(group=group, receipts=[receipt]))).failed
            assert failed.failure.code == "invalid_receipt"
        await q.DeleteTopic(pb.DeleteTopicRequest(name="t"))
        await topic(q)
        await publish(q, "t", b"1")
        assert len((await q.Poll(polled("g"))).messages) == 1
        (failed,) = (await q.Ack(pb.AckRequest(group="g", receipts=[one.receipt]))).failed
        assert failed.failure.code == "lease_not_found"
        assert here.in_flight("t", "g") == 1

    serve(tmp_path, work)


def test_a_receipt_is_good_after_a_restart(tmp_path: Path) -> None:
    receipts: list[bytes] = []

    async def before(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2")
        receipts.extend(one.receipt for one in (await q.Poll(polled())).messages)

    async def after(here: Served, q: Any) -> None:
        reply = await q.Ack(pb.AckRequest(group="g", receipts=receipts))
        assert (reply.done, list(reply.failed)) == (2, [])
        assert here.in_flight("t", "g") == 0

    serve(tmp_path, before)
    serve(tmp_path, after)


def test_a_poll_waits_for_the_first_message(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        polling = asyncio.ensure_future(_awaited(q.Poll(polled(wait_us=20_000_000))))
        await waiting(here)
        await publish(q, "t", b"late")
        assert [one.message.value for one in (await polling).messages] == [b"late"]
        assert not (await q.Poll(polled(wait_us=1_000))).messages

    serve(tmp_path, work)


async def _awaited(call: Any) -> Any:
    return await call


@pytest.mark.parametrize("timeout", [None, 2.0])
def test_a_poll_that_is_cancelled_or_late_leases_nothing(tmp_path: Path, timeout: float | None) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        # The group is there from then on: to make it takes as long as the disk does.
        assert not (await q.Poll(polled(wait_us=1_000))).messages
        for number in range(10 if timeout is None else 2):
            polling = q.Poll(polled(wait_us=20_000_000), timeout=timeout)
            await waiting(here)
            if timeout is None:
                polling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await polling
            else:
                assert await failure(polling) == (StatusCode.DEADLINE_EXCEEDED, None)
            await gone(here)
            await publish(q, "t", b"x")
            assert here.in_flight("t", "g") == 0
            (one,) = (await q.Poll(polled())).messages
            assert (one.message.offset, one.attempt) == (number, 1)
            await q.Ack(pb.AckRequest(group="g", receipts=[one.receipt]))

    serve(tmp_path, work)


def test_no_more_is_polled_than_was_asked_for_or_fits_into_a_reply(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        # Compressed they are a few bytes; said one by one they are 8 MiB, of which clients take 4.
        values = [bytes(500_000) for _ in range(16)]
        frame = Frame.of(Batch.from_columns(values, now_us=1), codec=CODECS["zstd"])
        await here.site.publish_frame("t", 0, frame)
        assert len((await q.Poll(polled("some", max_messages=3))).messages) == 3
        seen: list[int] = []
        while len(seen) < 16:
            messages = (await q.Poll(polled(wait_us=5_000_000))).messages
            assert all(one.attempt == 1 for one in messages)
            seen += [one.message.offset for one in messages]
            assert len(messages) <= 5
        assert sorted(seen) == list(range(16))

    serve(tmp_path, work)


def test_polls_that_can_t_be_are_refused(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await q.CreateGroup(pb.CreateGroupRequest(name="g", settings=pb.GroupSettings(ordering="key")))
        refused = StatusCode.INVALID_ARGUMENT
        other = pb.GroupSettings(ordering="none")
        for request, expected in (
            (polled(max_messages=-1), (refused, "invalid_input")),
            (polled(max_messages=10_001), (refused, "invalid_input")),
            (polled(wait_us=-1), (refused, "invalid_input")),
            (polled(wait_us=1 << 62), (refused, "invalid_input")),
            (polled(topics=()), (refused, "invalid_input")),
            (polled(topics=("nowhere",)), (StatusCode.NOT_FOUND, "topic_not_found")),
            (polled(settings=other), (StatusCode.FAILED_PRECONDITION, "settings_conflict")),
            (polled("new", settings=pb.GroupSettings(visibility_us=0)), (refused, "invalid_setting")),
        ):
            assert await failure(q.Poll(request)) == expected

    serve(tmp_path, work)


def test_who_leaves_is_no_member_any_more(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=2)
        for consumer in ("one", "two"):
            await q.Poll(polled(consumer=consumer))
        await q.Leave(pb.LeaveRequest(group="g", consumer="one"))
        (member,) = (await q.GetGroup(pb.GetGroupRequest(name="g"))).members
        assert (member.consumer, len(member.assigned)) == ("two", 2)
        nobody = q.Leave(pb.LeaveRequest(group="nobody", consumer="one"))
        assert await failure(nobody) == (StatusCode.NOT_FOUND, "group_not_found")

    serve(tmp_path, work)


def test_a_stopping_door_ends_polls_with_nothing(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        polling = asyncio.ensure_future(_awaited(q.Poll(polled(wait_us=20_000_000))))
        await waiting(here)
        await here.door.close()
        assert not (await polling).messages
        with pytest.raises(grpc.aio.AioRpcError):
            await q.Poll(polled())

    serve(tmp_path, work)
