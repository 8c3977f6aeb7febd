"""Messages that are pushed over gRPC: credit, answers on the same stream, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from grpc_served import Served, failure, listed, pb, polled, publish, serve, stub_of, topic
from penstock.server.grpc import replies

QUICK = pb.GroupSettings(backoff_initial_us=0, backoff_jitter=0)


async def subscribed(q: Any, credit: int, consumer: str = "c", **fields: Any) -> Any:
    """The stream, once the consumer is a member."""
    stream = q.Subscribe()
    wanted = pb.Subscription(group="g", consumer=consumer, topics=["t"], credit=credit, **fields)
    await stream.write(pb.SubscribeRequest(subscribe=wanted))
    assert (await stream.read()).HasField("subscribed")
    return stream


async def taken(stream: Any, count: int) -> list[Any]:
    """So many messages, and no more."""
    found: list[Any] = []
    while len(found) < count:
        found += (await stream.read()).delivered.messages
    assert len(found) == count
    return found


def acked(messages: list[Any]) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(ack=pb.AckRequest(receipts=[one.receipt for one in messages]))


def credit(messages: int) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(credit=pb.Credit(messages=messages))


async def members(q: Any) -> set[str]:
    return {member.consumer for member in (await q.GetGroup(pb.GetGroupRequest(name="g"))).members}


def test_messages_are_pushed_as_far_as_there_is_credit(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        stream = await subscribed(q, 3)
        await publish(q, "t", *[b"%d" % number for number in range(10)])
        seen, in_flight = [], []
        for more in (3, 2, 5):
            seen += await taken(stream, more)
            in_flight.append(here.in_flight("t", "g"))
            await stream.write(credit(2 if more == 3 else 5))
        assert in_flight == [3, 5, 10]
        assert [one.message.value for one in seen] == [b"%d" % number for number in range(10)]
        stream.cancel()

    serve(tmp_path, work)


def test_answers_on_the_stream_are_told_in_their_order(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"ack", b"nack", b"reject", b"release", b"extend", b"unary")
        stream = await subscribed(q, 6, settings=QUICK)
        got = {one.message.value: [one.receipt] for one in await taken(stream, 6)}
        await stream.write(pb.SubscribeRequest(ack=pb.AckRequest(receipts=[*got[b"ack"], b"oops"])))
        await stream.write(pb.SubscribeRequest(extend=pb.ExtendRequest(receipts=got[b"extend"])))
        await stream.write(pb.SubscribeRequest(reject=pb.RejectRequest(group="g", receipts=got[b"reject"])))
        await stream.write(pb.SubscribeRequest(nack=pb.NackRequest(receipts=got[b"nack"] * 2)))
        await stream.write(pb.SubscribeRequest(release=pb.ReleaseRequest(receipts=got[b"release"] + [b"no"] * 2)))
        told = [(await stream.read()).answered for _ in range(5)]
        assert [(reply.done, len(reply.failed)) for reply in told] == [(1, 1), (1, 0), (1, 0), (1, 0), (1, 2)]
        # A receipt is good outside the stream as well.
        assert (await q.Ack(pb.AckRequest(group="g", receipts=got[b"unary"]))).done == 1
        await stream.write(credit(2))
        again = await taken(stream, 2)
        assert {(one.message.value, one.attempt) for one in again} == {(b"nack", 2), (b"release", 1)}
        stream.cancel()

    serve(tmp_path, work)


def test_half_closing_gives_back_unseen_what_was_not_answered_for(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2", b"3")
        stream = await subscribed(q, 10)
        messages = await taken(stream, 3)
        await stream.write(acked(messages[:1]))
        await stream.done_writing()
        rest = await listed(stream)
        assert [reply.answered.done for reply in rest] == [1]
        assert await stream.code() is StatusCode.OK
        left = (await q.Poll(polled(consumer="other", wait_us=10_000_000))).messages
        assert {(one.message.value, one.attempt) for one in left} <= {(b"2", 1), (b"3", 1)}
        assert await members(q) == {"other"}

    serve(tmp_path, work)


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_what_a_client_held_that_goes_away_comes_back_as_a_failed_attempt(tmp_path: Path, is_cut_off: bool) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2")
        async with here.channel() as channel:
            stream = await subscribed(stub_of(channel), 10, settings=QUICK)
            await taken(stream, 2)
            assert here.in_flight("t", "g") == 2
            if not is_cut_off:
                stream.cancel()
                await stream.code()
        seen: set[tuple[bytes, int]] = set()
        while len(seen) < 2:
            polling = await q.Poll(polled(consumer="other", wait_us=10_000_000))
            seen |= {(one.message.value, one.attempt) for one in polling.messages}
        assert seen == {(b"1", 2), (b"2", 2)}
        assert await members(q) == {"other"}
        trace = await q.TraceMessage(pb.TraceMessageRequest(id="t:0:0"))
        assert "the stream of its consumer broke off" in [step.reason for step in trace.steps]

    serve(tmp_path, work)


def test_a_stream_that_ends_leaves_alone_the_one_that_took_over(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1")
        old = await subscribed(q, 1, settings=QUICK)
        await taken(old, 1)
        new = await subscribed(q, 10)
        old.cancel()
        assert [one.attempt for one in await taken(new, 1)] == [2]
        assert await members(q) == {"c"}
        new.cancel()

    serve(tmp_path, work)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([credit(1)], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([pb.SubscribeRequest()], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([{"topics": ["nowhere"]}], (StatusCode.NOT_FOUND, "topic_not_found")),
        ([{"topics": []}], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([{"credit": -1}], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([{"group": "../g"}], (StatusCode.INVALID_ARGUMENT, "invalid_name")),
        ([{"consumer": ""}], (StatusCode.INVALID_ARGUMENT, "invalid_name")),
        ([{}, credit(-1)], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([{}, pb.SubscribeRequest()], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        ([{}, {}], (StatusCode.INVALID_ARGUMENT, "invalid_input")),
        (
            [{}, pb.SubscribeRequest(ack=pb.AckRequest(group="other", receipts=[b"x"]))],
            (StatusCode.INVALID_ARGUMENT, "invalid_input"),
        ),
    ],
)
def test_streams_that_make_no_sense_end_with_an_error(tmp_path: Path, requests: list[Any], expected: Any) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        stream = q.Subscribe()
        for request in requests:
            if isinstance(request, dict):
                wanted = {"group": "g", "consumer": "c", "topics": ["t"], **request}
                request = pb.SubscribeRequest(subscribe=pb.Subscription(**wanted))
            await stream.write(request)
        if not requests:
            await stream.done_writing()
        assert await failure(listed(stream)) == expected

    serve(tmp_path, work)


def test_a_stream_whose_group_is_deleted_hears_so(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1")
        stream = await subscribed(q, 1)
        await taken(stream, 1)
        await q.DeleteGroup(pb.DeleteGroupRequest(name="g"))
        await stream.write(credit(1))
        assert (await failure(listed(stream)))[0] is StatusCode.NOT_FOUND

    serve(tmp_path, work)


def test_a_client_that_takes_nothing_is_leased_no_more_than_fits_on_the_way(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        for _ in range(8):
            await publish(q, "t", *[bytes(100_000) for _ in range(80)])
        async with here.channel(("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)) as channel:
            stream = await subscribed(stub_of(channel), 10_000)
            while not here.in_flight("t", "g"):
                await asyncio.sleep(0)
            # Not read from. Others go on meanwhile, and what it holds stops growing.
            held = -1
            while here.in_flight("t", "g") != held:
                held = here.in_flight("t", "g")
                for _ in range(20):
                    await q.Poll(polled("others", wait_us=0, max_messages=1))
            assert 0 < held < 300
            stream.cancel()

    serve(tmp_path, work)


def test_a_stopping_door_answers_what_was_asked_and_its_consumers_may_go_on_later(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        await publish(q, "t", b"1", b"2")
        stream = await subscribed(q, 10)
        messages = await taken(stream, 2)
        publishing = q.PublishStream()
        await publishing.write(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage()]))
        assert list((await publishing.read()).offsets) == [2]
        await here.door.close()
        for each in (stream, publishing):
            assert await failure(listed(each)) == (StatusCode.UNAVAILABLE, "log_closed")
        # Neither given back nor left: through another door, or after a restart, it may answer for them.
        assert here.in_flight("t", "g") >= len(messages)
        assert here.site.broker.consumers.of("g").names() == ["c"]

    serve(tmp_path, work)


def test_no_more_requests_are_read_than_may_be_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "AT_ONCE_MAX", 3)

    async def work(here: Served, q: Any) -> None:
        await topic(q)
        store, gate = here.site.publish_frame, asyncio.Event()
        begun = 0

        async def slowly(*arguments: Any) -> Any:
            nonlocal begun
            begun += 1
            await gate.wait()
            return await store(*arguments)

        monkeypatch.setattr(here.site, "publish_frame", slowly)
        stream = q.PublishStream()
        for _ in range(10):
            await stream.write(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage()]))
        for _ in range(20):
            await q.ListTopics(pb.ListTopicsRequest())
        assert begun == 3
        gate.set()
        await stream.done_writing()
        assert [reply.offsets[0] for reply in await listed(stream)] == list(range(10))

    serve(tmp_path, work)


def test_a_stream_of_acknowledgements_keeps_up_with_a_backlog(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q, partitions=3)
        for _ in range(5):
            await publish(q, "t", *[b"%d" % number for number in range(1_000)])
        stream = await subscribed(q, 500)
        seen = done = 0
        while done < 5_000:
            reply = await stream.read()
            assert reply is not grpc.aio.EOF
            done += reply.answered.done
            if messages := list(reply.delivered.messages):
                seen += len(messages)
                await stream.write(acked(messages))
                await stream.write(credit(len(messages)))
        assert (seen, here.in_flight("t", "g")) == (5_000, 0)
        await stream.done_writing()
        await listed(stream)

    serve(tmp_path, work)
