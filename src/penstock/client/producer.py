"""Many messages to one topic: gathered, compressed, and stored once, also when the answer to a sending was lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias, Unpack, overload

import numpy as np
import pyarrow as pa

from penstock.acks import ALL, NONE, check_acks
from penstock.batch import Batch
from penstock.body import check_limits
from penstock.client import forks
from penstock.client.closing import CLOSE_TIMEOUT, while_answered
from penstock.client.cutting import cuts, size_of
from penstock.client.outbox import Outbox
from penstock.client.parcel import Parcel
from penstock.client.parts import Part, Parts, check_times
from penstock.client.requests import DescribeTopic
from penstock.client.sender import AT_ONCE_BYTES_MAX, Sender, Way
from penstock.client.sending import PublishedBatch, Sending, SendingBatch
from penstock.client.transport import Stored, Transport
from penstock.client.unheard import Unheard
from penstock.client.words import (
    HOW_TO_CLOSE,
    Bytes,
    Duration,
    MessageFields,
    bytes_of,
    count_of,
    duration_of,
    message_of,
    partition_given,
)
from penstock.codec import CODECS
from penstock.durations import duration_text, duration_us
from penstock.errors import ConnectionLost, InvalidInput, InvalidMessage, LogClosed, PartitionNotFound
from penstock.frame import check_message
from penstock.limits import MIB, Limits
from penstock.message import Message
from penstock.partitioner import partitions_of, split

# Kafka's clients gather 16 KiB for up to 5 ms, and buffer 32 MiB; ours are columnar, and gain from larger frames.
LINGER = "3ms"
BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 * MIB
BUFFER_BYTES = 32 * MIB

Table: TypeAlias = pa.Table | pa.RecordBatch


class ProducerOptions(NamedTuple):
    """Messages are gathered, up to `batch_messages` and about `batch_bytes`, and for no longer than `linger`.

    No more than `buffer_bytes` wait to be sent: whoever sends more waits, too. A frame that failed for a reason that
    passes is sent again, for `retry_for` at the most.

    A frame is told to be stored when it is on the disks of "all" that have to have it, or on that of its "leader"; a
    single broker is both. With `acks` "none" nobody waits: it is told to be stored, at offset -1, when it is on its
    way, and sent once; what goes wrong with it is told by `flush` and `close`.
    """

    linger: Duration = LINGER
    batch_messages: int = BATCH_MESSAGES
    batch_bytes: int = BATCH_BYTES
    buffer_bytes: int = BUFFER_BYTES
    compression: str = "none"
    retry_for: Duration = "30s"
    acks: str = ALL

    def within(self, limits: Limits) -> ProducerOptions:
        """Checked against the broker's limits, which may be lower than the defaults: then those are lowered to them."""
        messages, size = limits.batch_messages_max, limits.frame_bytes_max // 2
        options = self._replace(
            batch_messages=min(BATCH_MESSAGES, messages)
            if self.batch_messages == BATCH_MESSAGES
            else self.batch_messages,
            batch_bytes=min(BATCH_BYTES, size) if self.batch_bytes == BATCH_BYTES else self.batch_bytes,
        )
        options._check(limits)
        return options

    def _check(self, limits: Limits) -> None:
        duration_of("linger", self.linger)
        duration_of("retry_for", self.retry_for)
        if not isinstance(self.compression, str) or self.compression not in CODECS:
            raise InvalidInput(f"compression is {', '.join(CODECS)}, not {self.compression!r}")
        check_acks(self.acks)
        for name, value, highest in (
            ("batch_messages", self.batch_messages, limits.batch_messages_max),
            # Half of what a frame may hold leaves room for the columns around the bytes.
            ("batch_bytes", self.batch_bytes, limits.frame_bytes_max // 2),
            ("buffer_bytes", self.buffer_bytes, 1 << 40),
        ):
            count_of(name, value, highest)


class Producer:
    """Made by `Client.producer`. Messages with the same key are stored in the order in which they were sent."""

    _outbox: Outbox | None = None

    def __init__(
        self, transport: Transport, topic: str, options: ProducerOptions, *, new_id: Callable[[], bytes]
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._options = options = options.within(transport.limits)
        # What goes past the outbox does so as it is, and is waited for.
        self._is_plain = options.compression == "none" and options.acks != NONE
        self._new_id = new_id
        self._sender: Sender | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = f"{self._unsent()} unsent" + (", closed" if self._is_closed else "")
        return f"<{type(self).__name__} for {self.topic}, {state}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # While the event loop runs, what waits to be sent keeps its producer alive: here it is over.
        if self._unsent():
            warn(f"{self!r} was never closed: {HOW_TO_CLOSE}", ResourceWarning, stacklevel=2, source=self)

    @property
    def is_idle(self) -> bool:
        return not self._unsent()

    def _unsent(self) -> int:
        return 0 if self._outbox is None or forks.is_inherited(self._outbox) else self._outbox.unsent()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Asks for the topic now, instead of when the first message is sent."""
        await self._started()

    async def _started(self) -> tuple[Outbox, Sender]:
        forks.check(self._transport)
        if self._is_closed:
            raise LogClosed(
                f"the producer for {self.topic} is closed. Open another one: client.producer({self.topic!r})"
            )
        if self._outbox is None or self._sender is None:
            # Of none of its partitions: it may do without those that nobody leads.
            info = await self._transport.call(DescribeTopic(self.topic, ()))
            if not info.count:
                info = await self._transport.call(DescribeTopic(self.topic))
            # Somebody else may have started it meanwhile.
            if self._outbox is None or self._sender is None:
                self._max_delay_us = info.settings["max_delay_us"]
                self._start(info.count or len(info.partitions))
        assert self._outbox is not None
        assert self._sender is not None
        return self._outbox, self._sender

    def _start(self, partitions: int) -> None:
        options = self._options
        self._outbox = Outbox(
            partitions=partitions,
            batch_messages=options.batch_messages,
            batch_bytes=options.batch_bytes,
            buffer_bytes=options.buffer_bytes,
            message_bytes_max=self._transport.limits.message_bytes_max,
            is_led=partial(self._transport.is_led, self.topic),
            first=int.from_bytes(self._new_id()[:4], "big"),
        )
        self._sender = Sender(
            self._transport,
            self.topic,
            self._outbox,
            new_identity=lambda: int.from_bytes(self._new_id()[:8], "big") >> 1 or 1,
            codec=CODECS[options.compression],
            linger_s=duration_us(options.linger) / 1_000_000,
            retry_s=duration_us(options.retry_for) / 1_000_000,
            acks=options.acks,
            unheard=Unheard(self.topic, options.buffer_bytes),
            owner=self,
        )

    # --- one by one --------------------------------------------------------------------------------------

    async def send(
        self, value: Bytes | None, *, partition: int | None = None, **fields: Unpack[MessageFields]
    ) -> Sending:
        """Into the buffer, as soon as there is room; what is returned tells when it is stored, and where.

        With key, headers, delay or deliver_at, ttl or expires_at, priority and timestamp as `Client.publish` has them.
        """
        sending = self.put_plain(value, fields) if partition is None else None
        return sending or await self.put(self.compose(value, fields), partition)

    def compose(self, value: Bytes | None, fields: MessageFields) -> Message:
        return message_of(value, self._transport.now_us(), fields)

    async def put(self, message: Message, partition: int | None = None) -> Sending:
        _, sender = await self._started()
        while (sending := self.put_nowait(message, partition)) is None:
            await sender.room()
            await self._started()
        return sending

    async def stored(self, message: Message, partition: int | None) -> Stored:
        """Until it is on disk, as soon as can be."""
        outbox, sender = await self._started()
        self._check_times_and_place(outbox, message, partition)
        alone = await sender.send_alone(message, partition) if self._is_plain else None
        if alone is not None:
            return alone
        sending = await self.put(message, partition)
        return await sender.stored(sending.parcel, sending.row)

    def stored_at_once(self, message: Message, partition: int | None, way: Way) -> Stored | Future[Stored] | None:
        """The same on the thread of whoever waits, by a short way; a future if the event loop had to take over.

        None if it can't go that way. From any thread.
        """
        outbox, sender = self._outbox, self._sender
        if outbox is None or sender is None or self._is_closed:
            return None
        if partition is not None or message.deliver_at:
            self._check_times_and_place(outbox, message, partition)
        return sender.send_at_once(message, message.key, partition, way) if self._is_plain else None

    def put_plain(self, value: object, fields: MessageFields) -> Sending | None:
        """The short way for bytes with no more than a key. None if it must go the long one. From any thread."""
        key: bytes | None = None
        if fields:
            given = fields.get("key")
            if len(fields) > 1 or not isinstance(given, bytes | str):
                return None
            key = given if isinstance(given, bytes) else bytes_of("key", given)
        outbox = self._outbox
        if not isinstance(value, bytes) or outbox is None or self._is_closed:
            return None
        added = outbox.add_plain(value, key)
        if added is None:
            return None
        parcel, row = added
        return Sending(self.topic, parcel, row)

    def put_nowait(self, message: Message, partition: int | None = None) -> Sending | None:
        """None if there is no room now, or the producer is not ready. From any thread."""
        outbox, sender = self._outbox, self._sender
        if outbox is None or sender is None or self._is_closed:
            return None
        self._check_times_and_place(outbox, message, partition)
        added = outbox.add(message, check_message(message, self._transport.limits), partition)
        if added is None:
            return None
        sender.noted(added)
        return Sending(self.topic, added.parcel, added.row)

    def _check_times_and_place(self, outbox: Outbox, message: Message, partition: int | None) -> None:
        if partition is not None:
            self._check_partition(outbox, partition)
        if message.deliver_at:
            self._check_delay(message.deliver_at)

    def _check_delay(self, deliver_at: int) -> None:
        """The broker would refuse all that go with it."""
        delay_us = deliver_at - self._transport.now_us()
        if delay_us > self._max_delay_us:
            raise InvalidMessage(
                f"a delay of {duration_text(delay_us)} is longer than the {duration_text(self._max_delay_us)} that "
                f"topic {self.topic} allows. Allow more: penstock topic set {self.topic} --max-delay DURATION",
                field="deliver_at",
            )

    def _check_partition(self, outbox: Outbox, partition: int | None) -> None:
        number = partition_given(partition)
        if number is not None and not 0 <= number < outbox.partitions:
            raise PartitionNotFound(
                f"{self.topic} has partitions 0 to {outbox.partitions - 1}, not {number}", topic=self.topic
            )

    # --- many at once ------------------------------------------------------------------------------------

    @overload
    async def send_batch(
        self, table: Table, *, partition: int | None = None, wait: Literal[True] = True
    ) -> PublishedBatch: ...

    @overload
    async def send_batch(self, table: Table, *, partition: int | None = None, wait: Literal[False]) -> SendingBatch: ...

    async def send_batch(
        self, table: Table, *, partition: int | None = None, wait: bool = True
    ) -> PublishedBatch | SendingBatch:
        """A table with a column `value`, and others of a message if it has them; stored when this returns.

        The partitions are written at the same time; if one fails, its error is raised and others may have been written.
        Without `wait`, it is on its way as soon as there is room in the buffer: what is returned tells when it is
        stored, and `flush` waits for it. That is the fastest way: the next table is made ready while this one travels.
        """
        await self._started()
        parts = self.parts_of(table, partition)
        assert parts is not None
        return await self.send_parts(parts) if wait else await self._put_parts(parts)

    def parts_of(self, table: Table, partition: int | None) -> Parts | None:
        """What is to be sent, checked. None if the producer is not ready. From any thread."""
        outbox = self._outbox
        if outbox is None or self._is_closed:
            return None
        self._check_partition(outbox, partition)
        batch = Batch.from_arrow(table, self._transport.now_us())
        check_times(batch)
        if batch.deliver_at is not None:
            self._check_delay(int(batch.deliver_at.max()))
        if partition is None:
            wholes = split(batch, partitions_of(batch, outbox.partitions, outbox.next_turn()))
        else:
            wholes = [(partition, np.arange(batch.count), batch)]
        parts = [
            Part(number, rows[start:stop], whole.slice(start, stop))
            for number, rows, whole in wholes
            for start, stop in cuts(whole, self._transport.limits)
        ]
        for part in parts:
            check_limits(part.batch, self._transport.limits)
        return Parts(self.topic, batch.count, parts, partition is not None)

    def parts_at_once(self, parts: Parts, way: Way) -> Stored | Future[Stored] | None:
        """A table that goes whole, as `stored_at_once` has it for a message. From any thread."""
        sender = self._sender
        if sender is None or self._is_closed or not self._is_plain or len(parts.parts) > 1:
            return None
        [part] = parts.parts
        if size_of(part.batch) > AT_ONCE_BYTES_MAX:
            return None
        try:
            return sender.send_at_once(part.batch, None, part.partition, way)
        except PartitionNotFound:
            if parts.is_pinned:
                raise
            # The long way chooses another one.
            return None

    async def send_parts(self, parts: Parts) -> PublishedBatch:
        return await (await self._put_parts(parts))

    async def _put_parts(self, parts: Parts) -> SendingBatch:
        sent = [(part.rows, await self._put_batch(part, is_pinned=parts.is_pinned)) for part in parts.parts]
        return SendingBatch(self.topic, parts.total, sent)

    async def _put_batch(self, part: Part, *, is_pinned: bool) -> Parcel:
        outbox, sender = await self._started()
        batch, partition = part.batch, part.partition
        while (added := outbox.add_batch(batch, size_of(batch), partition, is_pinned=is_pinned)) is None:
            await sender.room()
            await self._started()
        sender.noted(added)
        return added.parcel

    # --- the end -----------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Until everything that was sent is stored. Raises what went wrong with any of it since the last flush."""
        forks.check(self._transport)
        if self._sender is not None:
            await self._sender.flush()

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Flushes, for as long as a broker answers. Nothing can be sent any more.

        If no broker answers for `timeout`: ConnectionLost, which says how many messages are undecided.
        """
        timeout_s = duration_of("timeout", timeout) / 1_000_000
        if not (self._is_closed or forks.is_inherited(self._transport)):
            self._is_closed = True
            if self._sender is not None:
                await self._close(self._sender, timeout_s)

    async def _close(self, sender: Sender, timeout_s: float) -> None:
        try:
            await while_answered(sender.flush(), self._transport, self.topic, timeout_s)
        except TimeoutError:
            undecided = self._unsent() + sender.unheard
            told = (
                f"the producer for {self.topic} was closed without its broker: no answer for {timeout_s:g} s; "
                f"{undecided} messages are undecided, and may be stored or not"
            )
            error = ConnectionLost(told, topic=self.topic, undecided=undecided)
            sender.abandon(error)
            raise error from None
