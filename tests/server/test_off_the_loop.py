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
from penstock.broker.reading import Reading
from penstock.client.requests import FindOffsets
from penstock.clock import SystemClock
from penstock.codec import CODECS, LZ4
from penstock.frame import NO_PRODUCER, Frame, Producer
from penstock.message import Message
from penstock.net.remote import RemoteTransport
from penstock.server.parcels import wanted_of
from penstock.storage.files import DiskFile
from penstock.storage.log import Log
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


def frame_of(messages: list[Message], codec: int = LZ4, producer: Producer = NO_PRODUCER) -> Frame:
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


def test_a_large_compressed_frame_is_thinned_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        topic = await here.site.broker.create_topic("t", 1)
        await here.site.broker.create_group("g")
        group = here.site.broker.group("g", "t")
        await group.start()
        await topic.publish_frame(frame_of(LARGE), 0)
        decompressed = noted(monkeypatch, Frame, "batch")
        (handed,) = await group.lease("c", 1)
        assert decompressed == [False]
        # What is left of it is sent as it is.
        (data,) = wanted_of(handed.frames, handed.receipt.offsets)
        assert len(data) < 400_000
        assert decompressed == [False]

    serve(tmp_path, work)


class PageCache:
    """Of the kernel, as it was before anything was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_warm = False
        self._loop_thread = threading.get_ident()
        self._read_at = DiskFile.read_at
        monkeypatch.setattr(DiskFile, "is_cached", lambda file, position, length: self.is_warm)
        monkeypatch.setattr(DiskFile, "read_at", lambda *given: self._read(*given))

    def _read(self, file: DiskFile, position: int, length: int) -> bytes:
        assert self.is_warm or threading.get_ident() != self._loop_thread, "the event loop waits for the disk"
        self.is_warm = True
        return self._read_at(file, position, length)


def test_a_poll_of_a_cold_log_reads_it_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        topic = await here.site.broker.create_topic("t", 1)
        await here.site.broker.create_group("g")
        group = here.site.broker.group("g", "t")
        await group.start()
        for _ in range(3):
            await topic.publish_frame(frame_of([Message(bytes(200_000))], 0), 0)
        cache = PageCache(monkeypatch)
        (handed,) = await group.lease("c", 10)
        assert list(handed.receipt.offsets) == [0, 1, 2]
        assert cache.is_warm

    serve(tmp_path, work)


def test_a_cold_log_is_read_even_if_the_kernel_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        topic = await here.site.broker.create_topic("t", 1)
        await here.site.broker.create_group("g")
        group = here.site.broker.group("g", "t")
        await group.start()
        await topic.publish_frame(frame_of([Message(bytes(400_000))], 0), 0)
        monkeypatch.setattr(DiskFile, "is_cached", lambda file, position, length: False)
        read = noted(monkeypatch, DiskFile, "read_at")
        (handed,) = await group.lease("c", 10)
        assert list(handed.receipt.offsets) == [0]
        assert read[0] is False

    serve(tmp_path, work)


def test_a_seek_by_time_looks_it_up_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        broker = here.site.broker
        await broker.create_topic("t", 3)
        await broker.create_group("g")
        looked_up = noted(monkeypatch, Log, "offset_at")
        await broker.group("g", "t").seek(time_us=1)
        assert looked_up == [False] * 3

    serve(tmp_path, work)


def test_offsets_by_time_are_found_one_partition_a_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served) -> None:
        broker = here.site.broker
        await broker.create_topic("t", 3)
        slices = list[int]()
        find = Log.offset_at

        def found(log: Log, time_us: int) -> int:
            slices.append(jobs[0])
            return find(log, time_us)

        jobs, run = [0], here.site.broker._work.on_a_reading_thread

        async def counted(work: Callable[[], Any]) -> Any:
            jobs[0] += 1
            return await run(work)

        monkeypatch.setattr("penstock.broker.work.SLICE_US", 0)
        monkeypatch.setattr(broker._work, "on_a_reading_thread", counted)
        monkeypatch.setattr(Log, "offset_at", found)
        assert await here.site.call(FindOffsets("t", 1)) == [0, 0, 0]
        assert slices == [1, 2, 3]

    serve(tmp_path, work)


def test_delays_of_a_replay_that_a_poll_starts_are_read_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(here: Served) -> None:
        broker = here.site.broker
        topic = await broker.create_topic("t", 1)
        await topic.publish_frame(frame_of(SMALL, 0), 0)
        await broker.replay("t", "again", offsets={0: (0, 1)}, delays=True)
        # As a crash leaves it, which cut the replay short.
        await topic.partitions[0].groups.drop("again")
        read = noted(monkeypatch, Reading, "decode")
        first, second = await asyncio.gather(*[broker.group("again", "t").lease(c, 10) for c in "ab"])
        assert len(first + second) == 1, "the replay was started twice"
        assert read
        assert not any(read)

    serve(tmp_path, work)
