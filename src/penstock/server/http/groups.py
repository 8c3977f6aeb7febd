"""Routes about groups: what they are, and where they are."""

from __future__ import annotations

from typing import Any

from penstock.client import requests
from penstock.client.admin import shown_group
from penstock.client.requests import GroupInfo, ListGroups, ListParkedKeys
from penstock.clock import rfc3339
from penstock.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidName,
    InvalidSetting,
    NotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    SettingsConflict,
    TopicNotFound,
)
from penstock.server.http import shapes
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.routes import Route
from penstock.server.http.rows import key_of, key_shown
from penstock.server.http.settings import settings_in


def _group(info: GroupInfo) -> shapes.Group:
    members = {
        name: [shapes.Assigned(topic=topic, partition=number) for topic, number in parts]
        for name, parts in info.members.items()
    }
    return shapes.Group(
        name=info.name,
        settings=info.settings,
        created_at=rfc3339(info.created_us),
        lag={topic: info.lags_of(topic) for topic in info.lag},
        members=members,
    )


async def create_group(desk: Desk, asked: Asked[shapes.CreateGroup, Any]) -> shapes.Group:
    return _group(await asked.admin.create_group(asked.body.name, **settings_in(asked.body)))


async def list_groups(desk: Desk, asked: Asked[None, shapes.PageQuery]) -> shapes.Groups:
    page = await asked.page(ListGroups(partial=True))
    return shapes.Groups(groups=[_group(shown_group(info)) for info in page.items], next=page.next or None)


async def get_group(desk: Desk, asked: Asked[None, Any]) -> shapes.Group:
    return _group(await asked.admin.group(asked.path["group"], partial=True))


async def change_group(desk: Desk, asked: Asked[shapes.ChangeGroup, Any]) -> shapes.Group:
    return _group(await asked.admin.change_group(asked.path["group"], **settings_in(asked.body)))


async def delete_group(desk: Desk, asked: Asked[None, Any]) -> None:
    await asked.admin.delete_group(asked.path["group"])


async def seek(desk: Desk, asked: Asked[shapes.Seek, Any]) -> None:
    given = asked.body
    await asked.admin.seek(asked.path["group"], given.topic, given.to, time=given.time, partition=given.partition)


async def parked_keys(desk: Desk, asked: Asked[None, shapes.PageQuery]) -> shapes.ParkedKeys:
    group = asked.path["group"]
    before = await asked.admin.group(group, partial=True)
    page = await asked.page(ListParkedKeys(group, partial=True))
    # Somebody may lead one by now that nobody did a moment ago.
    unknown = requests.not_known(before, await asked.admin.group(group, partial=True))
    return shapes.ParkedKeys(keys=[_parked(key) for key in page.items], unknown=unknown, next=page.next or None)


def _parked(parked: requests.ParkedKey) -> shapes.ParkedKey:
    key, key_base64 = key_shown(parked.key)
    return shapes.ParkedKey(
        topic=parked.topic,
        partition=parked.partition,
        key=key,
        key_base64=key_base64,
        message=f"{parked.topic}:{parked.partition}:{parked.offset}",
        since=rfc3339(parked.since_us),
        reason=parked.reason,
    )


async def release_key(desk: Desk, asked: Asked[shapes.ReleaseKey, Any]) -> shapes.Released:
    given = asked.body
    key = key_of(given.key, given.key_base64)
    released = await asked.admin.release_key(asked.path["group"], given.topic, key, partition=given.partition)
    return shapes.Released(released=released)


async def replay(desk: Desk, asked: Asked[shapes.Replay, Any]) -> shapes.Replayed:
    given, settings = asked.body, settings_in(asked.body.settings)
    if "lanes" in settings:
        raise InvalidSetting("whether a replay minds lanes is said beside its settings: true or false", setting="lanes")
    count = await asked.admin.replay(
        given.topic,
        asked.path["group"],
        from_time=given.from_time,
        to_time=given.to_time,
        offsets=given.offsets,
        delays=given.delays,
        lanes=given.lanes,
        **settings,
    )
    return shapes.Replayed(messages=count)


_GROUP_EXAMPLE = {
    "name": "billing",
    "settings": {"visibility": "30s", "max_retries": 5, "ordering": "key"},
    "created_at": "2026-01-14T15:00:00.000000Z",
    "lag": {"orders": [0, 3]},
    "members": {"worker-1": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]},
}

ROUTES = (
    Route(
        "POST",
        "/v1/groups",
        create_group,
        "Make a group. A poll makes its group, too.",
        body=shapes.CreateGroup,
        reply=shapes.Group,
        status=201,
        errors=(SettingsConflict, InvalidName, InvalidSetting),
        example={"name": "billing", "ordering": "key", "backoff": {"initial": "1s", "max": "10m"}},
        reply_example=_GROUP_EXAMPLE,
    ),
    Route("GET", "/v1/groups", list_groups, "Groups, by name.", query=shapes.PageQuery, reply=shapes.Groups),
    Route(
        "GET",
        "/v1/groups/{group}",
        get_group,
        "One group: its members, its lag and its settings.",
        reply=shapes.Group,
        errors=(GroupNotFound,),
        reply_example=_GROUP_EXAMPLE,
    ),
    Route(
        "PATCH",
        "/v1/groups/{group}",
        change_group,
        "Change settings of a group.",
        body=shapes.ChangeGroup,
        reply=shapes.Group,
        errors=(GroupNotFound, InvalidSetting),
        example={"visibility": "1m", "max_retries": 10},
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}",
        delete_group,
        "Delete a group, with everything it knows of what it has done. The messages stay.",
        status=204,
        errors=(GroupNotFound,),
    ),
    Route(
        "POST",
        "/v1/groups/{group}/seek",
        seek,
        "Move the group to earliest, latest, a time, or an offset of one partition. What it leased is let go.",
        body=shapes.Seek,
        status=204,
        errors=(GroupNotFound, TopicNotFound, PartitionNotFound, OffsetOutOfRange),
        example={"topic": "orders", "to": "2026-01-14T15:00:00Z"},
    ),
    Route(
        "GET",
        "/v1/groups/{group}/parked-keys",
        parked_keys,
        "Keys that wait because a message of theirs was given up.",
        query=shapes.PageQuery,
        reply=shapes.ParkedKeys,
        errors=(GroupNotFound,),
    ),
    Route(
        "POST",
        "/v1/groups/{group}/parked-keys/release",
        release_key,
        "Let a parked key go on with what comes after the message that was given up.",
        body=shapes.ReleaseKey,
        reply=shapes.Released,
        errors=(GroupNotFound, TopicNotFound, NotFound),
        example={"topic": "orders", "key": "user-1"},
        reply_example={"released": 1},
    ),
    Route(
        "POST",
        "/v1/groups/{group}/replay",
        replay,
        "Make this group, for messages of the past: other groups do not notice.",
        body=shapes.Replay,
        reply=shapes.Replayed,
        status=201,
        errors=(TopicNotFound, AlreadyExists, OffsetOutOfRange),
        example={"topic": "orders", "from_time": "2026-01-14T15:00:00Z", "to_time": "2026-01-14T16:00:00Z"},
        reply_example={"messages": 1200},
    ),
)
