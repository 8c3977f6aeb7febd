"""penstock bench: how fast a broker is, as somebody who uses it meets it."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, console, print_json, print_table, progress_of_messages
from penstock.cli.shown import counted, shown_span
from penstock.errors import InternalError, PenstockError

if TYPE_CHECKING:
    from penstock.client.blocking import Client

_COUNT_MAX = 1_000_000_000
_PERCENTILES = (50, 90, 99, 100)
_COLUMNS = (
    Column("what"),
    Column("messages", is_number=True),
    Column("messages/s", is_number=True),
    Column("MB/s", rank=1, is_number=True),
    Column("p50", is_number=True),
    Column("p90", rank=2, is_number=True),
    Column("p99", is_number=True),
    Column("max", rank=3, is_number=True),
)
_MEANING = "p…: until a batch is on disk · until the next batch is here and acknowledged · from publish to receipt"


@bundled
def bench(
    broker: Broker,
    messages: Annotated[
        int, typer.Option("--messages", "-n", metavar="N", min=1, max=_COUNT_MAX, help="How many.")
    ] = 100_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", min=1, max=1_000_000, help="Of each value.")] = 100,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, max=10_000, help="At a time.")] = 1_000,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1, help="Of the topic.")] = 6,
    singles: Annotated[
        int, typer.Option("--singles", metavar="N", min=1, max=_COUNT_MAX, help="Then so many, one by one.")
    ] = 200,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure publishing and consuming.

    In a topic of its own, which is deleted at the end.
    """
    name = f"bench-{secrets.token_hex(4)}"
    with broker.open() as q:
        q.create_topic(name, partitions)
        try:
            found = {
                "publish": _publish(q, name, messages, size, batch),
                "consume": _consume(q, name, messages, size, batch),
                "one by one": _one_by_one(q, name, singles, size),
            }
        finally:
            _clean_up(q, name)
    if output is Output.JSON:
        asked = {"messages": messages, "size": size, "batch": batch, "partitions": partitions, "singles": singles}
        print_json(console(), {**asked, **{what.replace(" ", "_"): figures for what, figures in found.items()}})
        return
    print_table(console(), _COLUMNS, [_cells(what, figures) for what, figures in found.items()])
    console().print(_MEANING, style="dim")


def _clean_up(q: Client, name: str) -> None:
    for delete in (q.delete_group, q.delete_topic):
        try:
            delete(name)
        except PenstockError:
            # It may have failed before there was one; that is the error to be told.
            continue


def _publish(q: Client, topic: str, messages: int, size: int, batch: int) -> dict[str, Any]:
    import pyarrow as pa

    value = secrets.token_bytes(size)
    table = pa.table({"value": [value] * min(batch, messages)})
    spans_us, left = [], messages
    with q.producer(topic, batch_messages=batch) as producer, progress_of_messages("publishing") as progress:
        start = time.perf_counter()
        while left:
            some = table.slice(0, left)
            at = time.perf_counter_ns()
            producer.send_batch(some)
            spans_us.append((time.perf_counter_ns() - at) // 1_000)
            left -= len(some)
            progress(len(some))
        seconds = time.perf_counter() - start
    return _figures(messages, size, seconds, spans_us)


def _consume(q: Client, topic: str, messages: int, size: int, batch: int) -> dict[str, Any]:
    spans_us, count = [], 0
    consumer = q.consumer(topic, topic, prefetch=batch, until_idle="10s")
    with consumer, progress_of_messages("consuming") as progress:
        batches = consumer.batches()
        start = time.perf_counter()
        while count < messages:
            at = time.perf_counter_ns()
            some = next(batches, None)
            if some is None:
                raise InternalError(f"only {counted(count, 'message')} of {messages} came")
            some.ack()
            spans_us.append((time.perf_counter_ns() - at) // 1_000)
            count += len(some)
            progress(len(some))
        seconds = time.perf_counter() - start
    return _figures(messages, size, seconds, spans_us)


def _one_by_one(q: Client, topic: str, messages: int, size: int) -> dict[str, Any]:
    value = secrets.token_bytes(size)
    spans_us = []
    with q.consumer(topic, topic) as consumer:
        start = time.perf_counter()
        for _ in range(messages):
            at = time.perf_counter_ns()
            q.publish(topic, value)
            for message in consumer.poll(1, wait="10s"):
                spans_us.append((time.perf_counter_ns() - at) // 1_000)
                message.ack()
        seconds = time.perf_counter() - start
    return _figures(messages, size, seconds, spans_us)


def _figures(messages: int, size: int, seconds: float, spans_us: list[int]) -> dict[str, Any]:
    spans = sorted(spans_us)
    latency = {f"p{each}": spans[min(len(spans) * each // 100, len(spans) - 1)] for each in _PERCENTILES}
    return {
        "messages": messages,
        "seconds": round(seconds, 6),
        "messages_per_s": round(messages / seconds),
        "bytes_per_s": round(messages * size / seconds),
        "latency_us": latency,
    }


def _cells(what: str, figures: dict[str, Any]) -> list[str]:
    return [
        what,
        f"{figures['messages']:,}",
        f"{figures['messages_per_s']:,}",
        f"{figures['bytes_per_s'] / 1e6:,.1f}",
        *(shown_span(us) for us in figures["latency_us"].values()),
    ]
