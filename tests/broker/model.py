"""What groups may get of a topic, for somebody with all the time in the world: one message after the other.

Nothing here is clever: no bitmaps, no cursors, no floor. Every message has a state in every group, and whoever wants to
know what may be leased next looks at all of them.

    fresh     never delivered
    leased    in one live lease
    waiting   failed, not due yet
    ready     given back, or due again
    done      acknowledged, or before the start of the group, or passed over because it is gone
    dead      given up
    expired   its time was over when its turn came

Delayed, cancelled and gone are states of the message itself, the same for all groups. A message that is gone was
deleted by retention or compaction, which spare those that a key is busy with; what is leased or waits stays so all the
same.

Leases and waits last by the monotonic clock, whatever the wall clock is set to. `leased_us`, `failed_us` and `died_us`
are dates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.broker.settings import GroupSettings
from penstock.clock import Instant

RAN_OUT = "the lease ran out"
REDRIVES_MAX = 3

State = Literal["fresh", "leased", "waiting", "ready", "done", "dead", "expired"]
# A parked key, or None for the whole partition.
Token = bytes | None


class Failure(NamedTuple):
    attempt: int
    leased_us: int
    failed_us: int
    consumer: str
    reason: str


@dataclass
class Message:
    offset: int
    value: bytes
    key: bytes | None
    priority: int
    published_us: int
    due_us: int
    expires_us: int
    is_delayed: bool
    is_cancelled: bool = False
    is_gone: bool = False
    # Nobody knows any more what was leased, if it is gone and the broker has started since.
    has_known_key: bool = True
    # By the monotonic clock, which may have begun anew since.
    stored_us: int = 0

    def has_expired(self, now_us: int) -> bool:
        return 0 < self.expires_us <= now_us


@dataclass
class Progress:
    """Of one message in one group."""

    state: State = "fresh"
    attempts: int = 0
    lease: int = 0
    due_us: int = 0
    # All of it, from when it began.
    wait_us: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass
class Lease:
    id: int
    consumer: str
    leased_us: int
    deadline_us: int
    # From when it began, or was extended.
    lasts_us: int


@dataclass
class Letter:
    group: str
    partition: int
    offset: int
    round: int
    reason: str
    attempts: int
    failures: tuple[Failure, ...]
    value: bytes | None
    key: bytes | None
    priority: int
    died_us: int
    is_settled: bool = False


class Log:
    """The messages of one partition."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.start = 0
        # Offsets above it of which the broker knows that they are empty. Only maintenance finds out.
        self.known_gone: set[int] = set()

    @property
    def delayed(self) -> list[Message]:
        return [message for message in self.messages if message.is_delayed]

    def publish(
        self, value: bytes, key: bytes | None, priority: int, due_us: int, expires_us: int, now: Instant
    ) -> Message:
        message = Message(
            len(self.messages), value, key, priority, now.wall_us, due_us, expires_us, due_us > now.wall_us
        )
        message.stored_us = now.monotonic_us
        self.messages.append(message)
        return message

    def tick(self, now_us: int) -> None:
        for message in self.messages:
            if message.is_delayed and message.due_us <= now_us:
                message.is_delayed = False

    def reboot(self, by_us: int) -> None:
        """The monotonic clock begins anew."""
        for message in self.messages:
            message.stored_us += by_us

    def restart(self) -> None:
        self.known_gone.clear()
        for message in self.messages:
            if message.is_gone:
                message.has_known_key = False


