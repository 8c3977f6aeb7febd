"""One run: a cluster, clients at work, faults, and what the checker of histories says in the end.

start ─► work ─► faults under work ─► heal ─► writable, drained, in sync ─► kill all ─► read every disk ─► check
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from history.checker import check
from history.copies import NOTHING, copy_of, note_copies
from history.deliveries import answers_of, deliveries_of
from history.replicas import check_replicas
from history.violation import Violation
from penstock.broker.catalog import TopicRecord
from penstock.client.client import Client
from penstock.client.placement import FindPlacement
from penstock.client.requests import FindOffsets
from penstock.cluster.hosted import Hosted
from penstock.cluster.keys import Keys
from penstock.local import keeper
from penstock.storage.log import Log, LogSettings
from penstock.testing.memory_files import MemoryFiles
from simulation.world.faults import FAULTS, Stage, read_stale, wipe_disk
from simulation.world.guards import guarded
from simulation.world.invariants import LEASED, LEFT, MEMBERS, REPLAY, Invariants
from simulation.world.notes import Notes
from simulation.world.operations import DELETED_FROM, OPERATIONS, Operations
from simulation.world.replays import differences, leased
from simulation.world.workload import TOPIC, Shape, Workload, all_in_sync
from simulation.world.world import World

_PATIENCE_S, _PAUSE_S = 60.0, 0.2
_LATE_US = 30_000_000
_LETTERS_MAX = 10_000
# What a node has open: of each partition two logs, each with a segment and its mark, and others for a while.
_FILES_OF_A_NODE, _FILES_OF_A_PARTITION = 8, 4
# How many tasks a node may have beyond those that it had before all the clients came.
_TASKS_MORE = 8
# By how much wall clocks may be wrong from the beginning.
_SKEWS_US = 0, 0, 500_000, 15_000_000
_OPERATIONS_MAX = 5
# Of logs from which something is to be deleted.
_SEGMENT_BYTES, _TICKS_TO_MAINTENANCE = 8_192, 6


class Plan(NamedTuple):
    seed: int
    # Simulated, until everything is healed.
    seconds: float
    faults: tuple[str, ...]
    shape: Shape
    operations: tuple[str, ...] = ()

    @classmethod
    def of(cls, seed: int, seconds: float) -> Plan:
        rng = Random(f"plan {seed}")
        kinds = rng.sample(sorted(FAULTS), rng.randint(1, 6))
        faults = tuple(rng.choices(kinds, k=max(1, round(seconds / 5))))
        operations = rng.sample(sorted(OPERATIONS), rng.randint(0, _OPERATIONS_MAX))
        if read_stale.__name__ in faults:
            # What was deleted or created is known by reads that etcd promises to be current.
            operations = []
        if wipe_disk.__name__ in faults and "cut_off" in operations:
            # Of a topic with two replicas, the one that is left in sync may be wiped: its messages are lost then.
            operations.remove("cut_off")
        shape = Shape.of(rng, is_wiped=wipe_disk.__name__ in faults)
        return cls(seed, seconds, faults, shape, tuple(operations))


class Outcome(NamedTuple):
    plan: Plan
    violations: list[Violation]
    counts: Counter[str]
    # Of the trace.
    digest: str
    simulated_s: float


def run_plan(plan: Plan, tell: Callable[[str], None] | None = None) -> Outcome:
    """To be called in a process of its own: what a run has left behind stays in memory."""
    skew_us_max = Random(f"skew {plan.seed}").choice(_SKEWS_US)
    world = World(str(plan.seed), plan.shape.names, skew_us_max=skew_us_max)
    world.loop.tell = tell
    notes = Notes(world.loop)
    violations: list[Violation] = []
    invariants = Invariants(world)
    run = _Run(plan, world, notes, invariants)
    try:
        with guarded(world.loop.errors.append), invariants.watched(), small_logs(plan):
            world.run(run.run())
    except Exception as error:
        violations.append(Violation("the run failed", f"{type(error).__name__}: {error}"))
    else:
        violations += check(notes.entries, late_us=_LATE_US + world.skew_us_max, sends_min=1, acks_min=1)
        violations += check_replicas(run.others.entries)
    violations += invariants.violations
    violations += run.operations.violations
    violations += [Violation("an error that nothing handled", error) for error in world.loop.errors]
    counts = Counter(f"{entry['op']} {entry['type']}" for entry in notes.entries)
    counts.update(f"fault {name}" for name in plan.faults)
    counts.update({f"fired {name}": count for name, count in run.fired.items()})
    counts.update({f"etcd: {what}": count for what, count in world.etcd.counts.items()})
    counts.update(run.operations.counts)
    return Outcome(plan, violations, counts, f"{world.loop.digest & (1 << 64) - 1:016x}", world.loop.now_us / 1e6)


def has_small_logs(plan: Plan) -> bool:
    return not set(DELETED_FROM).isdisjoint(plan.operations)


@contextmanager
def small_logs(plan: Plan) -> Iterator[None]:
    """Nothing would be deleted within a run otherwise."""
    if not has_small_logs(plan):
        yield
        return
    defaults, ticks = LogSettings.__init__.__defaults__, keeper.TICKS_TO_MAINTENANCE
    assert defaults is not None
    LogSettings.__init__.__defaults__ = (_SEGMENT_BYTES, *defaults[1:])
    keeper.TICKS_TO_MAINTENANCE = _TICKS_TO_MAINTENANCE
    try:
        yield
    finally:
        LogSettings.__init__.__defaults__, keeper.TICKS_TO_MAINTENANCE = defaults, ticks


class _Run:
    def __init__(self, plan: Plan, world: World, notes: Notes, invariants: Invariants) -> None:
        self._plan = plan
        self._world = world
        self._notes = notes
        self._invariants = invariants
        self.operations = Operations(world, notes, plan.operations, plan.shape)
        # Of topics of operations.
        self.others = Notes(world.loop)
        self.fired: Counter[str] = Counter()

    async def run(self) -> None:
        """In the process of the world, which is a client, too."""
        world, plan = self._world, self._plan
        for machine in world.machines.values():
            machine.start()
        for machine in world.machines.values():
            await machine.ready
        async with await world.connect() as client:
            shape = plan.shape
            await client.create_topic(TOPIC, shape.partitions, replicas=shape.replicas, min_isr=shape.min_isr)
            await self._until("in sync at first", partial(self._is_in_sync, client))
            self._tasks = {name: len(each.process.tasks) for name, each in world.machines.items() if each.process}
            work = Workload(world, self._notes, plan.shape)
            work.start()
            stage = Stage(world, self._notes)
            stage.kill_client = work.kill
            self.operations.start(stage)
            watching = asyncio.ensure_future(self._watch(stage))
            await asyncio.gather(*[self._fault(stage, *each) for each in enumerate(plan.faults)])
            self._notes.note("run", "heal", "ok")
            await self._settled(work, client)
            watching.cancel()
            await work.stop()
            await self._at_rest(client)
            await self._note_disks(client)

    async def _fault(self, stage: Stage, number: int, kind: str) -> None:
        rng = Random(f"{kind} {number} {self._plan.seed}")
        await asyncio.sleep(rng.uniform(0.5, self._plan.seconds))
        # So that the checker has one for each.
        name = f"{kind}#{number}"
        self._notes.note("world", "fault", "invoke", fault=name)
        self.fired[kind] += await FAULTS[kind](stage, rng)
        # Whether it fires often enough is a question to many seeds.
        self._notes.note("world", "fault", "ok", fault=name, evidence=True)

    async def _watch(self, stage: Stage) -> None:
        """Start what has ended by itself, as an operator's machine would."""
        while True:
            for machine in self._world.machines.values():
                turn = stage.turns[machine.name]
                if not turn.locked() and not machine.is_alive:
                    error = machine.ended.result() if machine.ended.done() else None
                    is_expected = error is not None and (error.code == "session_lost" or machine.forgives(error))
                    self._notes.note(
                        machine.name, "death", "ok", code=repr(error), is_expected=is_expected or error is None
                    )
                    machine.start()
            await asyncio.sleep(_PAUSE_S)

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not await holds():
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            raise AssertionError(f"not {what} within {_PATIENCE_S:g} s") from None

    async def _is_in_sync(self, client: Client) -> bool:
        return await all_in_sync(client, self._plan.shape.partitions, self._plan.shape.replicas)

    async def _settled(self, work: Workload, client: Client) -> None:
        began_us = self._world.loop.now_us

        def note(what: str) -> None:
            took_us = self._world.loop.now_us - began_us
            self._notes.note("run", "settled", "ok", what=what, took_us=took_us)

        operations = asyncio.ensure_future(self.operations.end(_PATIENCE_S))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.gather(*[self._write(client, each) for each in range(self._plan.shape.partitions)])
                note("writable")
                await work.stop_producing()
                await work.drain()
                note("drained")
                await asyncio.shield(operations)
                await self._until("in sync", partial(self._is_in_sync, client))
                note("in sync")
        except TimeoutError:
            # The checker says what is missing.
            work.check()
            await operations

    async def _write(self, client: Client, partition: int) -> None:
        value = f"after{partition}-0"
        self._notes.note("run", "send", "invoke", value=value, topic=TOPIC, key=None)
        stored = await client.publish(TOPIC, value.encode(), partition=partition)
        self._notes.note("run", "send", "ok", value=value, partition=stored.partition, offset=stored.offset)

    async def _at_rest(self, client: Client) -> None:
        """All clients have closed, and nothing is left of them."""
        try:
            await self._until("at rest", self._is_at_rest)
        except AssertionError:
            for what in self._leftovers():
                self._invariants.note(LEFT, what)
            for hosted in self._serving():
                self._invariants.note_all(REPLAY, hosted, differences(hosted))
                self._invariants.note_all(LEASED, hosted, leased(hosted))
        try:
            await self._until("without members", partial(self._has_no_members, client))
        except AssertionError:
            for group in await client.groups():
                if any(group.members.values()):
                    self._invariants.note(MEMBERS, f"{group.name}: {group.members}")

    async def _has_no_members(self, client: Client) -> bool:
        """A client that was killed is a member until its session has ended."""
        return not any(any(group.members.values()) for group in await client.groups())

    def _leftovers(self) -> list[str]:
        """Of what nodes have open or under way, now that no client is there but this one."""
        world = self._world
        partitions = sum(len(topic.partitions) for topic in self._topics())
        found = []
        for name, machine in world.machines.items():
            process = machine.process
            assert process is not None
            clients = [one for one in world.network.connected(process) if one not in (*world.machines, "world")]
            if clients:
                found.append(f"{name}: connections of {clients}")
            if (
                not has_small_logs(self._plan)
                and len(process.files) > _FILES_OF_A_NODE + _FILES_OF_A_PARTITION * partitions
            ):
                found.append(f"{name}: {len(process.files)} files are open, of {partitions} partitions")
            if len(process.tasks) > self._tasks[name] + _TASKS_MORE:
                names = Counter(task.get_coro().__qualname__ for task in process.tasks)
                found.append(f"{name}: {len(process.tasks)} tasks, and {self._tasks[name]} at first: {names}")
        return found

    async def _is_at_rest(self) -> bool:
        return not any(differences(hosted) or leased(hosted) for hosted in self._serving()) and not self._leftovers()

    def _serving(self) -> list[Hosted]:
        serving = self._invariants.serving.values()
        return [hosted for hosted in serving if hosted.is_leader and hosted.partition and not hosted.is_closed]

    def _topics(self) -> list[TopicRecord]:
        found = self._world.etcd.fake.read(Keys().topics).items.values()
        return [msgspec.json.decode(item.value, type=TopicRecord) for item in found]

    async def _has_all_letters(self, client: Client) -> bool:
        acked = {answer.place for answer in answers_of(self._notes.entries) if answer.op == "ack"}
        dead = {
            ":".join(map(str, each.place)) for each in deliveries_of(self._notes.entries) if each.place not in acked
        }
        letters = await client.dead_letters.list(TOPIC, limit=_LETTERS_MAX)
        return dead <= {letter.original for letter in letters}

    async def _note_disks(self, client: Client) -> None:
        try:
            await self._until("all dead letters are there", partial(self._has_all_letters, client))
        except AssertionError:
            # The checker says which.
            pass
        topics = self._topics()
        placement = await client._transport.call(FindPlacement(()))
        replicas = {(topic.name, each.number): each.replicas for topic in placement.topics for each in topic.partitions}
        committed = {topic.name: await client._transport.call(FindOffsets(topic.name, "latest")) for topic in topics}
        await self._until("in sync at last", partial(self._is_in_sync, client))
        for machine in self._world.machines.values():
            behind_us, ahead_us = machine.clock.wrong_us
            self._notes.note(machine.name, "clock", "ok", behind_us=-behind_us, ahead_us=ahead_us)
        # In some seeds only what was synced is compared.
        has_power = Random(f"end {self._plan.seed}").random() < 0.5
        for machine in self._world.machines.values():
            if has_power:
                machine.kill()
            else:
                machine.lose_power()
        for topic in topics:
            # What operations do with topics of their own, they check themselves.
            notes = self._notes if topic.name in (TOPIC, f"{TOPIC}.dlq") else self.others
            for number, identity in enumerate(topic.partitions):
                names = [name for name in replicas[topic.name, number] if name in self._world.machines]
                nodes = [self._world.machines[name] for name in names]
                copies = {each.name: _copy(MemoryFiles(each.disk), identity) for each in nodes}
                if topic.name in DELETED_FROM:
                    _keep_common(copies)
                note_copies(notes, topic.name, number, committed[topic.name][number], copies)


def _keep_common(copies: dict[str, dict[str, Any]]) -> None:
    """One replica after the other deletes: what all of them still have must be the same."""
    offsets = set.intersection(*[{offset for offset, _, _ in copy["messages"]} for copy in copies.values()])
    for copy in copies.values():
        copy["messages"] = [row for row in copy["messages"] if row[0] in offsets]


def _copy(files: MemoryFiles, identity: str) -> dict[str, Any]:
    partitions = files.directory("partitions")
    if not partitions.has_directory(identity):
        return NOTHING
    directory = partitions.directory(identity)
    with (
        closing(Log.open(directory.directory("messages"))) as messages,
        closing(Log.open(directory.directory("deliveries"))) as deliveries,
    ):
        return copy_of(messages, deliveries)
