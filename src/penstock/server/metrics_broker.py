"""What a broker has, for Prometheus: its partitions, and what its groups have done in them.

Thousands of partitions or groups would make as many series of each family. Beyond `SERIES_MAX` they are added up: the
label of the partition is left out, then that of the group, then that of the topic. `penstock_metrics_aggregated` says
so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.tally import DELIVERY_BOUNDS, Histogram, Tally
from penstock.server.metrics import Family, Sample, all_buckets

SERIES_MAX = 2_000
# A histogram has a series for each of its bounds.
HISTOGRAMS_MAX = 200

_PARTITION = ("topic", "partition")
_STATE = ("group", "topic", "partition")
# In the order in which labels are left out.
_DROPPED = ("partition", "group", "topic")

_OF_PARTITIONS = (
    ("penstock_messages_published_total", "counter", "Messages ever stored: the next offset."),
    ("penstock_messages_stored", "gauge", "Offsets that are still there."),
    ("penstock_stored_bytes", "gauge", "Bytes of messages on disk."),
    ("penstock_scheduled", "gauge", "Delayed messages that are not due yet."),
)
_NOT_ARCHIVED = (
    "penstock_not_archived",
    "gauge",
    "Messages of topics that must be archived that were not yet: nothing of them is deleted.",
)
_MEMBERS = ("penstock_group_members", "gauge", "Consumers that have joined.")
_OF_STATES = (
    ("penstock_group_lag", "gauge", "Messages in the log that are not done."),
    ("penstock_group_in_flight", "gauge", "Messages that are leased."),
    ("penstock_group_waiting", "gauge", "Messages that wait for their next try."),
    ("penstock_group_parked_keys", "gauge", "Keys that wait for somebody to release them."),
    ("penstock_group_dead_letters", "gauge", "Messages that were given up and are retained."),
)
# As `Tally` calls them.
_OF_TALLIES = (
    ("delivered", "delivered", "Messages handed to consumers, each time they were."),
    ("redelivered", "redelivered", "Those of them that had been delivered before."),
    ("acknowledged", "acknowledged", "Messages that consumers were done with."),
    ("nacked", "nacked", "Deliveries that a consumer gave back to be tried again."),
    ("lease_expired", "ran_out", "Deliveries whose lease ran out."),
    ("given_back", "given_back", "Deliveries that were given back unseen."),
    ("given_up", "given_up", "Messages that were rejected, or tried too often."),
    ("dead_lettered", "dead_lettered", "Those of them that are in the dead-letter topic."),
    ("expired", "expired", "Messages whose time to live was over when their turn came."),
)


class _Row(NamedTuple):
    """One partition, or one group in one partition. Its values are those of as many families."""

    labels: tuple[str, ...]
    values: tuple[float, ...]


class _Table(NamedTuple):
    """Families that have the same labels. `of` is what there may be too many of."""

    of: str
    families: Sequence[tuple[str, str, str]]
    labels: tuple[str, ...]
    rows: Sequence[_Row]


async def of_broker(broker: Broker) -> Iterator[Family]:
    """Looked up on the event loop in slices. The iterator, which puts it together, is for another thread."""
    counted: list[_Row] = []
    tallies: list[tuple[tuple[str, str], Tally]] = []
    totals = [(f"penstock_group_{name}_total", "counter", help) for name, _, help in _OF_TALLIES]
    parts: list[_Table | Family] = [
        _Table("partitions", _OF_PARTITIONS, _PARTITION, await broker.walk(_partitions(broker))),
        _Table("partitions", [_NOT_ARCHIVED], _PARTITION, await broker.walk(_not_archived(broker))),
        Family("penstock_schedules", "gauge", "Cron schedules.", [Sample({}, broker.schedules.count)]),
        _Table("groups", _OF_STATES, _STATE, await broker.walk(_states(broker, counted, tallies))),
        _Table("groups", totals, _STATE, counted),
        *await _histograms(broker, tallies),
        _Table("groups", [_MEMBERS], ("group",), await broker.walk(_members(broker))),
    ]
    return _families(deque(parts))


def _families(parts: deque[_Table | Family]) -> Iterator[Family]:
    """Takes the parts out: to free them takes long as well."""
    aggregated: dict[str, int] = {}
    while parts:
        part = parts.popleft()
        if isinstance(part, Family):
            yield part
            continue
        of, families, labels, rows = part
        kept, rows = _folded(labels, rows)
        aggregated[of] = max(aggregated.get(of, 0), int(kept != labels))
        shown = [dict(zip(kept, row.labels, strict=True)) for row in rows]
        for at, (name, kind, help) in enumerate(families):
            samples = [Sample(some, row.values[at]) for some, row in zip(shown, rows, strict=True)]
            yield Family(name, kind, help, samples)
    yield Family(
        "penstock_metrics_aggregated",
        "gauge",
        "1 if there are too many partitions or groups for series of their own: they are added up, without labels.",
        [Sample({"of": of}, is_so) for of, is_so in aggregated.items()],
    )


def _partitions(broker: Broker) -> Iterator[_Row]:
    for name in sorted(broker.topic_names()):
        if broker.has_topic(name):
            for number, part in broker.topic(name).numbered:
                log = part.messages
                values = (log.end_offset, log.end_offset - log.start_offset, log.size, len(part.groups.delays.pending))
                yield _Row((name, str(number)), values)


def _not_archived(broker: Broker) -> Iterator[_Row]:
    for name in sorted(broker.topic_names()):
        topic = broker.topic(name) if broker.has_topic(name) else None
        if topic is not None and topic.settings.archive == "required":
            for number, _ in topic.numbered:
                yield _Row((name, str(number)), (topic.not_archived(number),))


def _states(broker: Broker, counted: list[_Row], tallies: list[tuple[tuple[str, str], Tally]]) -> Iterator[_Row | None]:
    """What groups have done is added to the lists."""
    for name in sorted(broker.topic_names()):
        for number, part in broker.topic(name).numbered if broker.has_topic(name) else ():
            for group in part.groups.groups:
                # Those of the broker's own have no consumers.
                if group.startswith("__") or not part.groups.has(group):
                    yield None
                    continue
                labels, state = (group, name, str(number)), part.groups.state(group)
                if not state.is_recalled:
                    counted.append(
                        _Row(labels, tuple(getattr(state.tally, attribute) for _, attribute, _ in _OF_TALLIES))
                    )
                    tallies.append(((group, name), state.tally))
                yield _Row(
                    labels,
                    (part.lag(state), state.in_flight, len(state.waiting), len(state.parked), state.dead_count()),
                )


def _members(broker: Broker) -> Iterator[_Row]:
    for group in sorted(broker.group_names()):
        members = broker.consumers.of(group)
        yield _Row((group,), (0 if members is None else len(members.names()),))


def _folded(kept: tuple[str, ...], rows: Sequence[_Row]) -> tuple[tuple[str, ...], Sequence[_Row]]:
    """The labels that are left, and no more rows than `SERIES_MAX`."""
    for dropped in _DROPPED:
        if len(rows) <= SERIES_MAX:
            break
        if dropped in kept:
            at = kept.index(dropped)
            kept = kept[:at] + kept[at + 1 :]
            sums: dict[tuple[str, ...], list[float]] = {}
            for row in rows:
                left = row.labels[:at] + row.labels[at + 1 :]
                known = sums.get(left)
                sums[left] = (
                    list(row.values) if known is None else [a + b for a, b in zip(known, row.values, strict=True)]
                )
            rows = [_Row(left, tuple(values)) for left, values in sums.items()]
    return kept, rows


async def _histograms(broker: Broker, tallies: Sequence[tuple[tuple[str, str], Tally]]) -> list[Family]:
    """All partitions together; and all groups of a topic, or all there are, if that makes too many."""
    pairs = {place for place, _ in tallies}
    if len(pairs) <= HISTOGRAMS_MAX:
        labels: tuple[str, ...] = ("group", "topic")
    elif len({topic for _, topic in pairs}) <= HISTOGRAMS_MAX:
        labels = ("topic",)
    else:
        labels = ()
    found: dict[tuple[str, ...], tuple[Histogram, Histogram]] = {}

    def merge() -> Iterator[None]:
        for place, tally in tallies:
            kept = place[2 - len(labels) :]
            both = found.get(kept)
            if both is None:
                both = found[kept] = Histogram(DELIVERY_BOUNDS), Histogram(DELIVERY_BOUNDS)
            both[0].merge(tally.to_delivery)
            both[1].merge(tally.to_acknowledgement)
            yield None

    await broker.walk(merge())
    told = (
        ("penstock_delivery_seconds", "From publishing to the first delivery, of messages without a delay."),
        ("penstock_acknowledge_seconds", "From a delivery to its acknowledgement."),
    )
    families = []
    for at, (name, help) in enumerate(told):
        histograms = [(dict(zip(labels, kept, strict=True)), both[at]) for kept, both in found.items()]
        families.append(Family(name, "histogram", help, all_buckets(histograms)))
    return families
