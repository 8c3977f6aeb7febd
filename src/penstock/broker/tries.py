"""How often each message of a group was tried and who holds it, followed along the deliveries log.

The rows of the log tell what changed and no more: an acknowledgement names a lease, not its consumer. Whoever reads
them from somewhere on begins with the last snapshot before that. Where there is none, since the log was shortened, who
holds what from before is not known, nor how often anything was tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

from penstock.broker.events import unpack
from penstock.broker.offsets import below, from_on
from penstock.broker.snapshot import GroupState


class Tries:
    """Invariant: `_again` has exactly the keys of `_counts`: those that were tried more than once. All are `_tried`."""

    def __init__(self, *, is_complete: bool) -> None:
        self._is_complete = is_complete
        self._holders: dict[int, tuple[str, BitMap64]] = {}
        self._tried = BitMap64()
        self._again = BitMap64()
        self._counts: dict[int, int] = {}

    @classmethod
    def restored(cls, state: GroupState) -> Tries:
        tries = cls(is_complete=True)
        for identity, consumer, _, _, offsets in state.leases:
            held = unpack(offsets)
            tries._holders[identity] = (consumer, held)
            tries._tried |= held
        for count, offsets in state.attempts:
            tried = unpack(offsets)
            tries._tried |= tried
            if count > 1:
                tries._again |= tried
                tries._counts.update(dict.fromkeys(tried.to_array(), count))
        return tries

    def consumer(self, lease: int) -> str | None:
        return self._holders[lease][0] if lease in self._holders else None

    def by_attempt(self, offsets: BitMap64) -> Iterator[tuple[int | None, BitMap64]]:
        """These, split by how often each was tried; None if that is not known."""
        if not self._is_complete:
            yield None, offsets
            return
        again = offsets & self._again
        if len(again) < len(offsets):
            yield 1, offsets - again if again else offsets
        by_count: dict[int, BitMap64] = {}
        for offset in again.to_array():
            by_count.setdefault(self._counts[offset], BitMap64()).add(offset)
        yield from sorted(by_count.items(), key=lambda item: item[0])

    # --- what happens ------------------------------------------------------------------------------------

    def leased(self, lease: int, consumer: str, offsets: BitMap64) -> None:
        self._holders[lease] = (consumer, offsets.copy())
        if self._is_complete:
            again = offsets & self._tried
            for offset in again.to_array():
                self._counts[offset] = self._counts.get(offset, 1) + 1
            self._again |= again
            self._tried |= offsets

    def answered(self, lease: int, offsets: BitMap64) -> None:
        """Nobody holds them any more."""
        if lease in self._holders:
            held = self._holders[lease][1]
            held -= offsets
            if not held:
                del self._holders[lease]

    def given_back(self, offsets: BitMap64) -> None:
        """Unseen: that delivery does not count."""
        again = offsets & self._again
        self._tried -= offsets - again
        for offset in again.to_array():
            self._counts[offset] -= 1
            if self._counts[offset] == 1:
                del self._counts[offset]
                self._again.discard(offset)

    def truncate(self, offset: int) -> None:
        """Other messages get the offsets from here on."""
        for lease, (_, held) in list(self._holders.items()):
            self.answered(lease, from_on(held, offset))
        self._tried, self._again = below(self._tried, offset), below(self._again, offset)
        self._counts = {number: count for number, count in self._counts.items() if number < offset}

    def over(self, offsets: BitMap64) -> None:
        """Done, or to be tried as if for the first time."""
        for offset in (offsets & self._again).to_array():
            del self._counts[offset]
        self._again -= offsets
        self._tried -= offsets
