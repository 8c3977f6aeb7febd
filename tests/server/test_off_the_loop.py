"""What takes long runs on a thread, or in steps: never as one callback of the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.batch import Batch
from penstock.clock import SystemClock
from penstock.codec import CODECS, LZ4
from penstock.errors import ProtocolError
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.net.remote import RemoteTransport
from served import Served, serve

# Of 6 MB, and compressed to a tenth of that.
LARGE = [Message(random.Random(number).randbytes(30_000) + bytes(270_000)) for number in range(20)]
SMALL = [Message(b"small")]


def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Of each call of this function from now on, in order: whether it ran on the thread of the test."""
    here, calls = threading.get_ident(), list[bool]()
    called: Callable[..., Any] = getattr(owner, name)

    def run(*given: Any, **named: Any) -> Any:
        calls.append(threading.get_ident() == here)
        return called(*given, **named)

    monkeypatch.setattr(owner, name, run)
    return calls


def frame_of(messages: list[Message], codec: int = LZ4, producer: Producer = Producer(0, 0, 0)) -> Frame:
    return Frame.of(Batch.from_messages(messages, 1), codec=codec, producer=producer)


@pytest.mark.parametrize("codec", [CODECS["lz4"], CODECS["zstd"]])
def test_a_large_compressed_frame_is_decompressed_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        accepted = noted(monkeypatch, Frame, "accept")
        large, small = frame_of(LARGE, codec), frame_of(SMALL, codec)
        await transport.publish_frame("t", 0, large)
        await transport.publish_frame("t", 0, small)
        assert accepted == [False, True]
        await transport.close()

    serve(tmp_path, work)


def test_frames_behind_one_that_is_decompressed_on_a_thread_are_stored_behind_it(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        frames, sequence = list[Frame](), 0
        for messages in [LARGE, SMALL, SMALL, LARGE, SMALL]:
            frames.append(frame_of(messages, LZ4 if messages is LARGE else 0, Producer(7, 0, sequence)))
            sequence += len(messages)
        stored = await asyncio.gather(*[transport.publish_frame("t", 0, frame) for frame in frames])
        assert [at.offset for at in stored] == [0, 20, 21, 22, 42]
        await transport.close()

    serve(tmp_path, work)


def test_a_large_frame_that_is_invalid_fails_alone(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        damaged = bytearray(frame_of(LARGE).data)
        damaged[100] ^= 1
        outcomes = await asyncio.gather(
            transport.publish_frame("t", 0, Frame(memoryview(bytes(damaged)))),
            transport.publish_frame("t", 0, frame_of(SMALL)),
            return_exceptions=True,
        )
        assert getattr(outcomes[0], "code", None) == "checksum_mismatch"
        assert getattr(outcomes[1], "offset", None) == 0
        await transport.close()

    serve(tmp_path, work)
