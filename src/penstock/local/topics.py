"""Requests about topics."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.broker.catalog import already_exists
from penstock.broker.names import check_new_topic
from penstock.broker.partition import Partition
from penstock.broker.settings import PARTITIONS_DEFAULT, check_partitions, make_settings
from penstock.broker.topic import Topic
from penstock.client.requests import (
    Archived,
    ArchiveInfo,
    ChangeTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    FindArchive,
    FindOffsets,
    Listed,
    ListTopics,
    PartitionInfo,
    TopicInfo,
)
from penstock.local.handlers import Site, handles
from penstock.local.paging import named_page, names_in
from penstock.local.wanted import wanted


@handles(CreateTopic)
async def create_topic(site: Site, request: CreateTopic) -> TopicInfo:
    settings = make_settings(**request.settings)
    partitions = check_partitions(PARTITIONS_DEFAULT if request.partitions is None else request.partitions)
    if site.broker.has_topic(request.name):
        raise already_exists(request.name)
    check_new_topic(request.name)
    return _info(await site.broker.create_topic(request.name, partitions, settings, request.owner))


@handles(ChangeTopic)
async def change_topic(site: Site, request: ChangeTopic) -> TopicInfo:
    settings = site.broker.topic(request.name).settings.changed(**request.settings)
    return _info(await site.broker.change_topic(request.name, partitions=request.partitions, settings=settings))


@handles(DeleteTopic)
async def delete_topic(site: Site, request: DeleteTopic) -> None:
    await site.broker.delete_topic(request.name)


@handles(DescribeTopic)
async def describe_topic(site: Site, request: DescribeTopic) -> TopicInfo:
    return _info(site.broker.topic(request.name), request.partitions)


@handles(ListTopics)
async def list_topics(site: Site, request: ListTopics) -> list[TopicInfo] | Listed[TopicInfo]:
    names = names_in(request.names, site.broker.topic_names())
    after = request.after if request.names is None else ""

    def make(name: str) -> TopicInfo | None:
        return _info(site.broker.topic(name)) if site.broker.has_topic(name) else None

    return await named_page(site, "topics", names, after, request.limit, make, lambda info: 1 + len(info.partitions))


@handles(FindOffsets)
async def find_offsets(site: Site, request: FindOffsets) -> list[int]:
    partitions = [partition for _, partition in wanted(site.broker.topic(request.topic), request.partitions)]
    if request.at == "earliest":
        return [partition.messages.start_offset for partition in partitions]
    ends = [partition.reading.visible_offset for partition in partitions]
    if request.at == "latest":
        return ends
    time_us = int(request.at)
    found = await site.broker.scan(partition.messages.offset_at(time_us) for partition in partitions)
    return [min(offset, end) for offset, end in zip(found, ends, strict=True)]


@handles(Archived)
async def archived(site: Site, request: Archived) -> TopicInfo:
    return _info(await site.broker.archived(request.topic, request.topic_id, request.offsets, lowers=request.lowers))


@handles(FindArchive)
async def find_archive(site: Site, request: FindArchive) -> ArchiveInfo:
    topic = site.broker.topic(request.topic)
    whole_from = tuple(partition.messages.whole_from for _, partition in wanted(topic, request.partitions))
    return ArchiveInfo(topic.record.id, site.archive_dir, whole_from)


def _info(topic: Topic, numbers: Sequence[int] | None = None) -> TopicInfo:
    partitions = wanted(topic, numbers)
    return TopicInfo(
        name=topic.name,
        partitions=tuple(_partition(topic, number, partition) for number, partition in partitions),
        settings=msgspec.structs.asdict(topic.settings),
        created_us=topic.record.created_us,
        scheduled=sum(len(partition.groups.delays.pending) for _, partition in partitions),
        id=topic.record.id,
        count=topic.count,
    )


def _partition(topic: Topic, number: int, partition: Partition) -> PartitionInfo:
    log, end = partition.messages, partition.reading.visible_offset
    start = log.start_offset
    empty = end - start - partition.reading.count(start, end)
    return PartitionInfo(number, start, end, log.size, topic.record.archived_until(number), log.whole_from, empty)
