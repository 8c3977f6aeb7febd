"""A forked child can't use its parent's clients, is told so by every method, and does its parent no harm."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from broker_process import broker_process
from penstock.batch import Batch
from penstock.client import blocking
from penstock.client.identified import Identity
from penstock.client.parts import Part, Parts
from penstock.client.placing import Placed
from penstock.client.portal import Portal
from penstock.client.rows import StoredMessage
from penstock.client.sending import SendingBatch
from penstock.errors import ClientForked
from penstock.message import Message

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TABLE = pa.table({"value": pa.array([b"x"], pa.binary())})
# What methods are called with, by the names of their parameters.
ARGUMENTS: dict[str, Any] = {
    "batch": Batch.from_columns([b"x"], now_us=1),
    "callback": str,
    "cron": "* * * * *",
    "fields": {},
    "group": "g",
    "handler": str,
    "id": "t:0:0",
    "identity": Identity(1),
    "key": "k",
    "message": Message(b"x"),
    "name": "t",
    "offsets": {0: 1},
    "partition": 0,
    "parts": Parts("t", 1, [Part(0, np.arange(1), Batch.from_columns([b"x"], now_us=1))]),
    "place": Placed(0, 1, 0),
    "table": TABLE,
    "time": "2026-01-14T15:00:00Z",
    "topic": "t",
    "topics": "t",
    "value": b"x",
    "way": print,
}
OPTIONS: dict[str, dict[str, Any]] = {"seek": {"to": "latest"}, "reschedule": {"delay": "1s"}}
ITERATING = {"__iter__", "__next__", "__aiter__", "__anext__", "__enter__", "__aenter__"}
# What only reads the child's copy, or leaves to the parent what is the parent's.
HARMLESS = {
    "Client.__aenter__",
    "Client.__enter__",
    "Client.close",
    "Client.compose",
    "Client.dead_letters",
    "Client.place",
    "Client.scheduled",
    "Client.schedules",
    "Consumer.close",
    "Consumer.group",
    "Consumer.membership",
    "Consumer.name",
    "IdentifiedWriter.__aenter__",
    "IdentifiedWriter.__enter__",
    "IdentifiedWriter.close",
    "IdentifiedWriter.topic",
    "Producer.close",
    "Producer.is_idle",
    "Producer.topic",
    "Received.answered",
    "Received.attempt",
    "Received.lease",
    "Reader.archive",
    "Reader.check_whole",
    "Reader.topic",
    "ReceivedBatch.arrow",
    "ReceivedBatch.lease",
    "ReceivedBatch.messages",
    "ReceivedBatch.offsets",
    "ReceivedBatch.partition",
    "ReceivedBatch.topic",
    "Deliveries.topic",
    "Sending.parcel",
    "Sending.row",
}


def child_said(work: Callable[[], Iterator[str]]) -> list[str]:
    """What a forked child yields. The alarm ends a child that hangs, and what it said before that is compared."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            for line in work():
                os.write(writing, line.encode() + b"\n")
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as said:
        lines = said.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0, lines
    return lines


def used(found: Any) -> object:
    """As far as it gets without an event loop: nothing may wait for one."""
    if inspect.isasyncgen(found) or isinstance(found, AsyncIterator):
        found = anext(found)
    if inspect.isawaitable(found):
        found.__await__().send(None)
        raise AssertionError("it waits")
    return next(found) if isinstance(found, Iterator) else found


def called(instance: Any, name: str) -> object:
    attribute = getattr(instance, name)
    if not callable(attribute):
        return attribute
    parameters = inspect.signature(attribute).parameters.values()
    wanted = [
        each
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    named = {each.name: ARGUMENTS[each.name] for each in wanted if each.kind is not each.POSITIONAL_ONLY}
    placed = [ARGUMENTS[each.name] for each in wanted if each.kind is each.POSITIONAL_ONLY]
    return used(attribute(*placed, **named, **OPTIONS.get(name, {})))


def names_of(instance: Any) -> set[str]:
    own = set(getattr(instance, "__dict__", ()))
    public = {name for name in own | set(dir(type(instance))) if not name.startswith("_")}
    # A message is data, but for what it is answered with.
    data = set(dir(StoredMessage)) if isinstance(instance, StoredMessage) else set()
    return (public - data) | {name for name in ITERATING if hasattr(type(instance), name)}


def walked(instances: list[Any]) -> Iterator[str]:
    """Everything public of all of them that does not raise ClientForked."""
    for instance in instances:
        for name in sorted(names_of(instance)):
            where = f"{type(instance).__name__}.{name}"
            try:
                outcome = called(instance, name)
            except ClientForked:
                continue
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            if where not in HARMLESS:
                yield f"{where}: {outcome!r}"
        yield from () if repr(instance) else ["no repr"]


def test_every_method_of_the_blocking_client_raises_in_a_forked_child(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path) as broker,
        penstock.connect(broker.address) as connected,
        penstock.open(tmp_path / "e") as embedded,
    ):
        for q in (connected, embedded):
            instances = _instances(q)
            twins = {
                each
                for name, each in vars(blocking).items()
                if inspect.isclass(each)
                and each.__module__ == blocking.__name__
                and name.isidentifier()
                and name[0] != "_"
            }
            assert {type(each) for each in instances} >= twins - {blocking.AtOnce}
            assert child_said(lambda instances=instances: walked(instances)) == []  # type: ignore[misc]
            assert q.publish("t", b"from the parent").offset >= 0


