"""What a leader knows of its groups, beside what a replay of its deliveries log says."""

from __future__ import annotations

from copy import copy

from penstock.broker.delays import Delays
from penstock.broker.deliveries import Deliveries
from penstock.broker.lanes import Lanes
from penstock.broker.snapshot import GroupState, _state
from penstock.clock import Instant
from penstock.cluster.hosted import Hosted

_NOTHING = GroupState("", 0, None, 0, *[None] * 13)  # type: ignore[arg-type]


def differences(hosted: Hosted) -> list[str]:
    assert hosted.partition is not None
    known = hosted.partition.groups
    replayed = copy(known)
    replayed._states, replayed._working, replayed._owners, replayed.set_back = {}, {}, {}, {}
    replayed._dying_groups = set()
    replayed.lanes, replayed.delays, replayed.covered = Lanes(), Delays(known._clock.now_us()), 0
    replayed._recover()
    here, there = _states(known), _states(replayed)
    return [
        f"{name}: {field} is {getattr(one, field)}, and in the log {getattr(other, field)}"
        for name in sorted(here.keys() | there.keys())
        for one, other in [(here.get(name, _NOTHING), there.get(name, _NOTHING))]
        for field in GroupState.__struct_fields__
        if getattr(one, field) != getattr(other, field)
    ]


def _states(groups: Deliveries) -> dict[str, GroupState]:
    now = Instant.of(groups._clock)
    return {name: _state(groups.state(name), now) for name in groups.groups}


def leased(hosted: Hosted) -> list[str]:
    assert hosted.partition is not None
    groups = hosted.partition.groups
    return [f"{name}: {lease}" for name in groups.groups for lease in groups.state(name).leases.values()]
