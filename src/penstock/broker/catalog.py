"""Which topics there are, in one file that is replaced as a whole.

    file "catalog": magic "PNC", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON

Every change is on disk before it is told. A partition's directory is named by a generated id. Directories of deleted
topics are listed until they are gone, so that a crash in between neither leaks them nor ever makes a missing entry a
reason to delete data: a directory that nobody lists is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

from penstock.broker.names import check_name
from penstock.broker.settings import PARTITIONS_DEFAULT, TopicSettings, check_partitions
from penstock.clock import Clock
from penstock.errors import AlreadyExists, InvalidSetting, LogCorrupt, TopicNotFound, UnknownFormat
from penstock.storage.files import Files, replace_file

NAME = "catalog"
_MAGIC = b"PNC\x01"


class TopicRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    partitions: tuple[str, ...]
    settings: TopicSettings
    created_us: int


class _Contents(msgspec.Struct, frozen=True):
    topics: tuple[TopicRecord, ...] = ()
    removing: tuple[str, ...] = ()


class Catalog:
    """Opened with `Catalog.open`. Topics are in the order of their names."""

    def __init__(self, files: Files, contents: _Contents, clock: Clock, new_id: Callable[[], bytes]) -> None:
        self._files = files
        self._clock = clock
        self._new_id = new_id
        self._topics = {topic.name: topic for topic in contents.topics}
        self._removing = contents.removing

    @classmethod
    def open(cls, files: Files, *, clock: Clock, new_id: Callable[[], bytes]) -> Catalog:
        contents = _read(files)
        if contents is None:
            catalog = cls(files, _Contents(), clock, new_id)
            catalog._save(catalog._topics, ())
            return catalog
        return cls(files, contents, clock, new_id)

    @property
    def topics(self) -> list[TopicRecord]:
        return [self._topics[name] for name in sorted(self._topics)]

    @property
    def removing(self) -> tuple[str, ...]:
        """Directories of partitions of deleted topics that may still be there."""
        return self._removing

    def topic(self, name: str) -> TopicRecord:
        try:
            return self._topics[check_name("topic", name)]
        except KeyError:
            raise TopicNotFound(f"there is no topic {name}", topic=name) from None

    def create_topic(
        self, name: str, partitions: int = PARTITIONS_DEFAULT, settings: TopicSettings | None = None
    ) -> TopicRecord:
        check_name("topic", name)
        check_partitions(partitions)
        if name in self._topics:
            raise AlreadyExists(f"there is a topic {name} already", topic=name)
        record = TopicRecord(
            id=self._id(),
            name=name,
            partitions=tuple(self._id() for _ in range(partitions)),
            settings=settings or TopicSettings(),
            created_us=self._clock.now_us(),
        )
        self._put(record)
        return record

    def change_topic(
        self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None
    ) -> TopicRecord:
        """Other settings, or more partitions. Keys then spread differently; what is stored stays where it is."""
        record = self.topic(name)
        if partitions is not None:
            check_partitions(partitions)
            if partitions < len(record.partitions):
                raise InvalidSetting(
                    f"{name} has {len(record.partitions)} partitions; they can grow, not shrink", setting="partitions"
                )
            added = tuple(self._id() for _ in range(partitions - len(record.partitions)))
            record = msgspec.structs.replace(record, partitions=record.partitions + added)
        if settings is not None:
            record = msgspec.structs.replace(record, settings=settings)
        self._put(record)
        return record

    def delete_topic(self, name: str) -> TopicRecord:
        """Its directories are listed in `removing` until `removed` is told."""
        record = self.topic(name)
        topics = {other: kept for other, kept in self._topics.items() if other != name}
        self._save(topics, (*self._removing, *record.partitions))
        return record

    def removed(self, partition: str) -> None:
        self._save(self._topics, tuple(other for other in self._removing if other != partition))

    def _id(self) -> str:
        return self._new_id().hex()

    def _put(self, record: TopicRecord) -> None:
        self._save({**self._topics, record.name: record}, self._removing)

    def _save(self, topics: dict[str, TopicRecord], removing: tuple[str, ...]) -> None:
        """Memory follows the disk, never the other way round."""
        body = msgspec.json.encode(_Contents(tuple(topics.values()), removing))
        replace_file(self._files, NAME, [_MAGIC, crc32c(body).to_bytes(4, "little"), body])
        self._topics, self._removing = topics, removing


def _read(files: Files) -> _Contents | None:
    if NAME not in files.names():
        # Partitions are made after the catalog that lists them.
        if files.directories():
            raise LogCorrupt("the catalog is missing, but there are partitions", file=NAME, position=0)
        return None
    file = files.open(NAME, "read")
    data = file.read_at(0, file.size())
    file.close()
    if data[:3] == _MAGIC[:3] and data[3:4] not in (b"", _MAGIC[3:]):
        raise UnknownFormat(f"catalog version {data[3]}; this build reads version {_MAGIC[3]}", file=NAME)
    if data[:4] != _MAGIC or crc32c(data[8:]) != int.from_bytes(data[4:8], "little"):
        raise LogCorrupt("the catalog is damaged", file=NAME, position=0)
    return msgspec.json.decode(data[8:], type=_Contents)
