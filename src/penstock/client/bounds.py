"""Where a reading begins and ends: a time, or an offset for all or for each of the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from penstock.client.words import Time, time_of
from penstock.clock import rfc3339
from penstock.errors import InvalidInput, OffsetOutOfRange, PartitionNotFound

End = Literal["earliest", "latest"]
Offset = int | End
Offsets = Offset | Mapping[int, Offset]


def numbers_of(partitions: Iterable[int]) -> list[int]:
    # Of text and bytes, too, there are parts; nobody means those.
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise InvalidInput(f"partitions are a list of numbers, as in [0, 1], not {partitions!r}")
    return list(partitions)


def chosen(topic: str, partitions: Sequence[int] | None, count: int) -> Sequence[int]:
    """Those that were named, if there are such; or all."""
    if partitions is None:
        return range(count)
    for number in partitions:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
            raise PartitionNotFound(f"{topic} has partitions 0 to {count - 1}, not {number!r}", topic=topic)
    return partitions


def stretches_of(
    numbers: Sequence[int], ends: Sequence[tuple[int, int]], starts: Sequence[int], stops: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """For each partition the first offset, and the one after the last; OffsetOutOfRange if the first is not there."""
    found = {}
    for number in numbers:
        (first, last), start = ends[number], starts[number]
        if not first <= start <= last:
            raise OffsetOutOfRange(
                f"partition {number} has offsets {first} to {last}, not {start}", start=first, end=last
            )
        found[number] = (start, max(start, min(stops[number], last)))
    return found


def within(ends: Sequence[tuple[int, int]], found: Iterable[int]) -> list[int]:
    """What was found by time, later than the ends were: whatever was appended in between does not count."""
    return [min(max(offset, first), last) for (first, last), offset in zip(ends, found, strict=False)]


class Bound:
    """One end of what is read: a time, or an offset for all or for each of the partitions."""

    def __init__(self, name: str, time: Time | None, offset: Offsets | None, default: End) -> None:
        if time is not None and offset is not None:
            raise InvalidInput(f"{name}_time or {name}_offset, not both")
        self.time_us = None if time is None else time_of(f"{name}_time", time)
        given = default if offset is None else offset
        self._by_partition = given if isinstance(given, Mapping) else {}
        self._else: Offset = default if isinstance(given, Mapping) else given
        for each in [self._else, *self._by_partition.values()]:
            if each not in ("earliest", "latest") and (not isinstance(each, int) or isinstance(each, bool)):
                raise InvalidInput(f"{name}_offset is earliest, latest or a number, not {each!r}")
            if isinstance(each, int) and each < 0:
                raise OffsetOutOfRange(f"{name}_offset is 0 or more, not {each}")

    def __str__(self) -> str:
        return rfc3339(self.time_us) if self.time_us is not None else str(self._by_partition or self._else)

    @property
    def partitions(self) -> Sequence[int]:
        """Those that it names."""
        return list(self._by_partition)

    def offsets(self, ends: Sequence[tuple[int, int]]) -> list[int]:
        unknown = [number for number in self._by_partition if number not in range(len(ends))]
        if unknown:
            raise PartitionNotFound(f"there are partitions 0 to {len(ends) - 1}, not {unknown[0]!r}")
        offsets = []
        for number, (first, last) in enumerate(ends):
            wanted = self._by_partition.get(number, self._else)
            offsets.append(first if wanted == "earliest" else last if wanted == "latest" else int(wanted))
        return offsets
