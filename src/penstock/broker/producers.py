"""Idempotent producers: a batch that is sent again is recognised, and not stored again.

A producer has an id, an epoch, and for each partition a sequence number that counts its messages. The last few batches
of each producer are remembered with where they went, as many as a client may have under way at once; the same is found
again in the frames of the log when it is opened.

All partitions of a broker share `ProducerShares`: a bound for all principals together, and one for each. A principal
with too many producers loses what is remembered of its own, the one not heard of for longest first. It never costs
another principal what is remembered of its producers: if all of them together have too many, a new one is refused.

Invariant: the remembered batches of a producer follow each other, without a gap unless one of them failed, and end at
`next_sequence`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import Overloaded, ProducerFenced, SequenceGap, SequenceTooOld
from penstock.frame import Producer

Where = TypeVar("Where")

# Kafka's clients have at most 5 requests under way, and its brokers remember 5 batches.
BATCHES_REMEMBERED = 5
# Of a broker: each counts once in each partition to which it publishes, with about 500 bytes.
PRODUCERS_MAX = 400_000
# Of one principal; and of one log of which nobody publishes here: see `Recollection`.
PRODUCERS_SHARE = 100_000
# If there are too many, those that have not published for so long are forgotten.
IDLE_S = 3_600.0


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
    __slots__ = ("epoch", "failed_from", "id", "next_sequence", "owner", "producers", "sent", "used_at")

    def __init__(self, producers: Producers[Where], producer: Producer) -> None:
        self.producers = producers
        self.id, self.epoch, next_sequence = producer
        # The principal. Empty: not known. It has not published since the log was read, or the broker has no keys.
        self.owner = ""
        self.used_at = 0.0
        self.next_sequence = next_sequence
        # The first of the batches that failed while later ones were under way.
        self.failed_from: int | None = None
        self.sent: list[_Sent[Where]] = []


class ProducerShares:
    """The states of all partitions, by principal; of each, the one that was used last is the last.

    Partitions are opened on threads: every method takes the lock for a moment.
    """

    def __init__(
        self, total_max: int = PRODUCERS_MAX, share_max: int = PRODUCERS_SHARE, now: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.total = 0
        self._total_max = total_max
        self._share_max = share_max
        self._now = now
        self._lock = Lock()
        self._owned: dict[str, OrderedDict[_State[Any], None]] = {}

    def admit(self, owner: str) -> None:
        """Make room for one more of the principal's. Overloaded if the others leave none."""
        with self._lock:
            is_own = len(self._owned.get(owner, ())) >= (self._share_max if owner else 1)
            if self.total < self._total_max or is_own or self._forget_idle() or self._forget_unowned():
                # If it is its own that is forgotten, `use` does so.
                return
        raise Overloaded(
            f"the broker remembers {self._total_max} producers already, and each has published within {IDLE_S:g} s: "
            "publish with fewer producers, to fewer partitions, or try again later",
            producers_max=self._total_max,
        )

    def use(self, state: _State[Any], owner: str) -> None:
        """It publishes now, on behalf of this principal, or was found in the log."""
        state.used_at = self._now()
        with self._lock:
            owned = self._owned.get(owner)
            if owned is None:
                owned = self._owned[owner] = OrderedDict()
            if state in owned:
                owned.move_to_end(state)
                return
            self._remove(state)
            state.owner = owner
            owned[state] = None
            self.total += 1
            # Those without a known principal have what the others leave.
            if len(owned) > self._share_max if owner else self.total > self._total_max and not self._forget_idle():
                self._forget(next(iter(owned)))

    def remove(self, state: _State[Any]) -> None:
        with self._lock:
            self._remove(state)

    def _remove(self, state: _State[Any]) -> None:
        owned = self._owned.get(state.owner)
        if owned is not None and state in owned:
            del owned[state]
            self.total -= 1
            if not owned:
                del self._owned[state.owner]

    def _forget(self, state: _State[Any]) -> None:
        self._remove(state)
        state.producers.forget_all_of(state)

    def _forget_unowned(self) -> bool:
        """The one that was found in a log first, and has not published since."""
        owned = self._owned.get("")
        if not owned:
            return False
        self._forget(next(iter(owned)))
        return True

    def _forget_idle(self) -> bool:
        now = self._now()
        for owned in self._owned.values():
            oldest = next(iter(owned))
            if now - oldest.used_at >= IDLE_S:
                self._forget(oldest)
                return True
        return False


