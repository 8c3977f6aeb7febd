"""The client: everything one can ask of a broker, wherever that is."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.acks import ALL, check_waited
from penstock.client import forks
from penstock.client.admin import Admin
from penstock.client.bounds import Offsets
from penstock.client.closing import CLOSE_TIMEOUT, all_done
from penstock.client.consumer import PREFETCH_DEFAULT, Consumer
from penstock.client.dead_letters import DeadLetters
from penstock.client.deliveries import Deliveries
from penstock.client.identified import IdentifiedWriter, Identity
from penstock.client.later import ScheduledMessages, Schedules
from penstock.client.producer import BATCH_BYTES, BATCH_MESSAGES, BUFFER_BYTES, LINGER, Producer, ProducerOptions
from penstock.client.reader import Reader
from penstock.client.requests import AskWhy, GetMessage, GetStateAt, GetTrace, StateAt, Trace, Why
from penstock.client.rows import StoredMessage
from penstock.client.sending import Published
from penstock.client.settings import group_settings
from penstock.client.transport import Transport
from penstock.client.words import (
    CLIENT_CLOSED,
    HOW_TO_CLOSE,
    Bytes,
    Duration,
    MessageFields,
    Time,
    duration_of,
    flag_of,
    message_of,
    name_of,
    names_of,
    partition_given,
    time_of,
)
from penstock.codec import CODECS
from penstock.environment import random_id
from penstock.errors import AlreadyExists, InvalidInput, LogClosed, PenstockError
from penstock.limits import Limits
from penstock.message import Message


async def _left(consumer: Consumer, timeout: Duration) -> None:
    # Its leases run out by themselves; the producers' messages do not come by themselves.
    with suppress(PenstockError):
        await consumer.close(timeout)


class Client(Admin):
    """Belongs to one event loop. What it makes (consumers, producers, readers) ends with it."""

    def __init__(
        self, transport: Transport, *, place: str = "somewhere", new_id: Callable[[], bytes] = random_id
    ) -> None:
        """`place` is where the broker is, for people."""
        super().__init__(transport)
        forks.guard(transport)
        self.place = place
        self.scheduled = ScheduledMessages(transport)
        self.schedules = Schedules(transport)
        self.dead_letters = DeadLetters(transport)
        self._new_id = new_id
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}, {'closed' if self._is_closed else 'open'}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # An event loop can't be waited for here: nothing but a warning is possible.
        if not (self._is_closed or forks.is_inherited(self._transport)):
            warn(f"{self!r} was never closed: {HOW_TO_CLOSE}", ResourceWarning, stacklevel=2, source=self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def limits(self) -> Limits:
        """The broker's: of a message's size, for one."""
        return self._transport.limits

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: Bytes | None,
        *,
        partition: int | None = None,
        acks: str = ALL,
        **fields: Unpack[MessageFields],
    ) -> Published:
        """One message, on disk when this returns. The topic must be there.

        Text is stored as UTF-8; a value of None is a tombstone. It may have a key (messages of one key go to one
        partition, in order), headers, a delay ("30m") or deliver_at (a time), a ttl or expires_at (a time), a priority
        ("high", "normal", "low") and a timestamp.

        In a cluster it is on the disks of all replicas in sync by then; with `acks="leader"` on that of its partition's
        leader, which a fail-over may lose.
        """
        check_waited(acks)
        message = self.compose(value, fields)
        stored = await self._transport.publish(topic, message, partition_given(partition), acks)
        return Published(topic, stored.partition, stored.offset, stored.append_time)

    def compose(self, value: Bytes | None, fields: MessageFields) -> Message:
        """From any thread."""
        return message_of(value, self._transport.now_us() if fields else 0, fields)

    def producer(
        self,
        topic: str,
        *,
        linger: Duration = LINGER,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        compression: str = "none",
        retry_for: Duration = "30s",
        acks: str = ALL,
    ) -> Producer:
        """For many messages: they are gathered and sent together. Compression is none, lz4 or zstd.

        A message is told to be stored when it is on the disks of all replicas in sync; with `acks="leader"` when it is
        on that of its partition's leader, which a fail-over may lose; with `acks="none"` at once, at offset -1, and
        what goes wrong is told by `flush` and `close`. Of a broker on its own, "leader" and "all" are the same.
        """
        options = ProducerOptions(linger, batch_messages, batch_bytes, buffer_bytes, compression, retry_for, acks)
        self._check_open()
        producer = Producer(self._transport, name_of("topic", topic), options, new_id=self._new_id)
        self._producers.add(producer)
        return producer

    def identified(
        self, topic: str, identity: Identity, *, compression: str = "none", retry_for: Duration = "120s"
    ) -> IdentifiedWriter:
        """For work that may be done again from its start: what it puts again, in the same order and under the same
        identity, is recognised and not stored again."""
        if not isinstance(compression, str) or compression not in CODECS:
            raise InvalidInput(f"compression is {', '.join(CODECS)}, not {compression!r}", argument="compression")
        if not isinstance(identity, Identity):
            raise InvalidInput(f"an identity is an Identity, not a {type(identity).__name__}", argument="identity")
        self._check_open()
        retry_s = duration_of("retry_for", retry_for) / 1_000_000
        return IdentifiedWriter(
            self._transport, name_of("topic", topic), identity, codec=CODECS[compression], retry_s=retry_s
        )

    # --- consuming ---------------------------------------------------------------------------------------

    def consumer(
        self,
        /,
        group: str,
        topics: str | Iterable[str],
        *,
        name: str | None = None,
        prefetch: int = PREFETCH_DEFAULT,
        until_idle: Duration | None = None,
        ack_linger: Duration = "0s",
        **settings: Any,
    ) -> Consumer:
        """A member of the group, which is made if it is not there; settings that are given must be those it has.

        It fetches `prefetch` messages ahead. With `until_idle`, iterating ends when nothing has come for that long.
        With `ack_linger`, `ack` returns at once, and acknowledgements are told together, at most that much later: many
        times faster, and what was not told yet is delivered again if the process dies; `flush` waits for them.
        Without a name it gets one of its own; a name that another consumer of the group has is refused until that one
        is closed (AlreadyExists).
        """
        wanted = group_settings(settings)
        self._check_open()
        called = f"consumer-{self._new_id().hex()[:12]}" if name is None else name_of("consumer", name)
        self._check_name(name_of("group", group), called)
        consumer = Consumer(
            self._transport,
            group,
            names_of(topics),
            name=called,
            settings=wanted,
            prefetch=prefetch,
            until_idle=until_idle,
            ack_linger=ack_linger,
        )
        self._consumers.add(consumer)
        return consumer

    def reader(
        self,
        topic: str,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: Offsets | None = None,
        to_offset: Offsets | None = None,
        partitions: Iterable[int] | None = None,
        columns: Iterable[str] | None = None,
        archive: str | os.PathLike[str] | bool = False,
        whole: bool = False,
        epochs: Mapping[int, int] | None = None,
    ) -> Reader:
        """The log as it was written: all that is there now, or [from, to) by time or offset.

        An offset is a number, "earliest" or "latest", or a mapping from partitions to those. With `columns`, the broker
        sends only those of a message, and there are only `batches()`; where each is comes in any case.

        With an archive, what was deleted is read from there and the rest from the log, without a gap or a duplicate: a
        directory, a URI, or True for the one that the broker names. MessagesMissing if neither has all of it. With
        `whole` that is said without an archive, too, where a reader would otherwise start with what is left.

        Whoever reads on later, from an offset that was kept, keeps the `epochs()` of the reader with it: then it hears
        of an unclean election in a cluster that gave up what had been read, though others came to the same offsets.
        """
        self._check_open()
        bounds: dict[str, Any] = {
            "from_time": from_time,
            "to_time": to_time,
            "from_offset": from_offset,
            "to_offset": to_offset,
            "partitions": partitions,
            "columns": columns,
            "epochs": epochs,
        }
        if archive is False and not flag_of("whole", whole):
            return Reader(self._transport, name_of("topic", topic), **bounds)
        # Here and not at the top: Parquet takes a while to load, and few need it.
        from penstock.client.replay import Replay

        return Replay(self._transport, name_of("topic", topic), archive=archive, **bounds)

    def deliveries(
        self,
        topic: str,
        *,
        from_offset: Offsets | None = None,
        to_offset: Offsets | None = None,
        partitions: Iterable[int] | None = None,
    ) -> Deliveries:
        """What happened to the messages of a topic, as a table with one row for each event and message.

        Offsets are positions in the deliveries log of a partition: `ends()` tells where it begins and ends.
        """
        self._check_open()
        return Deliveries(
            self._transport,
            name_of("topic", topic),
            from_offset=from_offset,
            to_offset=to_offset,
            partitions=partitions,
        )

    # --- one message -------------------------------------------------------------------------------------

    async def message(self, id: str) -> StoredMessage:
        """By its id, topic:partition:offset."""
        found = await self._transport.call(GetMessage(id))
        topic, partition, offset = id.split(":")
        return StoredMessage(topic, int(partition), int(offset), found.append_time, found.message)

    async def trace(self, id: str) -> Trace:
        """Everything that happened to it, in all groups."""
        return await self._transport.call(GetTrace(id))

    async def why(self, id: str, group: str) -> Why:
        """One plain answer to why the group has not got it, or what became of it there."""
        return await self._transport.call(AskWhy(id, group))

    async def state_at(self, group: str, topic: str, time: Time) -> list[StateAt]:
        """What the group had not acknowledged then, in each partition where it had started by then."""
        return await self._transport.call(GetStateAt(group, topic, time_of("time", time)))

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Sends what producers hold, gives back what consumers hold, and lets go of the broker.

        A broker that does not answer is waited for `timeout`: see `Producer.close`.
        """
        timeout_s = duration_of("timeout", timeout) / 1_000_000
        if self._is_closed or forks.is_inherited(self._transport):
            return
        self._is_closed = True
        try:
            leaving = [_left(consumer, timeout) for consumer in list(self._consumers)]
            await all_done(*leaving, *[producer.close(timeout) for producer in list(self._producers)])
        finally:
            await self._transport.close(timeout_s)

    def _check_name(self, group: str, name: str) -> None:
        # To the broker they would be one member, which asks from two places: neither would know what it has.
        for other in list(self._consumers):
            if (other.group, other.name) == (group, name) and not other.membership.is_closed:
                raise AlreadyExists(
                    f"group {group} already has a consumer {name} of this client. Close it first, or name "
                    "this one differently",
                    group=group,
                    consumer=name,
                )

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosed(CLIENT_CLOSED)
        forks.check(self._transport)
