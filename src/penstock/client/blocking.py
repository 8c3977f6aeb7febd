"""The client for code without an event loop: each class is the async one, run in a portal.

There is next to no logic here. A method is `blocking(…)` of its twin, with the same arguments and the same description;
what runs for every message takes a short way past the event loop where there is one.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, Unpack, cast, overload

import pyarrow as pa

from penstock.acks import ALL
from penstock.client import client as aio
from penstock.client import consumer as aio_consumer
from penstock.client import dead_letters as aio_dead_letters
from penstock.client import deliveries as aio_deliveries
from penstock.client import forks
from penstock.client import identified as aio_identified
from penstock.client import later as aio_later
from penstock.client import producer as aio_producer
from penstock.client import reader as aio_reader
from penstock.client import received as aio_received
from penstock.client.closing import CLOSE_TIMEOUT
from penstock.client.consumer import PREFETCH_DEFAULT
from penstock.client.lease import Lease
from penstock.client.portal import Portal, at_end_of_main_thread, blocking, closing, making
from penstock.client.producer import Table
from penstock.client.rows import Columns, StoredMessage
from penstock.client.sending import Published, PublishedBatch, Sending, SendingBatch
from penstock.client.transport import Stored
from penstock.client.words import HOW_TO_CLOSE, Bytes, Duration, MessageFields, duration_of, partition_given
from penstock.client.work_queue import Handled
from penstock.client.workers import Handler
from penstock.errors import InvalidInput, NotFound
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.message import Message

if TYPE_CHECKING:
    from penstock.archive.archive import Archive

T = TypeVar("T")

# For each client that was left open. Kafka's producers wait for ever when they are closed.
EXIT_S_MAX = 30.0


class AtOnce(Protocol):
    """On the thread of whoever waits, or None: see RemoteTransport."""

    def publish_at_once(
        self, topic: str, message: Message, partition: int | None
    ) -> Stored | Future[Stored] | None: ...

    def publish_frame_at_once(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored | None: ...


class Received(aio_received.Held, eq=False, gc=False):
    """One message. `attempt` counts its deliveries to the group, from 1 on."""

    _portal: Portal | None = None

    @property
    def _inner(self) -> Received:
        """Its own twin: what it says is said on the event loop."""
        return self

    def ack(self) -> None:
        """Done: it never comes to this group again. On disk when this returns."""
        # If it is told later, that costs no trip to the event loop.
        if not self.ack_later():
            assert self._portal is not None
            self._portal.run(self._answer(aio_received.ACK))

    nack = blocking(aio_received.Answers.nack)
    reject = blocking(aio_received.Answers.reject)
    release = blocking(aio_received.Answers.release)
    extend = blocking(aio_received.Answers.extend)


def _received(
    portal: Portal, where: tuple[str, int], columns: Columns, lease: Lease, attempts: Iterable[int]
) -> Iterator[Received]:
    fields = aio_received.fields_of(where, columns)
    return map(Received, *fields, repeat(lease), attempts, repeat(None), repeat(portal))


async def _called(function: Callable[[T], None], argument: T) -> None:
    function(argument)


def _mine(made: Iterable[aio_received.Received]) -> Iterator[Received]:
    """What the consumer was told to make."""
    return cast(Iterator[Received], iter(made))


class ReceivedBatch:
    """Messages of one partition, leased together, with one answer for all of them."""

    def __init__(self, inner: aio_received.ReceivedBatch, portal: Portal) -> None:
        self.topic = inner.topic
        self.partition = inner.partition
        self.offsets = inner.offsets
        self._inner = inner
        self._portal = portal

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def arrow(self) -> pa.RecordBatch:
        """With the columns of a message, where it is stored, and `attempt`."""
        return self._inner.arrow()

    def messages(self) -> Iterator[Received]:
        """One by one; each may then be answered for alone."""
        return _mine(self._inner.messages())

    ack = blocking(aio_received.ReceivedBatch.ack)
    nack = blocking(aio_received.ReceivedBatch.nack)
    reject = blocking(aio_received.ReceivedBatch.reject)
    release = blocking(aio_received.ReceivedBatch.release)
    extend = blocking(aio_received.ReceivedBatch.extend)


class _Closing:
    """What is used in a `with`. Keeps its client alive: what that made ends with it."""

    close: Callable[..., None]

    def __init__(self, inner: Any, portal: Portal, client: Client) -> None:
        self._inner = inner
        self._portal = portal
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)


class Consumer(_Closing):
    __doc__ = aio_consumer.Consumer.__doc__

    _inner: aio_consumer.Consumer

    def __init__(self, inner: aio_consumer.Consumer, portal: Portal, client: Client) -> None:
        super().__init__(inner, portal, client)
        inner.membership.make = cast(aio_received.Make, partial(_received, portal))

    join = blocking(aio_consumer.Consumer.join)
    flush = blocking(aio_consumer.Consumer.flush)
    close = closing(aio_consumer.Consumer.close)

    @property
    def name(self) -> str:
        return self._inner.name

    def __enter__(self) -> Self:
        self.join()
        return self

    def __iter__(self) -> Iterator[Received]:
        self._inner.membership.check_open()
        # In a generator, the next message costs one call less.
        shelf = self._inner.membership.shelf
        while True:
            # What was fetched ahead costs no trip to the event loop.
            message: Any = shelf.take_next(True) or self._next()
            if message is None:
                return
            # No call between the taking and this: Ctrl-C behind it would lose the message until its lease is over.
            yield message

    def __next__(self) -> Received:
        message: Any = self._inner.membership.shelf.take_next(True) or self._next()
        if message is None:
            raise StopIteration
        received: Received = message
        return received

    def _next(self) -> aio_received.Received | None:
        message = self._portal.run(self._inner.next(), undo=self._put_back_one)
        if message is None and not self._inner.membership.is_closed:
            self._portal.run(self._inner.membership.rest())
        return message

    def _put_back_one(self, message: aio_received.Received | None) -> None:
        if message is not None:
            self._inner.membership.put_back([message])

    def poll(self, max: int = PREFETCH_DEFAULT, wait: Duration = "0s") -> list[Received]:
        """Up to `max` messages, as soon as there are some; none if nothing comes within `wait`."""
        polled: list[Any] = self._portal.run(self._inner.poll(max, wait), undo=self._inner.membership.put_back)
        return polled

    def batches(self) -> Iterator[ReceivedBatch]:
        """Messages in columns, each batch with one answer for all of it. Ends when the consumer is idle or closed."""
        put_back = self._inner.membership.put_back_batch
        for batch in self._portal.iterate(self._inner.batches(), undo=put_back):
            try:
                received = ReceivedBatch(batch, self._portal)
            except BaseException:
                self._portal.run(_called(put_back, batch))
                raise
            yield received

    def run(self, handler: Callable[[Received], object], concurrency: int = 8) -> Handled:
        """Hands each message to `handler`, on `concurrency` threads: ack when it returns, nack when it raises.

        In a group that is ordered by key, messages of one key are handled one after the other. While a handler works,
        its message stays leased. Ends when the consumer is idle or closed, and leaves the group then.

        Ctrl-C stops it: it takes no more messages, waits for the handlers that are running, and raises. A second Ctrl-C
        does not wait: what those handlers work on stays leased until they return or the process ends.
        """
        if inspect.iscoroutinefunction(handler):
            raise InvalidInput("a handler of the blocking client is a plain function; penstock.aio takes async ones")
        return self._portal.run(self._inner.run(cast(Handler, handler), concurrency), ends=True)


class Producer(_Closing):
    __doc__ = aio_producer.Producer.__doc__

    _inner: aio_producer.Producer

    flush = blocking(aio_producer.Producer.flush)
    close = closing(aio_producer.Producer.close)

    def __enter__(self) -> Self:
        self._portal.run(self._inner.start())
        return self

    def send(self, value: Bytes | None, *, partition: int | None = None, **fields: Unpack[MessageFields]) -> Sending:
        """Into the buffer, as soon as there is room; what is returned tells when it is stored, and where.

        With key, headers, delay or deliver_at, ttl, priority and timestamp as `Client.publish` has them.
        """
        if partition is None:
            sending = self._inner.put_plain(value, fields)
            if sending is not None:
                return sending
        message = self._inner.compose(value, fields)
        # As long as there is room, it costs no trip to the event loop.
        return self._inner.put_nowait(message, partition) or self._portal.run(self._inner.put(message, partition))

    @overload
    def send_batch(
        self, table: Table, *, partition: int | None = None, wait: Literal[True] = True
    ) -> PublishedBatch: ...

    @overload
    def send_batch(self, table: Table, *, partition: int | None = None, wait: Literal[False]) -> SendingBatch: ...

    def send_batch(
        self, table: Table, *, partition: int | None = None, wait: bool = True
    ) -> PublishedBatch | SendingBatch:
        if not wait:
            return self._portal.run(self._inner.send_batch(table, partition=partition, wait=False))
        at_once = self._client._at_once
        parts = self._inner.parts_of(table, partition) if at_once is not None and self._portal.check() else None
        if at_once is None or parts is None:
            return self._portal.run(self._inner.send_batch(table, partition=partition))
        outcome = self._inner.parts_at_once(parts, at_once.publish_frame_at_once)
        if outcome is None:
            return self._portal.run(self._inner.send_parts(parts))
        return parts.published(_stored(outcome, self._portal))

    send_batch.__doc__ = aio_producer.Producer.send_batch.__doc__


class IdentifiedWriter(_Closing):
    __doc__ = aio_identified.IdentifiedWriter.__doc__

    _inner: aio_identified.IdentifiedWriter

    recover = blocking(aio_identified.IdentifiedWriter.recover)
    kept = blocking(aio_identified.IdentifiedWriter.kept)
    put = blocking(aio_identified.IdentifiedWriter.put)
    finish = blocking(aio_identified.IdentifiedWriter.finish)
    places = blocking(aio_identified.IdentifiedWriter.places)
    close = closing(aio_identified.IdentifiedWriter.close)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    def now_us(self) -> int:
        return self._inner.now_us()


class Reader:
    __doc__ = aio_reader.Reader.__doc__

    def __init__(self, inner: aio_reader.Reader, portal: Portal, client: Client) -> None:
        self._inner = inner
        self._portal = portal
        self._client = client

    def offsets(self) -> dict[int, tuple[int, int]]:
        """What would be read now: for each partition the first offset, and the one after the last."""
        # Not `blocking`: a reader of an archive has its own.
        return self._portal.run(self._inner.offsets())

    @property
    def archive(self) -> Archive | None:
        """The one that it reads from, once it has opened it."""
        return self._inner.archive

    def epochs(self) -> dict[int, int]:
        """Of each partition, the epoch of whoever led it when it was read. For the next reader, which goes on there."""
        return self._portal.run(self._inner.epochs())

    def __iter__(self) -> Iterator[StoredMessage]:
        self._inner.check_whole()
        # The rows are made here: one trip to the event loop for each is many.
        for stretch in self._portal.iterate(self._inner.stretches()):
            yield from forks.checked(stretch.messages(), self._portal)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """With the columns partition, offset, append_time and those of a message, or those of them that are wanted."""
        for stretch in self._portal.iterate(self._inner.stretches()):
            yield from forks.checked(stretch.batches(), self._portal)

    def __repr__(self) -> str:
        return repr(self._inner)


class Deliveries:
    __doc__ = aio_deliveries.Deliveries.__doc__

    def __init__(self, inner: aio_deliveries.Deliveries, portal: Portal, client: Client) -> None:
        self._inner = inner
        self._portal = portal
        self._client = client

    ends = blocking(aio_deliveries.Deliveries.ends)
    offsets = blocking(aio_deliveries.Deliveries.offsets)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One row for each event and message: see docs/guides/client.md for the columns."""
        for events in self._portal.iterate(self._inner.events()):
            yield from forks.checked(events.batches(), self._portal)

    def __repr__(self) -> str:
        return repr(self._inner)


