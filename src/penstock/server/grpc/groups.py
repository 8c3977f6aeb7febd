"""Groups: what they are, where they are, and groups for the past."""

from __future__ import annotations

from typing import Literal

from penstock.client import requests
from penstock.client.requests import (
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    GroupInfo,
    ListGroups,
    ListParkedKeys,
    ReleaseKey,
    Replay,
    Seek,
)
from penstock.errors import InvalidInput
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods, page_in
from penstock.server.grpc.settings import group_settings, settings_in
from penstock.server.grpc.topics import edge_in


def _group(info: GroupInfo) -> pb.Group:
    members = [
        pb.Member(consumer=name, assigned=[pb.Assigned(topic=topic, partition=number) for topic, number in parts])
        for name, parts in info.members.items()
    ]
    return pb.Group(
        name=info.name,
        settings=group_settings(info.settings),
        created_us=info.created_us,
        lag=[pb.Lag(topic=topic, messages=_lags(info, topic)) for topic in info.lag],
        members=members,
        is_replay=info.settings["is_replay"],
    )


def _lags(info: GroupInfo, topic: str) -> list[int]:
    return [-1 if lag is None else lag for lag in info.lags_of(topic)]


async def create_group(call: Call, request: pb.CreateGroupRequest) -> pb.Group:
    return _group(await call.site.call(CreateGroup(request.name, settings_in(request.settings))))


async def get_group(call: Call, request: pb.GetGroupRequest) -> pb.Group:
    return _group(await call.site.call(DescribeGroup(request.name, partial=True)))


async def list_groups(call: Call, request: pb.ListGroupsRequest) -> pb.ListGroupsReply:
    page = await page_in(call, request, ListGroups(partial=True))
    return pb.ListGroupsReply(groups=[_group(info) for info in page.items], next=page.next)


async def update_group(call: Call, request: pb.UpdateGroupRequest) -> pb.Group:
    return _group(await call.site.call(ChangeGroup(request.name, settings_in(request.settings))))


async def delete_group(call: Call, request: pb.DeleteGroupRequest) -> pb.DeleteGroupReply:
    await call.site.call(DeleteGroup(request.name))
    return pb.DeleteGroupReply()


async def seek(call: Call, request: pb.SeekRequest) -> pb.SeekReply:
    edge: Literal["earliest", "latest"] | None = None
    time_us = offset = None
    match request.WhichOneof("to"):
        case "time_us":
            time_us = request.time_us
        case "offset":
            offset = request.offset
        case _:
            edge = edge_in(request.edge)
    partition = request.partition if request.HasField("partition") else None
    await call.site.call(Seek(request.group, request.topic, edge, time_us, offset, partition))
    return pb.SeekReply()


async def replay(call: Call, request: pb.ReplayRequest) -> pb.ReplayReply:
    offsets = {one.partition: (one.first, one.last) for one in request.offsets}
    if len(offsets) < len(request.offsets):
        raise InvalidInput("a replay has one range of offsets for a partition")
    asked = Replay(
        request.topic,
        request.group,
        request.from_us if request.HasField("from_us") else None,
        request.to_us if request.HasField("to_us") else None,
        offsets or None,
        request.delays,
        request.lanes,
        settings_in(request.settings),
    )
    return pb.ReplayReply(messages=await call.site.call(asked))


async def list_parked_keys(call: Call, request: pb.ListParkedKeysRequest) -> pb.ListParkedKeysReply:
    page = await page_in(call, request, ListParkedKeys(request.group))
    return pb.ListParkedKeysReply(keys=[_parked(key) for key in page.items], next=page.next)


def _parked(parked: requests.ParkedKey) -> pb.ParkedKey:
    return pb.ParkedKey(
        topic=parked.topic,
        partition=parked.partition,
        key=parked.key,
        offset=parked.offset,
        since_us=parked.since_us,
        reason=parked.reason,
    )


async def release_key(call: Call, request: pb.ReleaseKeyRequest) -> pb.ReleaseKeyReply:
    key = request.key if request.HasField("key") else None
    partition = request.partition if request.HasField("partition") else None
    return pb.ReleaseKeyReply(released=await call.site.call(ReleaseKey(request.group, request.topic, key, partition)))


METHODS: Methods = {
    "CreateGroup": create_group,
    "GetGroup": get_group,
    "ListGroups": list_groups,
    "UpdateGroup": update_group,
    "DeleteGroup": delete_group,
    "Seek": seek,
    "Replay": replay,
    "ListParkedKeys": list_parked_keys,
    "ReleaseKey": release_key,
}
