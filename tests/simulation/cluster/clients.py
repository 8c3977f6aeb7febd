"""Those who use the cluster: producers that send again until they are answered, consumers, readers; retention.

They find the leader by asking any node, which may know it wrongly, and stay with it until it fails them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from simulation.cluster.loop import MS

if TYPE_CHECKING:
    from simulation.cluster.hosted import Hosted
    from simulation.cluster.world import World

TIMEOUT = 400 * MS
NAME = "client"


class Client:
    def __init__(self, world: World, random: Random, partition: int) -> None:
        self.world = world
        self.random = random
        self.partition = partition
        self._node: str | None = None
        self._request = 0
        self.world.loop.after(random.random() * 50 * MS, self.go)

    def go(self) -> None:
        raise NotImplementedError

    def ask(self, *request: Any) -> None:
        """Sends it to the leader; `answered` is called once, with what it said, or with "silence"."""
        self._request += 1
        number = self._request
        node = self._node = self._node or self._look_up()
        self.world.loop.after(TIMEOUT, self._heard, number, "silence")
        self.world.network.send(NAME, node, self._arrived, node, number, request)

    def _look_up(self) -> str:
        node = self.world.nodes[self.random.choice(self.world.names)]
        record = node.hosted[self.partition].replica.record if node.is_up else None
        return record.leader if record and record.leader and self.random.random() < 0.9 else node.name

    def _arrived(self, name: str, number: int, request: tuple[Any, ...]) -> None:
        node = self.world.nodes[name]
        if not node.is_up or node.is_asleep(self._arrived, name, number, request):
            return

        def answer(*says: Any) -> None:
            self.world.network.send(name, NAME, self._heard, number, *says)

        hosted = node.hosted[self.partition]
        if not hosted.is_serving or hosted.is_held:
            answer("not here")
        else:
            self.world.checker.served(hosted)
            self.serve(hosted, answer, *request)

    def serve(self, hosted: Hosted, answer: Any, *request: Any) -> None:
        raise NotImplementedError

    def _heard(self, number: int, *says: Any) -> None:
        if number != self._request:
            return
        self._request += 1
        if says[0] in ("silence", "not here"):
            self._node = None
        self.answered(*says)

    def answered(self, *says: Any) -> None:
        raise NotImplementedError

    def pause(self, ms: float) -> None:
        self.world.loop.after(ms * MS * (0.5 + self.random.random()), self.go)


class Producer(Client):
    def __init__(self, world: World, random: Random, partition: int, name: str, acks: str) -> None:
        self.name = f"{name}-{acks}"
        self.acks = acks
        self.sequence = 0
        self.acked_at = 0
        super().__init__(world, random, partition)

    def go(self) -> None:
        if not self.world.is_over:
            self.ask(self.sequence)
            if self.acks == "none":
                self.sequence += 1

    def serve(self, hosted: Hosted, answer: Any, *request: Any) -> None:
        assert hosted.serving is not None
        hosted.serving.publish(self.name, request[0], self.acks, answer)

    def answered(self, *says: Any) -> None:
        if says[0] == "ok":
            self.acked_at = self.world.loop.now
            self.sequence += 1
        elif says[0] == "repeated" or self.acks == "leader":
            # Acknowledged by a leader alone, it may be lost; it must not come twice.
            self.sequence += self.acks != "none"
        self.pause(self.world.pace_ms if says[0] == "ok" else 30)


class Consumer(Client):
    def __init__(self, world: World, random: Random, partition: int) -> None:
        self._lease: tuple[int, int] | None = None
        super().__init__(world, random, partition)

    def go(self) -> None:
        if not self.world.is_over:
            if self._lease is None:
                self.ask("poll")
            else:
                self.ask("ack", *self._lease)

    def serve(self, hosted: Hosted, answer: Any, *request: Any) -> None:
        assert hosted.serving is not None
        if request[0] == "poll":
            hosted.serving.poll(answer)
        else:
            hosted.serving.ack(request[1], request[2], answer)

    def answered(self, *says: Any) -> None:
        if says[0] == "ok" and len(says) == 3:
            # One in five is forgotten, and comes again when its lease has run out.
            self._lease = (says[1], says[2]) if self.random.random() < 0.8 else None
        elif says[0] in ("ok", "not leased"):
            self._lease = None
        self.pause(self.world.pace_ms if says[0] == "ok" else 40)


class Reader(Client):
    """Reads on from where it is; from time to time from the beginning. And has retention done, if there is any."""

    def __init__(self, world: World, random: Random, partition: int) -> None:
        self._offset = 0
        super().__init__(world, random, partition)

    def go(self) -> None:
        if not self.world.is_over:
            self.ask(self._offset)

    def serve(self, hosted: Hosted, answer: Any, *request: Any) -> None:
        log, committed = hosted.logs[0], hosted.replica.committed
        self.world.checker.read(hosted, max(request[0], log.base))
        if self.random.random() < self.world.retention:
            assert hosted.serving is not None
            hosted.serving.retain(log.base + int(self.random.random() * (committed[0] - log.base + 1)))
        answer("ok", committed[0])

    def answered(self, *says: Any) -> None:
        if says[0] == "ok":
            self._offset = 0 if self.random.random() < 0.1 else says[1]
        self.pause(350)
