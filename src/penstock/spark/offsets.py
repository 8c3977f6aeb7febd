"""How far a streaming query has come: what Spark keeps in its checkpoint, as JSON.

    {"version": 1, "table": "messages", "topics": {"orders": {"id": "…", "offsets": {"0": 23, "1": 0}}}}

Each offset is that of the next message. With a topic's id, one that was deleted and made again under the same name, or
one of another broker, is not taken for the one that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.errors import InvalidInput, UnknownFormat

VERSION = 1
HOW_TO_START_ANEW = "use a checkpointLocation of its own for each query"

Written = dict[str, Any]


class Place(NamedTuple):
    """In one topic."""

    id: str
    offsets: Mapping[int, int]


Places = dict[str, Place]


class _Topic(msgspec.Struct):
    id: str
    offsets: dict[int, int]


class _Checkpoint(msgspec.Struct):
    version: int
    table: str
    topics: dict[str, _Topic]


def written(places: Mapping[str, Place], table: str) -> Written:
    """In one order, since Spark compares texts."""
    topics = {
        topic: {"id": place.id, "offsets": {str(number): place.offsets[number] for number in sorted(place.offsets)}}
        for topic, place in sorted(places.items())
    }
    return {"version": VERSION, "table": table, "topics": topics}


def read_back(checkpoint: Written, table: str) -> Places:
    version = checkpoint.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnknownFormat(f"the checkpoint has version {version}, and this Penstock knows {VERSION}: update it")
    try:
        found = msgspec.convert(checkpoint, _Checkpoint, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the checkpoint is not one of a query that reads format penstock ({error}): {HOW_TO_START_ANEW}"
        ) from error
    if found.table != table:
        raise InvalidInput(
            f"the checkpoint is of a query that reads {found.table}, and this one reads {table}: {HOW_TO_START_ANEW}"
        )
    return {topic: Place(each.id, each.offsets) for topic, each in found.topics.items()}
