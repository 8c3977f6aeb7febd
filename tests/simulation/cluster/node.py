"""A node of the simulation: its clock, its session with etcd, its partitions, and maybe a controller that was one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.cluster.core.events import Registered, Tick
from penstock.cluster.core.messages import Fetch, Withdraw
from simulation.cluster.disk import Disk
from simulation.cluster.etcd import State
from simulation.cluster.hosted import Hosted
from simulation.cluster.loop import MS, SECOND
from simulation.cluster.streams import Incoming, Outgoing, last_words

if TYPE_CHECKING:
    from simulation.cluster.world import World

TICK = 250 * MS
KEEPALIVE = 600 * MS
REREAD = 1_500 * MS
HEARTBEAT = 170 * MS


class Node:
    def __init__(self, world: World, name: str, random: Random) -> None:
        self.world = world
        self.name = name
        self.random = random
        # Clocks differ by up to 1 %, and count from different beginnings.
        self._ppm = 995_000 + int(random.random() * 10_000)
        self._base_us = int(random.random() * 100 * SECOND)
        self.disks = 0
        self.disk = self.new_disk()
        self.starts = 0
        self.is_up = False
        self.paused_until = 0
        self.slow_disk_until = 0
        # By which process, and what.
        self._unheard: deque[tuple[str, tuple[Any, ...]]] = deque()

    def clock_us(self) -> int:
        return self._base_us + self.world.loop.now * self._ppm // 1_000_000

    def sync_delay(self) -> float:
        if self.world.loop.now < self.slow_disk_until:
            return (20 + self.random.random() * 600) * MS
        return (0.3 + self.random.random() * 3) * MS

    # ---- life and death

    def start(self) -> None:
        self.is_up = True
        self.starts += 1
        self.paused_until = 0
        self.incarnation = f"{self.name}.{self.starts}"
        self.registered = Registered(self.disk.name, self.incarnation)
        self.live: dict[str, Registered] = {}
        # By leader, and by follower.
        self.outgoing: dict[str, Outgoing] = {}
        self.incoming: dict[str, Incoming] = {}
        # By partition: the leader that is followed, and the last fetch.
        self.followed: dict[int, tuple[str, Fetch]] = {}
        self.state_revision = 0
        self.lease = 0
        self.session_until_us = 0
        # The session counts only after the node has read the state in which it registered, as in `presence`: without a
        # session for a while, it may have been replaced as a leader.
        self._registered_at = 0
        self._renewed_until_us = 0
        self.controller: str | None = None
        self.is_controller = False
        self._is_rereading = self._is_registering = False
        self.hosted = [Hosted(self, partition) for partition in range(self.world.partitions)]
        self.world.etcd.watchers[self.name] = self.told
        self._register()
        self.reread()
        self._every(TICK, self._ticked)
        self._every(KEEPALIVE, self._keep)
        self._every(REREAD, self.reread)
        self._beat(self.incarnation)

    def crash(self) -> None:
        self.is_up = False
        for hosted in self.hosted:
            hosted.is_gone = True
        self.disk.crash(self.random)
        self.world.etcd.watchers.pop(self.name, None)

    def new_disk(self) -> Disk:
        self.disks += 1
        return Disk(f"{self.name}-disk{self.disks}", self.world.partitions)

    def delete_copy(self, hosted: Hosted) -> None:
        hosted.is_gone = True
        for log in hosted.logs:
            log.reset(0)
        record, revision = hosted.replica.record, hosted.replica.revision
        self.hosted[hosted.partition] = anew = Hosted(self, hosted.partition)
        anew.seen(revision, record)

    def is_asleep(self, do: Callable[..., None], *args: Any) -> bool:
        """Stopped: what was to be done is done when it goes on."""
        wait = self.paused_until - self.world.loop.now
        if wait > 0:
            self.world.loop.after(wait, do, *args)
        return wait > 0

    def _every(self, interval: int, do: Callable[[], None]) -> None:
        incarnation = self.incarnation

        def again() -> None:
            if self.is_up and self.incarnation == incarnation and not self.is_asleep(again):
                self.world.loop.after(interval * (0.9 + self.random.random() / 5), again)
                do()

        self.world.loop.after(interval * self.random.random(), again)

    # ---- other nodes

    def send(self, to: str, partition: int, message: Any, frames: Any = None) -> None:
        self.world.network.send(self.name, to, self.world.nodes[to].receive, partition, message, frames)

    def receive(self, partition: int, message: Any, frames: Any) -> None:
        if self.is_up and not self.is_asleep(self.receive, partition, message, frames):
            hosted = self.hosted[partition]
            if not isinstance(message, Fetch):
                hosted.replied(message, frames)
                return
            stream = self._incoming(message.node, message.incarnation, frames[0])
            if stream is not None:
                stream.fetched(self.clock_us(), frames[1])
                hosted.step(message)

    def ask(self, leader: str, partition: int, fetch: Fetch) -> None:
        self.followed[partition] = leader, fetch
        if leader not in self.outgoing:
            self.outgoing[leader] = Outgoing(self, leader)
        stream = self.outgoing[leader]
        self.send(leader, partition, fetch, (stream.number, stream.echo_us))

    def withdraw(self, partition: int) -> None:
        """Its replica follows another leader from now on, or none."""
        leader, fetch = self.followed.pop(partition, ("", None))
        if fetch is not None:
            self.world.count("withdrawn")
            self.outgoing[leader].send((partition, last_words(fetch)))

    def _beat(self, incarnation: str) -> None:
        """To all who ever led what is here."""
        if self.is_up and self.incarnation == incarnation and not self.is_asleep(self._beat, incarnation):
            self.world.loop.after(HEARTBEAT, self._beat, incarnation)
            for stream in self.outgoing.values():
                stream.send()

    def heard(self, *said: Any) -> None:
        """What arrives on a stream while the node is stopped waits in a socket, and keeps its order."""
        self._unheard.append((self.incarnation, said))
        self._hear()

    def _hear(self) -> None:
        if self.is_up and not self.is_asleep(self._hear):
            while self._unheard:
                incarnation, said = self._unheard.popleft()
                if incarnation == self.incarnation:
                    self._heard(*said)

    def _heard(
        self, name: str, incarnation: str, number: int, echo_us: int, withdrawn: tuple[int, Withdraw] | None
    ) -> None:
        stream = self._incoming(name, incarnation, number)
        if stream is None:
            return
        stream.confirm(echo_us)
        if withdrawn is not None:
            partition, withdraw = withdrawn
            self.hosted[partition].step(withdraw)
        node = self.world.nodes[name]
        self.world.network.send_in_order(
            self.name, name, node.answered, self.name, incarnation, number, self.clock_us()
        )

    def answered(self, leader: str, incarnation: str, number: int, sent_us: int) -> None:
        if self.is_up and not self.is_asleep(self.answered, leader, incarnation, number, sent_us):
            stream = self.outgoing.get(leader)
            if stream is not None and (incarnation, number) == (self.incarnation, stream.number):
                stream.echo_us = sent_us

    def _incoming(self, name: str, incarnation: str, number: int) -> Incoming | None:
        """None if that stream was replaced by a later one."""
        stream = self.incoming.get(name)
        if stream is None or (stream.incarnation, stream.number) != (incarnation, number):
            if stream is not None and _age(incarnation, number) < _age(stream.incarnation, stream.number):
                return None
            stream = self.incoming[name] = Incoming(incarnation, number, self.clock_us())
        return stream

    # ---- etcd

    def call(self, answer: Callable[[Any], None], do: Callable[..., Any], *args: Any) -> None:
        incarnation = self.incarnation

        def answered(result: Any) -> None:
            if self.is_up and self.incarnation == incarnation and not self.is_asleep(answered, result):
                answer(result)

        self.world.etcd.call(self.name, answered, do, *args)

    def reread(self) -> None:
        if not self._is_rereading:
            self._is_rereading = True
            self.call(self._reread, self.world.etcd.read)

    def _reread(self, state: State | None) -> None:
        self._is_rereading = False
        if state is not None:
            self.told(state)

    def told(self, state: State) -> None:
        """By a read or a watch. Of nodes, too, only what is newer counts."""
        if not self.is_up or self.is_asleep(self.told, state):
            return
        revision, live, controller, records = state
        if revision > self.state_revision:
            self.state_revision, self.controller = revision, controller
            self.is_controller = controller == self.incarnation or (self.is_controller and controller is None)
            if live != self.live:
                self.live = live
                for hosted in self.hosted:
                    hosted.tick()
        for partition, (at, record) in records.items():
            self.hosted[partition].seen(at, record)
        self._trust_session()

    def _register(self) -> None:
        if not self._is_registering:
            self._is_registering = True
            self._sent_us = self.clock_us()
            self.call(self._has_registered, self.world.etcd.register, self.name, self.registered)

    def _has_registered(self, registered: tuple[int, int] | None) -> None:
        self._is_registering = False
        if registered is not None:
            self.lease, self._registered_at = registered
            self._renewed(self._sent_us)

    def _keep(self) -> None:
        if not self.lease or self.live.get(self.name) != self.registered:
            # Never, or twice, by a request that was thought lost, and the lease of the later one has run out.
            self._register()
            return
        sent_us = self.clock_us()
        self.call(lambda is_alive: self._kept(sent_us, is_alive), self.world.etcd.keep, self.lease)

    def _kept(self, sent_us: int, is_alive: bool | None) -> None:
        if is_alive:
            self._renewed(sent_us)
        elif is_alive is False:
            self.world.count("session lost")
            self.lease = 0
            self.is_controller = False
            self._register()

    def _renewed(self, sent_us: int) -> None:
        self._renewed_until_us = max(self._renewed_until_us, sent_us + self.world.timing.trust_us)
        self._trust_session()

    def _trust_session(self) -> None:
        if self.state_revision >= self._registered_at:
            self.session_until_us = self._renewed_until_us

    # ---- every now and then

    def tick_event(self) -> Tick:
        return Tick(self.session_until_us, self.live, {name: stream.contact for name, stream in self.incoming.items()})

    def _ticked(self) -> None:
        tick = self.tick_event()
        for hosted in self.hosted:
            hosted.step(tick)
        if self.is_controller:
            self._control()
        elif self.controller is None and self.lease:
            self.call(self._controls, self.world.etcd.control, self.incarnation, self.lease)

    def _controls(self, name: str | None) -> None:
        self.is_controller = self.is_controller or name == self.incarnation

    def _control(self) -> None:
        for hosted in self.hosted:
            record = hosted.replica.record
            elected = record and self.world.elect(record, self.live)
            if elected:
                self.world.count("election")
                self.call(
                    lambda result, hosted=hosted: result and hosted.seen(*result),
                    self.world.etcd.swap,
                    hosted.partition,
                    hosted.replica.revision,
                    elected,
                )


def _age(incarnation: str, number: int) -> tuple[int, int]:
    return int(incarnation.split(".")[1]), number
