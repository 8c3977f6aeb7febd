"""Dead letters: messages that a group has given up, kept in <topic>.dlq with why and after which attempts.

Exactly one for each time a message is given up, also across crashes (given up again before that is done, it is the
same one):

    1. `Exhausted` in the deliveries log: it is to become a dead letter, and will be found from offset `since` on
    2. the dead letter is published, with its identity in a header
    3. `Buried` in the deliveries log: it is there

After a crash between 1 and 3, the dead-letter topic is searched from `since` on before anything is published again.

A dead letter is settled once it was redriven or discarded; the group `__settled` of the dead-letter topic has those as
done. The letters themselves stay in the log for as long as its retention says.

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
from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.copies import Copies, CopiesHere, has_published
from penstock.broker.delivery import Death
from penstock.broker.events import Buried, Copying, Cursors, GroupEvent, Passed, Redriven, Started, Unparked, pack
from penstock.broker.ids import MessageId
from penstock.broker.letter import (
    DeadLetter,
    Obituary,
    Where,
    check_where,
    letter_of,
    limits_for_letters,
    obituary_of,
    original,
    plain_headers,
)
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.ordering import KEY
from penstock.broker.partition import Partition
from penstock.broker.reading import Stored
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.durations import duration_text
from penstock.errors import Fatal, InvalidInput, MessageNotFound, PenstockError, TopicNotFound
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.message import Message

SETTLED = "__settled"
# The same message, given up so often: whatever is wrong with it, trying once more will not mend it.
REDRIVES_MAX = 3
_FAILURES_MAX = 20
_LETTERS_AT_ONCE = 500


class Redrive(NamedTuple):
    """What a redrive did, or would do."""

    in_place: list[MessageId]
    copied: list[MessageId]
    # Given up so often that trying again would only go round in circles.
    refused: list[MessageId]
    # Redriven before, by somebody who did not get to say so.
    already: list[MessageId]


class DeadLetters:
    def __init__(
        self,
        topic: Callable[[str], Topic],
        ensure: Callable[[Topic], Awaitable[Topic]],
        clock: Clock,
        limits: Limits,
    ) -> None:
        """`ensure` makes the dead-letter topic of a topic, or finds it."""
        self._limits = limits_for_letters(limits)
        self._topic = topic
        self._ensure = ensure
        self._clock = clock
        # In a cluster, by whoever leads the partition.
        self.copies: Copies = CopiesHere()
        # Where a crash may have come between the letter and the row that says it is there.
        self._searched: set[tuple[str, int, str]] = set()
        self._burying: dict[tuple[str, int, str], asyncio.Future[None]] = {}
        # Letters are settled one after the other: nobody acts on one that somebody else is about to settle.
        self._settling = asyncio.Lock()

    # --- burying -----------------------------------------------------------------------------------------

    async def bury(self, topic: Topic, number: int, group: str) -> None:
        """All that the group has given up in this partition. Whoever fails is called again later."""
        place = (topic.record.id, number, group)
        if place in self._burying:
            # Somebody is at it.
            await asyncio.wait([self._burying[place]])
            return
        self._burying[place] = asyncio.get_running_loop().create_future()
        try:
            graves = await self._ensure(topic)
            partition = topic.partition(number)
            while some := self._next(partition, group):
                # Nothing is published before it is written that it will be.
                await partition.groups.flushed()
                places = {}
                if place not in self._searched:
                    places = self._found(graves, topic, number, group)
                    self._searched.add(place)
                if not places:
                    places = await self._publish(graves.partition(number), topic, number, group, some)
                await self._write_down(partition, group, places)
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

    def _next(self, partition: Partition, group: str) -> dict[int, Death]:
        dying = partition.groups.state(group).dying if partition.groups.has(group) else {}
        return dict(sorted(dying.items())[:_LETTERS_AT_ONCE])

    def _found(self, graves: Topic, topic: Topic, number: int, group: str) -> dict[int, int]:
        """Letters that were published before a crash, and where."""
        if not self._next(topic.partition(number), group):
            return {}
        partition, state = graves.partition(number), topic.partition(number).groups.state(group)
        wanted = {(group, number, offset, state.dead.get(offset, 0) + 1): offset for offset in state.dying}
        since = min(death.since for death in state.dying.values())
        died_us = min(death.failures[-1].failed_us for death in state.dying.values())
        log = partition.messages
        # A topic that was made since counts its offsets anew.
        first = log.start_offset if graves.record.created_us >= died_us else max(since, log.start_offset)
        found = {}
        for stored in partition.reading.messages(BitMap64(range(first, max(log.safe_offset, first)))):
            obituary = obituary_of(stored.message)
            if obituary is not None and obituary.topic == topic.name and obituary.identity in wanted:
                found[wanted[obituary.identity]] = stored.offset
        return found

    async def _publish(
        self, graves: Partition, topic: Topic, number: int, group: str, dying: dict[int, Death]
    ) -> dict[int, int]:
        partition = topic.partition(number)
        state = partition.groups.state(group)
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
                group,
                state.dead.get(offset, 0) + 1,
                death.reason,
                death.attempts,
                death.failures[-_FAILURES_MAX:],
                one.append_time,
                one.message.priority,
            )
            letter = letter_of(one.message, obituary)
            size += letter.size
            if letters and size > self._limits.frame_bytes_max // 2:
                break
            letters.append(letter)
        frame = Frame.of(Batch.from_messages(letters, self._clock.now_us()), limits=self._limits)
        committed = await graves.publish(frame)
        return {offset: committed.base_offset + row for row, offset in zip(range(len(letters)), dying, strict=False)}

    async def _write_down(self, partition: Partition, group: str, places: dict[int, int]) -> None:
        # The group may have been deleted meanwhile, and made anew.
        dying = partition.groups.state(group).dying if partition.groups.has(group) else {}
        offsets = sorted(offset for offset in places if offset in dying)
        if not offsets:
            return
        row = Buried(group, pack(BitMap64(offsets)), tuple(places[offset] for offset in offsets))
        await partition.groups.record([row])

    # --- looking -----------------------------------------------------------------------------------------

    def letters(self, topic: str, where: Where | None = None, *, with_settled: bool = False) -> Iterator[DeadLetter]:
        """The oldest first, partition by partition."""
        check_where(where)
        self._topic(topic)
        try:
            graves = self._topic(topic + DEAD_LETTERS)
        except TopicNotFound:
            return
        for number, partition in graves.numbered:
            log = partition.messages
            for stored in partition.reading.messages(BitMap64(range(log.start_offset, log.safe_offset))):
                letter = self._letter(graves, number, partition, stored)
                if letter is None or (letter.is_settled and not with_settled):
                    continue
                if where is None or where.fits(letter):
                    yield letter

    def letter(self, identity: MessageId) -> DeadLetter:
        identity = MessageId.checked(identity)
        graves = self._topic(identity.topic)
        partition = graves.partition(identity.partition)
        letter = self._letter(graves, identity.partition, partition, partition.reading.message(identity.offset))
        if letter is None:
            raise MessageNotFound(f"{identity} is not a dead letter", id=str(identity))
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
        published to the topic, which all its groups get. Done to its end, also if whoever asked gives up waiting.
        """
        is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= 1_000_000
        if rate is not None and not is_rate:
            raise InvalidInput(f"a rate is a number of messages a second, not {rate!r}")
        check_where(where)
        if not isinstance(redrives_max, int) or redrives_max < 0:
            raise InvalidInput(f"redrives_max is a number, not {redrives_max!r}")
        source = self._topic(topic)
        await self._bury_all(source)

        async def alone() -> Redrive:
            async with self._settling:
                return await self._redrive(source, where, dry_run, rate, redrives_max)

        # A copy whose letter is not settled would be made again once retention has deleted it.
        return await asyncio.shield(asyncio.get_running_loop().create_task(alone()))

    async def _redrive(
        self, source: Topic, where: Where | None, dry_run: bool, rate: float | None, redrives_max: int
    ) -> Redrive:
        done = Redrive([], [], [], [])
        now = self._clock.now_us()
        sent = 0
        # A message may have died later than one that was published after it.
        letters = sorted(self.letters(source.name, where), key=original)
        if rate is not None:
            await self._check_delays(source, letters, rate, redrives_max)
        for letter in letters:
            due_us = now + _delay_us(sent, rate)
            fate = await self._fate(source, letter, redrives_max)
            fate_list: list[MessageId] = getattr(done, fate)
            fate_list.append(letter.id)
            if fate in ("in_place", "copied"):
                sent += 1
            if dry_run or fate == "refused":
                continue
            if fate == "in_place":
                await self._revive(source, letter, due_us)
            elif fate == "copied":
                await self._copy(source, letter, due_us if rate else 0)
            await self._settle(letter.id)
        return done

    async def _check_delays(self, source: Topic, letters: list[DeadLetter], rate: float, redrives_max: int) -> None:
        """Ahead of the first one: a copy waits as a delayed message does, and no longer than the topic allows."""
        longest = source.settings.max_delay_us
        if _delay_us(len(letters) - 1, rate) <= longest:
            return
        fates = [await self._fate(source, letter, redrives_max) for letter in letters]
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
            for letter in list(self.letters(topic, where)):
                await self._settle(letter.id)
                count += 1
        return count

    async def settle_copied(self, graves: Topic) -> None:
        """Letters whose copy is there, though a crash or a full queue has kept anybody from saying so: copies in
        partitions that are led here.

        Waits for nobody who redrives, which may take long: both find the same copy.
        """
        for source, letter, copying in self._doubtful(graves):
            here = source.here.get(copying.partition)
            if here is not None and has_published(here, copying.since, self._producer(letter).id):
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
        """What a crash, or a full disk, has left unfinished."""
        for number, partition in topic.numbered:
            for group in partition.groups.groups:
                while partition.groups.has(group) and partition.groups.state(group).dying:
                    await self.bury(topic, number, group)

    async def _fate(self, source: Topic, letter: DeadLetter, redrives_max: int) -> str:
        obituary = letter.obituary
        if await self._is_copied(source, letter.id):
            return "already"
        if obituary.round > redrives_max:
            return "refused"
        if obituary.partition >= source.count:
            return "copied"
        partition = source.partition(obituary.partition)
        if not partition.groups.has(obituary.group):
            return "copied"
        state = partition.groups.state(obituary.group)
        deaths = state.dead.get(obituary.offset, 0)
        if deaths > obituary.round or state.redriven.get(obituary.offset, 0) >= obituary.round:
            return "already"
        if deaths == obituary.round and not state.is_done(obituary.offset):
            # Somebody moved the group back.
            return "already"
        if deaths < obituary.round:
            # A group of the same name, but another one.
            return "copied"
        try:
            partition.reading.message(obituary.offset)
        except MessageNotFound:
            return "copied"
        return "in_place"

    async def _revive(self, source: Topic, letter: DeadLetter, due_us: int) -> None:
        obituary = letter.obituary
        groups = source.partition(obituary.partition).groups
        state = groups.state(obituary.group)
        events: list[GroupEvent] = [Redriven(obituary.group, pack(BitMap64([obituary.offset])), due_us)]
        tokens = [token for token, parked in state.parked.items() if parked.offset == obituary.offset]
        key = letter.message.key
        if key is not None and KEY + key in state.parked and KEY + key not in tokens:
            tokens.append(KEY + key)
        if tokens:
            # Its key goes on with this very message.
            events.append(Unparked(obituary.group, tuple(tokens)))
        await groups.record(events)

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
            copy, now_us=self._clock.now_us(), producer=self._producer(letter.id), limits=self._limits
        )
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
        """Of the copy of this letter, and of nothing else: a dead-letter topic that is made anew has another id."""
        name = f"{self._topic(letter.topic).record.id}:{letter.partition}:{letter.offset}"
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return Producer(digest >> 1 or 1, 0, 0)

    async def _settle(self, letter: MessageId) -> None:
        if _is_settled(self._topic(letter.topic).partition(letter.partition), letter.offset):
            return
        await self._record(letter, Passed(SETTLED, Cursors.at(0), gone=pack(BitMap64([letter.offset]))))

    async def _record(self, letter: MessageId, event: GroupEvent) -> None:
        groups = self._topic(letter.topic).partition(letter.partition).groups
        await groups.record([event] if groups.has(SETTLED) else [Started(SETTLED, 0), event])


def _is_settled(graves: Partition, offset: int) -> bool:
    return graves.groups.has(SETTLED) and graves.groups.state(SETTLED).is_done(offset)


def _copying(graves: Partition) -> dict[int, Copying]:
    return graves.groups.state(SETTLED).copying if graves.groups.has(SETTLED) else {}


def _delay_us(sent: int, rate: float | None) -> int:
    """Of one that comes after so many others."""
    return int(sent * 1_000_000 / rate) if rate else 0


__all__ = ["DeadLetter", "DeadLetters", "Obituary", "Redrive", "Where"]
