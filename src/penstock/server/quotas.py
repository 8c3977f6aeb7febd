"""Quotas: how much each principal may publish, consume, ask, connect, store and create.

A node counts what happens on it. Topics, groups and schedules are those of the whole cluster.

Rates are token buckets with a burst of one second, on the monotonic clock. A request is admitted while the balance is
positive, and pays for all of it: a batch larger than a second's worth is stored, and the next one waits for longer.
What is refused costs nothing. Acknowledgements and other answers of consumers pay, and are never refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.topic import Topic
from penstock.client.transport import Delivery
from penstock.clock import Clock
from penstock.errors import LimitReached, QuotaExceeded
from penstock.server.access import Pattern

PUBLISH, CONSUME, REQUESTS = "publish_bytes_per_s", "consume_bytes_per_s", "requests_per_s"
CONNECTIONS, STORAGE = "connections", "storage_bytes"
# What the catalog has of each principal.
TOPICS, GROUPS, SCHEDULES = CREATED = "topics", "groups", "schedules"
MEMBERS, PRODUCERS = "members", "producers"
RATES = (PUBLISH, CONSUME, REQUESTS)
# The broker can't foretell when a connection ends.
_CONNECTION_S = 1.0
# Producers count for so long after their last message: a partition must recognise what they send again.
PRODUCER_US = 3_600_000_000
# Nor when retention deletes something, which takes longer than a client should wait with a publish under way.
_STORAGE_S = 60.0
# A client that comes back earlier than this would only be busy with that.
_WAIT_US_MIN = 1_000
# The sizes of so many partitions are added up without a break.
_MEASURED_AT_ONCE = 500


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As in the access file. None: without a bound."""

    publish_bytes_per_s: int | None = None
    consume_bytes_per_s: int | None = None
    requests_per_s: int | None = None
    connections: int | None = None
    storage_bytes: int | None = None
    topics: int | None = None
    groups: int | None = None
    schedules: int | None = None
    members: int | None = None
    producers: int | None = None


NAMES = Quota.__struct_fields__
NONE = Quota()


class QuotaRule(NamedTuple):
    """The same quota for each of the principals, not for all of them together."""

    principals: tuple[Pattern, ...]
    quota: Quota


def quota_of(rules: Iterable[QuotaRule], principal: str) -> Quota:
    """Of each bound the one for the most specific name: `shop`, then `sh*`, then `*`. The later of two equal ones."""
    found: dict[str, int] = {}
    ranks: dict[str, tuple[bool, int]] = {}
    for rule in rules:
        rank = max((_rank(one) for one in rule.principals if one.fits(principal)), default=None)
        if rank is None:
            continue
        for name in NAMES:
            value = getattr(rule.quota, name)
            if value is not None and rank >= ranks.get(name, rank):
                found[name], ranks[name] = value, rank
    return Quota(**found)


def _rank(pattern: Pattern) -> tuple[bool, int]:
    return not pattern.is_prefix, len(pattern.text)


class _Bucket:
    __slots__ = ("_at_us", "_balance", "rate")

    def __init__(self, rate: int, now_us: int) -> None:
        self.rate = rate
        self._balance = float(rate)
        self._at_us = now_us

    def change(self, rate: int) -> None:
        self.rate = rate
        self._balance = min(self._balance, float(rate))

    def wait_us(self, now_us: int) -> int:
        """How long until the balance is positive: 0 if it is."""
        self._balance = min(self._balance + (now_us - self._at_us) * self.rate / 1e6, float(self.rate))
        self._at_us = now_us
        return 0 if self._balance > 0 else max(round(-self._balance * 1e6 / self.rate), _WAIT_US_MIN)

    def charge(self, amount: int) -> None:
        self._balance -= amount


