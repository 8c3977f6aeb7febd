"""Messages under an identity that the caller names, for work that may be done again from its start: a task of Spark's.

The same work, done again under the same identity, is recognised message by message and not stored again: the broker
counts the messages of each producer and partition, and ours are numbered from 0 in the order in which they are put. So
what is put must be the same in the same order; how it was cut into batches or frames may differ. What was stored before
is read back and compared, as far as it is still in the log: AttemptDiffers if it is not the same. Work that is done for
the first time reads nothing.

    the broker has it up to `due`     ──────────────────┐
    a frame that comes again    ├────┤                  │     found: told where it is
                                       ├────────┤       │     too old to be found, or over a border: taken for stored
                                                   ├────┼──┤  cut: the rest is sent again

"Taken" is not yet "on disk": what another attempt has sent may be under way, and may fail. So the last message before
the cut is asked for again, which is answered when it is on disk.

Invariant: of a partition, nothing is sent before everything that comes before it is known to be on disk. Whoever does
the same work at the same time keeps to that, too; so all but the last frame the broker has taken is on disk, and one
that is too old to be found is stored.

An answer does not say whether the frame came before. It did if its place is one that the log had when we began, or if
it was appended before we sent it. What a twin has sent in the very moment that ours was on its way is not noticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from penstock.batch import Batch
from penstock.client import forks
from penstock.client.comparing import Given
from penstock.client.cutting import cuts, size_of
from penstock.client.earlier import Earlier
from penstock.client.patience import patiently
from penstock.client.placing import Kept, Placed, find_places
from penstock.client.requests import DescribeTopic
from penstock.client.transport import Stored, Transport
from penstock.codec import NONE
from penstock.errors import BatchTooLarge, LogClosed, PenstockError, ProducerFenced, SequenceGap, SequenceTooOld
from penstock.frame import Frame, Producer, bound_id
from penstock.limits import MIB, Limits

ROWS_MAX = (1 << 31) - 1
WAITING_BYTES_MAX = 32 * MIB


class Identity(NamedTuple):
    """A producer's: 63 bits of `id`, never 0, and 16 of `epoch`. A later epoch takes over from the earlier ones."""

    id: int
    epoch: int = 0


class _Lane:
    """Of one partition: what waits to be sent, and how many messages were put there and are known to be stored."""

    def __init__(self, earlier: Earlier) -> None:
        self.earlier = earlier
        self.waiting: deque[Given] = deque()
        self.put = 0
        self.stored = 0
        # In the order of their numbers; those that were too old to be told are not among them.
        self.placed: list[Placed] = []
        # The last frame was there before: there may be more behind it.
        self.is_again = False
        self.sending: asyncio.Task[None] | None = None


