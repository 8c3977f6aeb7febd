"""Machines, the network between them, etcd, and the nodes of a cluster on them, all in one process.

Nodes are assembled as `penstock serve` does it: `Server(Config(cluster=…))`. A machine keeps its disk and its clock
when its process dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

# A server imports it when it needs it: too late for `simulated_threads`.
import penstock.server.clustered  # noqa: F401
from penstock.client.client import Client
from penstock.errors import PenstockError
from penstock.net.connecting import connect_async
from penstock.server.config import Address, Config, Seconds
from penstock.server.server import Ready, Server
from penstock.testing.memory_files import MemoryDisk
from simulation.world.clocks import WorldClock
from simulation.world.disks import Drive
from simulation.world.etcd import WorldEtcd
from simulation.world.executors import WorldExecutor
from simulation.world.host import WorldEnvironment, WorldHost
from simulation.world.jobs import simulated_threads
from simulation.world.loop import Process, WorldLoop, current_process
from simulation.world.network import Network

T = TypeVar("T")

PORT = 7420
TTL_S = 3


class Machine:
    """Where one node runs, again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = Random(f"machine {name} {world.seed}")
        self.clock = WorldClock(world.loop, self.rng, world.skew_us_max)
        self.disk = MemoryDisk()
        self.drive = Drive(world.loop, Random(f"drive {name} {world.seed}"))
        self.process: Process | None = None
        self.server: Server | None = None
        self.starts = 0
        # Of a server that has ended by itself, or that was told to.
        self.ended: asyncio.Future[PenstockError | None]
        self.ready: asyncio.Future[None]

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def forgives(self, error: PenstockError) -> bool:
        """Its disk was full when it started."""
        return error.code == "disk_full" and not self.ready.done()

    def start(self) -> None:
        assert not self.is_alive
        world, loop = self.world, self.world.loop
        if not world.network.is_on(self.name):
            world.network.power_on(self.name)
        self.starts += 1
        self.process = process = Process(loop, f"{self.name}{self.starts}", self.name)
        rng = Random(f"{process.name} {world.seed}")
        process.default_executor = WorldExecutor(process, 4, rng)
        host = WorldHost(process, self.clock, rng, self.disk, self.drive, world.etcd)
        config = Config(
            data=self.name,
            native=Address(self.name, PORT),
            http=None,
            grpc=None,
            insecure=True,
            cluster="http://etcd:2379",
            node_id=self.name,
            session_ttl=Seconds(TTL_S),
        )
        self.ended, self.ready = loop.create_future(), loop.create_future()
        process.start(self._serve(process, config, host))

    async def _serve(self, process: Process, config: Config, host: WorldHost) -> None:
        self.server = Server(config, host)
        try:
            await self.server.run(self._ready)
        except PenstockError as error:
            failure: PenstockError | None = error
        else:
            failure = None
        # The process is over.
        self.world.loop.note(f"{process.name} has ended: {failure!r}")
        self.ended.set_result(failure)
        self.world.network.vanish(process)
        process.kill()
        self.disk = self.disk.after_kill()

    def _ready(self, ready: Ready) -> None:
        self.world.loop.note(f"{self.name} is ready")
        self.ready.set_result(None)

    def stop(self) -> None:
        assert self.server is not None
        self.server.stop()

    def kill(self) -> None:
        """As kill -9 would."""
        assert self.process is not None
        self.world.loop.note(f"{self.process.name} is killed")
        self.process.kill()
        self.world.network.vanish(self.process)
        self.world.loop.graveyard.append(self.disk)
        self.disk = self.disk.after_kill()

    def lose_power(self) -> None:
        """With all that was not synced, or some of it."""
        self.world.network.power_off(self.name)
        if self.process is not None and not self.process.is_dead:
            self.world.loop.note(f"{self.process.name} loses power")
            self.process.kill()
            self.world.network.silence(self.process)
        self.world.loop.graveyard.append(self.disk)
        self.disk = self.disk.after_power_loss(self.rng)


class World:
    def __init__(self, seed: str, nodes: Sequence[str] = ("a", "b", "c"), *, skew_us_max: int = 0) -> None:
        self.seed = seed
        self.skew_us_max = skew_us_max
        self.loop = WorldLoop(seed)
        self.network = self.loop.network = Network(self.loop, seed)
        self.etcd = WorldEtcd(self.loop, self.network, seed)
        self.machines = {name: Machine(self, name) for name in nodes}
        self._clients: dict[str, WorldEnvironment] = {}

    @property
    def address(self) -> str:
        return "penstock://" + ",".join(f"{name}:{PORT}" for name in self.machines)

    @property
    def clients(self) -> list[str]:
        return list(self._clients)

    def client(self, name: str) -> WorldEnvironment:
        """A process for a client, on a machine of its own."""
        if name not in self._clients:
            process = Process(self.loop, name, name)
            rng = Random(f"{name} {self.seed}")
            process.default_executor = WorldExecutor(process, 4, rng)
            self._clients[name] = WorldEnvironment(process, WorldClock(self.loop, rng, self.skew_us_max), rng)
        return self._clients[name]

    def start(self, client: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.client(client)._process.start(work)

    async def connect(self) -> Client:
        """From the process that runs."""
        environment = self.client(current_process().name)
        return await connect_async(self.address, environment=environment)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        handler = _Log(self)
        logger = logging.getLogger("penstock")
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        try:
            with simulated_threads():
                return self.loop.run(work)
        finally:
            logger.removeHandler(handler)


class _Log(logging.Handler):
    """What processes log is part of the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        try:
            name = current_process().name
        except LookupError:
            name = "world"
        line = f"{name}: {record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" {record.exc_info[1]!r}"
        self._world.loop.note(line)
