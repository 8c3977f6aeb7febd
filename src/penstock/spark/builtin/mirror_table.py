"""The translation table of mirrors: a topic at the target, in which compaction keeps the last word on each part.

    key    ["mirror", <id>]                                                  a mirror: the id of its query
    value  {"version": 1, "source": "penstock://a:7420", "prefix": "dc1."}

    key    ["course", <target topic>, <its id>, <id of the source topic>, <partition>, <part>]
    value  {"version": 1, "source": "orders", "mirror": <id>, "base": 0, "runs": [[40, 7, 3], [44, 10, 2]]}

    key    ["end", <target topic>, <its id>, <id of the source topic>, <partition>]
    value  {"version": 1, "source": 46, "target": 12}                        behind the last message of the last batch

A course is one partition on its way. Its runs are cut into parts, so that a batch rewrites the last one only; where
nothing is missing at the source, and nobody else writes to the target, that is one run. Everything mirrored is at
`base` or behind it. A part whose messages the target has deleted is deleted, too.

A course is written before the first message of it; its runs and then its end after the messages of a batch, and before
Spark takes the batch for done. So what is before the end is mirrored, whatever becomes of the checkpoint, and a batch
that was cut short is behind it. A batch that is done again is told again, with the same places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from penstock.client.blocking import Client
from penstock.decoding import from_json
from penstock.errors import TopicNotFound, UnknownFormat
from penstock.spark.builtin.mirror_runs import Run, grown, translated

TABLE = "penstock.mirror-offsets"
VERSION = 1
PART_RUNS = 1_000


class Way(NamedTuple):
    """What a course is known by."""

    target: str
    target_id: str
    source_id: str
    partition: int


class _Course(msgspec.Struct):
    version: int
    source: str
    mirror: str
    base: int
    runs: list[Run]


class _End(msgspec.Struct):
    version: int
    source: int
    target: int


class MirrorRecord(msgspec.Struct):
    version: int
    source: str
    prefix: str


class Course:
    """`source` is the name of the source topic, `mirror` the id of who writes it.

    `source_end` and `target_end` are behind the last message of the last batch.
    """

    def __init__(self, source: str, mirror: str, base: int) -> None:
        self.source = source
        self.mirror = mirror
        self.base = base
        self.source_end = 0
        self.target_end = base
        self.parts: list[list[Run]] = [[]]

    @property
    def runs(self) -> list[Run]:
        return list(chain.from_iterable(self.parts))

    def translate(self, offset: int) -> int:
        found = translated(self.runs, offset)
        return self.base if found is None else found

    def grow(self, runs: Iterable[Run]) -> list[int]:
        """The parts that have changed."""
        last = self.parts[-1]
        grown(last, runs)
        if last:
            self.source_end, self.target_end = last[-1].source_end, last[-1].target_end
        first = len(self.parts) - 1
        self.parts[first:] = [last[at : at + PART_RUNS] for at in range(0, len(last), PART_RUNS)] or [[]]
        return list(range(first, len(self.parts)))

    def forget_below(self, offset: int) -> list[int]:
        """The parts that are of no use any more; the last one stays."""
        gone = [at for at, part in enumerate(self.parts[:-1]) if part and part[-1].target_end <= offset]
        for at in gone:
            self.parts[at] = []
        return gone


class Table:
    """As it was when it was last looked at."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at = 0
        self.mirrors: dict[str, MirrorRecord] = {}
        self.courses: dict[Way, Course] = {}

    def look(self) -> None:
        """At what has come since. Nothing, if there never was a mirror."""
        try:
            for message in self._client.reader(TABLE, from_offset={0: self._at} if self._at else None, partitions=[0]):
                self._take(message.key or b"", message.value)
                self._at = message.offset + 1
        except TopicNotFound:
            return

    def ways(self, *, target: str | None = None, source_id: str | None = None) -> Iterator[tuple[Way, Course]]:
        for way, course in self.courses.items():
            if (target is None or way.target == target) and (source_id is None or way.source_id == source_id):
                yield way, course

    # --- written by the mirror ---------------------------------------------------------------------------

    def put_mirror(self, id: str, record: MirrorRecord) -> None:
        self.mirrors[id] = record
        self._client.publish(TABLE, msgspec.json.encode(record), key=_key("mirror", id), partition=0)

    def put_courses(self, courses: dict[Way, Course]) -> None:
        self.courses.update(courses)
        self._write((way, 0) for way in courses)

    def grow(self, more: dict[Way, list[Run]], starts: dict[Way, int]) -> None:
        """`starts` is where the target's partitions start now."""
        changed: list[tuple[Way, int]] = []
        for way, runs in more.items():
            course = self.courses[way]
            changed += [(way, part) for part in course.grow(runs)]
            changed += [(way, part) for part in course.forget_below(starts[way])]
        self._write(changed, more)

    def _write(self, parts: Iterable[tuple[Way, int]], ends: Iterable[Way] = ()) -> None:
        """In this order, whatever is cut short."""
        with self._client.producer(TABLE) as producer:
            sent = []
            for way, part in parts:
                course = self.courses[way]
                runs = course.parts[part]
                is_gone = not runs and len(course.parts) > 1
                value = msgspec.json.encode(_Course(VERSION, course.source, course.mirror, course.base, runs))
                key = _key("course", *way, part)
                sent.append(producer.send(None if is_gone else value, key=key, partition=0))
            for way in ends:
                end = _End(VERSION, self.courses[way].source_end, self.courses[way].target_end)
                sent.append(producer.send(msgspec.json.encode(end), key=_key("end", *way), partition=0))
            producer.flush()
            for each in sent:
                each.result()

    # --- read --------------------------------------------------------------------------------------------

    def _take(self, key: bytes, value: bytes | None) -> None:
        kind, *rest = msgspec.json.decode(key)
        if kind == "mirror" and value is not None:
            _check_version(value)
            self.mirrors[rest[0]] = from_json(value, MirrorRecord)
        elif kind == "course":
            *of, part = rest
            self._take_part(Way(*of), part, value)
        elif kind == "end" and value is not None and (course := self.courses.get(Way(*rest))) is not None:
            _check_version(value)
            end = from_json(value, _End)
            course.source_end, course.target_end = end.source, end.target

    def _take_part(self, way: Way, part: int, value: bytes | None) -> None:
        course = self.courses.get(way)
        if value is None:
            if course is not None and part < len(course.parts):
                course.parts[part] = []
            return
        _check_version(value)
        told = from_json(value, _Course)
        if course is None or course.mirror != told.mirror:
            course = self.courses[way] = Course(told.source, told.mirror, told.base)
        course.parts += [[] for _ in range(part + 1 - len(course.parts))]
        course.parts[part] = told.runs


class _Versioned(msgspec.Struct):
    version: int


def _check_version(value: bytes) -> None:
    version = from_json(value, _Versioned).version
    if version > VERSION:
        raise UnknownFormat(f"{TABLE} has version {version}, and this Penstock knows {VERSION}: update it")


def _key(*parts: str | int) -> bytes:
    return msgspec.json.encode(parts)