class IdentifiedWriter:
    """Made by `Client.identified`. Belongs to one event loop, and to one attempt at some work.

    What failed for a reason that passes is sent again, for `retry_s` at the most. After an error nothing more is sent.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        identity: Identity,
        *,
        codec: int = NONE,
        retry_s: float = 120.0,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._identity = identity
        principal = transport.principal
        # As which the broker stores what is written here.
        self._stored_as = identity._replace(id=bound_id(identity.id, principal)) if principal else identity
        self._codec = codec
        self._retry_s = retry_s
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._lanes: dict[int, _Lane] = {}
        self._looking = asyncio.Lock()
        # Where each partition ended before anything was sent.
        self._ends: list[int] | None = None
        self._moved = asyncio.Event()
        self._error: BaseException | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Without `finish`, what was not sent yet is not sent any more."""
        await self.close()

    @property
    def limits(self) -> Limits:
        return self._transport.limits

    def now_us(self) -> int:
        """The broker's clock, as well as it is known here. From any thread."""
        return self._transport.now_us()

    async def recover(self, partition: int, since: int = 0) -> int:
        """How many messages an earlier attempt has stored, as the log itself tells from the offset `since` on.

        They are taken for put: what is put goes on behind them. Without this a broker must still know the identity,
        which it forgets when it is restarted more than a day later, or when others have used too many of them.
        """
        found = await find_places(self._transport, self.topic, partition, self._stored_as, since)
        lane = self._lane(partition)
        assert lane.put == 0, "before anything is put"
        lane.placed = found
        lane.put = lane.stored = max((each.number + each.messages for each in found), default=0)
        return lane.put

    async def kept(self, partition: int, place: Placed) -> list[Kept]:
        """What the log has of that now."""
        return await self._lane(partition).earlier.kept(place)

    async def put(self, partition: int, batch: Batch, *, now_us: int = 0, relative: Collection[str] = ()) -> None:
        """On its way as soon as there is room. Raises what went wrong with anything put before.

        A timestamp of `now_us`, and the columns that are `relative` to it, may be others in another attempt.
        """
        pieces = [batch.slice(start, stop) for start, stop in cuts(batch, self._transport.limits)]
        lane = self._lane(partition)
        if lane.put + batch.count > ROWS_MAX:
            raise BatchTooLarge(
                f"more than {ROWS_MAX} messages for partition {partition} of {self.topic} under one identity: "
                "divide the work into more parts"
            )
        for piece in pieces:
            size = size_of(piece)
            while self._waiting_bytes and self._waiting_bytes + size > self._waiting_bytes_max and not self._error:
                self._moved.clear()
                await self._moved.wait()
            self._check()
            lane.waiting.append(Given(piece, now_us, relative))
            lane.put += piece.count
            self._waiting_bytes += size
            if lane.sending is None:
                lane.sending = asyncio.get_running_loop().create_task(self._send_all(partition, lane))

    async def finish(self) -> dict[int, int]:
        """How many messages each partition has got, when all of them are on disk.

        AttemptDiffers if an earlier attempt has stored more than that, so that it is not the same work.
        """
        while sending := [lane.sending for lane in self._lanes.values() if lane.sending is not None]:
            # All of them, also if one fails: nobody shall still be writing when the error is told.
            await asyncio.wait(sending)
        self._check()
        for lane in self._lanes.values():
            if lane.is_again:
                await lane.earlier.check_over(lane.put)
        self._is_closed = True
        assert all(lane.stored == lane.put for lane in self._lanes.values())
        return {partition: lane.stored for partition, lane in self._lanes.items()}

    async def places(self, partition: int, since: int = 0) -> list[Placed]:
        """Where the messages went, when all are on disk: stretches of them, in their order.

        What an earlier attempt has stored may be too old for the broker to tell. It is looked for in the log, which is
        read from the offset `since` on. Those that are not in the log any more are left out.
        """
        lane = self._lane(partition)
        if sum(each.messages for each in lane.placed) == lane.stored:
            return lane.placed
        return await find_places(self._transport, self.topic, partition, self._stored_as, since)

    async def close(self) -> None:
        """What is under way may be stored or not."""
        if forks.is_inherited(self._transport):
            return
        self._is_closed = True
        sending = [lane.sending for lane in self._lanes.values() if lane.sending is not None]
        for task in sending:
            task.cancel()
        if sending:
            await asyncio.wait(sending)

    def _check(self) -> None:
        forks.check(self._transport)
        if isinstance(self._error, PenstockError):
            raise self._error.again()
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LogClosed(f"the writer for {self.topic} is closed. Open another one: client.identified(…)")

    def _lane(self, partition: int) -> _Lane:
        forks.check(self._transport)
        lane = self._lanes.get(partition)
        if lane is None:
            earlier = Earlier(self._transport, self.topic, partition, self._stored_as, self._retry_s)
            lane = self._lanes[partition] = _Lane(earlier)
        return lane

    # --- one partition -----------------------------------------------------------------------------------

    async def _send_all(self, partition: int, lane: _Lane) -> None:
        try:
            while lane.waiting and self._error is None:
                given = self._take(lane)
                batch = given[0].batch if len(given) == 1 else Batch.concat([each.batch for each in given])
                lane.placed += await self._store(partition, lane, batch, given)
                lane.stored += batch.count
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = self._error or error
        finally:
            lane.sending = None
            self._moved.set()

    def _take(self, lane: _Lane) -> list[Given]:
        """As much as a frame may hold: the larger, the faster."""
        limits = self._transport.limits
        taken = [lane.waiting.popleft()]
        count, size = taken[0].batch.count, size_of(taken[0].batch)
        while lane.waiting:
            more, bytes_more = lane.waiting[0].batch.count, size_of(lane.waiting[0].batch)
            if count + more > limits.batch_messages_max or size + bytes_more > limits.frame_bytes_max // 2:
                break
            taken.append(lane.waiting.popleft())
            count, size = count + more, size + bytes_more
        self._waiting_bytes -= size
        self._moved.set()
        return taken

    async def _store(self, partition: int, lane: _Lane, batch: Batch, given: Sequence[Given]) -> list[Placed]:
        """Until all of it is on disk: behind what the lane has stored. Where, as far as the broker says."""
        first, done = lane.stored, 0
        end = await self._end(partition)
        lane.is_again = True
        while done < batch.count:
            began_us = self._transport.now_us()
            try:
                stored = await self._send(partition, first + done, batch.slice(done, batch.count))
            except SequenceGap as error:
                raise SequenceGap(
                    f"{self.topic} partition {partition}: {first + done} messages were written before, and the broker "
                    f"knows of {error.details['due']}: it has lost some, or other work uses the same identity",
                    **error.details,
                ) from error
            except SequenceTooOld as error:
                taken = min(int(error.details["due"]) - first, batch.count)
                if await self._is_on_disk(partition, first + taken - 1, batch.slice(taken - 1, taken)):
                    await lane.earlier.compare(await lane.earlier.places(first, first + taken), first, given)
                    done = taken
            else:
                place = Placed(first + done, batch.count - done, stored.offset)
                lane.is_again = stored.offset < end or stored.append_time < began_us
                if lane.is_again:
                    await lane.earlier.compare([place], first, given)
                return [place]
        return []

    async def _is_on_disk(self, partition: int, number: int, last: Batch) -> bool:
        """When the broker has it; False if it has not after all, because what was under way has failed."""
        try:
            await self._send(partition, number, last)
        except SequenceTooOld:
            return True
        except SequenceGap:
            return False
        return True

    async def _send(self, partition: int, number: int, batch: Batch) -> Stored:
        frame = Frame.of(
            batch, codec=self._codec, producer=Producer(*self._identity, number), limits=self._transport.limits
        )
        try:
            return await patiently(self._retry_s, lambda: self._transport.publish_frame(self.topic, partition, frame))
        except ProducerFenced as error:
            raise ProducerFenced(
                f"{self.topic} partition {partition}: this work (epoch {self._identity.epoch}) is over, later work "
                f"(epoch {error.details.get('epoch')}) has been written under the same identity",
                **error.details,
            ) from error

    async def _end(self, partition: int) -> int:
        """Of the partition, before anything was sent; 0 of one that was not there."""
        async with self._looking:
            if self._ends is None:
                info = await patiently(self._retry_s, lambda: self._transport.call(DescribeTopic(self.topic)))
                self._ends = [each.end_offset for each in info.partitions]
        return self._ends[partition] if partition < len(self._ends) else 0
