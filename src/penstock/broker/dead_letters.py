"""Dead letters: messages that a group has given up, kept in <topic>.dlq with why and after which attempts.

Exactly one for each time a message is given up, also across crashes (given up again before that is done, it is the
same one):

    1. `Exhausted` in the deliveries log: it is to become a dead letter, and will be found from offset `since` on
    2. the dead letter is published, with its identity in a header
    3. `Buried` in the deliveries log: it is there

After a crash between 1 and 3, the dead-letter topic is searched from `since` on before anything is published again.

Names and offsets are reused: a topic or a group may be deleted and created again, and after an unclean election another
message has the offset. So a letter carries the topic's id, the message's leader epoch and the group's creation time.
A letter without them, of an older build, is taken for that of a message only if append time, key and value are equal.
A letter of any other message is never matched after a crash, and is redriven as a copy, never in place.

A dead letter is settled once it was redriven or discarded; the group `__settled` of the dead-letter topic has those as
done. A letter stays at least until it is settled, and then for as long as the retention of its topic says. Letters of a
topic that was deleted go by retention alone, and so do messages that clients published to a dead-letter topic:
maintenance settles those.

A letter whose message is gone is redriven as a copy, exactly once as well:

    1. `Copying` in the deliveries log of the dead-letter topic: the copy will be found from offset `since` on
    2. the copy is published, by a producer that is named after the letter
    3. settled

A start settles those whose copy is there, and so does maintenance before it deletes anything; the others are published
when somebody redrives them again. In a cluster the copy may be for a partition that another node leads (`copies`): its
key belongs there since the topic has grown. That node does not know of the letter when it deletes; so a copy could be
made again if from the one until retention has deleted it nobody led the letters for as long as it takes to settle them.

A copy has the value, key, headers and priority of the message, and no TTL: whoever redrives it wants it delivered,
however old it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.copies import Copies, CopiesHere, has_published
from penstock.broker.delivery import Death, Delivery
from penstock.broker.events import (
    Buried,
    Copying,
    Cursors,
    GroupEvent,
    Origin,
    Passed,
    Redriven,
    Started,
    Unparked,
    pack,
)
from penstock.broker.ids import MessageId
from penstock.broker.letter import (
    DeadLetter,
    Obituary,
    Where,
    check_where,
    letter_of,
    obituary_of,
    original,
    plain_headers,
)
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.offsets import bitmap_of, from_on
from penstock.broker.ordering import KEY, WHOLE_PARTITION
from penstock.broker.partition import Partition
from penstock.broker.reading import Stored
from penstock.broker.topic import Topic
from penstock.broker.work import Work, to_its_end
from penstock.clock import TIME_MAX_US, Clock
from penstock.durations import duration_text
from penstock.errors import (
    Fatal,
    InvalidInput,
    LogCorrupt,
    MessageNotFound,
    PenstockError,
    SequenceTooOld,
    TopicNotFound,
)
from penstock.frame import Frame, Producer
from penstock.limits import STORED_LIMITS, Limits
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.storage.segment import Segment

SETTLED = "__settled"
# The same message, given up so often: whatever is wrong with it, trying once more will not mend it.
REDRIVES_MAX = 3
# Messages a second: one in eleven days, and more than a broker redrives.
RATE_MIN, RATE_MAX = 0.000_001, 1_000_000
_FAILURES_MAX = 20
_LETTERS_AT_ONCE = 500
# Letters that are redriven between two turns of the event loop, and that are settled by one event.
_PAGE = 50
_SETTLED_AT_ONCE = 1_000


class Redrive(NamedTuple):
    """What a redrive did, or would do."""

    in_place: list[MessageId]
    copied: list[MessageId]
    # Given up so often that another attempt would fail as well; or deleted while a consumer had it, so that there is
    # nothing to redrive.
    refused: list[MessageId]
    # Redriven before, by somebody who did not get to say so.
    already: list[MessageId]


class _Page(NamedTuple):
    """Some letters, and which of their messages were in the log when `segments` were its segments, by partition."""

    letters: list[DeadLetter]
    messages: dict[int, tuple[tuple[Segment, ...], BitMap64]]


class _Burial(NamedTuple):
    """A partition in which a group has given up messages, and the partition of their letters, as this node leads both
    now. If it loses one of them, it publishes nothing there any more, also if it leads it again later."""

    topic: Topic
    number: int
    partition: Partition
    graves: Topic
    grave: Partition


class DeadLetters:
    def __init__(
        self,
        topic: Callable[[str], Topic],
        ensure: Callable[[Topic], Awaitable[Topic]],
        work: Work,
        clock: Clock,
        limits: Limits,
    ) -> None:
        """`ensure` makes the dead-letter topic of a topic, or finds it."""
        self._frame_bytes = limits.frame_bytes_max // 2
        self._topic = topic
        self._ensure = ensure
        self._work = work
        self._clock = clock
        # In a cluster, by whoever leads the partition.
        self.copies: Copies = CopiesHere(work)
        # Where a crash may have come between the letter and the row that says it is there.
        self._searched: set[tuple[str, int, str]] = set()
        self._burying: dict[tuple[str, int, str], asyncio.Future[None]] = {}
        # Letters are settled one after the other: nobody acts on one that somebody else is about to settle.
        self._settling = asyncio.Lock()

    # --- burying -----------------------------------------------------------------------------------------

    async def bury(self, topic: Topic, number: int, group: str) -> None:
        """Publish the letters of what the group has given up in this partition so far.

        If another task is doing so, wait for that one. The caller repeats a failed call later. A burial belongs to one
        leadership of both partitions: if another node has led them meanwhile, it may have published the same letters.
        """
        place = (topic.record.id, number, group)
        if place in self._burying:
            await asyncio.wait([self._burying[place]])
            return
        self._burying[place] = asyncio.get_running_loop().create_future()
        try:
            graves = await self._ensure(topic)
            partition = topic.partition(number)
            burial = _Burial(topic, number, partition, graves, graves.partition(number))
            # What is given up from now on is for the next call: consumers may reject faster than this publishes.
            known = frozenset(self._dying(partition, group))
            while some := self._next(partition, group, known):
                state = partition.groups.state(group)
                # Nothing is published before it is written that it will be.
                await partition.groups.flushed()
                places = {}
                if place not in self._searched:
                    self._searched.add(place)
                    places = await self._found(burial, state)
                frame, offsets = None, list(some)
                if not places:
                    frame, offsets = await self._work.on_a_reading_thread(partial(self._frame, burial, state, some))
                if not partition.groups.has(group) or partition.groups.state(group) is not state:
                    # The group was deleted meanwhile, and maybe created again: these are not its letters.
                    continue
                if frame is not None:
                    committed = await burial.grave.publish(frame)
                    places = {offset: committed.base_offset + row for row, offset in enumerate(offsets)}
                await self._write_down(partition, state, places)
        except BaseException:
            # What was published and what was not, only the dead-letter topic knows now.
            self._searched.discard(place)
            raise
        finally:
            self._burying.pop(place).set_result(None)

    def is_burying(self, topic: Topic, number: int, group: str) -> bool:
        return (topic.record.id, number, group) in self._burying

    def doubt(self, topic: Topic, number: int) -> None:
        """Somebody else may have buried there, and not have come to say so: it is searched again."""
        self._searched = {place for place in self._searched if place[:2] != (topic.record.id, number)}

    def forget(self, group: str) -> None:
        """Drop what is known of a deleted group."""
        self._searched = {place for place in self._searched if place[2] != group}

    def _dying(self, partition: Partition, group: str) -> dict[int, Death]:
        return partition.groups.state(group).dying if partition.groups.has(group) else {}

    def _next(self, partition: Partition, group: str, known: frozenset[int]) -> dict[int, Death]:
        dying = self._dying(partition, group)
        return {offset: dying[offset] for offset in nsmallest(_LETTERS_AT_ONCE, known & dying.keys())}

    async def _found(self, burial: _Burial, state: Delivery) -> dict[int, int]:
        """Letters that were published before a crash, and where."""
        if not state.dying:
            return {}
        topic, number, source, graves, partition = burial
        wanted = {(state.group, number, offset, state.dead.get(offset, 0) + 1): offset for offset in state.dying}
        since = min(death.since for death in state.dying.values())
        died_us = min(death.failures[-1].failed_us for death in state.dying.values())
        log = partition.messages
        # A topic that was made since counts its offsets anew.
        is_newer = graves.record.created_us >= died_us or since > log.safe_offset
        first = log.start_offset if is_newer else max(since, log.start_offset)
        offsets = BitMap64()
        offsets.add_range(first, max(log.safe_offset, first))

        def places() -> Iterator[tuple[int, int] | None]:
            for stored in partition.reading.messages(offsets):
                letter = self._letter(graves, number, partition, stored)
                is_wanted = letter is not None and letter.obituary.identity in wanted and source.groups.has(state.group)
                if letter is not None and is_wanted and _is_same(letter, topic, source):
                    yield wanted[letter.obituary.identity], stored.offset
                else:
                    yield None

        return dict(await self._work.scan(places()))

    def _frame(self, burial: _Burial, state: Delivery, dying: dict[int, Death]) -> tuple[Frame, list[int]]:
        """The letters of these messages, of the first ones if there are too many for one frame; and their offsets."""
        topic, number, partition, _, _ = burial
        stored = {one.offset: one for one in partition.reading.messages(BitMap64(dying))}
        letters: list[Message] = []
        size = 0
        for offset, death in dying.items():
            # Retention may have been faster than we are; that it died is worth a letter all the same.
            one = stored.get(offset) or Stored(offset, Message(None), 0)
            obituary = Obituary(
                topic.name,
                number,
                offset,
                state.group,
                state.dead.get(offset, 0) + 1,
                death.reason,
                death.attempts,
                death.failures[-_FAILURES_MAX:],
                one.append_time,
                one.message.priority,
                topic.record.id,
                partition.epoch_of(offset),
                *_origin(partition, state),
            )
            letter = letter_of(one.message, obituary)
            size += letter.size
            if letters and size > self._frame_bytes:
                break
            letters.append(letter)
        frame = Frame.of(Batch.from_messages(letters, self._clock.now_us()), limits=STORED_LIMITS)
        return frame, list(dying)[: len(letters)]

    async def _write_down(self, partition: Partition, state: Delivery, places: dict[int, int]) -> None:
        if not partition.groups.has(state.group) or partition.groups.state(state.group) is not state:
            # The group was deleted meanwhile, and maybe created again: what that one gives up needs its own letters.
            return
        offsets = sorted(offset for offset in places if offset in state.dying)
        if not offsets:
            return
        row = Buried(state.group, pack(BitMap64(offsets)), tuple(places[offset] for offset in offsets))
        await partition.groups.record([row])

    async def published(self, topic: str) -> None:
        """Wait until all that was given up before this call is in the dead-letter topic, or could not be written."""
        on_topic = self._topic(topic)
        for number, partition in on_topic.numbered:
            await partition.groups.settled()
            for group in partition.groups.dying():
                known = frozenset(self._dying(partition, group))
                while known & self._dying(partition, group).keys():
                    # Goes on if the caller is cancelled: a letter that may have been published must be searched for.
                    burial = self._work.in_background(self.bury(on_topic, number, group))
                    await asyncio.wait([burial])
                    if burial.cancelled() or burial.exception() is not None:
                        break

    # --- looking -----------------------------------------------------------------------------------------

    def letters(self, topic: str, where: Where | None = None, *, with_settled: bool = False) -> Iterator[DeadLetter]:
        """The oldest first, partition by partition."""
        return (letter for letter in self.scan(topic, where, with_settled=with_settled) if letter is not None)

    def scan(
        self,
        topic: str,
        where: Where | None = None,
        *,
        with_settled: bool = False,
        partitions: Collection[int] | None = None,
        after: tuple[int, int] | None = None,
    ) -> Iterator[DeadLetter | None]:
        """For `Work.scan`: the letters that there are now, with None for each that does not match. `after` is the
        partition and the offset of a letter: only those behind it."""
        check_where(where)
        self._topic(topic)
        try:
            graves = self._topic(topic + DEAD_LETTERS)
        except TopicNotFound:
            return iter(())
        # Now, and not when they are read: messages may die faster than that.
        known = [
            (number, partition, _behind(after, number, _stored(partition) if with_settled else unsettled(partition)))
            for number, partition in graves.numbered
            if (partitions is None or number in partitions) and (after is None or number >= after[0])
        ]

        def read() -> Iterator[DeadLetter | None]:
            for number, partition, offsets in known:
                for stored in partition.reading.messages(offsets):
                    letter = self._letter(graves, number, partition, stored)
                    is_meant = letter is not None and (with_settled or not letter.is_settled)
                    yield letter if is_meant and (where is None or letter is None or where.fits(letter)) else None

        return read()

    def letter(self, identity: MessageId) -> DeadLetter:
        identity = MessageId.checked(identity)
        graves = self._topic(identity.topic)
        partition = graves.partition(identity.partition)
        try:
            stored = partition.reading.message(identity.offset)
        except MessageNotFound as error:
            raise MessageNotFound(
                f'dead letter "{identity}" does not exist: it is not stored yet, or was deleted. List what exists: '
                f"penstock dlq list {identity.topic.removesuffix(DEAD_LETTERS)}",
                id=str(identity),
            ) from error
        letter = self._letter(graves, identity.partition, partition, stored)
        if letter is None:
            raise MessageNotFound(
                f"{identity} is not a dead letter. List them: penstock dlq list {identity.topic}", id=str(identity)
            )
        return letter

    def _letter(self, graves: Topic, number: int, partition: Partition, stored: Stored) -> DeadLetter | None:
        obituary = obituary_of(stored.message)
        if obituary is None:
            return None
        message = msgspec.structs.replace(
            stored.message, headers=plain_headers(stored.message), priority=obituary.priority
        )
        settled = _is_settled(partition, stored.offset)
        return DeadLetter(MessageId(graves.name, number, stored.offset), obituary, message, stored.append_time, settled)

    # --- trying again ------------------------------------------------------------------------------------

    async def redrive(
        self,
        topic: str,
        where: Where | None = None,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        redrives_max: int = REDRIVES_MAX,
    ) -> Redrive:
        """Back to the groups that gave them up, no more than `rate` a second, in the order of the messages.

        In place where the message is still in the log: same id, same place in the order. Otherwise a copy is
        published to the topic, which all its groups get; so it is if the topic or the group was deleted and created
        again since. If the caller is cancelled, a redrive ends behind the letter under way, and a dry run at once.
        """
        is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and RATE_MIN <= rate <= RATE_MAX
        if rate is not None and not is_rate:
            raise InvalidInput(f"a rate is {RATE_MIN:g} to {RATE_MAX} messages a second, not {rate!r}", argument="rate")
        check_where(where)
        if not isinstance(redrives_max, int) or redrives_max < 0:
            raise InvalidInput(f"redrives_max is a number, not {redrives_max!r}")
        source = self._topic(topic)
        await self._bury_all(source)

        stop = asyncio.Event()

        async def alone() -> Redrive:
            async with self._settling:
                return await self._redrive(source, where, dry_run, rate, redrives_max, stop)

        # A copy whose letter is not settled would be made again once retention has deleted it.
        try:
            return await (alone() if dry_run else to_its_end(alone()))
        except asyncio.CancelledError:
            stop.set()
            raise

    async def _redrive(
        self,
        source: Topic,
        where: Where | None,
        dry_run: bool,
        rate: float | None,
        redrives_max: int,
        stop: asyncio.Event,
    ) -> Redrive:
        done = Redrive([], [], [], [])
        now = self._clock.now_us()
        letters = [] if stop.is_set() else await self._in_order(source.name, where)
        if rate is not None:
            await self._check_delays(source, letters, rate, redrives_max)
        for some in _paged(letters, _PAGE):
            if stop.is_set():
                break
            page = await self._page(source, some)
            settled: list[MessageId] = []
            written: list[asyncio.Future[Committed]] = []
            try:
                for letter in page.letters:
                    if stop.is_set():
                        break
                    due_us = min(now + _delay_us(len(done.in_place) + len(done.copied), rate), TIME_MAX_US)
                    fate = await self._fate(source, letter, page, redrives_max)
                    fate_list: list[MessageId] = getattr(done, fate)
                    fate_list.append(letter.id)
                    if dry_run or fate == "refused":
                        continue
                    if fate == "copied":
                        await self._copy(source, letter, due_us if rate else 0)
                        await self._settle(letter.id)
                        continue
                    if fate == "in_place":
                        written.append(self._revive(source, letter, due_us))
                    settled.append(letter.id)
            finally:
                # A crash in between leaves letters that the next redrive finds redriven already.
                await asyncio.gather(*written)
                await self._settle(*settled)
        return done

    async def _in_order(self, topic: str, where: Where | None) -> list[MessageId]:
        """The letters that are meant, in the order of their messages: one may have died later than its successors."""
        letters = (letter and (original(letter), letter.id) for letter in self.scan(topic, where))
        found = await self._work.scan(letters)
        return await self._work.on_a_reading_thread(lambda: [letter for _, letter in sorted(found)])

    async def _page(self, source: Topic, letters: Sequence[MessageId]) -> _Page:
        return await self._work.on_a_reading_thread(partial(self._read_page, source, letters))

    def _read_page(self, source: Topic, letters: Sequence[MessageId]) -> _Page:
        graves = self._topic(letters[0].topic)
        found: dict[MessageId, DeadLetter] = {}
        for number, offsets in _by_partition((one.partition, one.offset) for one in letters).items():
            partition = graves.partition(number)
            for stored in partition.reading.messages(offsets):
                letter = self._letter(graves, number, partition, stored)
                if letter is not None:
                    found[letter.id] = letter
        page = _Page([found[one] for one in letters if one in found], {})
        originals = ((one.obituary.partition, one.obituary.offset) for one in page.letters)
        for number, offsets in _by_partition(originals).items():
            if number not in source.here:
                continue
            partition = source.here[number]
            segments, there = partition.messages.segments, BitMap64()
            offsets -= from_on(offsets, partition.reading.visible_offset)
            try:
                for numbers, _ in partition.reading.batches(offsets):
                    there |= offsets & bitmap_of(numbers)
            except LogCorrupt:
                # It may be the frame of another message. A letter whose own message is damaged is reported in its turn.
                continue
            page.messages[number] = segments, there
        return page

    async def _check_delays(self, source: Topic, letters: list[MessageId], rate: float, redrives_max: int) -> None:
        """Ahead of the first one: a copy waits as a delayed message does, and no longer than the topic allows."""
        longest = source.settings.max_delay_us
        if _delay_us(len(letters) - 1, rate) <= longest:
            return
        fates: list[str] = []
        for some in _paged(letters, _PAGE):
            page = await self._page(source, some)
            fates += [await self._fate(source, letter, page, redrives_max) for letter in page.letters]
        sent = [fate for fate in fates if fate in ("in_place", "copied")]
        if any(fate == "copied" and _delay_us(number, rate) > longest for number, fate in enumerate(sent)):
            raise InvalidInput(
                f"at {rate:g} a second, copies would come later than {duration_text(longest)} from now, which is the"
                f" longest delay of {source.name}: redrive fewer at once, or more a second"
            )

    async def discard(self, topic: str, where: Where | None = None) -> int:
        """They are not shown any more, nor redriven."""
        count = 0
        async with self._settling:
            letters = await self._work.scan(letter and letter.id for letter in self.scan(topic, where))
            for some in _paged(letters, _SETTLED_AT_ONCE):
                await self._settle(*some)
                count += len(some)
        return count

    async def settle_copied(self, graves: Topic) -> None:
        """Letters whose copy is there, though a crash or a full queue has kept anybody from saying so: copies in
        partitions that are led here.

        Waits for nobody who redrives, which may take long: both find the same copy.
        """
        for source, letter, copying in self._doubtful(graves):
            here = source.here.get(copying.partition)
            if here is None:
                continue
            search = partial(has_published, here, copying.since, self._producer(letter).id)
            if await self._work.on_a_reading_thread(search):
                await self._settle(letter)

    async def settle_copied_elsewhere(self, graves: Topic) -> None:
        """The same for partitions that other nodes lead, whom this waits for."""
        silent: set[int] = set()
        for source, letter, copying in self._doubtful(graves):
            if copying.partition in source.here or copying.partition in silent:
                continue
            try:
                is_copied = await self._is_copied(source, letter)
            except Fatal:
                raise
            except PenstockError:
                # They stay letters in doubt, for the next time or for whoever redrives them, who hears of this.
                silent.add(copying.partition)
                continue
            if is_copied:
                await self._settle(letter)

    def _doubtful(self, graves: Topic) -> list[tuple[Topic, MessageId, Copying]]:
        """Letters that are not settled, and of which there may be a copy."""
        try:
            source = self._topic(graves.name.removesuffix(DEAD_LETTERS))
        except TopicNotFound:
            return []
        return [
            (source, MessageId(graves.name, number, offset), copying)
            for number, partition in graves.numbered
            for offset, copying in _copying(partition).items()
            if copying.topic == source.record.id
        ]

    async def _bury_all(self, topic: Topic) -> None:
        """What was given up before this call, and a crash or a full disk may have left unfinished."""
        for number, partition in topic.numbered:
            for group in partition.groups.dying():
                known = frozenset(self._dying(partition, group))
                while known & self._dying(partition, group).keys():
                    # Goes on if the caller is cancelled: a letter that may have been published must be searched for.
                    await to_its_end(self.bury(topic, number, group))

    async def _fate(self, source: Topic, letter: DeadLetter, page: _Page, redrives_max: int) -> str:
        obituary = letter.obituary
        # Maintenance may have settled it since the letters were listed, and then `Copying` is forgotten.
        if await self._is_copied(source, letter.id) or _is_settled(
            self._topic(letter.id.topic).partition(letter.id.partition), letter.id.offset
        ):
            return "already"
        if obituary.round > redrives_max or not obituary.published_us:
            return "refused"
        if obituary.partition >= source.count:
            return "copied"
        partition = source.partition(obituary.partition)
        if not partition.groups.has(obituary.group) or not _is_same(letter, source, partition):
            return "copied"
        state = partition.groups.state(obituary.group)
        deaths = state.dead.get(obituary.offset, 0)
        if deaths > obituary.round or state.redriven.get(obituary.offset, 0) >= obituary.round:
            return "already"
        if deaths == obituary.round and not state.is_done(obituary.offset):
            # Somebody moved the group back.
            return "already"
        if deaths < obituary.round:
            # Its deaths were forgotten with older messages.
            return "copied"
        return "in_place" if _is_there(partition, obituary, page) else "copied"

    def _revive(self, source: Topic, letter: DeadLetter, due_us: int) -> asyncio.Future[Committed]:
        obituary = letter.obituary
        groups = source.partition(obituary.partition).groups
        state = groups.state(obituary.group)
        events: list[GroupEvent] = [Redriven(obituary.group, pack(BitMap64([obituary.offset])), due_us)]
        tokens = []
        if WHOLE_PARTITION in state.parked and state.parked[WHOLE_PARTITION].offset == obituary.offset:
            tokens.append(WHOLE_PARTITION)
        key = letter.message.key
        if key is not None and KEY + key in state.parked:
            tokens.append(KEY + key)
        if tokens:
            # Its key goes on with this very message.
            events.append(Unparked(obituary.group, tuple(tokens)))
        return groups.record(events)

    async def _copy(self, source: Topic, letter: DeadLetter, due_us: int) -> None:
        copying = self._copying(source, letter.id)
        if copying is None:
            number = self._partition_for(source, letter)
            since = await self.copies.since(source, number)
            copying = Copying(SETTLED, letter.id.offset, source.record.id, number, since)
            await self._record(letter.id, copying)
        else:
            # Whoever wrote that down may have given up waiting for the disk.
            await self._topic(letter.id.topic).partition(letter.id.partition).groups.flushed()
        copy = msgspec.structs.replace(letter.message, timestamp=0, deliver_at=due_us, expires_at=0)
        # The same producer, if somebody gave up waiting for it: while it is on its way, it is not sent again.
        frame = Frame.of_message(
            copy, now_us=self._clock.now_us(), producer=self._producer(letter.id), limits=STORED_LIMITS
        )
        # An earlier attempt has another time, and so another checksum. Its copy is on disk then.
        with suppress(SequenceTooOld):
            await self.copies.publish(source, copying.partition, frame)

    def _partition_for(self, source: Topic, letter: DeadLetter) -> int:
        """That of its key; without one, where it was."""
        number = letter.obituary.partition
        if letter.message.key is not None or number >= source.count:
            return source.choose(letter.message.key)
        return number

    def _copying(self, source: Topic, letter: MessageId) -> Copying | None:
        """What was written down ahead of copying it to this very topic."""
        copying = _copying(self._topic(letter.topic).partition(letter.partition)).get(letter.offset)
        return copying if copying is not None and copying.topic == source.record.id else None

    async def _is_copied(self, source: Topic, letter: MessageId) -> bool:
        """Whether its copy is on disk."""
        copying = self._copying(source, letter)
        if copying is None:
            return False
        return await self.copies.are_there(source, copying.partition, copying.since, self._producer(letter).id)

    def _producer(self, letter: MessageId) -> Producer:
        """Of the copy of this letter, and of nothing else: a dead-letter topic that is made anew has another id, and
        after an unclean election a letter at the same offset has another epoch."""
        graves = self._topic(letter.topic)
        name = f"{graves.record.id}:{letter.partition}:{letter.offset}"
        partition = graves.partition(letter.partition)
        epoch = partition.epoch_of(letter.offset)
        if partition.unclean and epoch >= partition.unclean[0]:
            name += f":{epoch}"
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return Producer(digest >> 1 or 1, 0, 0)

    async def _settle(self, *letters: MessageId) -> None:
        """By one event for each partition. Letters of one topic."""
        for number, offsets in _by_partition((letter.partition, letter.offset) for letter in letters).items():
            if new := offsets - _settled_of(self._topic(letters[0].topic).partition(number), offsets):
                letter = MessageId(letters[0].topic, number, new.min())
                await self._record(letter, Passed(SETTLED, Cursors.at(0), gone=pack(new)))

    async def _record(self, letter: MessageId, event: GroupEvent) -> None:
        await _record(self._topic(letter.topic).partition(letter.partition), event)


def _is_same(letter: DeadLetter, topic: Topic, partition: Partition) -> bool:
    """Whether the letter is of the message that has its offset now, and of the group that has its name now."""
    obituary = letter.obituary
    if not _is_of_group(letter, _origin(partition, partition.groups.state(obituary.group))):
        return False
    if obituary.topic_id:
        # Of what was deleted the epoch may be forgotten; no other message ever comes to its offset.
        is_deleted = obituary.offset < partition.messages.start_offset
        is_epoch = is_deleted or obituary.epoch == partition.epoch_of(obituary.offset)
        return is_epoch and obituary.topic_id == topic.record.id
    try:
        stored = partition.reading.message(obituary.offset)
    except MessageNotFound:
        return False
    message = stored.message
    return (stored.append_time, message.key, message.value) == (
        obituary.published_us,
        letter.message.key,
        letter.message.value,
    )


def _is_of_group(letter: DeadLetter, origin: Origin) -> bool:
    """Whether the group that has the name now is the one that gave up the message."""
    obituary = letter.obituary
    if obituary.group_generation and origin.generation:
        return obituary.group_generation == origin.generation
    if obituary.group_made_us and origin.made_us:
        return obituary.group_made_us == origin.made_us
    # A letter of an older build, or a group of one: a letter that is older than the group is another group's.
    return letter.died_us >= origin.made_us


def _is_there(partition: Partition, obituary: Obituary, page: _Page) -> bool:
    """Whether the message is still in the log. What was read with the page holds as long as the segments are the same:
    retention and compaction replace them."""
    log, offset = partition.messages, obituary.offset
    segments, there = page.messages.get(obituary.partition, (None, BitMap64()))
    if segments is log.segments:
        return offset in there and offset >= log.start_offset
    try:
        partition.reading.message(offset)
    except MessageNotFound:
        return False
    return True


def _origin(partition: Partition, state: Delivery) -> Origin:
    """A group that began under an older build has it only in the catalog."""
    return state.origin if any(state.origin) else partition.groups.origin(state.group)


def _is_settled(graves: Partition, offset: int) -> bool:
    return graves.groups.has(SETTLED) and graves.groups.state(SETTLED).is_done(offset)


async def _record(graves: Partition, event: GroupEvent) -> None:
    groups = graves.groups
    await groups.record([event] if groups.has(SETTLED) else [Started(SETTLED, 0), event])


def not_letters(graves: Partition, offsets: BitMap64) -> Iterator[int | None]:
    """For `Work.scan`: those of these messages that clients published, with None for each dead letter."""
    for stored in graves.reading.messages(offsets):
        yield stored.offset if obituary_of(stored.message) is None else None


async def settle_others(graves: Partition, offsets: BitMap64) -> None:
    """Settle messages that are no dead letters: no redrive or discard will, and they would be kept for ever."""
    await _record(graves, Passed(SETTLED, Cursors.at(0), gone=pack(offsets)))


def unsettled(graves: Partition) -> BitMap64:
    """Letters that were neither redriven nor discarded."""
    offsets = _stored(graves)
    return offsets - _settled_of(graves, offsets)


def _behind(after: tuple[int, int] | None, number: int, offsets: BitMap64) -> BitMap64:
    return offsets if after is None or number != after[0] else from_on(offsets, after[1] + 1)


def _settled_of(graves: Partition, offsets: BitMap64) -> BitMap64:
    return graves.groups.state(SETTLED).done_of(offsets) if graves.groups.has(SETTLED) else BitMap64()


def _stored(graves: Partition) -> BitMap64:
    offsets = BitMap64()
    offsets.add_range(graves.messages.start_offset, graves.messages.safe_offset)
    return offsets


def _by_partition(places: Iterable[tuple[int, int]]) -> dict[int, BitMap64]:
    found: dict[int, BitMap64] = {}
    for number, offset in places:
        found.setdefault(number, BitMap64()).add(offset)
    return found


def _paged(letters: Sequence[MessageId], size: int) -> Iterator[Sequence[MessageId]]:
    return (letters[at : at + size] for at in range(0, len(letters), size))


def _copying(graves: Partition) -> dict[int, Copying]:
    return graves.groups.state(SETTLED).copying if graves.groups.has(SETTLED) else {}


def _delay_us(sent: int, rate: float | None) -> int:
    """Of one that comes after so many others."""
    return int(sent * 1_000_000 / rate) if rate else 0


__all__ = ["DeadLetter", "DeadLetters", "Obituary", "Redrive", "Where"]