class Place:
    """One group in one partition."""

    def __init__(
        self, group: str, number: int, settings: GroupSettings, log: Log, letters: list[Letter] | None
    ) -> None:
        """`letters` gets the dead ones, if they go anywhere."""
        self.group = group
        self.number = number
        self.settings = settings
        self.log = log
        self._letters = letters
        self.deaths: Counter[int] = Counter()
        self.move(log.start if settings.start == "earliest" else len(log.messages))

    def move(self, start: int) -> None:
        """Everything is forgotten. Delayed messages are not of the past, wherever they are."""
        self.leases: dict[int, Lease] = {}
        self.parked: dict[Token, int] = {}
        self._progress: dict[int, Progress] = {}
        for message in self.log.messages:
            if message.offset < start and not message.is_delayed:
                self.of(message.offset).state = "done"

    # --- what there is -----------------------------------------------------------------------------------

    def of(self, offset: int) -> Progress:
        progress = self._progress.get(offset)
        if progress is None:
            progress = self._progress[offset] = Progress()
        return progress

    def at(self, *states: State) -> list[int]:
        return [offset for offset in range(len(self.log.messages)) if self.of(offset).state in states]

    def held(self, lease: int) -> list[int]:
        return [offset for offset in self.at("leased") if self.of(offset).lease == lease]

    def is_done(self, offset: int) -> bool:
        return self.of(offset).state in ("done", "dead", "expired")

    def is_to_come(self, offset: int) -> bool:
        """Nobody has it, and nothing but its turn is waited for."""
        return self.of(offset).state in ("fresh", "ready")

    @property
    def room(self) -> int:
        return self.settings.max_in_flight - len(self.at("leased"))

    def lane(self, message: Message) -> int:
        """The lowest number goes first."""
        return 0 if self.settings.lanes == "none" else -message.priority

    def place_in_order(self, offset: int) -> tuple[int, int]:
        return self.lane(self.log.messages[offset]), offset

    def queue(self, offset: int) -> tuple[bytes, int] | None:
        """Those in one queue are delivered one after the other; None if it is in none."""
        message = self.log.messages[offset]
        if message.key is None or not message.has_known_key:
            return None
        return message.key, self.lane(message)

    # --- leases ------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        for lease in sorted(self.leases.values(), key=lambda lease: lease.deadline_us):
            if lease.deadline_us <= now.monotonic_us:
                # What it held has waited for as long as that: it is due at once.
                self._fail(lease, self.held(lease.id), now, RAN_OUT, 0)

    def make_ready(self, monotonic_us: int) -> None:
        for offset in self.at("waiting"):
            if self.of(offset).due_us <= monotonic_us:
                self.of(offset).state = "ready"

    def next_ones(self, now_us: int) -> tuple[list[int], bool]:
        """All that may be leased now, in order; and whether there are others that have to be passed over."""
        if None in self.parked:
            return [], False
        if self.settings.ordering == "partition" and self.at("leased", "waiting"):
            return [], False
        busy = self._busy_keys()
        found = []
        passes_over = False
        for message in self.log.messages:
            if message.is_delayed or message.is_cancelled or not self.is_to_come(message.offset):
                continue
            if message.has_expired(now_us) or message.is_gone or message.key in busy:
                passes_over = True
            else:
                found.append(message.offset)
        return sorted(found, key=self.place_in_order), passes_over

    def _busy_keys(self) -> set[Token]:
        if self.settings.ordering != "key":
            return set()
        queues = [self.queue(offset) for offset in self.at("leased", "waiting")]
        return {queue[0] for queue in queues if queue is not None} | self.parked.keys()

    def lease(self, identity: int, consumer: str, offsets: Iterable[int], now: Instant, lasts_us: int) -> None:
        self.leases[identity] = Lease(identity, consumer, now.wall_us, now.monotonic_us + lasts_us, lasts_us)
        for offset in offsets:
            progress = self.of(offset)
            assert progress.state in ("fresh", "ready")
            progress.state, progress.lease = "leased", identity
            progress.attempts += 1

    # --- answers -----------------------------------------------------------------------------------------

    def ack(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._finish(offset, "done")
        self._forget_empty_leases()

    def extend(self, identity: int, now: Instant, lasts_us: int) -> None:
        lease = self.leases[identity]
        lease.deadline_us, lease.lasts_us = now.monotonic_us + lasts_us, lasts_us

    def nack(self, identity: int, offsets: list[int], now: Instant, reason: str, delay_us: int | None) -> None:
        self._fail(self.leases[identity], offsets, now, reason, delay_us)
        self._pull_back(identity, offsets)

    def reject(self, identity: int, offsets: list[int], now_us: int, reason: str) -> None:
        lease = self.leases[identity]
        for offset in offsets:
            self._failed(lease, offset, now_us, reason)
        self._give_up(offsets, now_us, reason)
        self._pull_back(identity, offsets if self._parks else [])

    def release(self, identity: int, offsets: list[int]) -> None:
        self._give_back(offsets)
        self._pull_back(identity, offsets)

    @property
    def _parks(self) -> bool:
        return self.settings.on_poison != "skip"

    def _pull_back(self, identity: int, offsets: list[int]) -> None:
        """Those of the same lease that must not be done ahead of these."""
        if offsets and self.settings.ordering == "partition":
            first = min(map(self.place_in_order, offsets))
            self._give_back([offset for offset in self.held(identity) if self.place_in_order(offset) > first])
        if self.settings.ordering == "key":
            for queue in {self.queue(offset) for offset in offsets} - {None}:
                first_offset = min(offset for offset in offsets if self.queue(offset) == queue)
                same = [offset for offset in self.held(identity) if self.queue(offset) == queue]
                self._give_back([offset for offset in same if offset > first_offset])
        self._forget_empty_leases()

    def _give_back(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.of(offset).state = "ready"
            self.of(offset).attempts -= 1

    def _fail(self, lease: Lease, offsets: list[int], now: Instant, reason: str, delay_us: int | None) -> list[int]:
        """Those that have had enough."""
        given_up = []
        for offset in offsets:
            progress = self.of(offset)
            self._failed(lease, offset, now.wall_us, reason)
            if progress.attempts > self.settings.max_retries:
                given_up.append(offset)
            else:
                progress.state = "waiting"
                progress.wait_us = self._back_off_us(progress.attempts) if delay_us is None else delay_us
                progress.due_us = now.monotonic_us + progress.wait_us
        self._give_up(given_up, now.wall_us, reason)
        self._forget_empty_leases()
        return given_up

    def _failed(self, lease: Lease, offset: int, now_us: int, reason: str) -> None:
        progress = self.of(offset)
        progress.failures.append(Failure(progress.attempts, lease.leased_us, now_us, lease.consumer, reason))

    def _back_off_us(self, attempts: int) -> int:
        longest = self.settings.backoff_max_us
        return min(int(self.settings.backoff_initial_us * self.settings.backoff_factor ** (attempts - 1)), longest)

    def _give_up(self, offsets: list[int], now_us: int, reason: str) -> None:
        if not offsets:
            return
        if self.settings.ordering != "none" and self._parks:
            self._park(offsets)
        for offset in offsets:
            if self._letters is None:
                self._finish(offset, "done")
                continue
            self.deaths[offset] += 1
            self._letters.append(self._letter(offset, now_us, reason))
            self._finish(offset, "dead")

    def _letter(self, offset: int, now_us: int, reason: str) -> Letter:
        """Of what is gone, at least that it died."""
        progress, message = self.of(offset), self.log.messages[offset]
        what = (None, None, 0) if message.is_gone else (message.value, message.key, message.priority)
        failures = tuple(progress.failures)
        identity = (self.group, self.number, offset, self.deaths[offset])
        return Letter(*identity, reason, progress.attempts, failures, *what, now_us)

    def _park(self, offsets: list[int]) -> None:
        if self.settings.ordering == "partition" or self.settings.on_poison == "block":
            self.parked[None] = min(offsets)
            return
        for offset in sorted(offsets, reverse=True):
            message = self.log.messages[offset]
            if message.key is not None and not message.is_gone:
                self.parked[message.key] = offset

    def _finish(self, offset: int, state: State) -> None:
        self._progress[offset] = Progress(state)

    def _forget_empty_leases(self) -> None:
        held = {self.of(offset).lease for offset in self.at("leased")}
        self.leases = {identity: lease for identity, lease in self.leases.items() if identity in held}

    # --- afterwards --------------------------------------------------------------------------------------

    def pass_over(self, offset: int, now_us: int) -> None:
        """Its turn has come, and it is done without having been delivered."""
        message = self.log.messages[offset]
        assert self.is_to_come(offset)
        assert message.is_gone or message.has_expired(now_us), "dropped ahead of its time"
        self._finish(offset, "done" if message.is_gone else "expired")

    def counts_deaths(self, offset: int) -> bool:
        """How often something died that is no longer in the log is forgotten, sooner or later."""
        return offset >= self.log.start and not self.log.messages[offset].is_gone

    def fate(self, letter: Letter) -> str:
        """What a redrive would do with it."""
        if letter.round > REDRIVES_MAX or letter.value is None:
            return "refused"
        deaths = self.deaths[letter.offset]
        if deaths > letter.round or (deaths == letter.round and not self.is_done(letter.offset)):
            return "already"
        is_there = deaths == letter.round and not self.log.messages[letter.offset].is_gone
        return "in_place" if is_there else "copied"

    def redrive(self, offset: int, monotonic_us: int, wait_us: int) -> None:
        self._progress[offset] = Progress("waiting", due_us=monotonic_us + wait_us, wait_us=wait_us)
        for token, parked in list(self.parked.items()):
            if parked == offset or (token is not None and token == self.log.messages[offset].key):
                del self.parked[token]

    # --- restarts ----------------------------------------------------------------------------------------

    def reboot(self, by_us: int) -> None:
        """The monotonic clock begins anew."""
        for lease in self.leases.values():
            lease.deadline_us += by_us
        for progress in self._progress.values():
            progress.due_us += by_us

    def recall(self, deadlines: Mapping[int, int], waits: Mapping[int, int], monotonic_us: int) -> None:
        """What a broker makes of it that has just started, whatever the clocks were set to meanwhile: a lease ends no
        earlier than it would have; nothing lasts longer than when it began."""
        assert deadlines.keys() == self.leases.keys()
        for identity, deadline_us in deadlines.items():
            lease = self.leases[identity]
            assert deadline_us >= lease.deadline_us, "a lease has become shorter"
            assert deadline_us <= monotonic_us + lease.lasts_us
            lease.deadline_us = deadline_us
        for offset, due_us in waits.items():
            progress = self.of(offset)
            # That its time had come, nobody may have written down.
            assert progress.state in ("waiting", "ready")
            assert due_us <= monotonic_us + progress.wait_us
            progress.state, progress.due_us = "waiting", due_us
        assert set(self.at("waiting")) == waits.keys()
