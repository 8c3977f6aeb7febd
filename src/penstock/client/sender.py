"""From the outbox to the broker: one frame on its way for each partition, sent again until it is known to be stored."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any

from penstock.acks import ALL, NONE
from penstock.batch import Batch
from penstock.client.closing import retrieve
from penstock.client.lane import Hold, Lane
from penstock.client.outbox import Added, Outbox
from penstock.client.parcel import Parcel
from penstock.client.patience import patiently
from penstock.client.transport import UNKNOWN, Stored, Transport
from penstock.client.unheard import Unheard
from penstock.client.words import CLIENT_CLOSED
from penstock.errors import LogClosed, PartitionNotFound, PenstockError, SequenceGap
from penstock.frame import Frame, Producer
from penstock.limits import MIB
from penstock.message import Message

log = logging.getLogger("penstock.client")

_SEQUENCE_MAX = (1 << 31) - 1
_FAILED_MAX = 1_000
# To a topic's partition with a frame and how far it is to be stored, on the thread that calls it. None: nobody knows
# whether it was.
Way = Callable[[str, int, Frame, str], Stored | None]
# The largest frame for one of those: what is larger has other things to wait for than threads.
AT_ONCE_BYTES_MAX = 1 * MIB


class Sender:
    """Belongs to one event loop, except for `noted`. `new_identity` makes a producer's id, `codec` is how frames are
    packed.

    What is sent for a partition has a sequence number, so that a frame whose answer was lost can be sent again without
    being stored twice. `owner` lives as long as something waits to be sent: whoever closes the client finds it.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        outbox: Outbox,
        *,
        new_identity: Callable[[], int],
        codec: int,
        linger_s: float,
        retry_s: float,
        acks: str,
        unheard: Unheard,
        owner: object,
    ) -> None:
        """`acks` as in `penstock.acks`. With none, `unheard` has what is on its way."""
        self._owner = owner
        self._transport = transport
        self._topic = topic
        self._outbox = outbox
        self._new_identity = new_identity
        self._identity = new_identity()
        self._codec = codec
        self._linger_s = linger_s
        self._retry_s = retry_s
        self._acks = acks
        self._unheard = unheard
        # For each that goes past the outbox.
        self._alone: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._sending: set[asyncio.Task[None]] = set()
        self._taken_over: set[asyncio.Task[Stored]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        # What becomes of what is on its way when it is cut off.
        self._end: PenstockError = LogClosed("the client was closed before this was known to be stored")
        # If the topic has fewer partitions than before: how many, and what failed for that. Both wait until nothing is
        # under way to partitions that are gone.
        self._fewer: int | None = None
        self._misplaced: list[Parcel] = []
        # Told by the next flush, unless somebody has heard of them by then.
        self._failed: deque[Parcel] = deque(maxlen=_FAILED_MAX)

    def noted(self, added: Added) -> None:
        """From any thread: what was added starts to wait, or to be sent."""
        if not added.is_to_note:
            return
        if get_ident() == self._thread:
            self._note(added.parcel)
        else:
            self._on_the_loop(self._note, added.parcel)
        self._outbox.noted(added.parcel)

    def _on_the_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError as error:
            raise LogClosed(CLIENT_CLOSED) from error

    def _note(self, parcel: Parcel) -> None:
        """May be told twice of the same."""
        if self._outbox.begin(parcel.partition):
            self._send(parcel.partition)
        if not parcel.is_closed and self._linger_s:
            self._loop.call_later(self._linger_s, self._lingered, parcel)
        elif not parcel.is_closed:
            self._lingered(parcel)

    def _lingered(self, parcel: Parcel) -> None:
        if self._outbox.due(parcel):
            self._send(parcel.partition)

    async def stored(self, parcel: Parcel, row: int) -> Stored:
        """When that message is. On the event loop, where a future of threads would take another turn."""
        if not parcel.done.done():
            waiter: asyncio.Future[None] = self._loop.create_future()
            parcel.waiting.append(waiter)
            await waiter
        return parcel.stored(row)

    def hurry(self) -> None:
        """Nothing shall wait for more to come."""
        for partition in self._outbox.due_all():
            self._send(partition)

    async def room(self) -> None:
        """Until something has been sent."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        self.hurry()
        await waiter

    async def flush(self) -> None:
        """Until everything is stored. Raises what went wrong with any of it since the last flush."""
        self.hurry()
        waiting: list[asyncio.Future[Any]] = [*self._alone]
        waiting += [asyncio.wrap_future(parcel.done) for parcel in self._outbox.unsettled()]
        if waiting:
            for future in waiting:
                future.add_done_callback(retrieve)
            # Not `gather`: a cancelled flush must not cancel what others wait for.
            await asyncio.wait(waiting)
        # The end of the client would cut them off.
        await self._unheard.settled()
        failed = [parcel for parcel in self._failed if not parcel.is_told]
        self._failed.clear()
        if failed:
            raise failed[0].error()
        self._unheard.check()

    @property
    def unheard(self) -> int:
        """Messages that were sent with `acks` none, and of which the broker has said nothing yet."""
        return self._unheard.messages

    def abandon(self, error: PenstockError) -> None:
        """Nothing is sent any more: what waits, and what is on its way, fails with this."""
        self._end = error
        self._fewer = None
        for task in [*self._sending, *self._taken_over]:
            task.cancel()
        misplaced, self._misplaced = self._misplaced, []
        for parcel in [*misplaced, *self._outbox.drop()]:
            self._finish(parcel, error.again())

    # --- one partition -----------------------------------------------------------------------------------

    def _send(self, partition: int) -> None:
        task = self._loop.create_task(self._send_all(partition))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_all(self, partition: int) -> None:
        while (parcel := self._outbox.take(partition)) is not None:
            try:
                stored = await self._sent(parcel)
            except PenstockError as error:
                if self._fewer is not None and isinstance(error, PartitionNotFound) and parcel.partition >= self._fewer:
                    # The lane stays taken: what waits there must not be sent before this.
                    self._misplaced.append(parcel)
                    self._choose_anew()
                    return
                self._failed.append(parcel)
                self._finish(parcel, error)
            except BaseException:
                self._finish(parcel, self._end.again())
                raise
            else:
                self._finish(parcel, stored)

    def _finish(self, parcel: Parcel, outcome: Stored | PenstockError) -> None:
        self._settle(parcel)
        if isinstance(outcome, PenstockError):
            parcel.done.set_exception(outcome)
        else:
            parcel.done.set_result(outcome)
        self._outbox.under_way.pop(parcel, None)
        parcel.wake()
        self._choose_anew()

    def _choose_anew(self) -> None:
        """Send to other partitions what failed, or waits, because its partition is gone.

        Only once nothing is under way to such partitions: a later message must not overtake an earlier one of its key.
        """
        fewer, under_way = self._fewer, self._outbox.under_way
        if fewer is None or any(
            each.partition >= fewer and not each.parts and each not in self._misplaced for each in under_way
        ):
            return
        failed, self._misplaced, self._fewer = self._misplaced, [], None
        for parcel in self._outbox.shrink(fewer, failed, self._transport.now_us()):
            self._failed.append(parcel)
            self._finish(
                parcel,
                PartitionNotFound(
                    f"{self._topic} was created again with partitions 0 to {fewer - 1}, and has no {parcel.partition}",
                    topic=self._topic,
                    partitions=fewer,
                ),
            )
        self.hurry()

    def _settle(self, parcel: Parcel) -> None:
        self._outbox.settle(parcel)
        parcel.empty()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _sent(self, parcel: Parcel) -> Stored:
        batch = parcel.batch(self._transport.now_us())
        if self._acks == NONE:
            return await self._sent_away(parcel.partition, batch)
        lane = self._outbox.lane(parcel.partition)
        return await self._until_stored(lane, batch, self._frame_of(lane, batch))

    async def _sent_away(self, partition: int, batch: Batch) -> Stored:
        """Without an identity: it is sent once. Those of a partition go one behind the other."""
        frame = Frame.of(batch, codec=self._codec, limits=self._transport.limits)
        await self._unheard.room(len(frame.data))
        publishing = self._transport.publish_frame(self._topic, partition, frame, NONE)
        self._unheard.add(self._loop.create_task(publishing), len(frame.data), batch.count)
        # Now it is on its way.
        await asyncio.sleep(0)
        self._outbox.grow(self._unheard.partitions)
        return Stored(partition, UNKNOWN, 0, self._outbox.partitions)

    def _next(self, lane: Lane, count: int) -> Producer:
        if lane.sequence + count > _SEQUENCE_MAX:
            lane.start_anew(self._new_identity)
        return Producer(lane.identity or self._identity, lane.epoch, lane.sequence)

    async def _until_stored(self, lane: Lane, content: Message | Batch, frame: Frame) -> Stored:
        try:
            return await self._sent_until_stored(lane, frame)
        except SequenceGap as error:
            if not self._is_gap(error):
                raise
            # What is missing was on the disk of a leader, and told, and no other replica had it. This goes on without.
            log.warning(
                "messages to partition %d of %s, with acks=leader, were lost with their leader: %s",
                lane.partition,
                self._topic,
                error.message,
            )
            return await self._sent_until_stored(lane, self._frame_of(lane, content))

    def _is_gap(self, error: PenstockError) -> bool:
        """One that there may be: "all" is told only of what outlives its leader."""
        return isinstance(error, SequenceGap) and self._acks != ALL

    async def _sent_until_stored(self, lane: Lane, frame: Frame) -> Stored:
        try:
            send = partial(self._transport.publish_frame, self._topic, lane.partition, frame, self._acks)
            stored = await patiently(self._retry_s, send)
        except BaseException as error:
            # Whether it was stored is not known for sure; also if whoever waited has given up.
            lane.start_anew(self._new_identity)
            if isinstance(error, PartitionNotFound):
                # An older broker does not say how many there are.
                fewer = max(error.details.get("partitions", lane.partition), 1)
                self._fewer = fewer if self._fewer is None else min(fewer, self._fewer)
            raise
        self._stored(lane, frame.count, stored)
        return stored

    def _stored(self, lane: Lane, count: int, stored: Stored) -> None:
        lane.sequence += count
        if stored.partitions > self._outbox.partitions:
            self._outbox.grow(stored.partitions)

    def _frame_of(self, lane: Lane, content: Message | Batch) -> Frame:
        limits = self._transport.limits
        if isinstance(content, Batch):
            producer = self._next(lane, content.count)
            return Frame.of(content, codec=self._codec, producer=producer, limits=limits)
        now_us = self._transport.now_us()
        return Frame.of_message(content, now_us=now_us, producer=self._next(lane, 1), limits=limits)

    # --- past the outbox ---------------------------------------------------------------------------------

    async def send_alone(self, message: Message, partition: int | None) -> Stored | None:
        """The shortest way there is for whoever waits for one message. None if others wait for its partition."""
        hold = Hold()
        lane = self._outbox.reserve(message.key, partition, hold)
        if lane is None:
            return None
        try:
            frame = self._frame_of(lane, message)
        except BaseException:
            self._release(hold)
            raise
        return await self._send_held(hold, lane, message, frame)

    def send_at_once(
        self, content: Message | Batch, key: bytes | None, partition: int | None, way: Way
    ) -> Stored | Future[Stored] | None:
        """The same on the thread of whoever waits, by a short `way`; if that fails, the loop takes over.

        Whoever waits may be interrupted anywhere, also while an error is dealt with: the partition is given up then.
        """
        hold = Hold()
        try:
            try:
                lane = self._outbox.reserve(key, partition, hold)
                return None if lane is None else self._sent_at_once(hold, lane, content, way)
            except PenstockError:
                self._give_up(hold)
                raise
        except BaseException:
            self._give_up(hold)
            raise

    def _sent_at_once(self, hold: Hold, lane: Lane, content: Message | Batch, way: Way) -> Stored | Future[Stored]:
        frame = self._frame_of(lane, content)
        try:
            stored = way(self._topic, lane.partition, frame, self._acks)
        except PenstockError as error:
            if not error.retriable and not self._is_gap(error):
                raise
            stored = None
        if stored is None:
            # It may be stored already: it keeps its sequence, and the partition, also if the caller gives up.
            outcome = _promise()
            self._on_the_loop(self._take_over, hold, content, frame, outcome)
            return outcome
        self._stored(lane, 1 if isinstance(content, Message) else content.count, stored)
        if self._outbox.release(hold):
            self._pass_on(hold)
        return stored

    def _take_over(self, hold: Hold, content: Message | Batch, frame: Frame, outcome: Future[Stored]) -> None:
        mine = Hold()
        lane = self._outbox.pass_on(hold, mine)
        if lane is None:
            # Given up by whoever was to wait for it.
            return
        task = self._loop.create_task(self._send_held(mine, lane, content, frame))
        self._taken_over.add(task)
        task.add_done_callback(partial(self._tell, outcome))

    def _tell(self, outcome: Future[Stored], task: asyncio.Task[Stored]) -> None:
        self._taken_over.discard(task)
        if task.cancelled():
            outcome.set_exception(self._end.again())
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    async def _send_held(self, hold: Hold, lane: Lane, content: Message | Batch, frame: Frame) -> Stored:
        over = self._loop.create_future()
        self._alone.add(over)
        try:
            return await self._until_stored(lane, content, frame)
        finally:
            self._alone.discard(over)
            over.set_result(None)
            self._release(hold)
            self._choose_anew()

    def _release(self, hold: Hold) -> None:
        """From any thread."""
        if self._outbox.release(hold):
            self._pass_on(hold)

    def _give_up(self, hold: Hold) -> None:
        """From any thread."""
        if self._outbox.give_up(hold, self._new_identity):
            self._pass_on(hold)

    def _pass_on(self, hold: Hold) -> None:
        if get_ident() == self._thread:
            self._go_on(hold)
        else:
            self._on_the_loop(self._go_on, hold)

    def _go_on(self, hold: Hold) -> None:
        lane = self._outbox.pass_on(hold)
        if lane is not None:
            self._send(lane.partition)


def _promise() -> Future[Stored]:
    promise: Future[Stored] = Future()
    # Under way from the start: that somebody gives up waiting for it can't cancel it.
    promise.set_running_or_notify_cancel()
    return promise