def _instances(q: Any) -> list[Any]:
    q.create_topic("t", partitions=1)
    q.publish("t", b"a")
    producer = q.producer("t", linger="1h")
    producer.send(b"b")
    producer.flush()
    sending = producer.send(b"c")
    table = SendingBatch("t", 1, [(np.arange(1), sending.parcel)])
    consumer = q.consumer("g", "t", ack_linger="1h")
    message = next(consumer)
    batch = next(q.consumer("h", "t").batches())
    parts = [q.scheduled, q.schedules, q.dead_letters, q.reader("t"), q.deliveries("t"), q.identified("t", Identity(1))]
    return [q, producer, sending, table, consumer, message, batch, *parts]


def test_every_method_of_the_async_client_raises_in_a_forked_child(tmp_path: Path) -> None:
    async def main() -> None:
        async with penstock.aio.open(tmp_path) as q:
            await q.create_topic("t", partitions=1)
            await q.publish("t", b"a")
            producer = q.producer("t", linger="1h")
            sending = await producer.send(b"b")
            table = SendingBatch("t", 1, [(np.arange(1), sending.parcel)])
            consumer = q.consumer("g", "t", ack_linger="1h")
            message = await anext(consumer)
            batch = await anext(q.consumer("h", "t").batches())
            reader, writer = q.reader("t"), q.identified("t", Identity(1))
            parts = [q.scheduled, q.schedules, q.dead_letters, q.deliveries("t"), reader, writer]
            instances = [q, producer, sending, table, consumer, message, batch, *parts]
            assert {type(each).__name__ for each in instances} >= _twins()
            assert child_said(lambda: walked(instances)) == []
            await producer.flush()
            assert [each.value async for each in q.reader("t")] == [b"a", b"b"]

    asyncio.run(main())


def _twins() -> set[str]:
    return {name for name, each in vars(blocking).items() if inspect.isclass(each) and hasattr(each, "_inner")}


def resumed(iterators: dict[str, Iterator[Any]]) -> Iterator[str]:
    for name, each in iterators.items():
        try:
            yield f"{name}: {next(each)!r}"
        except ClientForked:
            yield f"{name} refused"


def test_a_forked_child_gets_nothing_of_what_an_iteration_of_its_parent_had_fetched(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker, penstock.connect(broker.address) as q:
        _fill(q)
        iterators: dict[str, Iterator[Any]] = {
            "messages": iter(q.reader("t")),
            "batches": q.reader("t").batches(),
            "deliveries": q.deliveries("t").batches(),
            "consumed": iter(q.consumer("h", "t")),
            "consumed batches": q.consumer("i", "t").batches(),
        }
        for each in iterators.values():
            next(each)
        assert child_said(lambda: resumed(iterators)) == [f"{name} refused" for name in iterators]
        assert next(iterators["messages"]).offset == 1


def test_a_forked_child_gets_nothing_of_what_an_async_iteration_of_its_parent_had_fetched(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with await penstock.aio.connect(address) as q:
            iterations: dict[str, AsyncIterator[Any]] = {
                "messages": aiter(q.reader("t")),
                "batches": q.reader("t").batches(),
            }
            for each in iterations.values():
                await anext(each)
            assert child_said(lambda: resumed({name: _sent(each) for name, each in iterations.items()})) == [
                f"{name} refused" for name in iterations
            ]

    def _sent(iteration: AsyncIterator[Any]) -> Iterator[Any]:
        """What comes without a wait: the child has no event loop."""
        try:
            anext(iteration).__await__().send(None)
        except StopIteration as end:
            yield end.value

    with broker_process(tmp_path) as broker:
        with penstock.connect(broker.address) as q:
            _fill(q)
        asyncio.run(main(broker.address))


def _fill(q: Any) -> None:
    """More than one frame, and more than one batch of deliveries."""
    q.create_topic("t", partitions=1)
    for number in range(3):
        q.publish("t", b"%d" % number)
    with q.consumer("g", "t", until_idle="0s") as consumer:
        for message in consumer:
            message.ack()


LEAVING = """
import gc, os, sys, warnings
import penstock
warnings.simplefilter("ignore", DeprecationWarning)
with penstock.connect(sys.argv[1]) as q:
    q.create_topic("t", partitions=1)
    q.publish("t", b"a")
    with q.producer("t", linger="1h") as p, q.consumer("g", "t", ack_linger="1h", visibility="1h") as c:
        message = next(c)
        message.ack()
        p.send(b"from the parent")
        child = os.fork()
        if child == 0:
            with penstock.connect(sys.argv[1]) as own:
                own.publish("t", b"from the child")
            q = p = c = message = None
            gc.collect()
            # Out of both blocks, and then whatever is registered for the end of a process.
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        p.send(b"later")
    print([each.value for each in q.reader("t")], q.lag("g"))
"""


def test_a_forked_child_ends_without_flushing_or_closing_what_is_its_parents(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        ended = subprocess.run(
            [sys.executable, "-c", LEAVING, broker.address], capture_output=True, text=True, timeout=60, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() == "[b'a', b'from the child', b'from the parent', b'later'] {'t': [3]}"


def test_a_forked_child_keeps_no_directory_of_its_parent_locked(tmp_path: Path) -> None:
    ready, is_ready = os.pipe()
    ends, end = os.pipe()
    with penstock.open(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(is_ready, b"x")
            os.close(end)
            os.read(ends, 1)
            os._exit(0)
        os.read(ready, 1)
    try:
        penstock.open(tmp_path).close()
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for each in (ready, is_ready, ends):
            os.close(each)


def test_a_fork_while_another_thread_holds_a_lock_leaves_the_child_free() -> None:
    portal = Portal()

    def refused() -> Iterator[str]:
        with pytest.raises(ClientForked):
            portal.stop()
        yield "refused"

    with ThreadPoolExecutor(1) as thread, portal._lock:
        assert thread.submit(child_said, refused).result() == ["refused"]
    portal.stop()