class Producers(Generic[Where]):
    """Of one partition. `Where` is whatever the caller wants back for a batch that came again."""

    def __init__(self, shares: ProducerShares | None = None) -> None:
        """Without `shares`, it has some of its own until it joins others."""
        self._shares = shares or ProducerShares(PRODUCERS_SHARE)
        self._states: dict[int, _State[Where]] = {}

    def join(self, shares: ProducerShares) -> None:
        """Count among those of a broker from now on."""
        self._shares = shares
        for state in list(self._states.values()):
            shares.use(state, "")

    def leave(self) -> None:
        """Remember nothing any more."""
        # Openings on other threads may evict some meanwhile.
        for state in list(self._states.values()):
            self._shares.remove(state)
        self._states, self._shares = {}, ProducerShares(PRODUCERS_SHARE)

    def admit(self, producer: Producer, owner: str) -> None:
        """Before a batch of it is stored. Overloaded if it is new and there are too many."""
        if producer.id not in self._states:
            self._shares.admit(owner)

    def forget_all_of(self, state: _State[Where]) -> None:
        """For `ProducerShares`."""
        if self._states.get(state.id) is state:
            del self._states[state.id]

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

    def add(self, producer: Producer, count: int, where: Where, checksum: int | None, owner: str = "") -> None:
        """The batch is on its way to `where`. Called after `find` said it is the next one. `owner` is the principal
        that publishes it."""
        state = self._states.get(producer.id)
        if state is None or state.epoch != producer.epoch:
            if state is not None:
                self._shares.remove(state)
            state = self._states[producer.id] = _State(self, producer)
        assert producer.sequence == state.next_sequence, (producer, state.next_sequence)
        state.sent.append(_Sent(producer.sequence, count, where, checksum))
        if len(state.sent) > BATCHES_REMEMBERED:
            del state.sent[0]
        state.next_sequence += count
        self._shares.use(state, owner)

    def recall(self, producer: Producer, count: int, where: Where, checksum: int | None) -> None:
        """A batch found in the log. Retention and compaction leave gaps: what comes behind one starts anew."""
        state = self._states.get(producer.id)
        if state is not None and producer.epoch == state.epoch and producer.sequence != state.next_sequence:
            if producer.sequence < state.next_sequence:
                return
            self._drop(state)
        if state is None or producer.epoch >= state.epoch:
            self.add(producer, count, where, checksum)

    def keep(self, is_kept: Callable[[Where], bool]) -> None:
        """Only those of whom the last batch is where it has to be."""
        for state in [state for state in self._states.values() if not is_kept(state.sent[-1].where)]:
            self._drop(state)

    def _drop(self, state: _State[Where]) -> None:
        del self._states[state.id]
        self._shares.remove(state)

    def forget(self, producer: Producer) -> None:
        """It was not stored after all.

        Others that this producer sent after it may be on their way, or stored. If none of them is, the producer goes on
        from here; otherwise this one can't be stored any more, for it would come behind them.
        """
        state = self._states.get(producer.id)
        if state is None or state.epoch != producer.epoch or state.next_sequence <= producer.sequence:
            return
        state.sent = [sent for sent in state.sent if sent.sequence != producer.sequence]
        first = producer.sequence if state.failed_from is None else min(state.failed_from, producer.sequence)
        if any(sent.sequence > producer.sequence for sent in state.sent):
            state.failed_from = first
        else:
            stored = state.sent[-1].sequence + state.sent[-1].messages if state.sent else 0
            state.next_sequence, state.failed_from = max(first, stored), None
