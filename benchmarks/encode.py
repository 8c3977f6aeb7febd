"""What does each step of a message's way cost: encode, view, compress, checksum, and back to Python?

Values of 100 B with keys and timestamps of their own, in a batch of 1 and a batch of 1,000 (then for each message).
Beside our body stands Arrow IPC, one record batch message with the columns of our schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import pyarrow as pa
from crc32c import crc32c

import harness
from harness import Figure, Run, info
from penstock.batch import Batch
from penstock.body import encode, encode_message
from penstock.clock import SystemClock
from penstock.codec import LZ4, ZSTD
from penstock.columns import SCHEMA
from penstock.frame import HEADER_BYTES, Frame
from penstock.message import Message

NOW_US = SystemClock().now_us()


class Lists:
    """What a producer has: Python lists."""

    def __init__(self, count: int) -> None:
        self.values = harness.values(count)
        self.keys = harness.keys(count)
        self.timestamps = [NOW_US + i for i in range(count)]
        self.message = Message(self.values[0], key=self.keys[0], timestamp=NOW_US)

    def batch(self) -> Batch:
        return Batch.from_columns(self.values, keys=self.keys, timestamps=self.timestamps, now_us=NOW_US)

    def body(self) -> bytes:
        return b"".join(encode(self.batch()))

    def frame(self) -> Frame:
        return Frame.of(self.batch())

    def arrow_ipc(self) -> pa.Buffer:
        given = {"value": self.values, "key": self.keys, "timestamp": self.timestamps}
        columns = [
            pa.array(given[field.name], field.type) if field.name in given else pa.nulls(len(self.values), field.type)
            for field in SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize()

    def body_of_message(self) -> bytes:
        return b"".join(encode_message(self.message))

    def frame_of_message(self) -> Frame:
        return Frame.of_message(self.message, now_us=NOW_US)


def repeated(work: Callable[[], object], times: int) -> float:
    """Seconds for one."""

    def all_of_them() -> None:
        for _ in range(times):
            work()

    return harness.seconds(all_of_them) / times


def steps(lists: Lists) -> dict[str, Callable[[], object]]:
    frame = lists.frame()
    body = frame.data[HEADER_BYTES:]
    batch = frame.batch()
    named: dict[str, Callable[[], object]] = {
        "encode from lists, our body": lists.body,
        "encode from lists, Arrow IPC": lists.arrow_ipc,
        "encode from lists, a whole frame": lists.frame,
        "view as numpy columns": partial(frame.batch, verify=False),
        "view as an Arrow record batch": batch.to_arrow,
        "CRC-32C of the body": partial(crc32c, body),
        "values back to Python bytes": batch.values,
        "accept a frame from outside": partial(Frame.accept, frame.data),
    }
    if batch.count == 1:
        named["encode a message, our body"] = lists.body_of_message
        named["encode a message, a whole frame"] = lists.frame_of_message
        return named
    for name, codec in (("lz4", LZ4), ("zstd", ZSTD)):
        packed = Frame.of(batch, codec=codec)
        packed_body = packed.data[HEADER_BYTES : HEADER_BYTES + packed.body_length]
        named[f"{name}, in"] = partial(pa.Codec(name).compress, body)
        named[f"{name}, out"] = partial(pa.Codec(name).decompress, packed_body, packed.raw_length)
    return named


def measure(run: Run) -> Iterator[Figure]:
    for count, times in ((1, run.pick(2_000, 20)), (1_000, run.pick(100, 2))):
        lists = Lists(count)
        works = {name: partial(repeated, work, times) for name, work in steps(lists).items()}
        taken = harness.interleave(run.rounds, works)
        label = "1 message" if count == 1 else "1,000 messages, each"
        for name, spent in taken.items():
            yield info(f"{label}: {name}", 1e9 * median(spent) / count, "ns")
        yield from overheads(label, lists)


def overheads(label: str, lists: Lists) -> Iterator[Figure]:
    content = sum(map(len, lists.values)) + sum(map(len, lists.keys))
    for name, size in (
        ("our body", len(lists.body())),
        ("our frame", len(lists.frame().data)),
        ("Arrow IPC", lists.arrow_ipc().size),
    ):
        yield info(f"{label}: bytes beyond keys and values, {name}", (size - content) / len(lists.values), "B")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=21)