class _Part:
    def __init__(self, inner: Any, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


class ScheduledMessages(_Part):
    __doc__ = aio_later.ScheduledMessages.__doc__

    list = blocking(aio_later.ScheduledMessages.list)
    get = blocking(aio_later.ScheduledMessages.get)
    cancel = blocking(aio_later.ScheduledMessages.cancel)
    reschedule = blocking(aio_later.ScheduledMessages.reschedule)
    deliver_now = blocking(aio_later.ScheduledMessages.deliver_now)


class Schedules(_Part):
    __doc__ = aio_later.Schedules.__doc__

    create = blocking(aio_later.Schedules.create)
    list = blocking(aio_later.Schedules.list)
    delete = blocking(aio_later.Schedules.delete)


class DeadLetters(_Part):
    __doc__ = aio_dead_letters.DeadLetters.__doc__

    list = blocking(aio_dead_letters.DeadLetters.list)
    get = blocking(aio_dead_letters.DeadLetters.get)
    redrive = blocking(aio_dead_letters.DeadLetters.redrive)
    discard = blocking(aio_dead_letters.DeadLetters.discard)


class Client:
    """Any thread may use it. What it makes (consumers, producers, readers) ends with it."""

    # Until it is opened: there may be nothing to close.
    _is_closed = True

    def __init__(self, inner: aio.Client, portal: Portal, *, at_once: AtOnce | None = None) -> None:
        self._portal = portal
        self._at_once = at_once
        self._finalizer = weakref.finalize(self, _abandon, portal, inner)
        # What is open at exit is closed by `_close_all`, which comes earlier.
        self._finalizer.atexit = False
        self._use(inner)
        self._is_closed = False
        _clients.add(self)

    def _use(self, inner: aio.Client) -> None:
        self._inner = inner
        self.scheduled = ScheduledMessages(inner.scheduled, self._portal)
        self.schedules = Schedules(inner.schedules, self._portal)
        self.dead_letters = DeadLetters(inner.dead_letters, self._portal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    limits.__doc__ = aio.Client.limits.__doc__

    def publish(
        self,
        topic: str,
        value: Bytes | None,
        *,
        partition: int | None = None,
        acks: str = ALL,
        **fields: Unpack[MessageFields],
    ) -> Published:
        if self._at_once is not None and acks == ALL and self._portal.check():
            # Most are nothing but bytes, and whoever waits for each feels every call.
            message = Message(value) if type(value) is bytes and not fields else self._inner.compose(value, fields)
            where = None if partition is None else partition_given(partition)
            outcome = self._at_once.publish_at_once(topic, message, where)
            if outcome is not None:
                try:
                    stored = outcome if isinstance(outcome, Stored) else _stored(outcome, self._portal)
                    return Published(topic, stored.partition, stored.offset, stored.append_time)
                except NotFound:
                    # What is known of the topic may be old. The long way finds out.
                    pass
        return self._portal.run(self._inner.publish(topic, value, partition=partition, acks=acks, **fields))

    publish.__doc__ = aio.Client.publish.__doc__

    create_topic = blocking(aio.Client.create_topic)
    change_topic = blocking(aio.Client.change_topic)
    delete_topic = blocking(aio.Client.delete_topic)
    topics = blocking(aio.Client.topics)
    topic = blocking(aio.Client.topic)
    archived = blocking(aio.Client.archived)
    create_group = blocking(aio.Client.create_group)
    change_group = blocking(aio.Client.change_group)
    delete_group = blocking(aio.Client.delete_group)
    groups = blocking(aio.Client.groups)
    group = blocking(aio.Client.group)
    lag = blocking(aio.Client.lag)
    seek = blocking(aio.Client.seek)
    parked_keys = blocking(aio.Client.parked_keys)
    release_key = blocking(aio.Client.release_key)
    replay = blocking(aio.Client.replay)
    message = blocking(aio.Client.message)
    trace = blocking(aio.Client.trace)
    why = blocking(aio.Client.why)
    state_at = blocking(aio.Client.state_at)

    producer = making(aio.Client.producer, Producer)
    identified = making(aio.Client.identified, IdentifiedWriter)
    consumer = making(aio.Client.consumer, Consumer)
    reader = making(aio.Client.reader, Reader)
    deliveries = making(aio.Client.deliveries, Deliveries)

    def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        duration_of("timeout", timeout)
        self._close(None, timeout)

    close.__doc__ = aio.Client.close.__doc__

    def _close(self, wait_s: float | None, timeout: Duration = CLOSE_TIMEOUT) -> None:
        self._is_closed = True
        if self._finalizer.detach() is not None and not forks.is_inherited(self._portal):
            try:
                self._portal.run(self._inner.close(timeout), wait_s)
            finally:
                self._portal.stop(wait_s)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner.place}, {'closed' if self._is_closed else 'open'}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if not self._is_closed and not forks.is_inherited(self._portal):
            # First, because a warning may be an error, or be kept by somebody together with what it is about.
            self._finalizer()
            warn(f"{self!r} was never closed: {HOW_TO_CLOSE}", ResourceWarning, stacklevel=2, source=self)


def _stored(outcome: Stored | Future[Stored], portal: Portal) -> Stored:
    return outcome if isinstance(outcome, Stored) else portal.run(_awaited(outcome))


async def _awaited(outcome: Future[Stored]) -> Stored:
    return await asyncio.wrap_future(outcome)


def _abandon(portal: Portal, inner: aio.Client) -> None:
    if not forks.is_inherited(portal):
        portal.abandon(inner.close())


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@at_end_of_main_thread
def _close_all() -> None:
    """A script that ends without closing its client loses nothing of what its producers hold."""
    for client in list(_clients):
        if not client._is_closed and not forks.is_inherited(client._portal) and client._portal.is_running:
            try:
                client._close(EXIT_S_MAX)
            except Exception as error:
                told = f"{client!r} was left open, and could not be closed at exit: {type(error).__name__}: {error}"
                warnings.warn(told, RuntimeWarning, stacklevel=1)
