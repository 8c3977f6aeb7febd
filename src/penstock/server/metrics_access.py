"""What principals use of their quotas, and what became of audit events, for Prometheus: asked when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from penstock.server.gate import Gate
from penstock.server.metrics import Family, Sample
from penstock.server.quotas import CONNECTIONS, CREATED, MEMBERS, NAMES, PRODUCERS, RATES, STORAGE, Meter


def of_access(gate: Gate) -> Iterator[Family]:
    counts = gate.audit.counts
    yield Family(
        "penstock_audit_events_total",
        "counter",
        "Audit events: recorded, left_out (too many of one kind), or dropped (not stored in the topic __audit).",
        [Sample({"outcome": outcome}, counts[outcome]) for outcome in ("recorded", "left_out", "dropped")],
    )
    # Of each principal, those of its quotas that are set.
    limits = [
        (meter, name, {"principal": meter.principal, "quota": name}, getattr(meter.quota, name))
        for meter in gate.quotas.meters
        for name in NAMES
        if getattr(meter.quota, name) is not None
    ]
    yield Family(
        "penstock_quota_limit", "gauge", "Quotas of principals.", [Sample(labels, most) for *_, labels, most in limits]
    )
    yield Family(
        "penstock_quota_throttled_total",
        "counter",
        "Requests that were refused or delayed because a quota was used up.",
        [Sample(labels, meter.throttled[name]) for meter, name, labels, _ in limits],
    )
    yield Family(
        "penstock_quota_used_total",
        "counter",
        "Bytes and requests that were counted for a quota.",
        [Sample(labels, meter.used[name]) for meter, name, labels, _ in limits if name in RATES],
    )
    now: dict[str, Callable[[Meter], int]] = {
        CONNECTIONS: lambda meter: meter.connections,
        STORAGE: lambda meter: meter.stored_bytes,
        MEMBERS: lambda meter: meter.members,
        PRODUCERS: lambda meter: meter.producers,
    }
    now |= {kind: partial(_created, gate, kind) for kind in CREATED}
    yield Family(
        "penstock_quota_used",
        "gauge",
        "Topics, groups and schedules of a principal; on this node, its connections, members, producers and bytes.",
        [Sample(labels, now[name](meter)) for meter, name, labels, _ in limits if name in now],
    )


def _created(gate: Gate, kind: str, meter: Meter) -> int:
    return gate.owned(kind, meter.principal)
