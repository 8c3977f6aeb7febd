"""What earlier attempts at some work have stored in one partition, to be compared with what is put now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.client.comparing import Given, difference
from penstock.client.patience import patiently
from penstock.client.placing import Kept, Placed, find_places_from, read_kept
from penstock.client.transport import Transport
from penstock.errors import AttemptDiffers, Forbidden

R = TypeVar("R")


class Earlier:
    """Reads nothing before it is asked for something."""

    def __init__(
        self, transport: Transport, topic: str, partition: int, identity: tuple[int, int], retry_s: float
    ) -> None:
        self._where = (transport, topic, partition, identity)
        self._retry_s = retry_s
        # What was found in the log, and up to which number that was looked for.
        self._places: list[Placed] = []
        self._looked = 0

    async def kept(self, place: Placed) -> list[Kept]:
        """What the log has of that now."""
        return await self._reading(partial(read_kept, *self._where, place))

    async def places(self, first: int, until: int) -> list[Placed]:
        """Where the messages from number `first` to `until` are, as far as the log has them; others may be among
        them."""
        if until > self._looked:
            found = await self._reading(partial(find_places_from, *self._where, max(first, self._looked)))
            known = {place.offset: place for place in (*self._places, *found)}
            self._places = [known[offset] for offset in sorted(known)]
            self._looked = max(until, max((place.number + place.messages for place in found), default=0))
        return self._places

    async def compare(self, places: Sequence[Placed], first: int, given: Sequence[Given]) -> None:
        """AttemptDiffers if what is in these places is not what is given, of which the first has the number `first`."""
        for each in given:
            last = first + each.batch.count
            for place in places:
                begin, end = max(first, place.number), min(last, place.number + place.messages)
                if begin < end:
                    part = Placed(begin, end - begin, place.offset + begin - place.number)
                    for kept in await self.kept(part):
                        self._check_same(each, first, kept, part)
            first = last

    async def check_over(self, count: int) -> None:
        """AttemptDiffers if there are more than so many."""
        found = await self._reading(partial(find_places_from, *self._where, count))
        stored = max((place.number + place.messages for place in found), default=0)
        if stored > count:
            _, topic, partition, _ = self._where
            raise AttemptDiffers(
                f"this attempt has {count} messages for partition {partition} of {topic}, and an earlier one at the "
                f"same work has stored {stored}. All of this one's are stored, and others that it does not have",
                topic=topic,
                partition=partition,
                number=count,
            )

    def _check_same(self, given: Given, first: int, kept: Kept, part: Placed) -> None:
        differs = difference(given, kept.numbers - first, kept.rows)
        if differs is None:
            return
        _, topic, partition, _ = self._where
        number = first + differs.row
        offset = part.offset + number - part.number
        raise AttemptDiffers(
            f"message {number} for partition {partition} of {topic} is not the one that an earlier attempt at the same "
            f"work has stored in its place, as {topic}:{partition}:{offset}: {differs.column} is another. What is put "
            "now is not the same in the same order, so nobody can tell what of it is stored already",
            topic=topic,
            partition=partition,
            number=number,
            offset=offset,
            column=differs.column,
        )

    async def _reading(self, ask: Callable[[], Awaitable[R]]) -> R:
        try:
            return await patiently(self._retry_s, ask)
        except Forbidden as error:
            raise Forbidden(
                f"{self._where[1]}: an earlier attempt at the same work has stored some of it, and the key may not "
                f"read what that is: {error.message}",
                **error.details,
            ) from error
