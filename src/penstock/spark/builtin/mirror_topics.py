"""Which topics a mirror takes, where each goes, and what must hold there before anything is written.

With a pattern, copies are left alone: a topic that is itself the target of some mirror, as the table of its cluster
tells. So mirrors that go both ways with a pattern do not go in circles. Neither are dead letters taken, which belong to
the groups of their cluster, nor the tables of mirrors. Whoever wants one of these names it. What would come straight
back is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.blocking import Client
from penstock.client.requests import TopicInfo
from penstock.errors import InvalidSetting, MirrorConflict, TopicNotFound
from penstock.spark.builtin.mirror_table import TABLE, Table

_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")
# Whether something is archived is a matter of each cluster: nothing would ever be deleted where nobody archives. So is
# on how many nodes it is: there may be one only.
_NOT_COPIED = ("archive", "replicas", "min_isr")


class Selection(NamedTuple):
    """Topics by name, or by a pattern; and what is put in front of their names at the target."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    prefix: str = ""

    def check(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise InvalidSetting("a mirror is of topics that are named, or of those that match a pattern: one of them")
        if self.pattern is not None:
            try:
                re.compile(self._regex)
            except re.error as error:
                raise InvalidSetting(f"the pattern {self.pattern!r} is not a regular expression: {error}") from error

    @property
    def _regex(self) -> str:
        flags = _FLAGS.match(self.pattern or "")
        start = "" if flags is None else flags[0]
        rest = (self.pattern or "")[len(start) :]
        return rf"{start}(?:{rest})(?<!\.dlq)(?<!{re.escape(TABLE)})"

    def options(self) -> dict[str, str]:
        """For the source."""
        if self.pattern is None:
            return {"subscribe": ",".join(self.topics)}
        return {"subscribePattern": self._regex}

    def found(self, source: Client) -> dict[str, TopicInfo]:
        if self.pattern is not None:
            matches = re.compile(self._regex).fullmatch
            return {info.name: info for info in source.topics() if matches(info.name)}
        return {topic: source.topic(topic) for topic in self.topics}


class Pair(NamedTuple):
    """`target` is None if it is not there yet; `is_known` if this mirror has written to it, or was about to."""

    source: TopicInfo
    name: str
    target: TopicInfo | None
    is_known: bool


class Pairs(NamedTuple):
    pairs: list[Pair]
    # Names at the source.
    copies: frozenset[str]


def paired(
    selection: Selection, source: Client, target: Client, tables: tuple[Table, Table], mirror: str | None
) -> Pairs:
    """Checked: MirrorConflict if it can't be done. `tables` are those of the source and of the target."""
    found = selection.found(source)
    there = {info.name: info for info in target.topics()}
    of_source, of_target = tables
    copied_ids = {way.target_id for way in of_source.courses}
    # What this mirror has begun with, it goes on with, also if somebody mirrors to that topic since.
    begun_ids = {way.source_id for way, course in of_target.courses.items() if course.mirror == mirror}
    left_ids = copied_ids - begun_ids if selection.pattern is not None else set()
    copies = frozenset(name for name, info in found.items() if info.id in left_ids)
    pairs = []
    for name, info in found.items():
        if name not in copies:
            pair = _pair(info, selection.prefix + name, there, of_target, mirror)
            _check_circle(pair, of_source)
            pairs.append(pair)
    return Pairs(pairs, copies)


def _pair(info: TopicInfo, name: str, there: Mapping[str, TopicInfo], table: Table, mirror: str | None) -> Pair:
    target = there.get(name)
    id = None if target is None else target.id
    is_known = False
    for way, course in table.ways(source_id=info.id):
        if course.mirror == mirror and mirror is not None and way.target == name:
            if way.target_id != id:
                raise MirrorConflict(
                    f"the topic {name} at the target, to which {info.name} was mirrored, was deleted, or made again. "
                    "Use another --checkpoint to mirror from the start",
                    topic=name,
                )
            is_known = True
        elif (way.target, way.target_id) == (name, id) and mirror is not None:
            raise MirrorConflict(
                f"the topic {name} has messages of {info.name} from a mirror with another checkpoint: go on with that "
                "one, use another --prefix, or delete the topic at the target to mirror from the start",
                topic=name,
            )
    return Pair(info, name, target, is_known)


def _check_circle(pair: Pair, of_source: Table) -> None:
    if pair.target is None:
        return
    if pair.target.id == pair.source.id:
        raise MirrorConflict(f"the topic {pair.name} would be mirrored to itself: use a --prefix", topic=pair.name)
    for way, course in of_source.ways(target=pair.source.name, source_id=pair.target.id):
        if way.target_id == pair.source.id:
            raise MirrorConflict(
                f"the topic {pair.source.name} is mirrored from {course.source} at the target: messages would go in a "
                "circle. Use a --prefix for one of the two",
                topic=pair.source.name,
            )


def check_partitions(pair: Pair, creates: bool) -> None:
    """What can't be mended by making the topic or, if it is ours, by giving it more partitions."""
    wanted = len(pair.source.partitions)
    if pair.target is None:
        if not creates:
            raise TopicNotFound(
                f"there is no topic {pair.name} at the target, and --no-create: penstock topic create {pair.name} "
                f"--partitions {wanted}",
                topic=pair.name,
            )
        return
    has = len(pair.target.partitions)
    if has < wanted and not (creates and pair.is_known):
        raise MirrorConflict(
            f"the topic {pair.name} at the target has {has} partitions, and {pair.source.name} has {wanted}: a message "
            f"keeps its partition. Give it more (penstock topic set {pair.name} --partitions {wanted}), or use "
            "another --prefix",
            topic=pair.name,
            partitions=has,
            wanted=wanted,
        )


def made(pair: Pair, target: Client, creates: bool) -> TopicInfo:
    """The target as it must be."""
    check_partitions(pair, creates)
    wanted = len(pair.source.partitions)
    if pair.target is None:
        settings = {name: value for name, value in pair.source.settings.items() if name not in _NOT_COPIED}
        target.create_topic(pair.name, wanted, exist_ok=True, **settings)
    elif len(pair.target.partitions) < wanted:
        target.change_topic(pair.name, wanted)
    else:
        return pair.target
    # With all partitions: who changes something hears of those that are led.
    return target.topic(pair.name)


def make_table(target: Client, creates: bool) -> None:
    if creates:
        target.create_topic(TABLE, 1, exist_ok=True, cleanup="compact", retention=None)
        return
    try:
        target.topic(TABLE)
    except TopicNotFound:
        raise TopicNotFound(
            f"the mirror keeps its table of offsets in the topic {TABLE} at the target, which is not there, and "
            f"--no-create: penstock topic create {TABLE} --partitions 1 --cleanup compact --retention none",
            topic=TABLE,
        ) from None
