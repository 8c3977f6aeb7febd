"""Whom a node feeds: those that are registered. Whom it takes for lost: those whose connection has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.cluster.core.events import Contact, Registered
from penstock.cluster.core.messages import Data, Fetch, Reply, Withdraw
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.feeding import Feed, Feeding
from penstock.cluster.tally import Tally
from penstock.cluster.words import Answers, Fetches, Replicate
from penstock.errors import ProtocolError
from penstock.frame import FrameRun
from penstock.limits import DEFAULT_LIMITS, MIB
from penstock.wire.conversation import packet_bytes_max


class Line:
    """A stream to another node, and what was sent by it."""

    def __init__(self) -> None:
        self.is_open = True
        self.writable = asyncio.Event()
        self.writable.set()
        self.sent: asyncio.Queue[Answers] = asyncio.Queue()
        # Of each packet, with its header.
        self.sizes: list[int] = []

    def deliver(self, correlation: int, word: object, payload: Sequence[memoryview]) -> None:
        assert isinstance(word, Answers)
        self.sizes.append(len(msgspec.msgpack.encode(word)) + sum(map(len, payload)))
        self.sent.put_nowait(word)

    def abort(self) -> None:
        self.is_open = False


class Watched:
    def __init__(self) -> None:
        self.live: dict[str, Registered] = {}
        self.now_us = 7
        self.hosted: dict[str, Any] = {}
        self.feeding = Feeding(self.hosted, lambda: self.live, lambda: self.now_us, lambda error: None, Tally())
        self.feeding.changed = self._changed
        self.feeding.reread = self._reread
        self.rereads = 0
        self.changes: list[dict[str, str]] = []
        self._has_changed = asyncio.Event()

    def _reread(self) -> None:
        self.rereads += 1

    def register(self, node: str, incarnation: str) -> None:
        self.live = {**self.live, node: Registered("disk", incarnation)}
        self.feeding.members_changed()

    def _changed(self) -> None:
        self.changes.append(dict(self.feeding.lost))
        self._has_changed.set()

    def open(self, node: str, incarnation: str, line: Line | None = None) -> Feed:
        header = msgspec.msgpack.encode(Replicate(node, "disk", incarnation))
        return self.feeding.open(line or Line(), 1, header)

    async def is_answered(self, feed: Feed, line: Line) -> bool:
        """Whether a fetch of a partition that is not here is answered at all."""
        feed.fetched(fetch_of(feed.peer))
        running = asyncio.create_task(feed.run())
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()
        return not line.sent.empty()

    async def next_change(self) -> None:
        self._has_changed.clear()
        await self._has_changed.wait()


def fetch_of(peer: Replicate) -> bytes:
    fetch = Fetch(peer.node, peer.disk, peer.incarnation, 1, 1, (0, 0), (0, 0))
    return msgspec.msgpack.encode(Fetches([("p", fetch)]))


def test_a_node_is_lost_when_its_connection_ends_and_back_a_while_after_it_has_another() -> None:
    async def main() -> None:
        watched = Watched()
        watched.register("b", "first")
        watched.open("b", "first").close()
        assert watched.changes == [{"b": "first"}]

        watched.open("b", "first")
        assert watched.feeding.lost == {"b": "first"}, "it may come and go"
        await watched.next_change()

        assert watched.changes == [{"b": "first"}, {}]

    asyncio.run(main())


def test_a_node_that_has_opened_another_connection_is_not_lost_with_the_old_one() -> None:
    async def main() -> None:
        watched = Watched()
        watched.register("b", "first")
        old = watched.open("b", "first")
        watched.register("b", "second")
        watched.open("b", "second")

        old.close()

        assert watched.changes == []

    asyncio.run(main())


def test_nobody_is_lost_because_the_doors_are_closed_here() -> None:
    async def main() -> None:
        watched = Watched()
        watched.register("b", "first")
        feed = watched.open("b", "first")
        watched.feeding.end()

        feed.close()

        assert watched.changes == []
        assert watched.feeding.lost == {}

    asyncio.run(main())


def test_a_process_that_only_says_it_is_a_node_neither_is_fed_nor_takes_the_place_of_that_node() -> None:
    async def main() -> None:
        watched, real, other = Watched(), Line(), Line()
        watched.register("b", "real")
        feed = watched.open("b", "real", real)

        stranger = watched.open("b", "other", other)

        assert not await watched.is_answered(stranger, other)
        assert watched.feeding.contacts() == {"b": Contact(7, 7)}
        assert not other.sent.qsize()
        assert watched.rereads == 1, "the view may be behind"
        stranger.close()
        assert watched.changes == []
        assert real.is_open
        assert await watched.is_answered(feed, real)

    asyncio.run(main())


def test_a_process_that_the_view_shows_later_gets_answers_to_what_it_asked_before() -> None:
    async def main() -> None:
        watched, old, new = Watched(), Line(), Line()
        watched.register("b", "old")
        watched.open("b", "old", old)
        feed = watched.open("b", "new", new)
        assert not await watched.is_answered(feed, new)

        watched.register("b", "new")

        assert not old.is_open
        assert watched.feeding.contacts() == {"b": Contact(7, 7)}
        running = asyncio.create_task(feed.run())
        (answer,) = (await new.sent.get()).answers
        assert (answer.partition, answer.reply.incarnation) == ("p", "new")
        running.cancel()

    asyncio.run(main())


def test_a_stream_that_is_replaced_is_closed_so_that_whoever_is_behind_it_finds_out() -> None:
    async def main() -> None:
        for is_registered in (True, False):
            watched, first, second = Watched(), Line(), Line()
            if is_registered:
                watched.register("b", "only")
            watched.open("b", "only", first)

            watched.open("b", "only", second)

            assert (first.is_open, second.is_open) == (False, True)

    asyncio.run(main())


def test_a_fetch_by_a_stream_that_nobody_would_answer_closes_it() -> None:
    async def main() -> None:
        watched, line = Watched(), Line()
        watched.register("b", "first")
        feed = watched.open("b", "first", line)
        feed.close()

        feed.fetched(msgspec.msgpack.encode(Fetches([])))

        assert not line.is_open

    asyncio.run(main())


def test_a_fetch_in_the_name_of_another_process_is_refused() -> None:
    async def main() -> None:
        watched = Watched()
        watched.register("b", "first")
        with pytest.raises(ProtocolError, match="stream of another process"):
            watched.open("b", "first").fetched(fetch_of(Replicate("b", "disk", "second")))

    asyncio.run(main())


def heartbeat(echo_us: int, *withdrawn: tuple[str, Withdraw]) -> bytes:
    return msgspec.msgpack.encode(Fetches([], list(withdrawn), echo_us))


def test_a_contact_is_confirmed_for_when_the_packet_was_sent_that_is_returned() -> None:
    async def main() -> None:
        watched, line = Watched(), Line()
        watched.register("b", "first")
        feed = watched.open("b", "first", line)
        running = asyncio.create_task(feed.run())
        watched.now_us = 10
        feed.fetched(heartbeat(0))
        assert await line.sent.get() == Answers([], 10)

        watched.now_us = 500
        feed.fetched(heartbeat(10))

        assert watched.feeding.contacts() == {"b": Contact(7, 500, 10)}
        assert await line.sent.get() == Answers([], 500)
        running.cancel()

    asyncio.run(main())


def test_a_stream_that_is_opened_anew_is_a_contact_from_then_on_and_confirms_nothing_yet() -> None:
    async def main() -> None:
        watched, line = Watched(), Line()
        watched.register("b", "first")
        feed = watched.open("b", "first", line)
        running = asyncio.create_task(feed.run())
        feed.fetched(heartbeat(0))
        feed.fetched(heartbeat((await line.sent.get()).sent_us))
        assert watched.feeding.contacts() == {"b": Contact(7, 7, 7)}

        watched.now_us = 20
        watched.open("b", "first")

        assert watched.feeding.contacts() == {"b": Contact(20, 20, 0)}
        running.cancel()

    asyncio.run(main())


def test_a_time_that_was_never_sent_is_refused() -> None:
    async def main() -> None:
        watched = Watched()
        watched.register("b", "first")
        feed = watched.open("b", "first")
        with pytest.raises(ProtocolError, match="not sent"):
            feed.fetched(heartbeat(7))
        assert watched.feeding.contacts()["b"].confirmed_us == 0

    asyncio.run(main())


def test_a_replica_here_learns_that_a_follower_withdraws_unless_another_process_says_so() -> None:
    async def main() -> None:
        watched, steps = Watched(), []
        watched.hosted["p"] = type("Hosted", (), {"step": staticmethod(steps.append)})
        watched.register("b", "first")
        feed = watched.open("b", "first")
        withdraw = Withdraw("b", "disk", "first", 5, 3)

        feed.fetched(heartbeat(0, ("p", withdraw), ("of no partition here", withdraw)))

        assert steps == [withdraw]
        with pytest.raises(ProtocolError, match="stream of another process"):
            feed.fetched(heartbeat(0, ("p", Withdraw("c", "disk", "first", 5, 3))))

    asyncio.run(main())


class Led:
    """A partition that is led here, and has one frame in each log; it is being moved, or is not."""

    epoch = 1
    is_leader = True

    def __init__(self, sizes: tuple[int, int], target: tuple[str, ...] = ()) -> None:
        self.logs = [type("Log", (), {"log_id": b"l" * 16, "whole_from": 0})] * 2
        self.record = PartitionRecord("t", 0, ("a",), 1, target=target)
        self._runs = [FrameRun(memoryview(bytes(size)), (0, size), 1) for size in sizes]

    def data(self, part: Data, number: int, bytes_max: int) -> tuple[Data, FrameRun]:
        """At least a frame, however large it is."""
        return part, self._runs[number]


def test_no_packet_is_larger_than_a_follower_accepts_though_some_answers_are_throttled() -> None:
    async def main() -> None:
        watched, line = Watched(), Line()
        watched.register("b", "first")
        feed = watched.open("b", "first", line)
        watched.feeding.throttle.set(1 << 40)
        watched.now_us = 1_000_000
        frame = DEFAULT_LIMITS.frame_bytes_max
        for identity, led in {
            "some": Led((4 * MIB - 1, 0)),
            "much": Led((frame, frame // 2)),
            "some, throttled": Led((4 * MIB - 1, 0), ("b",)),
            "much, throttled": Led((frame, frame // 2), ("b",)),
        }.items():
            watched.hosted[identity] = led
            feed.reply(identity, Reply("b", "first", 1, 1, (Data(0, 1), Data(0, 1))))
        running = asyncio.create_task(feed.run())

        answered = []
        while len(answered) < 4:
            answered += [answer.partition for answer in (await line.sent.get()).answers]

        assert sorted(answered) == sorted(watched.hosted), "all of them, whatever the others are"
        assert max(line.sizes) <= packet_bytes_max(DEFAULT_LIMITS), line.sizes
        running.cancel()

    asyncio.run(main())