class Meter:
    """What one principal has used."""

    def __init__(self, principal: str, quota: Quota, clock: Clock, default: Quota = NONE) -> None:
        """`default` has bounds of counts that the quota does not have."""
        self.principal = principal
        self._clock = clock
        self._default = default
        self._buckets: dict[str, _Bucket] = {}
        # Connections, and of those of gRPC how many calls are under way on each.
        self._connections: Counter[object] = Counter()
        # Groups and consumers in them.
        self._members: set[tuple[str, str]] = set()
        # Ids, and when each of them sent something; the one that did last is the last.
        self._producers: dict[int, int] = {}
        # Held from the count until what was asked for is created.
        self.creating = asyncio.Lock()
        self.stored_bytes = 0
        self.used: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.change(quota)

    def change(self, quota: Quota) -> None:
        self.quota = quota
        for name in RATES:
            rate = getattr(quota, name)
            if rate is None:
                self._buckets.pop(name, None)
            elif name in self._buckets:
                self._buckets[name].change(rate)
            else:
                self._buckets[name] = _Bucket(rate, self._clock.monotonic_us())

    def most(self, name: str) -> int | None:
        """The bound of a count, if there is one."""
        own: int | None = getattr(self.quota, name)
        return getattr(self._default, name) if own is None else own

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def has_rates(self) -> bool:
        return bool(self._buckets)

    def rate(self, name: str) -> int | None:
        bucket = self._buckets.get(name)
        return None if bucket is None else bucket.rate

    def wait_us(self, names: Iterable[str]) -> tuple[int, str]:
        """The longest wait for one of these rates, and which."""
        now_us = self._clock.monotonic_us()
        waits = [(self._buckets[name].wait_us(now_us), name) for name in names if name in self._buckets]
        return max(waits, default=(0, ""))

    def charge(self, name: str, amount: int) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None:
            bucket.charge(amount)
            self.used[name] += amount

    def exceeded(self, name: str, wait_s: float) -> QuotaExceeded:
        self.throttled[name] += 1
        return QuotaExceeded(
            f"{self.principal} has used up its quota {name} of {self.most(name)}. Try again in {wait_s:g} s",
            principal=self.principal,
            quota=name,
            retry_after=wait_s,
        )

    def connect(self, connection: object) -> None:
        """QuotaExceeded if the principal has too many. The same one may be counted several times: it is one."""
        most = self.most(CONNECTIONS)
        if most is not None and connection not in self._connections and len(self._connections) >= most:
            raise self.exceeded(CONNECTIONS, _CONNECTION_S)
        self._connections[connection] += 1

    def disconnect(self, connection: object) -> None:
        self._connections[connection] -= 1
        if self._connections[connection] <= 0:
            del self._connections[connection]

    def check_count(self, name: str, count: int) -> None:
        """LimitReached if the principal has as many as its quota of that name, or the default, allows."""
        most = self.most(name)
        if most is not None and count >= most:
            self.throttled[name] += 1
            raise LimitReached(
                f"{self.principal} has {count} {name} already, and its quota {name} is {most}. Delete some that are "
                "not used any more, or raise the quota: penstock quota set",
                limit=name,
                maximum=most,
            )

    @property
    def members(self) -> int:
        return len(self._members)

    @property
    def producers(self) -> int:
        return len(self._producers)

    def join(self, group: str, consumer: str, is_member: Callable[[str, str], bool]) -> None:
        """Count a consumer, before it joins. `is_member`: whether one that was counted may still be there."""
        most = self.most(MEMBERS)
        if most is None or (group, consumer) in self._members:
            return
        if len(self._members) >= most:
            self._members = {member for member in self._members if is_member(*member)}
            self.check_count(MEMBERS, len(self._members))
        self._members.add((group, consumer))

    def leave(self, group: str, consumer: str) -> None:
        self._members.discard((group, consumer))

    def produce(self, producer: int) -> None:
        """Count a producer. QuotaExceeded if too many others have sent something lately."""
        now_us, most = self._clock.monotonic_us(), self.quota.producers
        if most is None:
            return
        if self._producers.pop(producer, None) is None:
            while self._producers:
                oldest, sent_us = next(iter(self._producers.items()))
                if now_us - sent_us < PRODUCER_US:
                    break
                del self._producers[oldest]
            if len(self._producers) >= most:
                raise self.exceeded(PRODUCERS, _STORAGE_S)
        self._producers[producer] = now_us

    @property
    def is_full(self) -> bool:
        """Nothing more is to be published to the principal's topics."""
        most = self.quota.storage_bytes
        return most is not None and self.stored_bytes >= most


