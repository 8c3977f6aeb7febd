"""The controller: whichever node holds its key elects leaders for partitions that have lost theirs.

It decides nothing that is not safe: each election is a compare-and-swap on the record of the partition, and whoever is
elected was in sync by that very record. Two controllers at a time, or one that knows old things, make elections that
nobody needs, and no wrong ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from penstock.broker.names import DEAD_LETTERS
from penstock.cluster.core.election import Live, drain, elect, hand_over, is_led, prefer
from penstock.cluster.core.record import PartitionRecord, encode
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import ABSENT, Put, Store, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.leading import Leading, messages_first
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions, Placed
from penstock.cluster.tally import Tally
from penstock.cluster.unclaimed import Unclaimed
from penstock.decoding import from_json
from penstock.errors import EtcdError, PenstockError

log = logging.getLogger("penstock.cluster")

ROUND_S = 1.0
# Elections that are under way at the same time.
_AT_ONCE = 16
# A leader that has come back gets its partitions again when no other was elected for so long, so many at a time.
PREFER_AFTER_US, PREFER_AT_ONCE = 10_000_000, 20


# Of a partition, by its id: as it is, and as it should be.
Change = tuple[str, Placed, PartitionRecord]


class Chosen(msgspec.Struct, frozen=True):
    node: str
    incarnation: str


class Controller:
    def __init__(
        self,
        me: Chosen,
        store: Store,
        view: View,
        keys: Keys,
        members: Members,
        partitions: Partitions,
        session: Callable[[], Session | None],
        tally: Tally,
        unclaimed: Unclaimed,
        now_us: Callable[[], int],
    ) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._keys = keys
        self._members = members
        self._partitions = partitions
        self._session = session
        self._tally = tally
        self._unclaimed = unclaimed
        self._now_us = now_us
        self._stirred = asyncio.Event()
        # All epochs together, and since when they are the same.
        self._epochs = 0
        self._calm_since_us = now_us()

    @property
    def node(self) -> str:
        """Who it is, by what is known here."""
        item = self._view.get(self._keys.controller)
        return "" if item is None else from_json(item.value, Chosen).node

    @property
    def is_me(self) -> bool:
        item = self._view.get(self._keys.controller)
        return item is not None and from_json(item.value, Chosen) == self._me

    def stir(self) -> None:
        """Something has changed that may need an election."""
        self._stirred.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ROUND_S):
                    await self._stirred.wait()
            except TimeoutError:
                pass
            self._stirred.clear()
            try:
                await self.round()
            except EtcdError as error:
                self._tally.etcd_errors += 1
                log.debug("the controller's round failed: %s", error.message)
                await asyncio.sleep(ROUND_S / 4)
            except PenstockError:
                log.exception("the controller's round failed")

    async def round(self) -> None:
        """Become the controller, if nobody is; and if it is this node, see to what has to be different."""
        session = self._session()
        if session is None:
            return
        if self._view.get(self._keys.controller) is None:
            put = Put(self._keys.controller, msgspec.json.encode(self._me), session)
            won = await self._store.commit({self._keys.controller: ABSENT}, [put])
            await self._view.refresh()
            if isinstance(won, Won):
                log.info("this node is the controller")
        if self.is_me:
            await self._oversee()

    async def _oversee(self) -> None:
        now_us = self._now_us()
        everybody, draining = self._members.live, self._members.draining
        live = {node: each for node, each in everybody.items() if node not in draining | self._members.leaving}
        wanted, drained = self._given_up(live)
        busy = {identity for identity, _, _ in wanted}
        wanted += [each for each in self._together(live) if each[0] not in busy]
        epochs = sum(record.epoch for record in self._partitions.records())
        if wanted or epochs != self._epochs:
            self._epochs, self._calm_since_us = epochs, now_us
        elif now_us - self._calm_since_us > PREFER_AFTER_US:
            self._calm_since_us = now_us
            for identity, placed in self._partitions.items():
                preferred = None if placed.record.topic.endswith(DEAD_LETTERS) else prefer(placed.record, live)
                if preferred is not None and not placed.record.target and len(wanted) < PREFER_AT_ONCE:
                    wanted.append((identity, placed, preferred))
        busy = {identity for identity, _, _ in wanted}
        wanted += [each for each in drained if each[0] not in busy]
        for at in range(0, len(wanted), _AT_ONCE):
            await asyncio.gather(*[self._put(*each) for each in wanted[at : at + _AT_ONCE]])
        await self._lift_throttle()
        await self._unclaimed.clear()

    def _given_up(self, live: Live) -> tuple[list[Change], list[Change]]:
        """Other leaders: for what those led who died, and for what is led by those who are being drained."""
        everybody, draining = self._members.live, self._members.draining
        dead, left = [], []
        for each in self._partitions.items():
            if not is_led(each[1].record, everybody):
                dead.append(each)
            elif each[1].record.leader in draining:
                left.append(each)
        if not dead and not left:
            return [], []
        leading = Leading(self._partitions.records(), everybody)
        elected: list[Change] = []
        for identity, placed in messages_first(dead):
            record, rank = placed.record, leading.rank(placed.record)
            # One that is being drained, or stopped, leads rather than nobody does.
            made = elect(record, live, rank) or elect(record, everybody, rank)
            if made is not None:
                elected.append((identity, placed, made))
                leading.add(made)
        drained: list[Change] = []
        for identity, placed in messages_first(left):
            record = placed.record
            made = drain(record, record.leader or "", live, leading.rank(record))
            if made is not None:
                drained.append((identity, placed, made))
                leading.add(made)
        return elected, drained

    async def _lift_throttle(self) -> None:
        """It is there for moves, and goes with the last one: forgotten, it would slow down whatever is moved next."""
        item = self._view.get(self._keys.throttle)
        if item is not None and not any(record.target for record in self._partitions.records()):
            await self._store.commit({item.key: item.revision}, deletes=[item.key])

    def _together(self, live: Live) -> list[Change]:
        """Dead letters are led where the messages are that they are of: what is given up is buried there."""
        leaders = {(placed.record.topic, placed.record.number): placed.record for _, placed in self._partitions.items()}
        wanted = []
        for identity, placed in self._partitions.items():
            record = placed.record
            if record.topic.endswith(DEAD_LETTERS):
                source = leaders.get((record.topic.removesuffix(DEAD_LETTERS), record.number))
                if source is not None and source.leader is not None and source.successor is None:
                    moved = hand_over(record, source.leader, live)
                    if moved is not None:
                        wanted.append((identity, placed, moved))
        return wanted

    async def _put(self, identity: str, placed: Placed, record: PartitionRecord) -> None:
        key = self._keys.partition(identity)
        outcome = await self._store.commit({key: placed.revision}, [Put(key, encode(record))])
        if isinstance(outcome, Won) and record.epoch != placed.record.epoch:
            self._tally.elections += 1
            log.info(
                "%s leads partition %d of %s at epoch %d", record.leader, record.number, record.topic, record.epoch
            )
