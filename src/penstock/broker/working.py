"""A group at work in one partition: what its settings make of its state.

Decides, and changes nothing but what is derived from the state; events are applied and written in `deliveries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.delays import Delays
from penstock.broker.delivery import Delivery
from penstock.broker.events import AnyEvent, Exhausted, unpack
from penstock.broker.key_hash import Hashes
from penstock.broker.key_order import KeyOrder
from penstock.broker.lanes import Lanes
from penstock.broker.leasing import Decision, LaneReader, Leasing
from penstock.broker.offsets import Ints
from penstock.broker.ordering import KEY, NO_ORDER, WHOLE_PARTITION, Order, PartitionOrder
from penstock.broker.retries import RetryPolicy
from penstock.broker.settings import GroupSettings
from penstock.broker.tally import Tally
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.storage.epochs import Lineage


class Messages(LaneReader, Protocol):
    """What groups need to know of the messages."""

    @property
    def start_offset(self) -> int: ...

    @property
    def visible_offset(self) -> int: ...

    @property
    def lineage(self) -> Lineage:
        """At which offsets the epochs of the messages begin."""

    def hashes(self, offsets: BitMap64) -> Hashes: ...

    def keys(self, offsets: BitMap64) -> list[tuple[int, bytes | None]]: ...

    def batches(self, offsets: BitMap64) -> Iterator[tuple[Ints, Batch]]:
        """Of all frames that hold some of these."""

    def special_batches(self, offset: int) -> Iterator[tuple[Ints, Batch]]:
        """Of all frames from there on that have lanes or delays."""


class Working:
    __slots__ = ("_leasing", "_messages", "delivery", "policy", "settings")

    def __init__(
        self,
        delivery: Delivery,
        settings: GroupSettings,
        policy: RetryPolicy,
        *,
        messages: Messages,
        lanes: Lanes,
        delays: Delays,
    ) -> None:
        if delivery.is_recalled:
            delivery.is_recalled, delivery.tally = False, Tally()
        delivery.order = _order(settings, messages, lanes)
        delivery.order.rebuild(delivery)
        self.delivery = delivery
        self.settings = settings
        self.policy = policy
        self._messages = messages
        self._leasing = Leasing(delivery, lanes, delays, settings.lanes)

    # --- leases ------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more may be in flight."""
        return self.settings.max_in_flight - self.delivery.in_flight

    def has_nothing(self, monotonic_us: int) -> bool:
        return self._leasing.has_nothing(self._messages.visible_offset, monotonic_us)

    def next_lease(
        self,
        *,
        count: int,
        look_at: int,
        bytes_max: int,
        now_us: int,
        consumer: str,
        identity: int,
        deadline_us: int,
        waits: bool,
    ) -> Decision | None:
        """For the arguments see `Leasing.lease`. Once its events are applied, `leased` is to be told."""
        try:
            return self._leasing.lease(
                self._messages,
                count=count,
                look_at=look_at,
                bytes_max=bytes_max,
                start=self._messages.start_offset,
                end=self._messages.visible_offset,
                now_us=now_us,
                consumer=consumer,
                identity=identity,
                deadline_us=deadline_us,
                waits=waits,
            )
        except InvalidFrame as error:
            raise LogCorrupt(f"a frame of messages is damaged: {error.message}", **error.details) from error

    def leased(self, identity: int, decision: Decision, now_us: int) -> None:
        order = self.delivery.order
        if decision.hashes is not None and decision.picked:
            order.leased(identity, self.delivery.leases[identity].offsets, decision.hashes)
        for blocked in decision.blocked:
            order.block(*blocked)
        for picked in decision.picked:
            self.delivery.count_handed(*picked, now_us)

    def holding_up(self, monotonic_us: int) -> BitMap64:
        """Messages that keep their keys busy."""
        offsets = BitMap64()
        if self.settings.ordering == "key":
            for due_us, waiting in self.delivery.waits():
                # What is due is ready as soon as somebody asks, and may be gone by then as all that is ready.
                if due_us > monotonic_us:
                    offsets |= waiting
            for lease in self.delivery.leases.values():
                offsets |= lease.offsets
        return offsets

    # --- messages that are given up ----------------------------------------------------------------------

    def fates(self, events: Sequence[AnyEvent], graveyard: Callable[[], int | None]) -> list[AnyEvent]:
        """What becomes of messages that were given up: whether they are dead letters, and whose key waits for that."""
        return [self._fate(event, graveyard()) if isinstance(event, Exhausted) else event for event in events]

    def _fate(self, event: Exhausted, since: int | None) -> Exhausted:
        parked: tuple[tuple[bytes, int], ...] = ()
        ordering, on_poison = self.settings.ordering, self.settings.on_poison
        if ordering != "none" and on_poison != "skip":
            if ordering == "key" and on_poison == "park":
                parked = self._parked_by(unpack(event.offsets))
            else:
                parked = ((WHOLE_PARTITION, unpack(event.offsets).min()),)
        return msgspec.structs.replace(event, since=since, parked=parked)

    def _parked_by(self, offsets: BitMap64) -> tuple[tuple[bytes, int], ...]:
        first: dict[bytes, int] = {}
        for offset, key in self._messages.keys(offsets):
            if key is not None:
                first.setdefault(KEY + key, offset)
        return tuple(sorted(first.items()))


def _order(settings: GroupSettings, messages: Messages, lanes: Lanes) -> Order:
    minded = None if settings.lanes == "none" else lanes
    if settings.ordering == "key":
        return KeyOrder(messages.hashes, minded)
    return PartitionOrder(minded) if settings.ordering == "partition" else NO_ORDER
