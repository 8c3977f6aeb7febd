"""penstock publish: one message from the command line or stdin, or many from the lines of stdin."""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, cast

import typer

from penstock.acks import ALL, NONE, check_acks
from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.given import flags_given, pairs_given
from penstock.cli.options import Headers, Key, OutputOption, Priority, Topic
from penstock.cli.output import Output, flush, print_answer, progress_of_messages, write_bytes, write_row
from penstock.cli.shown import counted, time_json
from penstock.errors import BatchTooLarge, InvalidInput, PartitionNotFound, PenstockError
from penstock.limits import KIB, Limits

if TYPE_CHECKING:
    from penstock.client.blocking import Client
    from penstock.client.sending import Sending
    from penstock.client.words import MessageFields
    from penstock.published import Published

# Of progress, somebody hears after so many messages.
_TOLD_EVERY = 1_000
_FIELDS = ("key", "headers", "delay", "deliver_at", "ttl", "expires_at", "priority", "timestamp")
_ALTERNATIVES = {"delay": "deliver_at", "deliver_at": "delay", "ttl": "expires_at", "expires_at": "ttl"}
# A byte of a message takes up to six in JSON, as \u0001 does; its fields have names.
_JSON_SIZE = 6
_JSON_MORE = 64 * KIB
# What `read -o json` tells of a message besides: where it was.
_ELSEWHERE = ("id", "topic", "offset", "append_time", "attempt")


class Source(Enum):
    """What is a message."""

    ALL = "all of it"
    LINE = "each line"
    JSON_LINE = "each line, which is JSON"


class Row(NamedTuple):
    value: bytes | str | None
    partition: int | None
    fields: MessageFields


