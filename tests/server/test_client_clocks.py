"""What a client knows of the time that its leases have left, never more than the broker does; and of the broker's
clock, whatever its own is set to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from penstock.client.client import Client
from penstock.clock import Instant, SystemClock
from penstock.net.connection import Connection
from penstock.net.remote import RemoteTransport, deliveries_in
from penstock.server.parcels import given
from penstock.wire import words
from penstock.wire.packets import Kind, Packet
from served import Served, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.client.received import Received

SECOND, HOUR = 1_000_000, 3_600_000_000


class PausedClock(SystemClock):
    """Of a process that stood still: when it goes on, all clocks are ahead of where it was."""

    def __init__(self) -> None:
        self.paused_us = 0
        self.set_by_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.paused_us + self.set_by_us

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.paused_us


@asynccontextmanager
async def client_of(here: Served, clock: PausedClock) -> AsyncIterator[Client]:
    async with Client(await RemoteTransport.to(here.place, clock), place=str(here.place)) as client:
        yield client


def pauses(monkeypatch: pytest.MonkeyPatch, clock: PausedClock, kinds: set[Kind], pause_us: int) -> None:
    """The client stands still between what comes to its machine, and its having a look."""
    take = Connection._take

    def late(connection: Connection, packet: Packet) -> None:
        if connection._clock is clock and packet.kind in kinds:
            clock.paused_us += pause_us
        take(connection, packet)

    monkeypatch.setattr(Connection, "_take", late)


async def polled(client: Client) -> Received:
    await client.create_topic("t", partitions=1)
    await client.publish("t", b"job")
    (message,) = await client.consumer("g", "t", visibility="30s").poll(1, wait="10s")
    return message


def broker_deadline_us(here: Served) -> int:
    (lease,) = here.site.broker.topic("t").partition(0).groups.state("g").leases.values()
    return lease.deadline_us


def test_a_message_is_not_held_any_more_if_its_lease_ran_out_while_the_client_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        async with client_of(here, clock) as client:
            message = await polled(client)
            assert message.is_held
            clock.paused_us += 31 * SECOND
            assert not message.is_held

    serve(tmp_path, work)


@pytest.mark.parametrize("kinds", [{Kind.REPLY}, {Kind.REPLY, Kind.PONG}])
def test_a_lease_is_counted_from_before_it_was_asked_for_not_from_when_the_client_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: set[Kind]
) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        async with client_of(here, clock) as client:
            await client.topics()
            pauses(monkeypatch, clock, kinds, int(1.7 * SECOND))
            message = await polled(client)
            assert message.is_held
            left_us = message.lease.deadline_us - clock.monotonic_us()
            # Of the 30 s, the pause at the reply of the poll is over.
            assert left_us <= 28.3 * SECOND
            clock.paused_us += left_us
            assert not message.is_held

    serve(tmp_path, work)


def test_the_client_never_counts_on_more_time_than_the_broker_gives_whatever_its_clock_is_set_to(
    tmp_path: Path,
) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        async with client_of(here, clock) as client:
            clock.set_by_us = -HOUR
            message = await polled(client)
            clock.set_by_us = HOUR
            assert broker_deadline_us(here) - SECOND < message.lease.deadline_us <= broker_deadline_us(here)
            await message.extend("60s")
            clock.set_by_us = -HOUR
            assert message.is_held
            assert broker_deadline_us(here) - SECOND < message.lease.deadline_us <= broker_deadline_us(here)

    serve(tmp_path, work)


def test_an_extended_lease_is_counted_from_when_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        async with client_of(here, clock) as client:
            message = await polled(client)
            pauses(monkeypatch, clock, {Kind.REPLY}, 20 * SECOND)
            await message.extend("60s")
            assert message.lease.deadline_us - clock.monotonic_us() <= 40 * SECOND

    serve(tmp_path, work)


def test_a_poll_that_waited_long_does_not_shorten_the_lease(tmp_path: Path) -> None:
    """The broker tells the time from the request to the end of the lease: what it waited is in it."""

    async def work(here: Served) -> None:
        async with here.client() as client:
            await client.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            await client.publish("t", b"job")
            (delivery,) = await transport.poll("g", "c", ["t"], count=1, bytes_max=1_000, wait_us=0)
            now = Instant(1_000 * SECOND, 500 * SECOND)
            # Asked for 100 s ago, leased just now.
            delivery = delivery._replace(deadline_us=now.monotonic_us + 30 * SECOND)
            word, parts = given(delivery, now.monotonic_us - 100 * SECOND, now)
            assert (word.deadline_us, word.lasts_us) == (1_030 * SECOND, 130 * SECOND)
            packet = Packet(Kind.REPLY, 1, words.encoded(words.Delivered([word])), memoryview(b"".join(parts)))
            (told,) = deliveries_in(packet, 7 * SECOND, Instant(0, 0))
            assert told.deadline_us == 137 * SECOND
            # An older broker tells the date alone.
            older = words.encoded(words.Delivered([replace(word, lasts_us=None)]))
            (told,) = deliveries_in(packet._replace(header=older), 7 * SECOND, now)
            assert told.deadline_us == delivery.deadline_us
            await transport.close()

    serve(tmp_path, work)


@pytest.mark.parametrize("step_us", [HOUR, -HOUR])
def test_a_client_whose_clock_is_set_still_knows_the_time_of_the_broker(tmp_path: Path, step_us: int) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        async with client_of(here, clock) as client:
            await client.create_topic("t", partitions=1)
            clock.set_by_us = step_us
            before_us = here.site.now_us()
            sent = await client.publish("t", b"later", delay="60s")
            waiting = await client.scheduled.get(sent.id)
            # Not too early, and late only by what the connection took.
            assert before_us + 60 * SECOND <= waiting.deliver_at <= before_us + HOUR // 2

    serve(tmp_path, work)


def test_a_time_that_was_told_while_the_client_stood_still_does_not_make_delays_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PausedClock()

    async def work(here: Served) -> None:
        transport = await RemoteTransport.to(here.place, clock)
        connection = await transport._link.connect()
        pauses(monkeypatch, clock, {Kind.PONG}, 3 * SECOND)
        heard_at = connection._heard_at
        connection._heartbeat(10.0)
        while connection._heard_at == heard_at or clock.paused_us == 0:
            await asyncio.sleep(0)
        # As if the broker had stood still with it.
        told_us = here.site.now_us()
        assert transport.now_us() - clock.paused_us >= told_us - SECOND
        await transport.close()

    serve(tmp_path, work)
