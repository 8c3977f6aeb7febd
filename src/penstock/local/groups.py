"""Requests about groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from penstock.broker.catalog import GroupRecord
from penstock.broker.names import check_name
from penstock.broker.settings import GroupSettings
from penstock.client.requests import (
    PAGE_MAX,
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    GroupInfo,
    Listed,
    ListGroups,
    ListParkedKeys,
    ParkedKey,
    ReleaseKey,
    Replay,
    Seek,
)
from penstock.errors import InvalidInput, InvalidSetting, NotFound
from penstock.local.handlers import Site, handles
from penstock.local.paging import (
    UNPAGED_MAX,
    check_limit,
    check_unpaged,
    named_page,
    names_in,
    page_of,
    place_in,
    place_text,
    smallest,
)
from penstock.local.wanted import wanted


@handles(CreateGroup)
async def create_group(site: Site, request: CreateGroup) -> GroupInfo:
    return await _whole(site, await site.broker.ensure_group(request.name, request.owner, **request.settings))


@handles(ChangeGroup)
async def change_group(site: Site, request: ChangeGroup) -> GroupInfo:
    return await _whole(site, await site.broker.change_group(request.name, **request.settings))


@handles(DeleteGroup, awaits_replicas=True)
async def delete_group(site: Site, request: DeleteGroup) -> None:
    await site.broker.delete_group(request.name)


@handles(DescribeGroup)
async def describe_group(site: Site, request: DescribeGroup) -> GroupInfo:
    check_name("group", request.name)
    unready = await _unready(site, request.revision) if request.partitions is None else {}
    record = site.broker.group_record(request.name)
    topics = [] if request.partitions is not None else await _topics(site, [request.name])
    return _info(site, record, [topic for _, topic in topics], request.partitions, unready)


@handles(ListGroups)
async def list_groups(site: Site, request: ListGroups) -> list[GroupInfo] | Listed[GroupInfo]:
    unready = await _unready(site, request.revision)
    names = names_in(request.names, site.broker.group_names())
    after = request.after if request.names is None else ""
    first = bisect_right(names, after or "")
    topics: dict[str, list[str]] = {}
    for group, topic in await _topics(site, names[first : first + (len(names) if after is None else PAGE_MAX)]):
        topics.setdefault(group, []).append(topic)

    def make(name: str) -> GroupInfo | None:
        if not site.broker.has_group(name):
            return None
        return _info(site, site.broker.group_record(name), topics.get(name, []), unready=unready)

    return await named_page(site, "groups", names, after, request.limit, make, _rows)


async def _topics(site: Site, groups: Collection[str]) -> list[tuple[str, str]]:
    """Of each of these groups the topics that it has asked for messages of, in order."""
    return await site.broker.walk(site.broker.topics_of(groups))


async def _unready(site: Site, revision: int) -> Mapping[str, list[int]]:
    """Partitions of which this node can't say yet which groups they have."""
    if site.cluster is None:
        return {}
    await site.cluster.caught_up(revision)
    return site.cluster.unready()


@handles(Seek, awaits_replicas=True)
async def seek(site: Site, request: Seek) -> None:
    group = site.broker.group(request.group, request.topic)
    is_time = request.time_us is not None and request.to is None and request.offset is None
    if is_time and request.partition is None and request.partitions is None:
        # One after the other: each is looked up in the log.
        for number in range(group.topic.count):
            await group.seek(time_us=request.time_us, partition=number)
        return
    if request.partitions is None:
        await group.seek(request.to, time_us=request.time_us, offset=request.offset, partition=request.partition)
        return
    if request.offset is not None and group.topic.count > 1:
        raise InvalidInput("an offset is one of a partition; say which")
    for number, _ in wanted(group.topic, request.partitions):
        await group.seek(request.to, time_us=request.time_us, offset=request.offset, partition=number)