@bundled
def publish(
    broker: Broker,
    topic: Topic,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="Stdin if there is none.")] = None,
    key: Key = None,
    header: Headers = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Held back so long.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Held back until then, RFC 3339.")] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="DURATION", help="Not delivered after so long.")] = None,
    priority: Priority = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="To this one.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of stdin is a message.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each line of stdin is an object with value, key, headers …")
    ] = False,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="A message without a value.")] = False,
    acks: Annotated[
        str, typer.Option("--acks", metavar="all|leader|none", help="On which disks it is when it is told.")
    ] = ALL,
    raw: Annotated[bool, typer.Option("--raw", help="Keep the newline at the end of stdin.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="A summary instead of the ids.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish messages, and print their ids when they are on disk.

    Without VALUE, all of stdin is one message, without the newline at its end. With --acks none no id is known, and a
    summary is printed instead.
    """
    check_acks(acks)
    source = _source(value, lines, json_lines, tombstone)
    fields: MessageFields = {"headers": pairs_given("--header", header)}
    fields |= cast("MessageFields", flags_given(key=key, delay=delay, deliver_at=at, ttl=ttl, priority=priority))
    told = _Told(output, quiet or acks == NONE)
    with broker.open() as q:
        if source is Source.ALL:
            size_max = q.limits.message_bytes_max
            data = os.fsencode(value) if value is not None else None if tombstone else _stdin(raw, size_max)
            if acks == NONE:
                _publish_many(q, topic, iter([Row(data, partition, fields)]), acks, told)
            else:
                told.published(q.publish(topic, data, partition=partition, acks=acks, **fields))
        else:
            read = _lines if source is Source.LINE else _json_lines
            _publish_many(q, topic, read(q.limits, partition, fields), acks, told)
    told.end(topic)


def _source(value: str | None, lines: bool, json_lines: bool, tombstone: bool) -> Source:
    chosen = [
        name
        for name, is_given in (
            ("VALUE", value is not None),
            ("--lines", lines),
            ("--json-lines", json_lines),
            ("--tombstone", tombstone),
        )
        if is_given
    ]
    if len(chosen) > 1:
        raise InvalidInput(f"{chosen[0]} or {chosen[1]}, not both")
    if (not chosen or lines or json_lines) and (sys.stdin is None or sys.stdin.isatty()):
        raise InvalidInput("nothing to publish: give a VALUE, or pipe something in, as in `echo hello | penstock …`")
    return Source.LINE if lines else Source.JSON_LINE if json_lines else Source.ALL


def _stdin(raw: bool, size_max: int) -> bytes:
    # One more for the newline, and one that shows that there is more.
    data = sys.stdin.buffer.read(size_max + 2)
    data = data if raw else data.removesuffix(b"\n")
    if len(data) > size_max:
        raise BatchTooLarge(
            f"stdin has more than {size_max} bytes, the limit of a message; with --lines each line is a message"
        )
    return data


# --- many ---------------------------------------------------------------------------------------------------


def _publish_many(q: Client, topic: str, rows: Iterator[Row], acks: str, told: _Told) -> None:
    """What was sent before something went wrong is stored, and told."""
    with progress_of_messages(f"to {topic}") as progress:
        try:
            with q.producer(topic, acks=acks) as producer:
                for number, row in enumerate(rows, start=1):
                    try:
                        sending = producer.send(row.value, partition=row.partition, **row.fields)
                    except (InvalidInput, PartitionNotFound) as error:
                        raise _in_line(number, error) from error
                    told.sent(sending)
                    if number % _TOLD_EVERY == 0:
                        progress(_TOLD_EVERY)
        finally:
            told.rest()


def _lines(limits: Limits, partition: int | None, fields: MessageFields) -> Iterator[Row]:
    for _, line in _stdin_lines(limits.message_bytes_max):
        yield Row(line.removesuffix(b"\r"), partition, fields)


def _json_lines(limits: Limits, partition: int | None, fields: MessageFields) -> Iterator[Row]:
    size_max = _JSON_SIZE * (limits.message_bytes_max + limits.header_bytes_max) + _JSON_MORE
    for number, line in _stdin_lines(size_max):
        try:
            row = _json_row(line, partition, fields)
        except InvalidInput as error:
            raise _in_line(number, error) from error
        yield row


def _stdin_lines(size_max: int) -> Iterator[tuple[int, bytes]]:
    """Numbers and lines, without their newlines."""
    # The end of a line may have two bytes.
    lines = iter(partial(sys.stdin.buffer.readline, size_max + 2), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > size_max + 1 and not line.endswith(b"\n"):
            raise _in_line(number, BatchTooLarge(f"more than {size_max} bytes, the limit of a line"))
        yield number, line.removesuffix(b"\n")


def _in_line(number: int, error: PenstockError) -> PenstockError:
    return type(error)(f"line {number}: {error.message}", **{**error.details, "line": number})


def _json_row(line: bytes, partition: int | None, fields: MessageFields) -> Row:
    """Fields of the line go before those of the command."""
    try:
        given = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from error
    if not isinstance(given, dict) or "value" not in given:
        raise InvalidInput('not an object with a "value"')
    replaced = {_ALTERNATIVES.get(name) for name, each in given.items() if each is not None}
    found: Any = {name: each for name, each in fields.items() if name not in replaced}
    for name, each in given.items():
        if name in _FIELDS and each is not None:
            found[name] = _FROM_JSON.get(name, lambda each: each)(each)
        elif name not in (*_FIELDS, *_ELSEWHERE, "value", "partition") and each is not None:
            raise InvalidInput(f"a message has no {name!r}; it may have value, {', '.join(_FIELDS)} and partition")
    chosen = given.get("partition")
    return Row(_bytes(given["value"]), partition if chosen is None else chosen, found)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _bytes(given: Any) -> bytes | str | None:
    """Text as it is, {"base64": …} as the bytes it stands for, and any other JSON as JSON."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, dict) and list(given) == ["base64"]:
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidInput(f"not base64: {error}") from error
    return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def _headers(given: Any) -> list[tuple[str, bytes | str | None]]:
    if not isinstance(given, dict):
        raise InvalidInput("headers are an object of names and values")
    return [
        (name, _bytes(each))
        for name, value in given.items()
        for each in (value if isinstance(value, list) else [value])
    ]


_FROM_JSON: dict[str, Callable[[Any], Any]] = {"key": _bytes, "headers": _headers}


# --- what is told -------------------------------------------------------------------------------------------


class _Told:
    """Ids in the order in which the messages were sent, each as soon as it and all before it are on disk."""

    def __init__(self, output: Output, quiet: bool) -> None:
        self._output = output
        self._is_quiet = quiet
        self._count = 0
        self._waiting: deque[Sending] = deque()
        self._started = time.monotonic()

    def sent(self, sending: Sending) -> None:
        self._waiting.append(sending)
        while self._waiting and self._waiting[0].done():
            self.published(self._waiting.popleft().result())

    def rest(self) -> None:
        """When the producer is closed: nothing is on its way any more."""
        while self._waiting:
            sending = self._waiting.popleft()
            if sending.done():
                try:
                    self.published(sending.result())
                except PenstockError:
                    # The producer raises it, too.
                    continue
        flush()

    def published(self, published: Published) -> None:
        self._count += 1
        if self._is_quiet:
            return
        if self._output is Output.TABLE:
            write_bytes(published.id.encode() + b"\n")
            return
        where = {"topic": published.topic, "partition": published.partition, "offset": published.offset}
        write_row({"id": published.id, **where, "append_time": time_json(published.append_time)})

    def end(self, topic: str) -> None:
        seconds = time.monotonic() - self._started
        if self._is_quiet:
            answer = {"topic": topic, "published": self._count, "seconds": round(seconds, 6)}
            told = f"published {counted(self._count, 'message')} to {topic} in {seconds:.2f} s"
            print_answer(self._output, answer, told)
        flush()
