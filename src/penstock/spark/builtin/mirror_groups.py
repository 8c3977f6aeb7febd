"""Groups that move from a cluster to its mirror: where each is, in the offsets of the target.

A group is moved to where the first message is that it has not done. What it has done behind that comes again: at least
once, as after a seek. Messages that are not mirrored yet will be behind the place it is moved to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.client.blocking import Client
from penstock.client.requests import GroupInfo, TopicInfo
from penstock.clock import SystemClock
from penstock.errors import GroupNotFound, InvalidInput, MirrorConflict, NotFound
from penstock.spark.builtin.mirror_table import Course, Table, Way

_DAY_US = 86_400_000_000


class Translated(NamedTuple):
    """`is_mirrored` is whether everything before `offset` is there; if not, `to` is behind all that is."""

    topic: str
    partition: int
    offset: int
    target: str
    to: int
    is_mirrored: bool


class Moved(NamedTuple):
    """`behind` is how many offsets, of what the group has done, are not mirrored yet, and will come to it again."""

    group: str
    topic: str
    partition: int
    floor: int
    target: str
    to: int
    behind: int


def translate(
    target: Client, topic: str, partition: int, offset: int, *, prefix: str | None = None, source_id: str | None = None
) -> Translated:
    """NotFound if there is no mirror of it. The source is not asked: it may be gone."""
    table = Table(target)
    table.look()
    ids = {info.name: info.id for info in target.topics()}
    found = [
        (way, course)
        for way, course in table.ways(target=None if prefix is None else prefix + topic, source_id=source_id)
        if course.source == topic and way.partition == partition and ids.get(way.target) == way.target_id
    ]
    way, course = _the_one(found, topic, partition)
    return Translated(topic, partition, offset, way.target, course.translate(offset), offset <= course.source_end)


def _the_one(found: list[tuple[Way, Course]], topic: str, partition: int) -> tuple[Way, Course]:
    if not found:
        raise NotFound(f"partition {partition} of a topic {topic} was not mirrored to this cluster", topic=topic)
    if len(found) > 1:
        told = ", ".join(f"{way.target} (id of the source: {way.source_id})" for way, _ in found)
        raise InvalidInput(
            f"several mirrors of a topic {topic} are there: {told}. Say which by --prefix, or by --source-id"
        )
    return found[0]


def moves(source: Client, target: Client, group: str, prefix: str | None = None) -> list[Moved]:
    """Where the group would be moved to, in each partition in which it has started. Nothing is changed."""
    info = source.group(group)
    table = Table(target)
    table.look()
    there = {each.name: each for each in target.topics()}
    found = [each for topic in sorted(info.lag) for each in _moves(source, there, table, group, topic, prefix)]
    if not found:
        raise NotFound(
            f"none of the topics of group {group} ({', '.join(sorted(info.lag)) or 'it has none'}) is mirrored to this "
            "cluster, or it has not started on them",
            group=group,
        )
    return found


def _moves(
    source: Client, there: dict[str, TopicInfo], table: Table, group: str, topic: str, prefix: str | None
) -> Iterator[Moved]:
    here = source.topic(topic)
    ways = [
        (way, course)
        for way, course in table.ways(target=None if prefix is None else prefix + topic, source_id=here.id)
        if way.target in there and there[way.target].id == way.target_id
    ]
    if not ways:
        return
    # The broker's clock may be ahead of ours.
    for state in source.state_at(group, topic, SystemClock().now_us() + _DAY_US):
        of_it = [each for each in ways if each[0].partition == state.partition]
        if not of_it:
            continue
        way, course = _the_one(of_it, topic, state.partition)
        held = there[way.target].partitions[state.partition]
        to = min(max(course.translate(state.floor), held.start_offset), held.end_offset)
        behind = max(0, state.floor - max(course.source_end, here.partitions[state.partition].start_offset))
        yield Moved(group, topic, state.partition, state.floor, way.target, to, behind)


def move(source: Client, target: Client, group: str, found: list[Moved]) -> None:
    """As `moves` has found. The group is made with the settings it has at the source, if it is not there."""
    settings = source.group(group).settings
    there = _group(target, group)
    if there is not None and there.members:
        raise MirrorConflict(
            f"group {group} has members at the target ({', '.join(sorted(there.members))}), and would be moved under "
            "their hands: stop them first",
            group=group,
        )
    if there is None:
        target.create_group(group, **settings)
    for each in found:
        target.seek(group, each.target, each.to, partition=each.partition)


def _group(client: Client, group: str) -> GroupInfo | None:
    try:
        return client.group(group)
    except GroupNotFound:
        return None
