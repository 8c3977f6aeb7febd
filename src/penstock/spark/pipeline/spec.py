"""What a pipeline is: sources, a transform, a sink, and when. `reading.py` makes one of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Decoding = Literal["json", "avro", "text", "bytes"]
FAIL, SKIP = "fail", "skip"
# What a row can have of its message besides what is decoded: `key` is then the column `_key`.
MESSAGE_COLUMNS = (
    "id",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "append_time",
    "key",
    "headers",
    "priority",
    "deliver_at",
)


@dataclass(frozen=True)
class Broker:
    """How to get there. What is shown of it has no key."""

    url: str
    key: str | None = field(default=None, repr=False)
    tls: dict[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        found = {"url": self.url, **{f"tls.{name}": value for name, value in self.tls.items()}}
        return found if self.key is None else {**found, "key": self.key}


@dataclass(frozen=True)
class Watermark:
    column: str
    delay_us: int


@dataclass(frozen=True)
class Source:
    """`name` is what SQL calls it. `options` are those of Spark's source, as text; `topics` is empty with a pattern."""

    name: str
    topics: tuple[str, ...]
    options: dict[str, str]
    starts_latest: bool
    decode: Decoding
    # For json the DDL, for avro the schema itself.
    schema: str = ""
    # Those of the schema, or `value`.
    decoded: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    # fail, skip, or the topic that gets them.
    on_bad_row: str = FAIL
    watermark: Watermark | None = None

    @property
    def row(self) -> list[str]:
        """The columns of its rows. Empty if its schema is wrong."""
        return [*self.decoded, *(f"_{column}" for column in self.columns)] if self.decoded else []

    @property
    def dead_letters(self) -> str | None:
        return None if self.on_bad_row in (FAIL, SKIP) else self.on_bad_row


@dataclass(frozen=True)
class Transform:
    """SQL, or a function: `python` is its module or file, `function` its name."""

    sql: str | None = None
    python: str | None = None
    function: str = ""


@dataclass(frozen=True)
class TopicSink:
    topic: str
    encode: Decoding = "json"
    schema: str = ""
    key: str | None = None
    value: str = "value"
    mode: str = "append"


@dataclass(frozen=True)
class TableSink:
    kind: Literal["parquet", "delta"]
    path: str
    partition_by: tuple[str, ...] = ()
    mode: str = "append"


@dataclass(frozen=True)
class Trigger:
    """As soon as there is something, unless `every_us` or `available_now` say otherwise."""

    every_us: int | None = None
    available_now: bool = False


@dataclass(frozen=True)
class Pipeline:
    """`directory` is that of the file: paths in it start there. `checkpoint` is None for the default."""

    name: str
    file: Path
    broker: Broker
    sources: tuple[Source, ...]
    transform: Transform
    sink: TopicSink | TableSink
    trigger: Trigger = Trigger()
    checkpoint: str | None = None
    spark: dict[str, str] = field(default_factory=dict)
    # Where topics are named in the file.
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.file.parent

    @property
    def topics(self) -> list[str]:
        """Those that must be there."""
        read = [topic for source in self.sources for topic in source.topics]
        written = [source.dead_letters for source in self.sources if source.dead_letters is not None]
        if isinstance(self.sink, TopicSink):
            written.append(self.sink.topic)
        return list(dict.fromkeys([*read, *written]))

    @property
    def needs_avro(self) -> bool:
        encodes = isinstance(self.sink, TopicSink) and self.sink.encode == "avro"
        return encodes or any(source.decode == "avro" for source in self.sources)

    @property
    def needs_delta(self) -> bool:
        return isinstance(self.sink, TableSink) and self.sink.kind == "delta"
