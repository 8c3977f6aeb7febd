"""What has happened since the last flush of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyroaring import BitMap64

from penstock.message import Message
from penstock.ring import records
from penstock.ring.batch import Run
from penstock.ring.records import Piece
from penstock.ring.replay import State

_REASON_LENGTH_MAX = 1_000


class Pending:
    def __init__(self, next_number: int) -> None:
        self.next_number = next_number
        # First number, how many, their bytes; numbers follow each other from one to the next.
        self._pieces: list[tuple[int, int, bytes]] = []
        self.size = 0
        # Handed out for the first time, and not answered for.
        self.held = BitMap64()
        # Those whose state is another one.
        self.changed: set[int] = set()
        self.done = BitMap64()

    def put(self, pieces: Sequence[Piece]) -> Run:
        first = self.next_number
        for count, data in pieces:
            number = self.next_number
            # First: whoever is interrupted here must not leave a number that is given again.
            self.next_number += count
            self._pieces.append((number, count, data))
            self.size += len(data)
        return first, self.next_number - first

    def done_with(self, first: int, count: int) -> None:
        self.done.add_range(first, first + count)
        self.held.remove_range(first, first + count)

    def records(self, states: Mapping[int, State]) -> list[Message]:
        """What must be written of it; `states` are those of the numbers that changed and are not done."""
        found = list(self._puts())
        found += state_records(states, self.held)
        return found + records.bitmap_records(records.DONE, self.done)

    def _puts(self) -> Iterator[Message]:
        """Pieces that were done before they were written are left out, and so is that they are done."""
        first, count, size = 0, 0, 0
        gathered: list[bytes] = []
        for number, length, data in self._pieces:
            if self.done.range_cardinality(number, number + length) == length:
                self.done.remove_range(number, number + length)
                continue
            if gathered and (number != first + count or size + len(data) > records.RECORD_BYTES_MAX):
                yield records.put_record(first, count, gathered)
                gathered = []
            if not gathered:
                first, count, size = number, 0, 0
            gathered.append(data)
            count += length
            size += len(data)
        if gathered:
            yield records.put_record(first, count, gathered)


def state_records(states: Mapping[int, State], held: BitMap64) -> list[Message]:
    rows: dict[bytes, list[list[object]]] = {records.HELD_AGAIN: [], records.RETRY: [], records.FAILED: []}
    for number, state in states.items():
        if state.failed_at:
            # What can't be written of it is shown as a question mark: names of files may have such bytes.
            reason = state.reason[:_REASON_LENGTH_MAX].encode(errors="replace").decode()
            rows[records.FAILED].append([number, state.attempts, state.failed_at, reason])
        elif state.is_held:
            rows[records.HELD_AGAIN].append([number, state.attempts])
        else:
            rows[records.RETRY].append([number, state.attempts, state.due_us])
    found = records.bitmap_records(records.HELD, held)
    for kind, some in rows.items():
        # So that no record is larger than a frame may be, whatever the reasons.
        found += [records.rows_record(kind, some[at : at + 1_000]) for at in range(0, len(some), 1_000)]
    return found
