"""penstock ping: whether a broker is there, and how far away."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.options import OutputOption
from penstock.cli.output import Output, print_answer
from penstock.cli.shown import shown_span
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.net.connection import Place
    from penstock.wire.words import Welcome


@bundled
def ping(
    broker: Broker,
    count: Annotated[int, typer.Option("--count", "-c", metavar="N", min=1, max=1_000, help="So many trips.")] = 5,
    output: OutputOption = Output.TABLE,
) -> None:
    """Whether a broker is there, and how far away."""
    if broker.data is not None:
        raise InvalidInput("ping is for a server; a directory is opened by whoever uses it")
    from penstock.net.address import places_of

    place, *_ = places_of(broker.address, key=broker.key)
    welcome, trips_us = asyncio.run(_trips(place, count))
    best, median = min(trips_us), sorted(trips_us)[len(trips_us) // 2]
    answer = {
        "server": str(place),
        "broker": welcome.broker,
        "protocol": welcome.version,
        "round_trip_us": {"min": best, "median": median, "max": max(trips_us)},
    }
    told = f"{welcome.broker or 'a broker'} at {place}, protocol {welcome.version}"
    print_answer(output, answer, f"{told}: {shown_span(median)} there and back (at best {shown_span(best)})")


async def _trips(place: Place, count: int) -> tuple[Welcome, list[int]]:
    """Asks for something small, one question after the other."""
    from penstock.client.requests import ListSchedules
    from penstock.clock import SystemClock
    from penstock.net.connection import Connection
    from penstock.wire.packets import Kind

    connection = await Connection.to(place, SystemClock())
    trips_us = []
    try:
        for _ in range(count):
            start = time.perf_counter_ns()
            await connection.request(Kind.CALL, ListSchedules())
            trips_us.append((time.perf_counter_ns() - start) // 1_000)
    finally:
        await connection.close()
    return connection.welcome, trips_us
