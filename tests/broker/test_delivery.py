"""One group in one partition, beside a model that is obviously right."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from penstock.broker.delays import Delays
from penstock.broker.delivery import Delivery
from penstock.broker.events import (
    AnyEvent,
    Exhausted,
    Extended,
    GroupEvent,
    Leased,
    Started,
    Together,
    Unparked,
    from_value,
    to_message,
    to_messages,
    unpack,
)
from penstock.broker.key_hash import Hashes
from penstock.broker.lanes import Lanes
from penstock.broker.leasing import Gathered, Leasing
from penstock.broker.offsets import Ints
from penstock.broker.retries import RetryPolicy
from penstock.clock import Instant
from penstock.errors import InvalidSetting, LeaseNotFound, LogCorrupt, NotLeased
from penstock.frame import Frame

POLICY = RetryPolicy(max_retries=2, initial_us=100, factor=2, longest_us=250, jitter=0)


class AllThere:
    """A log from which every message can be read, whatever it is."""

    def gather(self, offsets: BitMap64, bytes_max: int, *, waits: bool = True) -> Gathered:
        return Gathered([], offsets, offsets.max() + 1, 0, 0)

    def hashes_in(self, frames: list[Frame], offsets: Ints) -> Hashes:
        raise NotImplementedError("nobody asks for keys here")

    def published_us(self, offset: int) -> int:
        return 0


def next_lease(
    delivery: Delivery, count: int, end: int, now: int = 0, identity: int = 1, deadline: int = 1000
) -> Leased | None:
    leasing = Leasing(delivery, Lanes(), Delays(0), "none")
    delivery.make_ready(now)
    decision = leasing.lease(
        AllThere(),
        count=count,
        look_at=count,
        bytes_max=1,
        start=0,
        end=end,
        now_us=now,
        consumer="c",
        identity=identity,
        deadline_us=deadline,
    )
    if decision is None:
        return None
    (event,) = decision.events
    assert isinstance(event, Leased)
    return event


def lease(delivery: Delivery, count: int, end: int, now: int = 0, identity: int = 1, deadline: int = 1000) -> Leased:
    event = next_lease(delivery, count, end, now, identity, deadline)
    assert event is not None
    delivery.apply(event, now)
    return event


def offsets_of(event: AnyEvent) -> list[int]:
    return list(unpack(event.offsets))  # type: ignore[union-attr]


def test_messages_are_leased_in_order_and_once() -> None:
    delivery = Delivery("g")
    assert offsets_of(lease(delivery, 3, 10, identity=1)) == [0, 1, 2]
    assert offsets_of(lease(delivery, 100, 10, identity=2)) == [3, 4, 5, 6, 7, 8, 9]
    assert next_lease(delivery, 5, 10, identity=3) is None


def test_the_floor_rises_over_what_is_done_without_a_gap() -> None:
    delivery = Delivery("g")
    lease(delivery, 10, 10)
    delivery.apply(delivery.ack(1, BitMap64([1, 2, 5])), 0)
    assert (delivery.floor, delivery.lag(0, 10)) == (0, 7)
    delivery.apply(delivery.ack(1, BitMap64([0])), 0)
    assert (delivery.floor, list(delivery.done)) == (3, [5])
    delivery.apply(delivery.ack(1, BitMap64([3, 4])), 0)
    assert (delivery.floor, list(delivery.done)) == (6, [])


def test_a_slow_message_blocks_nobody_else() -> None:
    delivery = Delivery("g")
    lease(delivery, 1, 100, identity=1)
    for identity in range(2, 101):
        lease(delivery, 1, 100, identity=identity)
        delivery.apply(delivery.ack(identity, BitMap64([identity - 1])), 0)
    assert (delivery.floor, delivery.lag(0, 100), delivery.in_flight) == (0, 1, 1)


def test_back_off_grows_to_its_cap_and_then_the_message_has_had_enough() -> None:
    delivery = Delivery("g")
    now, waits = 0, []
    for identity in (1, 2, 3):
        assert offsets_of(lease(delivery, 1, 1, now=now, identity=identity, deadline=now + 10)) == [0]
        assert delivery.attempt(0) == identity
        (event,) = delivery.nack(identity, BitMap64([0]), now_us=now, policy=POLICY, reason="no")
        delivery.apply(event, 0)
        if isinstance(event, Exhausted):
            assert event.reason == "no"
            break
        waits.append(event.due_us - now)  # type: ignore[union-attr]
        now = event.due_us  # type: ignore[union-attr]
    assert waits == [100, 200]
    assert delivery.floor == 1


def test_what_a_lease_held_that_ran_out_is_due_at_once_and_comes_ahead_of_fresh_messages() -> None:
    delivery = Delivery("g")
    lease(delivery, 2, 5, identity=1, deadline=10)
    assert delivery.due(Instant.in_log(9), POLICY) == []
    (event,) = delivery.due(Instant.in_log(10), POLICY)
    delivery.apply(event, 10)
    assert delivery.next_due() == 10
    assert offsets_of(lease(delivery, 3, 5, now=10, identity=2)) == [0, 1, 2]
    assert [delivery.attempt(offset) for offset in (0, 1, 2)] == [2, 2, 1]


def test_jitter_stays_within_its_share() -> None:
    policy = RetryPolicy(initial_us=1000, factor=2, longest_us=5000, jitter=0.2, dice=Random(1).random)
    for attempt, plain in ((1, 1000), (2, 2000), (3, 4000), (4, 5000), (500, 5000)):
        delays = [policy.delay_us(attempt) for _ in range(200)]
        assert plain * 0.8 <= min(delays) < max(delays) <= plain * 1.2


@pytest.mark.parametrize(
    "wrong", [{"max_retries": -1}, {"initial_us": -1}, {"factor": 0.5}, {"longest_us": 1}, {"jitter": 1.0}]
)
def test_a_policy_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_answers_for_what_is_not_held_are_refused_and_change_nothing() -> None:
    delivery = Delivery("g")
    lease(delivery, 3, 10)
    delivery.apply(delivery.ack(1, BitMap64([0])), 0)
    for wrong in (BitMap64([0]), BitMap64([1, 7]), BitMap64()):
        with pytest.raises(NotLeased):
            delivery.ack(1, wrong)
    for wrong in (BitMap64([0]), BitMap64([1, 7])):
        with pytest.raises(NotLeased):
            delivery.extend(1, wrong, 5)
    for answer in (
        lambda: delivery.ack(9, BitMap64([1])),
        lambda: delivery.nack(9, BitMap64([1]), now_us=0, policy=POLICY),
        lambda: delivery.reject(9, BitMap64([1]), "no"),
        lambda: delivery.release(9, BitMap64([1])),
        lambda: delivery.extend(9, BitMap64([1]), 5),
        lambda: delivery.extend(9, BitMap64(), 5),
    ):
        with pytest.raises(LeaseNotFound):
            answer()
    delivery.check()
    assert list(delivery.leases[1].offsets) == [1, 2]


def test_a_row_that_is_no_event_is_noticed() -> None:
    for value in (b"", b"\xff", b"\x91\xa1Z", None):
        with pytest.raises(LogCorrupt):
            from_value(value, 1)


def test_a_row_that_has_more_events_than_times_is_noticed() -> None:
    row = Together("", (Unparked("g", ()), Unparked("h", ())), (5,))
    with pytest.raises(LogCorrupt):
        from_value(msgspec.msgpack.encode(row), 1)


@pytest.mark.parametrize("bytes_max", [1, 60, 1_000])
def test_decisions_that_nobody_waited_for_share_rows_and_none_is_cut(bytes_max: int) -> None:
    decisions = [([Unparked("g", (b"k%d" % at,)), Extended("h", at, 7)], 10 + at) for at in range(5)]
    rows = to_messages(decisions, bytes_max=bytes_max)
    read = [from_value(row.value, row.timestamp) for row in rows]
    assert [one for row in read for one in row] == [(event, at) for events, at in decisions for event in events]
    assert all(len(row) % 2 == 0 for row in read)
    assert len(rows) == {1: 5, 60: 3, 1_000: 1}[bytes_max]


@dataclass
class Simple:
    """A message, for somebody with all the time in the world."""

    state: str = "ready"
    attempts: int = 0
    lease: int = 0
    due: int = 0


@dataclass
class Model:
    start: int = 0
    messages: list[Simple] = field(default_factory=list)

    def at(self, state: str) -> list[int]:
        return [o for o, m in enumerate(self.messages) if m.state == state and o >= self.start]


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.delivery = Delivery("g")
        self.model = Model()
        self.journal: list[tuple[bytes | None, int]] = []
        self.now = 0
        self.leases = 0
        self.deadlines: dict[int, int] = {}

    def decided(self, *events: GroupEvent) -> None:
        for event in events:
            self.journal.append((to_message([event], self.now).value, self.now))
            self.delivery.apply(event, self.now)

    def held(self, identity: int) -> list[int]:
        return [o for o in self.model.at("leased") if self.model.messages[o].lease == identity]

    @initialize(start=st.integers(0, 5))
    def start(self, start: int) -> None:
        self.model.messages = [Simple() for _ in range(5)]
        self.model.start = start
        self.decided(Started("g", start))

    @rule(count=st.integers(1, 20))
    def publish(self, count: int) -> None:
        self.model.messages += [Simple() for _ in range(count)]

    @rule(by=st.sampled_from([1, 50, 100, 1000]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(count=st.integers(1, 15), visibility=st.integers(1, 300))
    def lease(self, count: int, visibility: int) -> None:
        self.expire()
        for o in self.model.at("waiting"):
            if self.model.messages[o].due <= self.now:
                self.model.messages[o].state = "ready"
        # Those that came back go first, then fresh ones, each in the order of the log.
        ready = self.model.at("ready")
        cursor = self.delivery.cursors.normal
        expected = ([o for o in ready if o < cursor] + [o for o in ready if o >= cursor])[:count]
        self.leases += 1
        event = next_lease(self.delivery, count, len(self.model.messages), self.now, self.leases, self.now + visibility)
        assert (offsets_of(event) if event else []) == sorted(expected)
        if event:
            self.decided(event)
            self.deadlines[self.leases] = self.now + visibility
        for o in expected:
            message = self.model.messages[o]
            message.state, message.lease = "leased", self.leases
            message.attempts += 1

    def expire(self) -> None:
        self.decided(*self.delivery.due(Instant.in_log(self.now), POLICY))
        for o in self.model.at("leased"):
            message = self.model.messages[o]
            if self.deadlines[message.lease] <= self.now:
                self.fail(message, 0)

    def fail(self, message: Simple, delay: int | None) -> None:
        if message.attempts > POLICY.max_retries:
            message.state = "done"
        else:
            message.state = "waiting"
            message.due = self.now + (min(100 * 2 ** (message.attempts - 1), 250) if delay is None else delay)

    def draw_held(self, data: st.DataObject) -> tuple[int, list[int]] | None:
        identities = sorted({self.model.messages[o].lease for o in self.model.at("leased")})
        if not identities:
            return None
        identity = data.draw(st.sampled_from(identities))
        some = data.draw(st.lists(st.sampled_from(self.held(identity)), min_size=1, unique=True))
        return identity, some

    @rule(data=st.data(), answer=st.sampled_from(["ack", "nack", "nack at once", "nack later", "reject", "release"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        drawn = self.draw_held(data)
        if drawn is None:
            return
        identity, some = drawn
        offsets = BitMap64(some)
        delay = {"nack at once": 0, "nack later": 500}.get(answer)
        if answer == "ack":
            self.decided(self.delivery.ack(identity, offsets))
        elif answer == "reject":
            self.decided(*self.delivery.reject(identity, offsets, "bad"))
        elif answer == "release":
            self.decided(*self.delivery.release(identity, offsets))
        else:
            self.decided(*self.delivery.nack(identity, offsets, now_us=self.now, policy=POLICY, delay_us=delay))
        for o in some:
            message = self.model.messages[o]
            if answer in ("ack", "reject"):
                message.state = "done"
            elif answer == "release":
                message.state = "ready"
                message.attempts -= 1
            else:
                self.fail(message, delay)

    @rule(data=st.data(), by=st.integers(1, 500))
    def extend(self, data: st.DataObject, by: int) -> None:
        drawn = self.draw_held(data)
        if drawn is not None:
            self.decided(self.delivery.extend(drawn[0], BitMap64(drawn[1]), self.now + by))
            self.deadlines[drawn[0]] = self.now + by

    @precondition(lambda self: self.leases > 0)
    @rule(data=st.data())
    def answer_twice(self, data: st.DataObject) -> None:
        identity = data.draw(st.integers(1, self.leases))
        offset = data.draw(st.integers(0, len(self.model.messages)))
        if offset not in self.held(identity):
            with pytest.raises((LeaseNotFound, NotLeased)):
                self.delivery.ack(identity, BitMap64([offset]))
            with pytest.raises((LeaseNotFound, NotLeased)):
                self.delivery.extend(identity, BitMap64([offset]), self.now + 1)

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.model.messages)))
        self.decided(Started("g", start))
        self.model = Model(start, [Simple() for _ in self.model.messages])

    @rule()
    def restart(self) -> None:
        """The same events make the same state."""
        again = Delivery("g")
        for value, at_us in self.journal:
            for event, happened_us in from_value(value, at_us):
                assert isinstance(event, GroupEvent)
                again.apply(event, happened_us)
        again.check()
        assert (again.floor, again.cursors, again.done) == (
            self.delivery.floor,
            self.delivery.cursors,
            self.delivery.done,
        )
        assert again.failures == self.delivery.failures
        assert again.ready | again.waiting == self.delivery.ready | self.delivery.waiting
        assert again.attempts == self.delivery.attempts
        assert again.leases == self.delivery.leases
        self.delivery = again

    @invariant()
    def agrees(self) -> None:
        self.delivery.check()
        assert self.delivery.in_flight == len(self.model.at("leased"))
        assert self.delivery.lag(0, len(self.model.messages)) == len(self.model.messages) - self.model.start - len(
            self.model.at("done")
        )
        for o in self.model.at("leased"):
            assert self.delivery.attempt(o) == self.model.messages[o].attempts
            assert o in self.delivery.leases[self.model.messages[o].lease].offsets


DeliveryMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
test_delivery_agrees_with_the_model = DeliveryMachine.TestCase
