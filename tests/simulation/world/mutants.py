"""Deliberately broken builds of the program: the simulation is worth what it catches of them.

Beside those of the replication core (`simulation.cluster.mutants`), which break the same classes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.broker import dead_letters
from penstock.broker.deliveries import Deliveries
from penstock.broker.events import Origin
from penstock.broker.frame_cache import FrameCache
from penstock.broker.group import Group
from penstock.broker.joins import Joins
from penstock.broker.producers import Producers
from penstock.broker.schedules import Schedules
from penstock.client.membership import Membership
from penstock.cluster import controller
from penstock.cluster.core import election
from penstock.cluster.core.events import Trimmed
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.etcd.session import Session
from penstock.cluster.hosted import Hosted
from penstock.testing.memory_files import Inode
from simulation.cluster import mutants as of_core
from simulation.cluster.mutants import Patch

MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


def names() -> list[str]:
    """Without those that break the stand-ins of the simulation of the core, which are not here."""
    return [*MUTANTS, *[name for name, make in of_core.MUTANTS.items() if name not in MUTANTS and not _outside(make())]]


def patches(name: str) -> list[Patch]:
    found = MUTANTS[name]() if name in MUTANTS else of_core.MUTANTS[name]()
    assert not _outside(found), f"{name} breaks the stand-ins of the simulation of the core, which are not here"
    return found


def _outside(found: list[Patch]) -> list[object]:
    return [where for where, _, _ in found if not str(getattr(where, "__module__", "penstock")).startswith("penstock")]


@contextmanager
def broken(name: str) -> Iterator[None]:
    found = patches(name)
    before = [(where, what, where.__dict__[what]) for where, what, _ in found]
    try:
        for where, what, how in found:
            setattr(where, what, how)
        yield
    finally:
        for where, what, how in before:
            setattr(where, what, how)


@mutant
def syncs_nothing() -> list[Patch]:
    def begin_sync(self: Inode) -> Callable[[], None]:
        return lambda: None

    return [(Inode, "begin_sync", begin_sync)]


@mutant
def reuses_the_owners_of_cached_frames() -> list[Patch]:
    """As a cache whose keys are the addresses of objects does."""

    def new_owner(self: FrameCache) -> int:
        return 1

    return [(FrameCache, "new_owner", new_owner)]


@mutant
def lets_a_join_overtake_a_leave() -> list[Patch]:
    def invalidate(self: Joins, group: str, member: str) -> None:
        pass

    return [(Joins, "invalidate", invalidate)]


@mutant
def hands_out_leases_that_no_follower_knows() -> list[Patch]:
    async def known_elsewhere(self: Group, leased: Any) -> Any:
        return leased

    return [(Group, "_known_elsewhere", known_elsewhere)]


@mutant
def forgets_what_producers_sent() -> list[Patch]:
    def find(self: Producers[Any], producer: Any, count: int, checksum: int) -> None:
        self._states.pop(producer.id, None)

    return [(Producers, "find", find)]


@mutant
def serves_before_recovery() -> list[Patch]:
    """A partition is opened before what its leader was elected with is known to be committed."""

    def check_committed(self: Hosted, epoch: int) -> None:
        pass

    found = of_core.MUTANTS["serves_before_its_epoch_has_begun"]()
    return [*found, (Hosted, "_check_committed", check_committed)]


@mutant
def elects_whoever_is_there() -> list[Patch]:
    def elect(record: PartitionRecord, live: Any, rank: Any = None) -> PartitionRecord | None:
        elected = election.elect(record, live, *[rank] if rank else [])
        others = [node for node in record.hosting if node in live]
        if elected or not others or election.is_led(record, live):
            return elected
        anybody = live[others[0]]
        return record.elected(others[0], anybody.incarnation, (Member(others[0], anybody.disk),))

    return [(controller, "elect", elect)]


@mutant
def answers_before_the_commit() -> list[Patch]:
    """An acknowledgement."""

    async def ack_all(self: Deliveries, group: str, leases: Any, *, again: bool = False) -> Any:
        acking = asyncio.ensure_future(real(self, group, leases, again=again))
        acking.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.sleep(0)
        return acking.result() if acking.done() else [None] * len(leases)

    real = Deliveries.ack_all
    return [(Deliveries, "ack_all", ack_all)]


@mutant
def extends_for_clients_only() -> list[Patch]:
    async def extend(self: Deliveries, group: str, lease: int, offsets: Any, visibility_us: int) -> None:
        pass

    return [(Deliveries, "extend", extend)]


@mutant
def inherits_what_a_deleted_group_has_done() -> list[Patch]:
    return [(Origin, "is_before", lambda self, other: False)]


@mutant
def drops_the_end_of_a_replay_that_is_moved() -> list[Patch]:
    async def seek(
        self: Group, to: Any = None, *, time_us: Any = None, offset: Any = None, partition: Any = None
    ) -> None:
        for number in range(self.topic.count) if partition is None else [partition]:
            part = self.topic.partition(number)
            await part.groups.start(self.name, self._position(part, to, time_us, offset))
            part.groups.configure(self.name, self.settings, self.policy)

    return [(Group, "seek", seek)]


@mutant
def forgets_acknowledgements_of_an_idle_consumer() -> list[Patch]:
    async def leave(self: Membership, *given: Any) -> None:
        if self._may_be_member:
            await real(self, *given)

    real = Membership._leave
    return [(Membership, "_leave", leave)]


@mutant
def deletes_a_schedule_without_its_occurrence() -> list[Patch]:
    async def cancel(self: Schedules, record: Any) -> None:
        pass

    return [(Schedules, "_cancel_pending", cancel)]


@mutant
def does_not_look_for_an_occurrence_before_it_publishes() -> list[Patch]:
    return [(Schedules, "_found", lambda self, record, partition: None)]


@mutant
def knows_letters_by_their_offsets() -> list[Patch]:
    """Those of a topic of the same name, too, that was deleted."""
    return [(dead_letters, "_is_same", lambda letter, topic, partition: True)]


@mutant
def leaves_dead_letters_behind() -> list[Patch]:
    return [(controller, "move_beside", lambda record, sibling, live: None)]


@mutant
def keeps_the_copies_of_followers_whole() -> list[Patch]:
    """Nothing of them is deleted that retention deletes from the leader's."""

    async def trimmed(self: Hosted, effect: Any) -> None:
        if self.is_leader:
            await real(self, effect)
        else:
            self.step(Trimmed(effect.log, effect.start))

    real = Hosted._trimmed
    return [(Hosted, "_trimmed", trimmed)]


@mutant
def counts_a_session_from_the_answer() -> list[Patch]:
    class Late:
        def __init__(self, leases: Any, time: Any) -> None:
            self._leases, self._time = leases, time
            self.grant, self.revoke = leases.grant, leases.revoke

        async def keep(self, lease: int, within_us: int) -> Any:
            sent_us = self._time.now_us()
            ttl_s = await self._leases.keep(lease, within_us)
            return ttl_s and ttl_s + (self._time.now_us() - sent_us) / 1e6

    def init(self: Session, leases: Any, time: Any, *given: Any) -> None:
        real(self, Late(leases, time), time, *given)

    real = Session.__init__
    return [(Session, "__init__", init)]
