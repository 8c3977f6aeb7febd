"""The controller: whichever node holds its key elects leaders for partitions that have lost theirs.

It decides nothing that is not safe: each election is a compare-and-swap on the record of the partition, and the new
leader is in sync by that very record. Two controllers at a time, or one with an old view, make needless elections, and
no wrong ones. Only after etcd was restored is the record no proof: see `elect_furthest`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from penstock.broker.names import DEAD_LETTERS
from penstock.cluster.core.election import (
    Copy,
    Live,
    drain,
    elect,
    elect_furthest,
    hand_over,
    is_led,
    move_beside,
    prefer,
)
from penstock.cluster.core.record import PartitionRecord, encode
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import ABSENT, Put, Store, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.leading import Leading, messages_first
from penstock.cluster.levels import Levels
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions, Placed
from penstock.cluster.tally import Tally
from penstock.cluster.tombstones import Tombstones
from penstock.cluster.unclaimed import Unclaimed
from penstock.decoding import from_json
from penstock.errors import EtcdError, PenstockError

log = logging.getLogger("penstock.cluster")

ROUND_S = 1.0
# Elections that are under way at the same time.
_AT_ONCE = 16
# A leader that has come back gets its partitions again when no other was elected for so long, so many at a time.
PREFER_AFTER_US, PREFER_AT_ONCE = 10_000_000, 20

# After etcd was restored, the controller waits this long for reports of all replicas before it elects one.
RESTORED_US = 60_000_000


# Of a partition, by its id: as it is, and as it should be.
Change = tuple[str, Placed, PartitionRecord]


async def _no_copies(partitions: tuple[str, ...]) -> Mapping[str, Mapping[str, Copy]]:
    return {}


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
        tombstones: Tombstones,
        levels: Levels,
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
        self._tombstones = tombstones
        self._levels = levels
        self._now_us = now_us
        # Asks all nodes how far their copies of these partitions go. By partition and node, of those that answer.
        self.ask_for_copies: Callable[[tuple[str, ...]], Awaitable[Mapping[str, Mapping[str, Copy]]]] = _no_copies
        # By partition: since when it has been without a leader after etcd was restored.
        self._fenced_since_us: dict[str, int] = {}
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
        await self._put_all(wanted)
        # Last: a node that is silent would hold up the elections above.
        await self._put_all(await self._restored(now_us))
        await self._lift_throttle()
        await self._unclaimed.clear()
        await self._tombstones.clear()
        await self._levels.raise_level()

    def _given_up(self, live: Live) -> tuple[list[Change], list[Change]]:
        """Other leaders: for what those led who died, and for what is led by those who are being drained."""
        everybody, draining = self._members.live, self._members.draining
        dead, left = [], []
        for each in self._partitions.items():
            if each[1].record.is_fenced:
                continue
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

    async def _restored(self, now_us: int) -> list[Change]:
        """Elect first leaders after etcd was restored: once all replicas have reported, or after `RESTORED_US`."""
        fenced = {identity: placed for identity, placed in self._partitions.items() if placed.record.is_fenced}
        self._fenced_since_us = {identity: self._fenced_since_us.get(identity, now_us) for identity in fenced}
        if not fenced:
            return []
        elected: list[Change] = []
        before = self._members.live
        copies = await self.ask_for_copies(tuple(fenced))
        # A node may have died since it reported, and be back with another disk.
        live = {node: each for node, each in self._members.live.items() if before.get(node) == each}
        for identity, placed in messages_first(list(fenced.items())):
            record, reports = placed.record, copies.get(identity, {})
            missing = [node for node in record.hosting if node not in reports or node not in live]
            if missing and now_us - self._fenced_since_us[identity] < RESTORED_US:
                continue
            made = elect_furthest(record, reports, live)
            if made is not None:
                if missing:
                    # Readers that were further get LogTruncated.
                    made = msgspec.structs.replace(made, unclean=(*made.unclean, made.epoch))
                    log.warning(
                        "etcd was restored: %s is elected for partition %d of %s without a report from %s",
                        made.leader,
                        record.number,
                        record.topic,
                        ", ".join(missing),
                    )
                elected.append((identity, placed, made))
        return elected

    async def _lift_throttle(self) -> None:
        """It is there for moves, and goes with the last one: forgotten, it would slow down whatever is moved next."""
        item = self._view.get(self._keys.throttle)
        if item is not None and not any(record.target for record in self._partitions.records()):
            await self._store.commit({item.key: item.revision}, deletes=[item.key])

    def _together(self, live: Live) -> list[Change]:
        """Dead letters are led where the messages are that they are of: what is given up is buried there. So they have
        replicas there, too, also if their topic was deleted and created again elsewhere."""
        leaders = {(placed.record.topic, placed.record.number): placed.record for _, placed in self._partitions.items()}
        wanted = []
        for identity, placed in self._partitions.items():
            record = placed.record
            if record.topic.endswith(DEAD_LETTERS):
                source = leaders.get((record.topic.removesuffix(DEAD_LETTERS), record.number))
                if source is not None and source.leader is not None and source.successor is None:
                    moved = hand_over(record, source.leader, live) or move_beside(record, source, live)
                    if moved is not None:
                        wanted.append((identity, placed, moved))
        return wanted

    async def _put_all(self, wanted: list[Change]) -> None:
        for at in range(0, len(wanted), _AT_ONCE):
            await asyncio.gather(*[self._put(*each) for each in wanted[at : at + _AT_ONCE]])

    async def _put(self, identity: str, placed: Placed, record: PartitionRecord) -> None:
        key = self._keys.partition(identity)
        outcome = await self._store.commit({key: placed.revision}, [Put(key, encode(record))])
        if isinstance(outcome, Won) and record.epoch != placed.record.epoch:
            self._tally.elections += 1
            log.info(
                "%s leads partition %d of %s at epoch %d", record.leader, record.number, record.topic, record.epoch
            )
