"""Topics and groups: what there is, how it is set, and where the groups are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.client.pages import listed
from penstock.client.requests import (
    Archived,
    ChangeGroup,
    ChangeTopic,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    DescribeTopic,
    GroupInfo,
    ListGroups,
    ListParkedKeys,
    ListTopics,
    ParkedKey,
    ReleaseKey,
    Replay,
    Seek,
    TopicInfo,
)
from penstock.client.settings import group_settings, in_users_words, show_group, show_topic, topic_settings
from penstock.client.transport import Transport
from penstock.client.words import Bytes, Time, bytes_of, flag_of, partition_given, time_of
from penstock.durations import TIME_AS_NUMBER_MIN
from penstock.errors import AlreadyExists, InvalidInput


class Admin:
    """Settings are keyword arguments, with durations as text: `visibility="30s"`, `retention={"hours": 24}`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # --- topics ------------------------------------------------------------------------------------------

    async def create_topic(
        self, /, name: str, partitions: int | None = None, *, exist_ok: bool = False, **settings: Any
    ) -> TopicInfo:
        """With 6 partitions unless told otherwise. With `exist_ok`, one that is there is left as it is.

        Settings: retention={"hours", "bytes"}, max_delay, cleanup ("delete" or "compact"), tombstone_age, dead_letters,
        archive ("none" or "required"), durability ("fsync", or "interval" with sync_interval: a power loss may then
        take what was published within that time). In a cluster: replicas, and min_isr, how many of them must be in sync
        for a publish to be taken.
        """
        flag_of("exist_ok", exist_ok)
        request = CreateTopic(name, partitions, topic_settings(settings))
        try:
            with in_users_words():
                return shown_topic(await self._transport.call(request))
        except AlreadyExists:
            if not exist_ok:
                raise
            return await self.topic(name)

    async def change_topic(self, /, name: str, partitions: int | None = None, **settings: Any) -> TopicInfo:
        """Those settings that are named. With more partitions keys spread differently from then on."""
        request = ChangeTopic(name, partitions, topic_settings(settings))
        with in_users_words():
            return shown_topic(await self._transport.call(request))

    async def delete_topic(self, name: str) -> None:
        """With all its messages."""
        await self._transport.call(DeleteTopic(name))

    async def topics(self, *, partial: bool = False) -> list[TopicInfo]:
        """All there are, by name.

        In a cluster a partition may have no leader for a while, and nothing is known of it then. It is waited for, and
        NotLeader says which it is if that takes too long. If `partial`, the others are told: `unknown` has its number.
        """
        return [shown_topic(info) for info in await listed(self._transport, ListTopics(partial))]

    async def topic(self, name: str, *, partial: bool = False) -> TopicInfo:
        """Its partitions, with the offsets they hold, and its settings. For `partial` see `topics`."""
        return shown_topic(await self._transport.call(DescribeTopic(name, None, partial)))

    async def archived(
        self, topic: str, offsets: Mapping[int, int], *, topic_id: str | None = None, lowers: bool = False
    ) -> TopicInfo:
        """Tells the broker that below these offsets, by partition, everything is in an archive.

        Of a topic whose `archive` is "required", nothing else is ever deleted. `topic_id` is the id that the archived
        topic had (`TopicInfo.id`): with it, a topic that was deleted and made again is not taken for the old one.
        An offset below one that was told before changes nothing, unless the archive was lost, and it `lowers`: the
        broker then keeps what it still has behind that offset.
        """
        if not isinstance(offsets, Mapping):
            raise InvalidInput(f"offsets are numbers by partition, as in {{0: 1000}}, not {offsets!r}")
        return shown_topic(await self._transport.call(Archived(topic, topic_id, dict(offsets), lowers)))

    # --- groups ------------------------------------------------------------------------------------------

    async def create_group(self, /, name: str, **settings: Any) -> GroupInfo:
        """A consumer makes its group, too. If it is there already, it must have these settings.

        Settings: start, visibility, max_retries, backoff={"initial", "factor", "max", "jitter"}, ordering, on_poison,
        assignment, lanes, max_in_flight, session.
        """
        request = CreateGroup(name, group_settings(settings))
        with in_users_words():
            return shown_group(await self._transport.call(request))

    async def change_group(self, /, name: str, **settings: Any) -> GroupInfo:
        """Those settings that are named."""
        request = ChangeGroup(name, group_settings(settings))
        with in_users_words():
            return shown_group(await self._transport.call(request))

    async def delete_group(self, name: str) -> None:
        """With everything it knows of what it has done. The messages stay."""
        await self._transport.call(DeleteGroup(name))

    async def groups(self, *, partial: bool = False) -> list[GroupInfo]:
        """All there are, by name. For `partial` see `topics`: without the lag where nobody leads."""
        return [shown_group(info) for info in await listed(self._transport, ListGroups(partial))]

    async def group(self, name: str, *, partial: bool = False) -> GroupInfo:
        """Its members and what each may lease from, its lag, and its settings. For `partial` see `topics`."""
        return shown_group(await self._transport.call(DescribeGroup(name, None, partial)))

    async def lag(self, group: str) -> dict[str, list[int]]:
        """Messages not done, for each topic of the group and each partition of it."""
        return (await self.group(group)).lag

    async def seek(
        self,
        group: str,
        topic: str,
        to: str | datetime | int | None = None,
        *,
        time: Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Moves the group to "earliest", "latest", a time, or an offset of one partition. What it leased is let go.

        A number in `to` is an offset; `time` takes times as numbers, too, as they are given out.
        """
        if (to is None) == (time is None):
            raise InvalidInput("seek to earliest, latest, a time or an offset, or to a `time`; one of them")
        named: Literal["earliest", "latest"] | None = None
        offset = time_us = None
        if time is not None:
            time_us = time_of("time", time)
        elif to == "earliest" or to == "latest":
            named = "earliest" if to == "earliest" else "latest"
        elif isinstance(to, int) and not isinstance(to, bool):
            if to >= TIME_AS_NUMBER_MIN:
                raise InvalidInput(f"a number in `to` is an offset, and {to} looks like a time: say time={to}")
            offset = to
        elif isinstance(to, str | datetime):
            try:
                time_us = time_of("to", to)
            except InvalidInput as error:
                raise InvalidInput(f"seek to earliest, latest, an offset or a time: {error.message}") from error
        else:
            raise InvalidInput(f"seek to earliest, latest, a time or an offset, not {to!r}")
        await self._transport.call(Seek(group, topic, named, time_us, offset, partition_given(partition)))

    async def parked_keys(self, group: str, *, partial: bool = False) -> list[ParkedKey]:
        """Keys that wait because a message of theirs was given up. For `partial` see `topics`."""
        return await listed(self._transport, ListParkedKeys(group, None, partial))

    async def release_key(self, group: str, topic: str, key: Bytes | None, *, partition: int | None = None) -> int:
        """A parked key goes on with what comes after the message that was given up; None for a whole partition."""
        return await self._transport.call(ReleaseKey(group, topic, bytes_of("key", key), partition))

    async def replay(
        self,
        /,
        topic: str,
        group: str,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        offsets: Mapping[int, tuple[int, int]] | None = None,
        delays: bool = False,
        lanes: bool = False,
        **settings: Any,
    ) -> int:
        """A new group that gets the messages of a time, or of offsets [first, last) by partition: how many.

        Other groups do not notice. With `delays`, messages that were delayed are held back as long as they were then;
        with `lanes`, those of a higher priority come first, as they did.
        """
        request = Replay(
            topic,
            group,
            None if from_time is None else time_of("from_time", from_time),
            None if to_time is None else time_of("to_time", to_time),
            None if offsets is None else _ranges(offsets),
            flag_of("delays", delays),
            flag_of("lanes", lanes),
            group_settings(settings),
        )
        with in_users_words():
            return await self._transport.call(request)


def _ranges(offsets: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    if not isinstance(offsets, Mapping):
        raise InvalidInput(
            f"offsets are pairs by partition, as in {{0: (10, 20)}}, not {offsets!r}", argument="offsets"
        )
    return dict(offsets)


def shown_topic(info: TopicInfo) -> TopicInfo:
    """With settings in the words of users."""
    return msgspec.structs.replace(info, settings=show_topic(info.settings))


def shown_group(info: GroupInfo) -> GroupInfo:
    """With settings in the words of users."""
    return msgspec.structs.replace(info, settings=show_group(info.settings))
