"""Requests with many small parts: they cost no more memory than they have bytes, and others get on meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.errors import ProtocolError
from penstock.limits import MIB
from penstock.server import leases
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.entries import entries_check
from penstock.server.http import receipts, topics
from penstock.server.receipts import Place, key_of
from penstock.server.turns import SLICE_REQUESTS, in_slices
from security.doors import Doors, knock


def _empty(message: Any, field: str, count: int) -> bytes:
    """The message, with so many empty entries of a list."""
    number = message.DESCRIPTOR.fields_by_name[field].number
    return bytes(message.SerializeToString()) + bytes([number << 3 | 2, 0]) * count


def _framed(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


_WHERE = pb.RedriveRequest.DESCRIPTOR.fields_by_name["where"].number
_MESSAGES = pb.PublishBatchRequest.DESCRIPTOR.fields_by_name["messages"].number


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("Consumer/Ack", _empty(pb.AckRequest(group="g"), "receipts", MIB)),
        ("Consumer/Poll", _empty(pb.PollRequest(group="g"), "topics", MIB)),
        ("Publisher/PublishBatch", _empty(pb.PublishBatchRequest(topic="t"), "messages", MIB)),
        ("Publisher/PublishBatch", _framed(_MESSAGES, _empty(pb.NewMessage(value=b"x"), "headers", MIB))),
        ("DeadLetters/Redrive", _framed(_WHERE, _empty(pb.Where(), "ids", MIB))),
        # Behind a group, which no field is for; and with tags that are longer than need be.
        ("Consumer/Ack", b"\xa3\x06\xa4\x06" + _empty(pb.AckRequest(group="g"), "receipts", MIB)),
        ("Consumer/Ack", pb.AckRequest(group="g").SerializeToString() + b"\x92\x00\x00" * MIB),
    ],
)
def test_a_grpc_request_with_a_million_entries_is_refused_before_it_is_decoded(
    tmp_path: Path, method: str, data: bytes
) -> None:
    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(f"/penstock.v1.{method}")(data)
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "a list of more than" in str(failed.value.details())

    knock(tmp_path, work)


def test_a_full_batch_is_no_list_that_is_too_long_whatever_is_in_it() -> None:
    check = entries_check(pb.PublishBatchRequest.DESCRIPTOR)
    marks = b"\x12\x1a" * 300
    messages = [pb.NewMessage(value=marks, key=b"k", headers=[pb.Header(name="n", value=b"v")] * 9)] * 10_000
    check(pb.PublishBatchRequest(topic="t", messages=messages).SerializeToString())
    check(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(value=b"\x12\x00" * 4 * MIB)]).SerializeToString())
    with pytest.raises(ProtocolError):
        check(_empty(pb.PublishBatchRequest(), "messages", 100_000))


def test_what_makes_no_sense_is_left_to_the_decoder() -> None:
    check, dice = entries_check(pb.RedriveRequest.DESCRIPTOR), random.Random(1)
    for _ in range(100):
        data = bytes([dice.choice((0x0A, 0x12, 0x1A, 0xFF, dice.randrange(256)))]) * 200_000
        try:
            check(data)
        except ProtocolError:
            pass


class _Turns:
    """How many parts of a request begin between two turns of others."""

    def __init__(self) -> None:
        self._turn = 0
        self.begun = Counter[int]()

    async def others(self) -> None:
        while True:
            await asyncio.sleep(0)
            self._turn += 1

    def counting(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self.begun[self._turn] += 1
            return begin(*given)

        return counted


def test_parts_of_a_request_begin_a_few_at_a_time() -> None:
    async def run() -> None:
        turns = _Turns()
        others = asyncio.ensure_future(turns.others())

        async def part(number: int) -> int:
            turns.counting(int)()
            return number

        assert await in_slices(part(number) for number in range(500)) == list(range(500))
        assert max(turns.begun.values()) <= SLICE_REQUESTS
        others.cancel()

    asyncio.run(run())


def test_after_a_failure_no_more_parts_of_a_request_begin() -> None:
    begun = []

    async def part(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        asyncio.run(in_slices(part(number) for number in range(500)))
    assert len(begun) == SLICE_REQUESTS


@pytest.mark.parametrize("what", ["publish", "ack"])
def test_others_get_on_while_a_long_list_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        await doors.site.join_for_a_session("g", "c", ["t"], {})
        await doors.site.poll("g", "c", ["t"], count=1, bytes_max=1, wait_us=0)
        turns = _Turns()
        others = asyncio.ensure_future(turns.others())
        if what == "publish":
            monkeypatch.setattr(topics, "published", turns.counting(topics.published))
            answer = await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [{"text": "x"}] * 1_000})
        else:
            monkeypatch.setattr(leases, "_answered", turns.counting(leases._answered))
            key = key_of(doors.site.broker.secret, "g")
            given = [receipts.written(Place("t", 0, lease, 0), key) for lease in range(1_000)]
            answer = await doors.web.post("/v1/groups/g/ack", json={"receipts": given})
        assert answer.is_success, answer.text
        assert turns.begun.total() == 1_000
        assert max(turns.begun.values()) <= SLICE_REQUESTS
        others.cancel()

    knock(tmp_path, work)


def test_batches_of_one_stream_keep_their_order_however_long_each_takes(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        stream = doors.stub.PublishStream()
        for count in (1_000, 1, 500, 1):
            messages = [pb.NewMessage(value=b"x", headers=[pb.Header(name="n", value=b"v")])] * count
            await stream.write(pb.PublishBatchRequest(topic="t", messages=messages))
        firsts = [(await stream.read()).offsets[0] for _ in range(4)]
        assert firsts == [0, 1_000, 1_001, 1_501]
        stream.cancel()

    knock(tmp_path, work)
