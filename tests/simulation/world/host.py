"""What simulated processes get from the machines they run on."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from random import Random

from penstock.cluster.etcd.settings import EtcdSettings
from penstock.cluster.etcd.store import Store
from penstock.environment import Environment
from penstock.server.host import Host
from penstock.storage.files import Files
from penstock.storage.kernel_syncs import Syncs
from penstock.testing.memory_files import MemoryDisk, MemoryFiles
from simulation.world.clocks import WorldClock
from simulation.world.disks import Drive, WorldFiles, WorldSyncs
from simulation.world.etcd import WorldEtcd, WorldStore
from simulation.world.executors import WorldExecutor
from simulation.world.loop import Process

_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class WorldEnvironment(Environment):
    """Of a client's process."""

    def __init__(self, process: Process, clock: WorldClock, rng: Random) -> None:
        self.clock = process.clock = clock
        self._process = process
        self._rng = rng

    def new_id(self) -> bytes:
        return self._rng.randbytes(16)

    def dice(self) -> float:
        return self._rng.random()

    def stopwatch_s(self) -> float:
        return self._process.loop.now_us / 1e6


class WorldHost(WorldEnvironment, Host):
    """Of a node's."""

    descriptors_max = 10_000

    def __init__(
        self, process: Process, clock: WorldClock, rng: Random, disk: MemoryDisk, drive: Drive, etcd: WorldEtcd
    ) -> None:
        super().__init__(process, clock, rng)
        self._disk = disk
        self._drive = drive
        self._etcd = etcd

    def files(self, path: str, synced: Callable[[float], None], descriptors_max: int) -> Files:
        return WorldFiles(MemoryFiles(self._disk), self._drive, self._process)

    def syncs(self) -> Syncs:
        return WorldSyncs(self._process, self._drive)

    def executor(self, threads: int, name: str) -> WorldExecutor:
        return WorldExecutor(self._process, threads, self._rng)

    def trust(self, authorities: str | None) -> ssl.SSLContext:
        return _TLS

    def metadata(self, settings: EtcdSettings) -> Store:
        return WorldStore(self._etcd, self._process, self.clock)

    def watch_stalls(self, stalled: Callable[[float], None]) -> Callable[[], None]:
        return lambda: None
