"""The broker beside a model that is obviously right, under everything that may happen to it.

The real broker runs on a disk in memory and a clock that moves when told, all in one thread: whatever it hands to a
pool is done at once. After every step each message must be in the same state in both, in every group.

A failure prints the steps that led to it, as few as Hypothesis could make them.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyroaring import BitMap64

from broker.model import Letter, Log, Message, Place
from penstock.batch import Batch
from penstock.broker import scheduled
from penstock.broker.assignor import Part
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import DeadLetter, Where
from penstock.broker.delays import Delays
from penstock.broker.delivery import Delivery
from penstock.broker.events import GroupEvent, Leased
from penstock.broker.group import Group, Handed, Receipt
from penstock.broker.ids import MessageId
from penstock.broker.key_hash import Hashes
from penstock.broker.key_marks import KeyMarks, Marked, Marks
from penstock.broker.key_order import _SHUT, _WAITING, KeyOrder
from penstock.broker.ordering import Admitted
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.clock import Instant
from penstock.errors import LeaseNotFound, MemberNotFound, NotFound, NotLeased, NotScheduled
from penstock.limits import MIB
from penstock.message import Message as Sent
from penstock.message import Priority
from penstock.storage.log import LogSettings
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles

EXAMPLES = 800
MUTANT_EXAMPLES = 3_000
STEPS = 18
GROUPS_MAX = 2
MESSAGES_MAX = 40
MS, SECOND, MINUTE, HOUR, DAY = 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
CONSUMERS = ("a", "b")
NUMBERS_END = 1 << 16
DEAD_LETTERS = "t.dlq"
DEAD_LETTERS_AGE_US = 7 * DAY
WHEEL_TICK_US = 4096
SMALL_SEGMENTS = LogSettings(segment_bytes_max=4096, segment_age_us_max=SECOND)

T = TypeVar("T")
# Value, key, priority, and when it is due.
Copy = tuple[bytes | None, bytes | None, int, int]


class StillLoop(asyncio.SelectorEventLoop):
    """Nothing happens here because time has passed: what is done later is done when the machine says so."""

    def time(self) -> float:
        return 0.0


class MachineClock(ManualClock):
    def reboot(self) -> int:
        """By how much the monotonic clock has changed. The wall clock runs on."""
        before, self._monotonic_us = self._monotonic_us, 7 * SECOND
        return self._monotonic_us - before


class Inline(Executor):
    """Work is done at once, by whoever hands it in; for as long as there is power."""

    def __init__(self) -> None:
        self.left: int | None = None

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        if self.left is not None:
            if self.left == 0:
                return future
            self.left -= 1
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Traffic(NamedTuple):
    """What kinds of messages there are. The fewer there are, the more they have to do with each other."""

    keys: Sequence[bytes | None]
    priorities: Sequence[int]
    delays: Sequence[int | None]
    ttls: Sequence[int | None]


class Digits:
    """Choices out of a number, one after the other."""

    def __init__(self, number: int) -> None:
        # Hypothesis likes small numbers; those too shall be all kinds of things.
        self.rest = number * 40_503 % NUMBERS_END

    def below(self, bound: int) -> int:
        self.rest, digit = divmod(self.rest, bound)
        return digit

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


class Given(NamedTuple):
    """What a consumer of a group got, once."""

    group: str
    receipt: Receipt


class Member(NamedTuple):
    session_us: int | None
    deadline_us: int | None

    def is_silent(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us


class Ghosts:
    """Members of a time before a restart. What they had is kept for them for a while."""

    def __init__(self) -> None:
        self.ever: set[str] = set()
        self.expected: set[str] = set()
        self.until_us: int | None = None

    def restart(self) -> None:
        self.expected, self.until_us = set(self.ever), None

    def called(self, member: str, now_us: int) -> None:
        """The time of the others runs from the first that is heard of."""
        self.ever.add(member)
        self.expected.discard(member)
        if self.until_us is None:
            self.until_us = now_us + SESSION_US

    def tick(self, now_us: int) -> None:
        if self.until_us is not None and self.until_us <= now_us:
            self.expected.clear()


# An index into whatever there is at that time, and some of it.
ANY = st.integers(0, 63)
SOME = st.integers(0, 15)
# As many choices as anybody needs.
NUMBERS = st.integers(0, NUMBERS_END - 1)
SESSION_US = 20 * SECOND
LONG_DELAYS = (5 * MINUTE, 30 * HOUR, 300 * DAY, 0, -MS)
TRAFFIC = st.builds(
    Traffic,
    keys=st.sampled_from([(b"k", b"l"), (b"k",), (b"k", b"l", None, b"")]),
    priorities=st.sampled_from([(0,), (0, 1), (1, 0, -1)]),
    delays=st.sampled_from([(None,), (None, 5 * MS), (None, None, None, 5 * MS, 3 * SECOND), (None, *LONG_DELAYS)]),
    ttls=st.sampled_from([(None,), (None,), (None, 20 * MS, 4 * SECOND)]),
)
SETTINGS = st.builds(
    GroupSettings,
    start=st.sampled_from(["earliest", "earliest", "latest"]),
    visibility_us=st.just(2 * SECOND),
    max_retries=st.sampled_from([1, 0, 2]),
    backoff_initial_us=st.just(10 * MS),
    backoff_factor=st.sampled_from([1.0, 2.0]),
    backoff_max_us=st.just(30 * MS),
    backoff_jitter=st.just(0.0),
    ordering=st.sampled_from(["key", "key", "key", "none", "partition"]),
    on_poison=st.sampled_from(["park", "park", "skip", "skip", "block"]),
    assignment=st.sampled_from(["sticky", "sticky", "shared"]),
    lanes=st.sampled_from(["strict", "weighted", "none"]),
    max_in_flight=st.sampled_from([20_000, 20_000, 3]),
    session_us=st.just(SESSION_US),
)
TOPICS = st.builds(
    TopicSettings,
    retention_age_us=st.sampled_from([None, SECOND, 5 * MINUTE]),
    retention_bytes=st.sampled_from([None, None, 5_000]),
    cleanup=st.sampled_from(["delete", "delete", "compact"]),
    dead_letters=st.sampled_from([True, True, True, False]),
)
_WORK = ["lease"] * 6 + ["answer"] * 6 + ["publish"] * 2 + ["wait", "redrive"]
_ANSWERS = ["ack", "ack", "nack", "nack at once", "nack later", "reject", "release", "extend"]
ANSWERS = st.sampled_from(_ANSWERS)
TIMES = [MS, 6 * MS, 11 * MS, 25 * MS, SECOND, 2 * SECOND, 21 * SECOND, 6 * MINUTE, 31 * HOUR, 301 * DAY]
STEPS_OF_THE_CLOCK = [-1, -7 * MS, 7 * MS, -3 * SECOND, 3 * SECOND, -HOUR, HOUR, 10 * 365 * DAY]
CHORES = ["maintain", "maintain", "snapshot", "close", "kill", "power loss", "earliest", "latest", "offset"]


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = StillLoop()
        self.clock = MachineClock()
        self.executor = Inline()
        self.random = Random(0)
        self.disk = MemoryDisk()
        self.broker: Broker
        self.log_settings: LogSettings | None = None
        self.settings: TopicSettings
        self.traffic: Traffic
        self.logs: list[Log] = []
        self.letters: list[Letter] = []
        self.places: dict[str, list[Place]] = {}
        # Groups that are polled by members; from the others anybody may lease.
        self.members: dict[str, dict[str, Member]] = {}
        self.ghosts: dict[str, Ghosts] = {}
        self.given: list[Given] = []
        self.lease_ids: set[tuple[int, int]] = set()
        self.letters_lost = 0
        # Compared only when they may have changed, for it takes long.
        self.letters_seen = 0
        self.sees_times = True
        self.published = 0

    def teardown(self) -> None:
        self.cancel_all()
        self.loop.close()

    # --- the broker --------------------------------------------------------------------------------------

    def open(self) -> None:
        self.executor.left = None
        self.letters_seen, self.sees_times = -1, True
        for log in self.logs:
            log.restart()
        self.broker = self.loop.run_until_complete(
            Broker.open(
                MemoryFiles(self.disk),
                clock=self.clock,
                executor=self.executor,
                new_id=functools.partial(self.random.randbytes, 16),
                log_settings=self.log_settings,
                lone_writes=False,
            )
        )
        for place in self.all_places():
            state = self.state(place)
            deadlines = {lease.id: lease.deadline_us for lease in state.leases.values()}
            waits = {offset: due_us for due_us, offsets in state.waits() for offset in offsets}
            place.recall(deadlines, waits, self.monotonic)
        self.run(_nothing())

    def cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def flush(self) -> None:
        """What the broker holds back for a moment is written."""
        for partition in self.partitions:
            self.run(partition.groups.flushed())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Until it is done, and everything that it started."""

        async def all_of_it() -> T:
            try:
                return await work
            finally:
                # The loop hears of what was written a moment later, and only then begins what follows from it.
                for _ in range(3):
                    await asyncio.sleep(0)
                await self.broker.settle()

        result = self.loop.run_until_complete(all_of_it())
        assert self.broker.failure is None, self.broker.failure
        return result

    @property
    def now(self) -> int:
        return self.clock.now_us()

    @property
    def monotonic(self) -> int:
        return self.clock.monotonic_us()

    @property
    def instant(self) -> Instant:
        return Instant.of(self.clock)

    @property
    def partitions(self) -> list[Partition]:
        return self.broker.topic("t").partitions

    def group(self, name: str) -> Group:
        return self.broker.group(name, "t")

    def state(self, place: Place) -> Delivery:
        return self.partitions[place.number].groups.state(place.group)

    def all_places(self) -> list[Place]:
        return [place for places in self.places.values() for place in places]

    # --- topics and groups -------------------------------------------------------------------------------

    @initialize(
        partitions=st.sampled_from([1, 1, 1, 2]),
        has_small_segments=st.booleans(),
        settings=TOPICS,
        traffic=TRAFFIC,
        numbers=st.lists(NUMBERS, min_size=1, max_size=6),
        group=SETTINGS,
        has_members=st.sampled_from([False, False, False, True]),
    )
    def begin(
        self,
        partitions: int,
        has_small_segments: bool,
        settings: TopicSettings,
        traffic: Traffic,
        numbers: list[int],
        group: GroupSettings,
        has_members: bool,
    ) -> None:
        self.log_settings = SMALL_SEGMENTS if has_small_segments else None
        self.open()
        self.settings = settings
        self.logs = [Log() for _ in range(partitions)]
        self.run(self.broker.create_topic("t", partitions, settings))
        self.traffic = traffic
        self.publish(numbers)
        self.new_group(group, has_members)

    @precondition(lambda self: len(self.places) < GROUPS_MAX)
    @rule(settings=SETTINGS, has_members=st.sampled_from([False, False, False, True]))
    def new_group(self, settings: GroupSettings, has_members: bool) -> None:
        name = f"g{len(self.places)}"
        self.run(self.broker.create_group(name, settings))
        self.run(self.group(name).start())
        letters = self.letters if self.settings.dead_letters else None
        self.places[name] = [Place(name, number, settings, log, letters) for number, log in enumerate(self.logs)]
        if has_members:
            self.members[name] = {}
            self.ghosts[name] = Ghosts()

    def pick(self, which: int) -> str:
        return list(self.places)[which % len(self.places)]

    # --- publishing --------------------------------------------------------------------------------------

    def sent(self, digits: Digits) -> Sent:
        self.published += 1
        key, priority = digits.pick(self.traffic.keys), digits.pick(self.traffic.priorities)
        delay, ttl = digits.pick(self.traffic.delays), digits.pick(self.traffic.ttls)
        note(f"    publish message {self.published}: key {key!r}, priority {priority}, delay {delay}, ttl {ttl}")
        return Sent(
            b"%d" % self.published + b" " * (1000 if self.log_settings else 0),
            key,
            deliver_at=0 if delay is None else self.now + delay,
            expires_at=0 if ttl is None else self.now + ttl,
            priority=priority,
        )

    def stored(self, sent: Sent, partition: int, offset: int) -> Message:
        message = self.logs[partition].publish(
            sent.value, sent.key, sent.priority, sent.deliver_at, sent.expires_at, self.instant
        )
        assert message.offset == offset
        return message

    @precondition(lambda self: self.published < MESSAGES_MAX)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=3))
    def publish(self, numbers: list[int]) -> None:
        """One alone, or a batch."""
        messages = [self.sent(Digits(number)) for number in numbers]
        if len(messages) == 1:
            published = self.run(self.broker.topic("t").publish(messages[0]))
            self.stored(messages[0], published.partition, published.offset)
            return
        batch = self.run(self.broker.topic("t").publish_batch(Batch.from_messages(messages, self.now)))
        for sent, partition, offset in zip(messages, batch.partitions.tolist(), batch.offsets.tolist(), strict=True):
            self.stored(sent, partition, offset)

    # --- time --------------------------------------------------------------------------------------------

    @rule(by=st.sampled_from(TIMES), is_noticed=st.booleans())
    def time_passes(self, by: int, is_noticed: bool) -> None:
        """Nobody need have noticed when the next one asks for something."""
        self.clock.advance_us(by)
        if is_noticed:
            self.tick()

    @rule(by=st.sampled_from(STEPS_OF_THE_CLOCK), is_noticed=st.booleans())
    def the_clock_is_set(self, by: int, is_noticed: bool) -> None:
        """No time passes."""
        self.clock.step_us(by)
        if is_noticed:
            self.tick()

    def tick(self) -> None:
        self.run(self.broker.tick())
        for log in self.logs:
            log.tick(self.now)
        for place in self.all_places():
            place.tick(self.instant)
        for ghosts in self.ghosts.values():
            ghosts.tick(self.monotonic)
        for members in self.members.values():
            for name in [name for name, member in members.items() if member.is_silent(self.monotonic)]:
                del members[name]

    # --- leases ------------------------------------------------------------------------------------------

    @rule(
        which=ANY,
        partition=ANY,
        consumer=st.sampled_from(CONSUMERS),
        count=st.sampled_from([1, 2, 3, 4, 50]),
        bytes_max=st.sampled_from([MIB, MIB, MIB, MIB, 1, 1500]),
        visibility_us=st.sampled_from([None, None, 5 * MS, 40 * MS]),
    )
    def lease(
        self,
        which: int,
        consumer: str,
        count: int,
        partition: int = 2,
        bytes_max: int = MIB,
        visibility_us: int | None = None,
    ) -> None:
        name = self.pick(which)
        options = {"count": count, "bytes_max": bytes_max, "visibility_us": visibility_us}
        if name in self.members:
            self.poll(name, consumer, **options)
            return
        # Of one partition, or of all.
        numbers = list(range(len(self.logs)))
        if len(numbers) > 1 and partition % 3 < 2:
            numbers = [partition % 3]
        work = functools.partial(self.group(name).lease, consumer, partitions=numbers, **options)
        self.lease_and_compare(name, consumer, numbers, work, **options)

    def lease_and_compare(
        self,
        name: str,
        consumer: str,
        numbers: list[int],
        work: Callable[[], Coroutine[Any, Any, list[Handed]]],
        *,
        count: int,
        bytes_max: int,
        visibility_us: int | None,
    ) -> None:
        if len(numbers) > 1:
            # A lease that is content with the first partitions does not look at the others.
            self.tick()
        places = [self.places[name][number] for number in numbers]
        expected: dict[int, list[int]] = {}
        is_exact = bytes_max == MIB
        gone = 0
        for place in places:
            place.log.tick(self.now)
            place.tick(self.instant)
            expected[place.number] = []
            place.make_ready(self.monotonic)
            if place.room > 0:
                found, passes_over = place.next_ones(self.now)
                is_exact = is_exact and not passes_over and place.settings.ordering != "key"
                expected[place.number] = found[: min(count, place.room)]
                gone += sum(message.is_gone and place.is_to_come(message.offset) for message in place.log.messages)
        handed = self.run(work())
        got = self.got(name, handed)
        total = sum(map(len, got.values()))
        possible = min(count, sum(map(len, expected.values())))
        if is_exact:
            assert total == possible, (got, expected)
        else:
            # What is gone may have been read a moment earlier.
            assert min(possible, 1) <= total <= min(count, possible + gone), (got, expected)
        for place in places:
            actual = got.pop(place.number, [])
            self.check_choice(place, expected[place.number], actual, bytes_max)
            self.take(place, consumer, handed, actual, visibility_us)
            state = self.state(place)
            for message in place.log.messages:
                is_over = message.is_gone or message.has_expired(self.now)
                if is_over and place.is_to_come(message.offset) and state.is_done(message.offset):
                    place.pass_over(message.offset, self.now)
        assert not got, "messages of partitions that were not asked for"

    def got(self, name: str, handed: list[Handed]) -> dict[int, list[int]]:
        """Offsets in the order of delivery, by partition. The frames must hold what the receipts speak of."""
        got: dict[int, list[int]] = {}
        for receipt, frames in handed:
            values: dict[int, bytes | None] = {}
            for frame in frames:
                batch = frame.batch()
                values.update(zip(frame.offsets(batch).tolist(), batch.values(), strict=True))
            messages = self.logs[receipt.partition].messages
            for offset in receipt.offsets:
                assert values[offset] == messages[offset].value
            if self.places[name][0].settings.lanes != "none":
                assert len({messages[offset].priority for offset in receipt.offsets}) == 1
            got.setdefault(receipt.partition, []).extend(receipt.offsets)
            self.given.append(Given(name, receipt))
        return got

    def check_choice(self, place: Place, expected: list[int], actual: list[int], bytes_max: int) -> None:
        everything, _ = place.next_ones(self.now)
        there = [offset for offset in actual if not place.log.messages[offset].is_gone]
        assert set(there) <= set(everything)
        is_strict = place.settings.lanes == "strict" and bytes_max == MIB
        if place.settings.ordering != "key" and (is_strict or place.settings.lanes == "none"):
            assert there == expected[: len(there)]
        queues: dict[tuple[bytes | None, int], list[int]] = defaultdict(list)
        for offset in everything:
            queues[place.log.messages[offset].key, place.place_in_order(offset)[0]].append(offset)
        for queue in queues.values():
            taken = [offset for offset in there if offset in queue]
            assert taken == queue[: len(taken)], "out of order"
        if is_strict:
            lanes = [place.lane(place.log.messages[offset]) for offset in there]
            assert lanes == sorted(lanes)
            left = [place.lane(place.log.messages[offset]) for offset in everything if offset not in there]
            assert not left or not lanes or max(lanes) <= min(left), "a lane was left out"
        for offset in there:
            self.check_order(place, offset, actual)

    def check_order(self, place: Place, offset: int, together: list[int]) -> None:
        """Nothing before it of the same key, or of the same partition, that is still to come or under way."""
        if place.settings.ordering == "none":
            return
        message = place.log.messages[offset]
        for before in place.log.messages[:offset]:
            is_same = place.settings.ordering == "partition" or (message.key is not None and before.key == message.key)
            is_same = is_same and place.lane(before) == place.lane(message)
            if is_same and before.offset not in together and not place.is_done(before.offset):
                is_out_of_it = before.is_delayed or before.is_cancelled or before.is_gone
                assert is_out_of_it or before.has_expired(self.now), "out of order"

    def take(
        self, place: Place, consumer: str, handed: list[Handed], actual: list[int], visibility_us: int | None
    ) -> None:
        receipts = [receipt for receipt, _ in handed if receipt.partition == place.number]
        if not receipts:
            return
        (identity,) = {receipt.lease for receipt in receipts}
        assert (place.number, identity) not in self.lease_ids, "the id of another lease"
        self.lease_ids.add((place.number, identity))
        visibility = place.settings.visibility_us if visibility_us is None else visibility_us
        place.lease(identity, consumer, actual, self.instant, visibility)
        for receipt in receipts:
            for offset in receipt.offsets:
                assert self.group(place.group).attempt(receipt, offset) == place.of(offset).attempts

    # --- answers -----------------------------------------------------------------------------------------

    def has_leases(self) -> bool:
        return any(place.leases for place in self.all_places())

    def held(self, which: int, some: int) -> tuple[Place, int, list[int]]:
        """Some messages of a live lease."""
        live = [(place, identity) for place in self.all_places() for identity in place.leases]
        place, identity = live[which % len(live)]
        offsets = place.held(identity)
        return place, identity, [o for i, o in enumerate(offsets) if some >> i & 1] or offsets

    def answer(self, which: int, some: int, answer: str) -> None:
        place, identity, offsets = self.held(which, some)
        self.run(self.answering(place, identity, offsets, answer))
        self.answered(place, identity, offsets, answer)

    async def answering(self, place: Place, identity: int, offsets: list[int], answer: str) -> None:
        group, receipt = self.group(place.group), Receipt(place.number, identity, BitMap64(offsets))
        match answer:
            case "ack":
                await group.ack(receipt)
            case "reject":
                await group.reject(receipt, "bad")
            case "release":
                await group.release(receipt)
            case "extend":
                await group.extend(receipt, 10 * MS)
            case _:
                await group.nack(receipt, reason=answer, delay_us=_delay_of(answer))

    def answered(self, place: Place, identity: int, offsets: list[int], answer: str) -> None:
        match answer:
            case "ack":
                place.ack(offsets)
            case "reject":
                place.reject(identity, offsets, self.now, "bad")
            case "release":
                place.release(identity, offsets)
            case "extend":
                place.extend(identity, self.instant, 10 * MS)
            case _:
                place.nack(identity, offsets, self.instant, answer, _delay_of(answer))

    @precondition(has_leases)
    @rule(
        which=ANY, some=SOME, answer=ANSWERS, other=st.sampled_from([None, 0, 1]), wrong=st.sampled_from([None, 0, 5])
    )
    def answer_twice(self, which: int, some: int, answer: str, other: int | None, wrong: int | None) -> None:
        """Or late, in another group's name, for a message too many."""
        self.answer(which, some, answer)
        given = self.given[-1 - some % len(self.given)]
        name = given.group if other is None else self.pick(other)
        receipt = given.receipt
        place = self.places[name][receipt.partition]
        offsets = set(receipt.offsets) | ({wrong} if wrong is not None else set())
        held = set(place.held(receipt.lease))
        if not offsets <= held:
            with pytest.raises(NotLeased if held else LeaseNotFound):
                self.run(self.answering(place, receipt.lease, sorted(offsets), answer))

    # --- business as usual -------------------------------------------------------------------------------

    @rule(numbers=st.lists(NUMBERS, min_size=3, max_size=10))
    def consume(self, numbers: list[int]) -> None:
        """What consumers and producers do all day; each number is one thing, of those that can be done at that time."""
        for number in numbers:
            self.do_one_thing(number)
            self.agrees()

    @rule(numbers=st.lists(NUMBERS, min_size=3, max_size=10))
    def consume_more(self, numbers: list[int]) -> None:
        self.consume(numbers)

    def do_one_thing(self, number: int) -> None:
        digits = Digits(number)
        what = digits.pick(_WORK)
        groups = [number for number, name in enumerate(self.places) if self.has_something_for(name)]
        if what == "lease" and not groups and digits.below(2):
            what = "answer" if self.has_leases() else "publish"
        if what == "answer" and self.has_leases():
            which, answer, some = digits.below(4), digits.pick(_ANSWERS), digits.below(16)
            note(f"    {answer} lease {which}, some {some}")
            self.answer(which, some, answer)
        elif what == "publish" and self.published < MESSAGES_MAX:
            self.publish([digits.rest])
        elif what == "wait":
            by = digits.pick([2 * MS, 6 * MS, 11 * MS, 25 * MS, 2 * SECOND])
            note(f"    {by} microseconds pass")
            self.clock.advance_us(by)
        elif what == "redrive" and self.letters:
            note("    redrive")
            self.redrive(Where(), None)
        else:
            # Also where there should be nothing, sometimes.
            which, count = digits.pick(groups or range(len(self.places))), 1 + digits.below(4)
            consumer = self.owner(self.pick(which)) or digits.pick(CONSUMERS)
            note(f"    {consumer} leases {count} from group {which}")
            self.lease(which, consumer, count)

    def has_something_for(self, name: str) -> bool:
        for place in self.places[name]:
            place.make_ready(self.monotonic)
            if place.room > 0 and place.next_ones(self.now)[0]:
                return True
        return False

    def owner(self, name: str) -> str | None:
        """A member that may lease."""
        members = self.broker.consumers.of(name) if name in self.members else None
        return members and members.owner(Part("t", self.published % len(self.logs)))

    # --- moving about ------------------------------------------------------------------------------------

    def seek(self, which: int, to: str, offset: int) -> None:
        name = self.pick(which)
        place = self.places[name][offset % len(self.logs)]
        start, end = place.log.start, len(place.log.messages)
        if to == "offset":
            position = start + offset % (end - start + 1)
            self.run(self.group(name).seek(offset=position, partition=place.number))
        else:
            position = start if to == "earliest" else end
            self.run(self.group(name).seek(to, partition=place.number))  # type: ignore[arg-type]
        place.move(position)

    # --- delayed messages --------------------------------------------------------------------------------

    @precondition(lambda self: any(log.delayed for log in self.logs))
    @rule(
        which=ANY,
        only_delayed=st.sampled_from([True, True, True, False]),
        delay_us=st.sampled_from(["never", None, 0, 5 * MS, SECOND, 10 * MINUTE, 40 * DAY]),
    )
    def reschedule(self, which: int, only_delayed: bool, delay_us: int | str | None) -> None:
        found = [
            (number, message)
            for number, log in enumerate(self.logs)
            for message in ((only_delayed and log.delayed) or log.messages)
        ]
        number, message = found[which % len(found)]
        topic, identity = self.broker.topic("t"), MessageId("t", number, message.offset)
        due_us = self.now + delay_us if isinstance(delay_us, int) else 0
        if delay_us == "never":
            work = scheduled.cancel(topic, identity)
        else:
            work = scheduled.reschedule(topic, identity, due_us, self.clock)
        if not message.is_delayed:
            with pytest.raises(NotScheduled):
                self.run(work)
            return
        self.run(work)
        self.sees_times = True
        message.is_cancelled = delay_us == "never"
        message.is_delayed = due_us > self.now
        message.due_us = due_us

    # --- what was given up -------------------------------------------------------------------------------

    @precondition(lambda self: self.letters or any(place.parked for place in self.all_places()))
    @rule(
        which=ANY,
        what=st.sampled_from(["redrive", "redrive", "redrive slowly", "release a key", "discard"]),
        every=st.booleans(),
        key=st.sampled_from([b"k", b"l", b"", None]),
    )
    def go_on_after_a_death(self, which: int, what: str, every: bool, key: bytes | None) -> None:
        if what == "release a key":
            self.release_key(which, key)
        elif self.letters:
            where = self.where(which, every)
            if what == "discard":
                self.discard(where)
            else:
                self.redrive(where, None if what == "redrive" else 100)

    def release_key(self, which: int, key: bytes | None) -> None:
        name = self.pick(which)
        parked = [place for place in self.places[name] if key in place.parked]
        if not parked:
            with pytest.raises(NotFound):
                self.run(self.group(name).release_key(key))
            return
        assert self.run(self.group(name).release_key(key)) == len(parked)
        for place in parked:
            del place.parked[key]

    def redrive(self, where: Where, rate: int | None) -> None:
        meant = [(letter, one) for letter, one in self.real_letters() if not letter.is_settled and where.fits(one)]
        result = self.run(self.broker.dead_letters.redrive("t", where, rate=rate))
        fates = {identity: fate for fate, some in result._asdict().items() for identity in some}
        assert fates.keys() == {one.id for _, one in meant}
        copies: list[Copy] = []
        sent = 0
        # In the order of the messages, whenever they died.
        for letter, one in sorted(meant, key=lambda pair: (pair[0].partition, pair[0].offset)):
            place, fate = self.places[letter.group][letter.partition], fates[one.id]
            if place.counts_deaths(letter.offset):
                assert fate == place.fate(letter)
            wait_us = sent * SECOND // rate if rate else 0
            if fate == "in_place":
                place.redrive(letter.offset, self.monotonic, wait_us)
            if fate == "copied":
                copies.append((letter.value, letter.key, letter.priority, self.now + wait_us if rate else 0))
            sent += fate in ("in_place", "copied")
            letter.is_settled = fate != "refused"
        self.find_copies(copies)

    def find_copies(self, copies: list[Copy]) -> None:
        """What was published by somebody else."""
        for number, (partition, log) in enumerate(zip(self.partitions, self.logs, strict=True)):
            for offset in range(len(log.messages), partition.messages.end_offset):
                message = partition.reading.message(offset).message
                copies.remove((message.value, message.key, message.priority, message.deliver_at))
                assert not message.expires_at
                self.stored(message, number, offset)
        assert not copies

    def discard(self, where: Where) -> None:
        for letter, one in self.real_letters():
            letter.is_settled = letter.is_settled or where.fits(one)
        self.run(self.broker.dead_letters.discard("t", where))

    def where(self, which: int, every: bool) -> Where:
        if every:
            return Where()
        letters = self.real_letters()
        return Where(ids=(str(letters[which % len(letters)][1].id),))

    def real_letters(self) -> list[tuple[Letter, DeadLetter]]:
        """Exactly one for each time that something was given up, and it says why."""
        expected = defaultdict(list)
        for letter in self.letters:
            expected[letter.group, letter.partition, letter.offset].append(letter)
        pairs = []
        for one in self.broker.dead_letters.letters("t", with_settled=True):
            obituary = one.obituary
            same = expected[obituary.group, obituary.partition, obituary.offset]
            assert same, "a dead letter too many"
            letter = same.pop(0)
            if self.places[letter.group][letter.partition].counts_deaths(letter.offset):
                assert obituary.round == letter.round
            message = (one.message.value, one.message.key, one.message.priority)
            assert message == (letter.value, letter.key, letter.priority)
            assert (obituary.reason, obituary.attempts) == (letter.reason, letter.attempts)
            assert obituary.failures == letter.failures
            assert one.is_settled == letter.is_settled
            pairs.append((letter, one))
        assert len(pairs) == len(self.letters), "a dead letter is missing"
        return pairs

    # --- members -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.members)
    @rule(which=ANY, member=st.sampled_from(CONSUMERS), change=st.sampled_from(["join", "join for a while", "leave"]))
    def come_and_go(self, which: int, member: str, change: str) -> None:
        name = list(self.members)[which % len(self.members)]
        if change == "leave":
            self.broker.leave(name, member)
            self.run(_nothing())
            self.members[name].pop(member, None)
            self.ghosts[name].called(member, self.monotonic)
        else:
            self.join(name, member, 5 * SECOND if change == "join for a while" else None)

    def join(self, name: str, member: str, session_us: int | None) -> None:
        self.run(self.broker.join(name, member, ["t"], session_us=session_us))
        deadline = None if session_us is None else self.monotonic + session_us
        self.members[name][member] = Member(session_us, deadline)
        self.ghosts[name].called(member, self.monotonic)

    def poll(self, name: str, member: str, **options: Any) -> None:
        if member not in self.members[name]:
            with pytest.raises(MemberNotFound):
                self.run(self.broker.poll(name, member, ["t"]))
            self.join(name, member, 5 * SECOND)
        known = self.members[name][member]
        if known.session_us is not None:
            self.members[name][member] = known._replace(deadline_us=self.monotonic + known.session_us)
        numbers = self.broker.consumers.leasable(name, member, "t")
        self.check_leasable(name, member, numbers)

        async def work() -> list[Handed]:
            return [polled.handed for polled in await self.broker.poll(name, member, ["t"], **options)]

        self.lease_and_compare(name, member, numbers, work, **options)

    def check_leasable(self, name: str, member: str, numbers: list[int]) -> None:
        """All partitions are everybody's, or each has one owner."""
        members = self.broker.consumers.of(name)
        assert members is not None
        for place in self.places[name]:
            is_shared = place.settings.assignment == "shared"
            is_owner = members.owner(Part("t", place.number)) == member
            assert (place.number in numbers) == (is_shared or is_owner)

    # --- upkeep ------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(CHORES), which=ANY, number=ANY)
    def administer(self, what: str, which: int, number: int) -> None:
        match what:
            case "maintain":
                self.maintain()
            case "snapshot":
                for partition in self.partitions:
                    self.run(_awaited(partition.groups.snapshot))
            case "close" | "kill" | "power loss":
                self.restart(what, number)
            case _:
                self.seek(which, what, number)

    def maintain(self) -> None:
        letters = self.real_letters() if self.letters else []
        self.run(self.broker.maintain())
        for partition, log in zip(self.partitions, self.logs, strict=True):
            there = set()
            for frame in partition.messages.frames(partition.messages.start_offset):
                there.update(frame.offsets(frame.batch()).tolist())
            for message in log.messages:
                if message.offset not in there and not message.is_gone:
                    self.check_may_go(log, message)
                    message.is_gone = True
            log.start = partition.messages.start_offset
            log.known_gone = {message.offset for message in log.messages if message.is_gone}
        left = {one.id for one in self.broker.dead_letters.letters("t", with_settled=True)} if letters else set()
        for letter, one in letters:
            if one.id not in left:
                assert letter.is_settled
                assert letter.died_us < self.now - DEAD_LETTERS_AGE_US
                self.letters.remove(letter)
                self.letters_lost += 1

    def check_may_go(self, log: Log, message: Message) -> None:
        assert not message.is_delayed, "nobody has seen it yet"
        for place in self.all_places():
            if place.log is log and place.settings.ordering == "key":
                state, due_us = place.of(message.offset).state, place.of(message.offset).due_us
                is_busy = state == "leased" or (state == "waiting" and due_us > self.monotonic)
                assert not is_busy, "its key is busy with it"
        if self.settings.cleanup == "compact":
            assert message.key is not None
            assert message.key in {later.key for later in log.messages[message.offset + 1 :]}
            return
        age = self.settings.retention_age_us
        is_old = age is not None and (message.published_us < self.now - age or message.stored_us < self.monotonic - age)
        assert is_old or self.settings.retention_bytes is not None

    # --- the end of the world ----------------------------------------------------------------------------

    def restart(self, how: str, seed: int) -> None:
        if how == "close":
            self.run(self.broker.close())
            self.forget_members()
            self.open()
        else:
            self.flush()
            self.end(how == "power loss", seed)

    def end(self, power_is_lost: bool = False, seed: int = 0) -> None:
        self.forget_members()
        self.cancel_all()
        self.disk = self.disk.after_power_loss(Random(seed)) if power_is_lost else self.disk.after_kill()
        if power_is_lost:
            by_us = self.clock.reboot()
            for log in self.logs:
                log.reboot(by_us)
            for place in self.all_places():
                place.reboot(by_us)
        self.open()

    def forget_members(self) -> None:
        for name, members in self.members.items():
            members.clear()
            self.ghosts[name].restart()

    @precondition(has_leases)
    @rule(which=ANY, some=SOME, answer=ANSWERS, writes=st.integers(0, 4))
    def crash_while_answering(self, which: int, some: int, answer: str, writes: int) -> None:
        """For example between the row that says it is given up, its letter, and the row that says that it is there."""
        place, identity, offsets = self.held(which, some)
        self.flush()
        self.executor.left = writes
        task = self.loop.create_task(self.answering(place, identity, offsets, answer))
        for _ in range(20):
            self.loop.run_until_complete(asyncio.sleep(0))
        assert task.done() == bool(writes)
        if writes:
            task.result()
            self.answered(place, identity, offsets, answer)
        self.end()

    @rule(
        number=st.none() | NUMBERS,
        by=st.sampled_from([0, 6 * MS, 25 * MS]),
        which=ANY,
        consumer=st.sampled_from(CONSUMERS),
        counts=st.lists(st.sampled_from([1, 2, 50]), min_size=1, max_size=2),
    )
    def crash_before_it_is_written(
        self, number: int | None, by: int, which: int, consumer: str, counts: list[int]
    ) -> None:
        """What nobody waits for is as if it had never been: leases, what they found due, what was due at once."""
        self.tick()
        self.flush()
        before = copy.deepcopy((self.logs, self.places, self.letters))
        published: list[tuple[int, Message]] = []
        if number is not None:
            self.publish([number])
            published = [
                (partition, log.messages[-1])
                for partition, (log, old) in enumerate(zip(self.logs, before[0], strict=True))
                if len(log.messages) > len(old.messages)
            ]
        deadlines = [lease.deadline_us for place in self.all_places() for lease in place.leases.values()]
        if len(self.logs) == 1 and self.monotonic + by < min(deadlines, default=self.monotonic + by + 1):
            # That a lease has run out is written at once, with all before it.
            self.clock.advance_us(by)
        for count in counts:
            self.lease(which, consumer, count)
        self.logs, self.places, self.letters = before
        for partition, message in published:
            self.logs[partition].messages.append(message)
            message.is_delayed = message.due_us > 0
        self.end()

    # --- comparing ---------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        for name, places in self.places.items():
            for place in places:
                self.check_place(place)
            assert self.group(name).lag() == [self.lag(place) for place in places]
        for name in self.members:
            self.check_members(name)
        for partition, log in zip(self.partitions, self.logs, strict=True):
            assert list(partition.groups.delays.pending) == [message.offset for message in log.delayed]
        if self.sees_times:
            self.check_times()
        if self.letters_seen != len(self.letters) + self.letters_lost:
            self.real_letters()
            self.letters_seen = len(self.letters) + self.letters_lost
        if self.letters:
            graves = self.broker.topic(DEAD_LETTERS).partitions
            assert sum(partition.messages.end_offset for partition in graves) == self.letters_seen

    def check_place(self, place: Place) -> None:
        state = self.state(place)
        lanes = self.partitions[place.number].groups.lanes
        state.check(None if place.settings.lanes == "none" else (lanes.high, lanes.low))
        leases = {one.id: (one.consumer, one.leased_us, one.deadline_us) for one in state.leases.values()}
        assert leases == {one.id: (one.consumer, one.leased_us, one.deadline_us) for one in place.leases.values()}
        waits = {offset: due_us for due_us, offsets in state.waits() for offset in offsets}
        holders = {offset: one.id for one in state.leases.values() for offset in one.offsets}
        for message in place.log.messages:
            self.check_message(place, message, state, waits, holders)
        parked = {token[1:] if token else None: one.offset for token, one in state.parked.items()}
        assert parked == place.parked

    def check_message(
        self, place: Place, message: Message, state: Delivery, waits: dict[int, int], holders: dict[int, int]
    ) -> None:
        offset, progress = message.offset, place.of(message.offset)
        if progress.state == "ready" and offset in waits and progress.due_us == waits[offset]:
            # Its time has come, and nobody has asked since.
            progress.state = "waiting"
        assert (progress.state == "leased") == (offset in holders), (place.group, offset, progress)
        assert (progress.state == "waiting") == (offset in waits), (place.group, offset, progress)
        if progress.state == "leased":
            assert holders[offset] == progress.lease
            assert state.attempt(offset) == progress.attempts
        else:
            assert state.attempts.get(offset, 0) == progress.attempts, (place.group, offset, progress)
        if progress.state == "waiting":
            assert waits[offset] == progress.due_us
        if not message.is_cancelled and not message.is_gone:
            assert state.is_done(offset) == place.is_done(offset), (place.group, offset, progress)
        assert state.failures.get(offset, ()) == tuple(progress.failures)

    def lag(self, place: Place) -> int:
        state, log = self.state(place), place.log
        return sum(
            not (
                state.is_done(message.offset)
                if message.is_cancelled or message.is_gone
                else place.is_done(message.offset)
            )
            for message in log.messages[log.start :]
            if message.offset not in log.known_gone
        )

    def check_times(self) -> None:
        self.sees_times = False
        found = [
            (one.id.partition, one.id.offset, one.deliver_at) for one in scheduled.scheduled(self.broker.topic("t"))
        ]
        assert found == [
            (number, message.offset, message.due_us) for number, log in enumerate(self.logs) for message in log.delayed
        ]

    def check_members(self, name: str) -> None:
        members = self.broker.consumers.of(name)
        if members is None:
            assert not self.members[name]
            return
        members.check()
        assert members.names() == sorted(self.members[name])
        if members.mode == "sticky" and self.members[name]:
            owners = {members.owner(Part("t", number)) for number in range(len(self.logs))}
            assert owners <= self.members[name].keys() | self.ghosts[name].expected


