"""Groups that move from a cluster to its mirror: where each is, in the offsets of the target.

A group is moved to where the first message is that it has not done. What it has done behind that comes again: at least
once, as after a seek. Messages that are not mirrored yet will be behind the place it is moved to.

What the mirror has left out (it began later, or let a loss pass), or the target has deleted, the group would never get
there. If the source still has such messages, and the group has not done them, it is not moved unless somebody says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from penstock.client.blocking import Client
from penstock.client.requests import GroupInfo, StateAt, TopicInfo
from penstock.clock import SystemClock
from penstock.errors import GroupNotFound, InvalidInput, MirrorConflict, NotFound
from penstock.spark.builtin.mirror_table import Course, Table, Way

_DAY_US = 86_400_000_000


class Translated(NamedTuple):
    """`is_mirrored` is whether the mirror is that far; if not, `to` is behind all that is there.

    `is_skipped` is whether it is that far, and has no message of that offset: it was left out, or deleted at the
    target, or the source had none. `to` is the next one then.
    """

    topic: str
    partition: int
    offset: int
    target: str
    to: int
    is_mirrored: bool
    is_skipped: bool


class Moved(NamedTuple):
    """Three numbers of messages. `again`: the group has done them, out of order, and gets them once more. `behind`: it
    has done them, they are not mirrored yet, and come again, too. `missing`: it has not done them, the source still has
    them, and the target has not, nor will.
    """

    group: str
    topic: str
    partition: int
    floor: int
    target: str
    to: int
    again: int
    behind: int
    missing: int


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
    is_skipped = offset < course.source_end and not any(run.source <= offset < run.source_end for run in course.runs)
    to = course.translate(offset)
    return Translated(topic, partition, offset, way.target, to, offset <= course.source_end, is_skipped)


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
        mirrored = _mirrored(course, state.floor, held.start_offset)
        not_yet = BitMap64(range(max(course.source_end, state.floor), state.end_offset))
        again = len((mirrored | not_yet) - state.unacknowledged)
        missing = _missing(source, topic, state, course, mirrored)
        yield Moved(group, topic, state.partition, state.floor, way.target, to, again, behind, missing)


def _mirrored(course: Course, floor: int, target_start: int) -> BitMap64:
    """The offsets at the source, from the floor on, of what the target has."""
    found = BitMap64()
    for run in course.runs:
        first = max(floor, run.source + max(0, target_start - run.target))
        found |= BitMap64(range(first, max(first, run.source_end)))
    return found


def _missing(source: Client, topic: str, state: StateAt, course: Course, mirrored: BitMap64) -> int:
    """Of a mirror that has nothing yet it is not known where it began: all that there is counts."""
    end = course.source_end if course.runs else state.end_offset
    first = max(state.floor, source.topic(topic).partitions[state.partition].start_offset)
    wanted = (state.unacknowledged - mirrored) & BitMap64(range(first, max(first, end)))
    if not wanted:
        return 0
    # Offsets of which the source itself has no message, any more or at all, are no loss.
    reader = source.reader(
        topic,
        partitions=[state.partition],
        from_offset={state.partition: wanted.min()},
        to_offset={state.partition: wanted.max() + 1},
        columns=["offset"],
    )
    return sum(len(wanted & BitMap64(batch.column("offset").to_numpy())) for batch in reader.batches())


def check_missing(found: Iterable[Moved]) -> None:
    """MirrorConflict if a group would never get messages that it has not done."""
    for each in found:
        if each.missing:
            raise MirrorConflict(
                f"{each.missing} messages of partition {each.partition} of {each.topic} that group {each.group} has "
                f"not done are at the source, and not in {each.target}: the mirror began behind them, let their loss "
                "pass, or has nothing of that partition yet, or the target has deleted them. Let the group do them at "
                "the source, or move it without them (--allow-missing)",
                group=each.group,
                topic=each.topic,
                partition=each.partition,
                missing=each.missing,
            )


def move(source: Client, target: Client, group: str, found: list[Moved], *, allow_missing: bool = False) -> None:
    """As `moves` has found. The group is made with the settings it has at the source, if it is not there."""
    if not allow_missing:
        check_missing(found)
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
