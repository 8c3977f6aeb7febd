"""The two logs of a partition that Spark reads as tables: its messages, and what became of them (deliveries)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.client.blocking import Client
from penstock.client.requests import TopicInfo
from penstock.columns import SCHEMA

MESSAGES, DELIVERIES = "messages", "deliveries"


class Held(NamedTuple):
    """What a log holds now: offsets [start, end). `bytes` is None if that is not known."""

    start: int
    end: int
    bytes: int | None = None


class Log(Protocol):
    # The column that tells where a row is.
    position: str
    # Whether places can be found by time.
    has_times: bool

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        """By partition."""

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """With the columns that are wanted, and maybe others."""


class Messages:
    position = "offset"
    has_times = True

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        return [Held(each.start_offset, each.end_offset, each.bytes) for each in info.partitions]

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        sent = [name for name in columns if name in SCHEMA.names]
        reader = client.reader(topic, from_offset=start, to_offset=end, partitions=[partition], columns=sent)
        return reader.batches()


class Deliveries:
    position = "event_offset"
    has_times = False

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        ends = client.deliveries(info.name).ends()
        return [Held(*ends[number]) for number in sorted(ends)]

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        return client.deliveries(topic, from_offset=start, to_offset=end, partitions=[partition]).batches()


LOGS: dict[str, Log] = {MESSAGES: Messages(), DELIVERIES: Deliveries()}
