"""Limits are for what clients send. What was stored under others is delivered, dead-lettered and redriven as it is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.batch import Batch
from penstock.codec import CODECS
from penstock.errors import BatchTooLarge
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS, KIB, Limits
from penstock.message import Message
from served import Served, serve

LOWERED = Limits(message_bytes_max=10 * KIB, header_bytes_max=KIB, headers_max=2, frame_bytes_max=64 * KIB)
LARGE = bytes(300_000)


def test_messages_above_lowered_limits_go_all_the_ways_of_a_message(tmp_path: Path) -> None:
    async def before(here: Served) -> None:
        async with here.client() as client:
            await client.create_topic("t", partitions=1)
            headers = [(f"h{number}", bytes(KIB)) for number in range(10)]
            for number in range(3):
                await client.publish("t", LARGE, key=b"%d" % number, headers=headers)

    async def after(here: Served) -> None:
        async with here.client() as client:
            with pytest.raises(BatchTooLarge):
                await client.publish("t", LARGE)
            assert [len(one.value or b"") async for one in client.reader("t")] == [len(LARGE)] * 3
            consumer = client.consumer("g", "t")
            first, second, third = await consumer.poll(3, wait="10s")
            await first.ack()
            await second.reject("in place")
            await third.reject("as a copy")
            # Burying is under way, and must not end the broker.
            await here.site.broker.settle()
            letters = await client.dead_letters.list("t")
            assert [len(letter.message.value or b"") for letter in letters] == [len(LARGE)] * 2
            assert [len(letter.message.headers) for letter in letters] == [10, 10]
            done = await client.dead_letters.redrive("t", ids=[letters[0].id])
            assert len(done.in_place) == 1
            (again,) = await consumer.poll(3, wait="10s")
            assert (again.key, again.value) == (b"1", LARGE)
            await again.ack()
            await consumer.close()
            await client.delete_group("g")
            done = await client.dead_letters.redrive("t")
            assert len(done.copied) == 1
            assert [one.key async for one in client.reader("t")] == [b"0", b"1", b"2", b"2"]

    serve(tmp_path, before)
    serve(tmp_path, after, limits=LOWERED)
    # And once more: nothing that is stored keeps a broker from starting.
    serve(tmp_path, lambda here: here.site.broker.settle(), limits=LOWERED)


def test_part_of_a_frame_that_is_larger_than_the_limit_once_it_is_decompressed_arrives(tmp_path: Path) -> None:
    rng = random.Random(1)
    words = [rng.randbytes(100) for _ in range(50)]
    messages = [Message(b"".join(rng.choices(words, k=20))) for _ in range(10_000)]
    frame = Frame.of(Batch.from_messages(messages, 1), codec=CODECS["zstd"])
    assert len(frame.data) < DEFAULT_LIMITS.frame_bytes_max < frame.raw_length

    async def work(here: Served) -> None:
        async with here.client() as client:
            await client.create_topic("t", partitions=1)
            await client._transport.publish_frame("t", 0, frame)
            async with client.consumer("g", "t", prefetch=8_000) as consumer:
                got = [one.value for one in await consumer.poll(8_000, wait="10s")]
            assert got == [message.value for message in messages[:8_000]]

    serve(tmp_path, work)
