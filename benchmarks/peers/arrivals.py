"""When messages at an even pace come out again: the same process sees what `pacing.due` stamped in another.

A broker that cannot keep the pace falls behind for as long as it lasts, and then its latency is only that of a run of
so many seconds. So a turn is given up as soon as a message is a second late, and tried again at a lower rate.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from pacing import PROCESSES, STAMP_DIGITS, WARM_UP
from peers import Peer, new_name

LATE_NS_MAX = 1_000_000_000
RATES = (10_000, 5_000, 2_000, 1_000, 500, 200, 100)


class Arrivals:
    """Of `count` messages; over when all are here, or one came too late."""

    # For all of them: what takes longer has lost some.
    patience_s = 60.0

    def __init__(self, count: int) -> None:
        self.count = count
        self._until = time.monotonic() + self.patience_s
        self._taken_ns: list[int] = []
        self.is_late = False

    def add(self, value: bytes) -> None:
        taken_ns = time.monotonic_ns() - int(value[:STAMP_DIGITS])
        self._taken_ns.append(taken_ns)
        self.is_late |= taken_ns > LATE_NS_MAX

    @property
    def is_over(self) -> bool:
        return self.is_late or len(self._taken_ns) >= self.count or time.monotonic() > self._until

    def seconds(self) -> list[float]:
        """In order of size, without the first ones: everything had just been made."""
        assert len(self._taken_ns) == self.count, "messages are missing, or came twice"
        return sorted(ns / 1e9 for ns in self._taken_ns[int(self.count * WARM_UP) :])


class UnderWay(NamedTuple):
    """Messages a second, and the seconds from due to received, in order of size."""

    rate: int
    taken_s: list[float]


def under_way(peer: Peer, address: str, rate_max: int, seconds: float) -> UnderWay:
    """At the highest of RATES, up to this one, whose pace it keeps."""
    for rate in RATES:
        if rate <= rate_max and (taken := _at(peer, address, rate, int(rate * seconds))) is not None:
            return UnderWay(rate, taken)
    raise RuntimeError(f"{peer.name} does not keep the pace of {RATES[-1]} messages a second")


def _at(peer: Peer, address: str, rate: int, count: int) -> list[float] | None:
    topic = new_name()
    peer.create(address, topic)
    producer = PROCESSES.Process(target=peer.produce, args=(address, topic, rate, count))
    arrivals = Arrivals(count)
    try:
        peer.consume(address, topic, arrivals, producer.start)
        if arrivals.is_late:
            return None
        producer.join()
        assert producer.exitcode == 0, f"the producer of {peer.name} broke down"
        return arrivals.seconds()
    finally:
        if producer.is_alive():
            producer.kill()
            producer.join()
