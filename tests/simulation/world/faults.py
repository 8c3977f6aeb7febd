"""What happens to nodes, the network and etcd. Each fault begins, lasts, ends, and returns whether it has fired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from penstock.errors import DeviceFailed, SyncFailed
from penstock.testing.faulty_files import Fault as DiskFault
from penstock.testing.memory_files import MemoryDisk
from simulation.world.etcd import HOST
from simulation.world.notes import Notes
from simulation.world.world import TTL_S, Machine, World

# An operation that is to fail comes within this time, or does not fail; and what a node has to end within, if it does.
_FAILS_WITHIN_US, _ENDS_WITHIN_US = 5_000_000, 20_000_000


class Stage:
    """Faults that stop a node have it one after the other."""

    def __init__(self, world: World, notes: Notes) -> None:
        self.world = world
        self.notes = notes
        # The one whose disk was.
        self.wiped: str | None = None
        # Returns whether there was one.
        self.kill_client: Callable[[Random], bool] = lambda rng: False
        self.turns = {name: asyncio.Lock() for name in world.machines}

    def hosts(self) -> list[str]:
        return [*self.world.machines, HOST]

    async def last(self, rng: Random) -> None:
        """Shorter or longer than a session."""
        await asyncio.sleep(rng.choice((rng.uniform(0.05, 1), rng.uniform(1, TTL_S), rng.uniform(TTL_S, 3 * TTL_S))))

    async def start(self, machine: Machine) -> None:
        if not machine.is_alive:
            machine.start()

    def any_node(self, rng: Random) -> Machine:
        return self.world.machines[rng.choice(sorted(self.world.machines))]


Fault = Callable[[Stage, Random], Awaitable[bool]]


async def kill(stage: Stage, rng: Random) -> bool:
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        was_alive = machine.is_alive
        if was_alive:
            machine.kill()
        await stage.last(rng)
        await stage.start(machine)
        return was_alive


async def lose_power(stage: Stage, rng: Random) -> bool:
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        was_alive = machine.is_alive
        machine.lose_power()
        await stage.last(rng)
        await stage.start(machine)
        return was_alive


async def lose_power_everywhere(stage: Stage, rng: Random) -> bool:
    machines = list(stage.world.machines.values())
    for machine in machines:
        await stage.turns[machine.name].acquire()
    for machine in machines:
        machine.lose_power()
    rng.shuffle(machines)
    for machine in machines:
        await asyncio.sleep(rng.uniform(0, TTL_S))
        await stage.start(machine)
        stage.turns[machine.name].release()
    return True


async def restart(stage: Stage, rng: Random) -> bool:
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        if not machine.is_alive or not machine.ready.done():
            return False
        machine.stop()
        await machine.ended
        await stage.last(rng)
        await stage.start(machine)
        return True


async def pause(stage: Stage, rng: Random) -> bool:
    process = stage.any_node(rng).process
    if process is None or process.is_dead:
        return False
    process.pause()
    await stage.last(rng)
    process.resume()
    return True


async def isolate(stage: Stage, rng: Random) -> bool:
    """From everything, clients included."""
    name = stage.any_node(rng).name
    others = [host for host in (*stage.hosts(), *stage.world.clients) if host != name]
    return await _cut(stage, rng, [(name, other) for other in others] + [(other, name) for other in others])


async def cut_from_etcd(stage: Stage, rng: Random) -> bool:
    name = stage.any_node(rng).name
    return await _cut(stage, rng, [(name, HOST), (HOST, name)])


async def cut_one_way(stage: Stage, rng: Random) -> bool:
    one, other = rng.sample(stage.hosts(), 2)
    return await _cut(stage, rng, [(one, other)])


async def cut_between_nodes(stage: Stage, rng: Random) -> bool:
    one, other = rng.sample(sorted(stage.world.machines), 2)
    return await _cut(stage, rng, [(one, other), (other, one)])


async def _cut(stage: Stage, rng: Random, ways: list[tuple[str, str]]) -> bool:
    network = stage.world.network
    fresh = [way for way in ways if not network.is_cut(*way)]
    for way in fresh:
        network.cut(*way)
    await stage.last(rng)
    for way in fresh:
        network.mend(*way)
    return bool(fresh)


async def reset_connections(stage: Stage, rng: Random) -> bool:
    one = stage.any_node(rng).name
    count = 0
    for other in (*stage.world.machines, *stage.world.clients):
        if rng.random() < 0.7:
            count += stage.world.network.reset_all(one, other)
    return count > 0


async def slow_links(stage: Stage, rng: Random) -> bool:
    """Of one node to all others, or between two hosts; in one direction, or in both."""
    name, network = stage.any_node(rng).name, stage.world.network
    others = [host for host in (*stage.hosts(), *stage.world.clients) if host != name]
    if rng.random() < 0.5:
        others = [rng.choice(others)]
    ways = [way for other in others for way in ((name, other), (other, name))]
    if rng.random() < 0.5:
        ways = ways[:: rng.choice((1, 2))]
    latency_us, bytes_per_s = rng.choice((1_000, 20_000, 300_000, 1_500_000)), rng.choice((20_000, 200_000, 10_000_000))
    for way in ways:
        network.slow(*way, latency_us, bytes_per_s)
    await stage.last(rng)
    for way in ways:
        network.speed_up(*way)
    return True


async def lose_connections(stage: Stage, rng: Random) -> bool:
    """They are half-open: as behind a firewall that has forgotten them, and says nothing."""
    one = stage.any_node(rng).name
    count = 0
    for other in (*stage.world.machines, *stage.world.clients):
        if rng.random() < 0.5:
            count += stage.world.network.go_silent(one, other)
    return count > 0


async def stop_etcd(stage: Stage, rng: Random) -> bool:
    """It refuses everything for a while."""
    etcd = stage.world.etcd.fake
    etcd.down = True
    await stage.last(rng)
    etcd.down = False
    return True


async def pause_etcd(stage: Stage, rng: Random) -> bool:
    """It answers everything, later."""
    stage.world.etcd.process.pause()
    await stage.last(rng)
    stage.world.etcd.process.resume()
    return True


async def lose_commits(stage: Stage, rng: Random) -> bool:
    """Their outcomes are unknown."""
    etcd = stage.world.etcd
    before = etcd.counts["lost answer"]
    for _ in range(rng.randint(1, 4)):
        etcd.lost_answers += 1
        await asyncio.sleep(rng.uniform(0, 1))
    return etcd.counts["lost answer"] > before


# --- clients ---------------------------------------------------------------------------------------------


def _any_client(stage: Stage, rng: Random) -> str:
    return rng.choice([name for name in stage.world.clients if name != "world"])


async def pause_client(stage: Stage, rng: Random) -> bool:
    process = stage.world.client(_any_client(stage, rng))._process
    process.pause()
    await stage.last(rng)
    process.resume()
    return True


async def cut_off_client(stage: Stage, rng: Random) -> bool:
    """From one node or from all, in one direction or in both."""
    name, nodes = _any_client(stage, rng), _some_nodes(stage, rng)
    there, back = [(name, node) for node in nodes], [(node, name) for node in nodes]
    return await _cut(stage, rng, rng.choice((there, back, there + back)))


async def step_client_clock(stage: Stage, rng: Random) -> bool:
    clock = stage.world.client(_any_client(stage, rng)).clock
    step_us = rng.randint(-300_000_000, 300_000_000)
    clock.step_us(step_us)
    await stage.last(rng)
    clock.step_us(-step_us)
    return True


async def kill_client(stage: Stage, rng: Random) -> bool:
    """One of the workload, which starts another one."""
    return stage.kill_client(rng)


# --- etcd ------------------------------------------------------------------------------------------------


def _some_nodes(stage: Stage, rng: Random) -> list[str]:
    names = sorted(stage.world.machines)
    return names if rng.random() < 0.3 else [rng.choice(names)]


async def _of_etcd(stage: Stage, rng: Random, hosts: set[str], kind: str) -> bool:
    """For one node, or for all of them."""
    counts = stage.world.etcd.counts
    before = counts[kind]
    fresh = [name for name in _some_nodes(stage, rng) if name not in hosts]
    hosts.update(fresh)
    await stage.last(rng)
    hosts.difference_update(fresh)
    return counts[kind] > before


async def delay_watches(stage: Stage, rng: Random) -> bool:
    return await _of_etcd(stage, rng, stage.world.etcd.late_watches, "late change")


async def lose_watches(stage: Stage, rng: Random) -> bool:
    """What changes meanwhile they never report."""
    return await _of_etcd(stage, rng, stage.world.etcd.lossy_watches, "lost change")


async def read_stale(stage: Stage, rng: Random) -> bool:
    """From a member of etcd that lags, as do the watches there. Full reads are rare."""
    etcd = stage.world.etcd
    before = etcd.counts["stale read"]
    fresh = [name for name in _some_nodes(stage, rng) if name not in etcd.late_watches | etcd.stale_reads]
    etcd.late_watches.update(fresh)
    etcd.stale_reads.update(fresh)
    await asyncio.sleep(rng.uniform(TTL_S, 4 * TTL_S))
    etcd.stale_reads.difference_update(fresh)
    etcd.late_watches.difference_update(fresh)
    return etcd.counts["stale read"] > before


async def keep_lost_leases(stage: Stage, rng: Random) -> bool:
    """Sessions end, and etcd confirms them for a while, as a deposed member does."""
    etcd = stage.world.etcd
    before = etcd.counts["false keepalive"]
    etcd.keeps_lost_leases = True
    await expire_session(stage, rng)
    await stage.last(rng)
    etcd.keeps_lost_leases = False
    return etcd.counts["false keepalive"] > before


async def compact_etcd(stage: Stage, rng: Random) -> bool:
    etcd = stage.world.etcd.fake
    etcd.compact(etcd.revision)
    return True


async def expire_session(stage: Stage, rng: Random) -> bool:
    etcd = stage.world.etcd.fake
    leases = sorted(etcd._leases)
    if leases:
        etcd.expire(rng.choice(leases))
    return bool(leases)


# --- disks -----------------------------------------------------------------------------------------------


async def stall_disk(stage: Stage, rng: Random) -> bool:
    """Nothing that is asked of it ends for a while."""
    drive = stage.any_node(rng).drive
    s = rng.choice((rng.uniform(0.1, 1), rng.uniform(1, TTL_S), rng.uniform(TTL_S, 30)))
    drive.stall(int(s * 1e6))
    await asyncio.sleep(s)
    return True


async def slow_disk(stage: Stage, rng: Random) -> bool:
    drive = stage.any_node(rng).drive
    slowness = rng.choice((5, 50, 500))
    drive.slowness *= slowness
    await stage.last(rng)
    drive.slowness //= slowness
    return True


async def fill_disk(stage: Stage, rng: Random) -> bool:
    """A node may not be able to start meanwhile. One that runs goes on."""
    drive = stage.any_node(rng).drive
    failed = len(drive.failed)
    drive.is_full = True
    await stage.last(rng)
    drive.is_full = False
    return len(drive.failed) > failed


async def fail_sync(stage: Stage, rng: Random) -> bool:
    """What was to be synced is lost, and the next sync says nothing of it: the kernel has marked the pages clean."""
    return await _fail(stage, rng, ("sync", "sync directory"), DiskFault(SyncFailed("Input/output error")))


async def fail_write(stage: Stage, rng: Random) -> bool:
    fault = DiskFault(DeviceFailed("Input/output error"), written=rng.choice((0, 1, 100)))
    return await _fail(stage, rng, ("write", "write_at", "overwrite", "create", "rename", "truncate"), fault)


async def _fail(stage: Stage, rng: Random, kinds: tuple[str, ...], fault: DiskFault) -> bool:
    """After which the node must end by itself."""
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        process, drive = machine.process, machine.drive
        if process is None or process.is_dead:
            return False
        failed = len(drive.failed)
        drive.fail(kinds, fault)
        until_us = stage.world.loop.now_us + _FAILS_WITHIN_US
        while len(drive.failed) == failed and not process.is_dead and stage.world.loop.now_us < until_us:
            await asyncio.sleep(0.05)
        drive.mend()
        until_us = stage.world.loop.now_us + _ENDS_WITHIN_US
        while len(drive.failed) > failed and not process.is_dead:
            if stage.world.loop.now_us > until_us and not process.is_paused:
                stage.world.loop.errors.append(f"{process.name} goes on after {drive.failed[-1]} failed: {fault.error}")
                break
            await asyncio.sleep(0.05)
        if not machine.is_alive:
            await stage.last(rng)
        await stage.start(machine)
        return len(drive.failed) > failed


async def die_at_file_operation(stage: Stage, rng: Random) -> bool:
    """With power loss or without, in the middle of a job or of a callback."""
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        process = machine.process
        if process is None or process.is_dead:
            return False
        machine.drive.crash_at(int(2 ** rng.uniform(0, 9)), rng.choice((machine.kill, machine.lose_power)))
        until_us = stage.world.loop.now_us + _FAILS_WITHIN_US
        while not process.is_dead and stage.world.loop.now_us < until_us:
            await asyncio.sleep(0.05)
        machine.drive.mend()
        has_died = process.is_dead
        if not machine.is_alive:
            await stage.last(rng)
        await stage.start(machine)
        return has_died


async def wipe_disk(stage: Stage, rng: Random) -> bool:
    """A node comes back under its name, with an empty disk. Once in a run: what is acknowledged is on two nodes."""
    machine = stage.any_node(rng)
    async with stage.turns[machine.name]:
        if stage.wiped is not None:
            return False
        stage.wiped = machine.name
        if machine.is_alive:
            machine.kill()
        machine.disk = MemoryDisk()
        await stage.last(rng)
        await stage.start(machine)
        return True


# --- clocks ----------------------------------------------------------------------------------------------


async def step_clock(stage: Stage, rng: Random) -> bool:
    """The wall clock of a node is set, back or forward, and put right again."""
    clock = stage.any_node(rng).clock
    by_us = 0
    for _ in range(rng.randint(1, 3)):
        step_us = int(
            rng.choice((-1, 1)) * rng.choice((rng.uniform(0, 2), rng.uniform(0, 30), rng.uniform(0, 300))) * 1e6
        )
        clock.step_us(step_us)
        by_us += step_us
        await stage.last(rng)
    clock.step_us(-by_us)
    return True


async def drift_clock(stage: Stage, rng: Random) -> bool:
    """All clocks of a node go too fast or too slow."""
    clock = stage.any_node(rng).clock
    clock.drift(1 + rng.choice((-1, 1)) * rng.choice((0.0001, 0.0005, 0.01)))
    await stage.last(rng)
    clock.drift(1.0)
    return True


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (
        kill,
        lose_power,
        lose_power_everywhere,
        restart,
        pause,
        isolate,
        cut_from_etcd,
        cut_one_way,
        cut_between_nodes,
        reset_connections,
        stop_etcd,
        pause_etcd,
        lose_commits,
        delay_watches,
        lose_watches,
        read_stale,
        keep_lost_leases,
        compact_etcd,
        expire_session,
        stall_disk,
        slow_disk,
        fill_disk,
        fail_sync,
        fail_write,
        die_at_file_operation,
        wipe_disk,
        step_clock,
        drift_clock,
        slow_links,
        lose_connections,
        pause_client,
        cut_off_client,
        step_client_clock,
        kill_client,
    )
}