@handles(ListParkedKeys)
async def list_parked_keys(site: Site, request: ListParkedKeys) -> list[ParkedKey] | Listed[ParkedKey]:
    asked = request.partitions
    topics = sorted(asked) if asked is not None else [name for _, name in await _topics(site, [request.group])]
    # GroupNotFound also if it has no topics.
    site.broker.group_record(request.group)
    after = place_in(request.after) if request.after else None
    is_paged = request.after is not None
    limit = check_limit(request.limit) if is_paged else UNPAGED_MAX + 1
    parked = (
        one if after is None or _parked_place(one) > after else None
        for topic in topics
        for one in _parked(site, request.group, topic, None if asked is None else asked[topic])
    )
    *_, found = await site.broker.walk(smallest(parked, limit, _parked_place))
    if is_paged:
        return page_of(found, limit, lambda one: place_text(*_parked_place(one)), lambda one: len(one.reason))
    check_unpaged("parked keys", len(found))
    return found


def _parked(site: Site, group: str, topic: str, numbers: tuple[int, ...] | None) -> Iterator[ParkedKey]:
    on_topic = site.broker.group(group, topic)
    here = {number for number, _ in wanted(on_topic.topic, numbers)}
    for one in on_topic.parked():
        if one.partition in here:
            yield ParkedKey(topic, one.partition, one.key, *one.parked)


def _parked_place(parked: ParkedKey) -> tuple[str, int, int]:
    return parked.topic, parked.partition, parked.offset


@handles(ReleaseKey, awaits_replicas=True)
async def release_key(site: Site, request: ReleaseKey) -> int:
    group = site.broker.group(request.group, request.topic)
    if request.partitions is None:
        return await group.release_key(request.key, request.partition)
    released, missing = 0, None
    for number, _ in wanted(group.topic, request.partitions):
        try:
            released += await group.release_key(request.key, number)
        except NotFound as error:
            missing = error
    if not released and missing is not None:
        raise missing
    return released


@handles(Replay, awaits_replicas=True)
async def replay(site: Site, request: Replay) -> int:
    for name in request.settings:
        if name in ("lanes", "is_replay") or name not in GroupSettings.__struct_fields__:
            raise InvalidSetting(
                f"a replay has no setting {name!r}; whether it minds lanes is said beside its settings", setting=name
            )
    return await site.broker.replay(
        request.topic,
        request.group,
        from_us=request.from_us,
        to_us=request.to_us,
        offsets=request.offsets,
        delays=request.delays,
        lanes=request.lanes,
        owner=request.owner,
        **request.settings,
    )


async def _whole(site: Site, record: GroupRecord) -> GroupInfo:
    return _info(site, record, [topic for _, topic in await _topics(site, [record.name])])


def _info(
    site: Site,
    record: GroupRecord,
    topics: Sequence[str] = (),
    asked: Mapping[str, tuple[int, ...]] | None = None,
    unready: Mapping[str, list[int]] | None = None,
) -> GroupInfo:
    lag: dict[str, list[int]] = {}
    numbers: dict[str, list[int]] = {}
    for name in topics if asked is None else asked:
        group = site.broker.group(record.name, name)
        numbers[name] = [number for number, _ in wanted(group.topic, None if asked is None else asked[name])]
        lags = dict(zip(group.topic.here, group.lag(), strict=True))
        lag[name] = [lags[number] for number in numbers[name]]
    members = site.broker.consumers.of(record.name)
    names = [] if members is None else members.names()
    return GroupInfo(
        name=record.name,
        settings=msgspec.structs.asdict(record.settings),
        created_us=record.created_us,
        lag=lag,
        members={
            name: [(part.topic, part.number) for part in members.assigned(name)]
            for name in names
            if members is not None
        },
        partitions=numbers,
        unknown=dict(unready or {}),
    )


def _rows(info: GroupInfo) -> int:
    return 1 + sum(map(len, info.lag.values())) + sum(1 + len(parts) for parts in info.members.values())
