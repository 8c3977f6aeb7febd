"""How far a streaming query has come: what Spark keeps in its checkpoint, as JSON.

    {"version": 1, "table": "messages", "topics": {"orders": {"id": "…", "offsets": {"0": 23, "1": 0}}}}

Each offset is that of the next message. With a topic's id, one that was deleted and made again under the same name, or
one of another broker, is not taken for the one that was read. A topic also has "holes" if retention had taken single
messages out of what the query began with: {"0": 40} says that it knows of that below offset 40. They are left out once
they are passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from penstock.decoding import convert
from penstock.errors import InvalidInput, UnknownFormat

VERSION = 1
HOW_TO_START_ANEW = "use a checkpointLocation of its own for each query"

Written = dict[str, Any]


class Place(NamedTuple):
    """In one topic. `holes` is up to where what is missing had been missing when the query began."""

    id: str
    offsets: Mapping[int, int]
    holes: Mapping[int, int] = MappingProxyType({})

    def written(self) -> Written:
        """In one order, since Spark compares texts."""
        found: Written = {"id": self.id, "offsets": _by_number(self.offsets)}
        holes = {number: end for number, end in self.holes.items() if end > self.offsets.get(number, end)}
        return found | ({"holes": _by_number(holes)} if holes else {})


Places = dict[str, Place]


class _Topic(msgspec.Struct):
    id: str
    offsets: dict[int, int]
    holes: dict[int, int] = {}


class _Checkpoint(msgspec.Struct):
    version: int
    table: str
    topics: dict[str, _Topic]


def written(places: Mapping[str, Place], table: str) -> Written:
    topics = {topic: place.written() for topic, place in sorted(places.items())}
    return {"version": VERSION, "table": table, "topics": topics}


def _by_number(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offsets[number] for number in sorted(offsets)}


def read_back(checkpoint: Written, table: str) -> Places:
    """What Spark hands over is whatever JSON the files of the checkpoint have."""
    version = checkpoint.get("version") if isinstance(checkpoint, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise UnknownFormat(f"the checkpoint has version {version}, and this Penstock knows {VERSION}: update it")
    try:
        found = convert(checkpoint, _Checkpoint, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the checkpoint is not one of a query that reads format penstock ({error}): {HOW_TO_START_ANEW}"
        ) from error
    if found.table != table:
        raise InvalidInput(
            f"the checkpoint is of a query that reads {found.table}, and this one reads {table}: {HOW_TO_START_ANEW}"
        )
    return {topic: Place(each.id, each.offsets, each.holes) for topic, each in found.topics.items()}
