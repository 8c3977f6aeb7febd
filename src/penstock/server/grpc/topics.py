"""Topics: what there is, and how it is set."""

from __future__ import annotations

from typing import Literal

from penstock.client.requests import (
    Archived,
    ChangeTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    FindOffsets,
    ListTopics,
    TopicInfo,
)
from penstock.errors import InvalidInput
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods, page_in
from penstock.server.grpc.settings import settings_in, topic_settings


def _topic(info: TopicInfo) -> pb.Topic:
    partitions = [
        pb.Partition(
            number=one.number,
            start_offset=one.start_offset,
            end_offset=one.end_offset,
            bytes=one.bytes,
            archived=one.archived,
            whole_from=one.whole_from,
        )
        for one in info.partitions
    ]
    return pb.Topic(
        name=info.name,
        partitions=partitions,
        settings=topic_settings(info.settings),
        created_us=info.created_us,
        scheduled=info.scheduled,
        id=info.id,
        unknown=info.unknown,
    )


async def create_topic(call: Call, request: pb.CreateTopicRequest) -> pb.Topic:
    return _topic(await call.site.call(CreateTopic(request.name, _count(request), settings_in(request.settings))))


async def get_topic(call: Call, request: pb.GetTopicRequest) -> pb.Topic:
    return _topic(await call.site.call(DescribeTopic(request.name, partial=True)))


async def list_topics(call: Call, request: pb.ListTopicsRequest) -> pb.ListTopicsReply:
    page = await page_in(call, request, ListTopics(partial=True))
    return pb.ListTopicsReply(topics=[_topic(info) for info in page.items], next=page.next)


async def update_topic(call: Call, request: pb.UpdateTopicRequest) -> pb.Topic:
    return _topic(await call.site.call(ChangeTopic(request.name, _count(request), settings_in(request.settings))))


async def delete_topic(call: Call, request: pb.DeleteTopicRequest) -> pb.DeleteTopicReply:
    await call.site.call(DeleteTopic(request.name))
    return pb.DeleteTopicReply()


async def find_offsets(call: Call, request: pb.FindOffsetsRequest) -> pb.FindOffsetsReply:
    at = request.time_us if request.WhichOneof("at") == "time_us" else edge_in(request.edge)
    return pb.FindOffsetsReply(offsets=await call.site.call(FindOffsets(request.topic, at)))


async def archived(call: Call, request: pb.ArchivedRequest) -> pb.Topic:
    topic_id = request.topic_id if request.HasField("topic_id") else None
    return _topic(await call.site.call(Archived(request.topic, topic_id, dict(request.offsets))))


def edge_in(edge: pb.Edge) -> Literal["earliest", "latest"]:
    if edge == pb.EDGE_EARLIEST:
        return "earliest"
    if edge == pb.EDGE_LATEST:
        return "latest"
    raise InvalidInput("say where: an edge that is earliest or latest, a time, or an offset if there can be one")


def _count(request: pb.CreateTopicRequest | pb.UpdateTopicRequest) -> int | None:
    return request.partitions if request.HasField("partitions") else None


METHODS: Methods = {
    "CreateTopic": create_topic,
    "GetTopic": get_topic,
    "ListTopics": list_topics,
    "UpdateTopic": update_topic,
    "DeleteTopic": delete_topic,
    "FindOffsets": find_offsets,
    "Archived": archived,
}
