"""How long is too long. All on the node's boot time, which never goes back and does not stand still in a suspend."""

from __future__ import annotations

from msgspec import Struct

_SECOND_US = 1_000_000
# A follower that has nothing to copy sends a heartbeat every half second, and the leader looks at that every second.
_LAG_US_MIN = _SECOND_US * 12 // 5


class Timing(Struct, frozen=True):
    # A follower that has not caught up for so long leaves the ISR. Kafka has 30 s since 2.5, 10 s before.
    lag_us: int = 4 * _SECOND_US
    # A leader serves so long after a sign that nobody else can: the session's TTL, less what clocks may differ by.
    trust_us: int = 5 * _SECOND_US
    # Until something that was refused is tried again.
    retry_us: int = _SECOND_US // 10
    # A leader that hands over does not take writes meanwhile, and gives up after this.
    handover_us: int = _SECOND_US * 2 // 5
    # For so long of that it waits until all voters have everything, and not only the heir: then whoever still waits for
    # an answer here gets one.
    settling_us: int = _SECOND_US // 10

    @classmethod
    def of_session(cls, ttl_us: int) -> Timing:
        """The two that go with how soon a node is taken for dead."""
        return cls(lag_us=max(ttl_us * 2 // 3, _LAG_US_MIN), trust_us=ttl_us * 5 // 6)