async def _nothing() -> None:
    pass


async def _awaited(work: Callable[[], Any]) -> None:
    await work()


def _delay_of(answer: str) -> int | None:
    return {"nack at once": 0, "nack later": 3 * SECOND}.get(answer)


def check(examples: int, **options: Any) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        BrokerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


def test_the_broker_agrees_with_the_model(scale: float) -> None:
    check(max(1, int(EXAMPLES * scale)))


# --- would it notice? -------------------------------------------------------------------------------------


def _admit_everything(order: KeyOrder, lane: Priority, hashes: Hashes, *rest: object) -> Admitted:
    return np.ones(len(hashes), np.bool_)


def _due_a_tick_early(delays: Delays, now_us: int) -> BitMap64:
    return _due(delays, now_us + WHEEL_TICK_US)


def _free_when_nothing_waits(marks: KeyMarks, keys: Hashes | Marked, mark: int) -> Marks:
    return _unmark(marks, keys, _SHUT if mark == _WAITING else mark)


def _leases_end_by_date(delivery: Delivery, event: GroupEvent, at_us: int, now: Instant | None = None) -> None:
    """Of a restart: what is left by the wall clock."""
    if now is not None and delivery.is_recalled and isinstance(event, Leased):
        at_us = now.wall_us
    _apply(delivery, event, at_us, now)


_apply = Delivery.apply
_due = Delays.due
_unmark = KeyMarks.unmark


@pytest.mark.parametrize(
    ("kind", "name", "mutant"),
    [
        pytest.param(KeyOrder, "admit", _admit_everything, id="busy keys are admitted"),
        pytest.param(Delays, "due", _due_a_tick_early, id="delays are over a tick early"),
        pytest.param(Delivery, "apply", _leases_end_by_date, id="leases end by date after a restart"),
        pytest.param(KeyMarks, "unmark", _free_when_nothing_waits, id="a key is free as soon as nothing of it waits"),
    ],
)
def test_a_broken_broker_is_noticed(
    kind: type, name: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    with pytest.raises(AssertionError):
        check(
            MUTANT_EXAMPLES,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            print_blob=False,
        )
