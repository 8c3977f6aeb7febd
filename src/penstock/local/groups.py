"""Requests about groups."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.broker.catalog import GroupRecord
from penstock.broker.names import check_name
from penstock.client.requests import (
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    GroupInfo,
    ListGroups,
    ListParkedKeys,
    ParkedKey,
    ReleaseKey,
    Replay,
    Seek,
)
from penstock.errors import GroupNotFound, InvalidInput, NotFound
from penstock.local.handlers import Site, handles
from penstock.local.wanted import wanted


@handles(CreateGroup)
async def create_group(site: Site, request: CreateGroup) -> GroupInfo:
    return _info(site, await site.broker.ensure_group(request.name, **request.settings))


@handles(ChangeGroup)
async def change_group(site: Site, request: ChangeGroup) -> GroupInfo:
    return _info(site, await site.broker.change_group(request.name, **request.settings))


@handles(DeleteGroup, awaits_replicas=True)
async def delete_group(site: Site, request: DeleteGroup) -> None:
    await site.broker.delete_group(request.name)


@handles(DescribeGroup)
async def describe_group(site: Site, request: DescribeGroup) -> GroupInfo:
    check_name("group", request.name)
    for record in site.broker.groups:
        if record.name == request.name:
            return _info(site, record, request.partitions)
    raise GroupNotFound(f"there is no group {request.name}", group=request.name)


@handles(ListGroups)
async def list_groups(site: Site, request: ListGroups) -> list[GroupInfo]:
    return [_info(site, record) for record in site.broker.groups]


@handles(Seek, awaits_replicas=True)
async def seek(site: Site, request: Seek) -> None:
    group = site.broker.group(request.group, request.topic)
    if request.partitions is None:
        await group.seek(request.to, time_us=request.time_us, offset=request.offset, partition=request.partition)
        return
    if request.offset is not None and group.topic.count > 1:
        raise InvalidInput("an offset is one of a partition; say which")
    for number, _ in wanted(group.topic, request.partitions):
        await group.seek(request.to, time_us=request.time_us, offset=request.offset, partition=number)


@handles(ListParkedKeys)
async def list_parked_keys(site: Site, request: ListParkedKeys) -> list[ParkedKey]:
    found = []
    asked = request.partitions
    for topic in site.broker.group_topics(request.group) if asked is None else asked:
        group = site.broker.group(request.group, topic)
        numbers = [number for number, _ in wanted(group.topic, None if asked is None else asked[topic])]
        for parked in group.parked():
            if parked.partition in numbers:
                found.append(ParkedKey(topic, parked.partition, parked.key, *parked.parked))
    return found


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
    return await site.broker.replay(
        request.topic,
        request.group,
        from_us=request.from_us,
        to_us=request.to_us,
        offsets=request.offsets,
        delays=request.delays,
        lanes=request.lanes,
        **request.settings,
    )


def _info(site: Site, record: GroupRecord, asked: Mapping[str, tuple[int, ...]] | None = None) -> GroupInfo:
    lag: dict[str, list[int]] = {}
    numbers: dict[str, list[int]] = {}
    for name in site.broker.group_topics(record.name) if asked is None else asked:
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
    )
