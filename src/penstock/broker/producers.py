"""Idempotent producers: a batch that is sent again is recognised, and not stored again.

A producer has an id, an epoch, and for each partition a sequence number that counts its messages. The last few batches
of each producer are remembered with where they went, as many as a client may have under way at once; the same is found
again in the frames of the log when it is opened.

Invariant: the remembered batches of a producer follow each other, without a gap unless one of them failed, and end at
`next_sequence`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from penstock.errors import ProducerFenced, SequenceGap, SequenceTooOld
from penstock.frame import Producer

Where = TypeVar("Where")

# Kafka's clients have at most 5 requests under way, and its brokers remember 5 batches.
BATCHES_REMEMBERED = 5
PRODUCERS_MAX = 100_000


class _Sent(NamedTuple, Generic[Where]):
    """`checksum` None: not known, because the log has rewritten it."""

    sequence: int
    messages: int
    where: Where
    checksum: int | None


class Found(NamedTuple, Generic[Where]):
    """Where the messages with these sequence numbers are: `behind` messages after `where`.

    `is_same`: the batch was stored as it is, with the same checksum. Otherwise it may be a part of one that was merged
    since, or other messages under the same numbers: only the stored messages can say.
    """

    where: Where
    behind: int
    is_same: bool


class _State(Generic[Where]):
    __slots__ = ("epoch", "failed_from", "next_sequence", "sent")

    def __init__(self, epoch: int, next_sequence: int) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        # The first of the batches that failed while later ones were under way.
        self.failed_from: int | None = None
        self.sent: deque[_Sent[Where]] = deque(maxlen=BATCHES_REMEMBERED)


class Producers(Generic[Where]):
    """Of one partition. `Where` is whatever the caller wants back for a batch that came again."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._states: OrderedDict[int, _State[Where]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def find(self, producer: Producer, count: int, checksum: int) -> Found[Where] | None:
        """Return where a batch that is sent again was stored; None if it is the next in sequence; raise otherwise."""
        state = self._states.get(producer.id)
        if state is None or producer.epoch > state.epoch:
            # Unknown (new, or forgotten since), or a new life of a known one: it starts where it says.
            return None
        if producer.epoch < state.epoch:
            raise ProducerFenced(
                f"producer {producer.id} epoch {producer.epoch}: epoch {state.epoch} has taken over",
                producer=producer.id,
                epoch=state.epoch,
            )
        if producer.sequence == state.next_sequence:
            return None
        if producer.sequence > state.next_sequence:
            raise SequenceGap(
                f"producer {producer.id} sent {producer.sequence}, {state.next_sequence} was due",
                producer=producer.id,
                due=state.next_sequence,
            )
        for sent in state.sent:
            if sent.sequence <= producer.sequence and producer.sequence + count <= sent.sequence + sent.messages:
                # Counted from another first message, or in another number, the checksum would be another one.
                is_whole = (producer.sequence, count) == (sent.sequence, sent.messages)
                return Found(sent.where, producer.sequence - sent.sequence, is_whole and checksum == sent.checksum)
        raise self.too_old(producer)

    def too_old(self, producer: Producer) -> SequenceTooOld:
        due = self._states[producer.id].next_sequence if producer.id in self._states else 0
        return SequenceTooOld(
            f"producer {producer.id} sent sequence {producer.sequence} again, too late or with other messages than "
            f"those stored under it; {due} was due. Nothing was stored now. To store it, use a new producer id",
            producer=producer.id,
            due=due,
        )

    def add(self, producer: Producer, count: int, where: Where, checksum: int | None) -> None:
        """The batch is on its way to `where`. Called after `find` said it is the next one."""
        state = self._states.get(producer.id)
        if state is None or state.epoch != producer.epoch:
            state = self._states[producer.id] = _State(producer.epoch, producer.sequence)
        self._states.move_to_end(producer.id)
        assert producer.sequence == state.next_sequence, (producer, state.next_sequence)
        state.sent.append(_Sent(producer.sequence, count, where, checksum))
        state.next_sequence += count
        while len(self._states) > self._producers_max:
            self._states.popitem(last=False)

    def recall(self, producer: Producer, count: int, where: Where, checksum: int | None) -> None:
        """A batch found in the log. Retention and compaction leave gaps: what comes behind one starts anew."""
        state = self._states.get(producer.id)
        if state is not None and producer.epoch == state.epoch and producer.sequence != state.next_sequence:
            if producer.sequence < state.next_sequence:
                return
            del self._states[producer.id]
        if state is None or producer.epoch >= state.epoch:
            self.add(producer, count, where, checksum)

    def keep(self, is_kept: Callable[[Where], bool]) -> None:
        """Only those of whom the last batch is where it has to be."""
        for number in [number for number, state in self._states.items() if not is_kept(state.sent[-1].where)]:
            del self._states[number]

    def forget(self, producer: Producer) -> None:
        """It was not stored after all.

        Others that this producer sent after it may be on their way, or stored. If none of them is, the producer goes on
        from here; otherwise this one can't be stored any more, for it would come behind them.
        """
        state = self._states.get(producer.id)
        if state is None or state.epoch != producer.epoch or state.next_sequence <= producer.sequence:
            return
        state.sent = deque((sent for sent in state.sent if sent.sequence != producer.sequence), BATCHES_REMEMBERED)
        first = producer.sequence if state.failed_from is None else min(state.failed_from, producer.sequence)
        if any(sent.sequence > producer.sequence for sent in state.sent):
            state.failed_from = first
        else:
            stored = state.sent[-1].sequence + state.sent[-1].messages if state.sent else 0
            state.next_sequence, state.failed_from = max(first, stored), None
