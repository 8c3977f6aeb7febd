"""The two logs of a partition that Spark reads as tables: its messages, and what became of them (deliveries)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.client.blocking import Client
from penstock.client.requests import TopicInfo
from penstock.columns import SCHEMA
from penstock.errors import TopicNotFound

MESSAGES, DELIVERIES = "messages", "deliveries"


class Held(NamedTuple):
    """What a log holds now: offsets [start, end). `bytes` is None if that is not known.

    Below `whole_from` retention may have left single messages of what there was.
    """

    start: int
    end: int
    bytes: int | None = None
    whole_from: int = 0

    def lost(self, at: int, known: int = 0) -> int:
        """Up to where something is gone of what was to be read from `at` on; `at` if nothing is.

        `known` is up to where messages had been taken out before anybody asked for them.
        """
        whole_from = self.whole_from if self.whole_from > known else 0
        return max(at, self.start, whole_from)


class Log(Protocol):
    # The column that tells where a row is.
    position: str

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        """By partition. TopicNotFound if it was deleted meanwhile."""

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """With the columns that are wanted, and maybe others."""


class Messages:
    position = "offset"

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        return [Held(each.start_offset, each.end_offset, each.bytes, each.whole_from) for each in info.partitions]

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        sent = [name for name in columns if name in SCHEMA.names]
        reader = client.reader(topic, from_offset=start, to_offset=end, partitions=[partition], columns=sent)
        return reader.batches()


class Deliveries:
    position = "event_offset"

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        ends = client.deliveries(info.name).ends()
        if len(ends) < len(info.partitions):
            raise TopicNotFound(f"the topic {info.name} was deleted, and made again with fewer partitions")
        return [Held(*ends[number]) for number in sorted(ends)]

    def batches(
        self, client: Client, topic: str, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        return client.deliveries(topic, from_offset=start, to_offset=end, partitions=[partition]).batches()


LOGS: dict[str, Log] = {MESSAGES: Messages(), DELIVERIES: Deliveries()}