class Allowance:
    """What one client may do within the rates of its principal.

    `is_single`: the client came with one request, as over HTTP, whatever the broker is asked on behalf of it: it is
    admitted as a whole, and pays for all of it.
    """

    def __init__(self, meter: Meter, *, is_single: bool) -> None:
        self._meter = meter
        self._is_single = is_single
        self._admitted: set[str] = set()

    def _admit(self, *names: str) -> None:
        wanted = [name for name in names if name not in self._admitted]
        wait_us, name = self._meter.wait_us(wanted)
        if wait_us:
            raise self._meter.exceeded(name, wait_us / 1e6)
        self._pay_request()
        if self._is_single:
            self._admitted.update(names)

    def _pay_request(self) -> None:
        if REQUESTS not in self._admitted:
            self._meter.charge(REQUESTS, 1)

    def request(self) -> None:
        self._admit(REQUESTS)

    def publish(self, size: int) -> None:
        self._admit(REQUESTS, PUBLISH)
        self._meter.charge(PUBLISH, size)

    def answer(self) -> None:
        """Never refused: a message whose acknowledgement is refused would be delivered again."""
        self._pay_request()

    def read(self, bytes_max: int) -> int:
        """Return how many bytes may be read at once."""
        self._admit(REQUESTS, CONSUME)
        return self._most(bytes_max)

    async def poll(self, bytes_max: int, wait_us: int) -> tuple[int, int]:
        """Wait for the quota as long as the poll may wait for messages. Return how many bytes it may have, and how
        long it may still wait."""
        names = (CONSUME,) if REQUESTS in self._admitted else (REQUESTS, CONSUME)
        while (throttled := self._meter.wait_us(names))[0]:
            needed_us, name = throttled
            if needed_us > wait_us:
                raise self._meter.exceeded(name, needed_us / 1e6)
            self._meter.throttled[name] += 1
            await asyncio.sleep(needed_us / 1e6)
            wait_us -= needed_us
        self._pay_request()
        return self._most(bytes_max), wait_us

    def _most(self, bytes_max: int) -> int:
        """A second's worth: with more, the next poll would have to wait for long."""
        rate = self._meter.rate(CONSUME)
        return bytes_max if rate is None else min(bytes_max, rate)

    def consumed(self, size: int) -> None:
        self._meter.charge(CONSUME, size)


def size_of(deliveries: Sequence[Delivery]) -> int:
    """Bytes of messages, as they are stored. Of frames of which only a part is delivered, that part."""
    size = 0
    for delivery in deliveries:
        for frame in delivery.frames:
            facts = frame.facts()
            wanted = delivery.receipt.offsets.range_cardinality(facts.base_offset, facts.base_offset + facts.span)
            size += len(frame.data) * wanted // max(facts.messages, 1)
    return size


class Quotas:
    """Belongs to one event loop."""

    def __init__(self, rules: Sequence[QuotaRule], clock: Clock, default: Quota = NONE) -> None:
        """`default` has bounds of counts for principals without a quota of them."""
        self._default = default
        self._rules = rules
        self._clock = clock
        self._meters: dict[str, Meter] = {}
        self._measuring: Iterator[None] | None = None
        # Topics to which publishes are refused.
        self._refused: list[Topic] = []

    def change(self, rules: Sequence[QuotaRule]) -> None:
        self._rules = rules
        for meter in self._meters.values():
            meter.change(quota_of(rules, meter.principal))

    @property
    def meters(self) -> list[Meter]:
        """Of principals that have a quota and were seen."""
        return [meter for meter in self._meters.values() if meter.quota != NONE]

    def meter(self, principal: str) -> Meter:
        found = self._meters.get(principal)
        if found is None:
            quota = quota_of(self._rules, principal)
            found = self._meters[principal] = Meter(principal, quota, self._clock, self._default)
        return found

    def measure(self, broker: Broker) -> None:
        """Add up what is stored, a part of it each time if there is much, and refuse publishes where it is too much."""
        if self._measuring is None:
            if not self._refused and not any(rule.quota.storage_bytes for rule in self._rules):
                return
            self._measuring = self._measured(broker)
        if next(self._measuring, self) is self:
            self._measuring = None

    def _measured(self, broker: Broker) -> Iterator[None]:
        topics = [broker.topic(record.name) for record in broker.topics]
        owners = {topic.name: topic.record.owner for topic in topics if topic.record.owner}
        stored: Counter[str] = Counter()
        measured = 0
        for topic in topics:
            owner = owners.get(topic.name.removesuffix(DEAD_LETTERS))
            if owner is None or self.meter(owner).quota.storage_bytes is None:
                continue
            for partition in topic.partitions:
                stored[owner] += partition.messages.size
                measured += 1
                if measured % _MEASURED_AT_ONCE == 0:
                    yield
        for meter in self._meters.values():
            meter.stored_bytes = stored[meter.principal]
        for topic in self._refused:
            topic.refusal = None
        self._refused = []
        for topic in topics:
            owner = owners.get(topic.name)
            if owner is not None and self.meter(owner).is_full:
                topic.refusal = partial(self.meter(owner).exceeded, STORAGE, _STORAGE_S)
                self._refused.append(topic)
