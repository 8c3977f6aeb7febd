"""Every public call of the client and of a ring, with every argument odd in turn: an error of ours, or success.

Calls and arguments are those of the signatures: a new one is tried without a line here, or fails for want of a value
that fits (`values.py`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from odd.values import ALWAYS, INSTEAD, ODD, WITH, right
from penstock import aio, ring
from penstock.client import blocking
from penstock.client.requests import ChangeGroup, ChangeTopic, CreateGroup, CreateTopic, Replay
from penstock.client.settings import GROUP, TOPIC
from penstock.client.words import MessageFields
from penstock.errors import InternalError, InvalidInput, NotFound, PenstockError, ProtocolError
from penstock.net.connecting import transport_to

# What has no argument that users give; an IdentifiedWriter is for Spark's tasks.
EXEMPT = {"AtOnce", "IdentifiedWriter", "connect", "open", "JournalStats", "RingStats", "FailedJob"}


class Threads:
    """A client, and what it makes, as threads use them."""

    odd = ODD

    def __init__(self, path: Path, address: str | None) -> None:
        self.q = self.run(lambda: self._opened(penstock, path, address))
        self.run(lambda: self.q.create_topic("orders", 1, exist_ok=True))
        self.run(lambda: self.q.publish("orders", b"x"))
        self._kept: dict[str, Any] = {}

    def _opened(self, package: Any, path: Path, address: str | None) -> Any:
        return package.open(path) if address is None else package.connect(f"penstock://{address}")

    def run(self, call: Callable[[], Any]) -> Any:
        return call()

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = self.run(make)
        return self._kept[name]

    def forget(self, name: str) -> None:
        del self._kept[name]

    def use(self, made: Any) -> None:
        """Some arguments are looked at only then."""
        if hasattr(made, "join"):
            made.join()
        elif hasattr(made, "batches"):
            list(made.batches())
        if hasattr(made, "result"):
            made.result(10)
        if hasattr(made, "close"):
            made.close()

    def close(self) -> None:
        self.q.close()


class Tasks(Threads):
    """The same on an event loop. The arguments go the same way: every third value will do."""

    odd = ODD[::3]

    def __init__(self, path: Path, address: str | None) -> None:
        self._runner = asyncio.Runner()
        super().__init__(path, address)

    def _opened(self, package: Any, path: Path, address: str | None) -> Any:
        return super()._opened(aio, path, address)

    def run(self, call: Callable[[], Any]) -> Any:
        async def waited() -> Any:
            async with asyncio.timeout(20):
                made = call()
                return await made if inspect.isawaitable(made) else made

        return self._runner.run(waited())

    def use(self, made: Any) -> None:
        async def used() -> None:
            if hasattr(made, "join"):
                await made.join()
            elif hasattr(made, "batches"):
                [batch async for batch in made.batches()]
            if hasattr(made, "close"):
                await made.close()

        if hasattr(made, "stop"):
            super().use(made)
            return

        self.run(used)

    def close(self) -> None:
        self.run(self.q.close)
        self._runner.close()


def consumer(on: Threads) -> Any:
    """A new one each time, since one that was idle is closed."""
    on.run(on.keep("idle", lambda: on.q.consumer("idle", "orders", until_idle="0s")).close)
    on.forget("idle")
    return on.keep("idle", lambda: on.q.consumer("idle", "orders", until_idle="0s"))


def holding(on: Threads) -> Any:
    return on.keep("consumer", lambda: on.q.consumer("w", "orders"))


def received(on: Threads) -> Any:
    """Another one each time: the last one may be answered for."""
    held = holding(on)
    on.run(lambda: on.q.publish("orders", b"x"))
    return on.run(lambda: held.poll(1, "10s"))[0]


def received_batch(on: Threads) -> Any:
    on.run(lambda: on.q.publish("orders", b"x"))
    batches = holding(on).batches()
    return next(batches) if hasattr(batches, "__next__") else on.run(lambda: anext(batches))


def sending(on: Threads) -> Any:
    """Stored already: its result is asked for on the event loop, too."""
    producer = OBJECTS["Producer"](on)
    made = on.run(lambda: producer.send(b"x"))
    on.run(producer.flush)
    return made


def jobs(on: Threads) -> Any:
    ring = on.keep("ring", penstock.Ring)
    ring.put(1)
    return ring.take(1)


# How to come by an object of each class.
OBJECTS: dict[str, Callable[[Threads], Any]] = {
    "Client": lambda on: on.q,
    "ScheduledMessages": lambda on: on.q.scheduled,
    "Schedules": lambda on: on.q.schedules,
    "DeadLetters": lambda on: on.q.dead_letters,
    "Producer": lambda on: on.keep("producer", lambda: on.q.producer("orders")),
    "Reader": lambda on: on.keep("reader", lambda: on.q.reader("orders")),
    "Deliveries": lambda on: on.keep("deliveries", lambda: on.q.deliveries("orders")),
    "Consumer": consumer,
    "Received": received,
    "ReceivedBatch": received_batch,
    "Sending": sending,
    "Ring": lambda on: on.keep("ring", penstock.Ring),
    "JobBatch": jobs,
}


def arguments(name: str, signature: inspect.Signature) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each argument of a call, with the others as they should be."""
    parameters = list(signature.parameters.values())
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    others = {each.name: right(each.name, name) for each in named if each.default is each.empty or each.name in ALWAYS}
    others |= WITH.get(name, {})
    words = [each.name for each in named]
    if len(named) < len(parameters):
        is_message = parameters[-1].name == "fields"
        words += [*(MessageFields.__annotations__ if is_message else TOPIC if "topic" in name else GROUP), "nope"]
    for word in words:
        yield word, {other: value for other, value in others.items() if other not in (word, INSTEAD.get(word))}


def failures(on: Threads, get: Callable[[Threads], Any]) -> Iterator[str]:
    one = get(on)
    # What the blocking one has besides is for itself.
    for name in dir(getattr(blocking, type(one).__name__, type(one))):
        if name.startswith("_") or name == "close" or not callable(getattr(one, name)):
            continue
        for argument, others in arguments(name, inspect.signature(getattr(one, name))):
            default = inspect.signature(getattr(one, name)).parameters.get(argument)
            for odd in on.odd:
                if odd is None and default is not None and default.default is None:
                    # Not odd; and a wait without an end, for one.
                    continue
                made = get(on)
                try:
                    on.use(on.run(partial(getattr(made, name), **others, **{argument: odd})))
                except (InternalError, ProtocolError) as error:
                    yield f"{type(one).__name__}.{name}({argument}={repr(odd)[:40]}): {error!r}"
                except PenstockError as error:
                    assert error.message
                except TimeoutError:
                    assert argument == "timeout"
                except Exception as error:
                    yield f"{type(one).__name__}.{name}({argument}={repr(odd)[:40]}): {error!r}"


PLACES = ("embedded", "native", "cluster")


@pytest.fixture(scope="module", params=[f"{kind}-{place}" for kind in ("Threads", "Tasks") for place in PLACES])
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threads]:
    kind, place = request.param.split("-")
    address = None
    if place == "native":
        address = request.getfixturevalue("doors")["native"]
    elif place == "cluster":
        address = request.getfixturevalue("cluster")
    made = (Threads if kind == "Threads" else Tasks)(tmp_path_factory.mktemp("data"), address)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["open", "connect", "Ring"])
def test_odd_arguments_of_what_opens_meet_errors_of_ours_only(
    name: str, doors: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = getattr(penstock, name)
    others = {"open": {"path": tmp_path / "data"}, "connect": {"address": f"penstock://{doors['native']}"}}.get(
        name, {}
    )
    # For tests.
    for argument in inspect.signature(call).parameters.keys() - {"clock", "steady"}:
        for odd in ODD:
            if argument == "address" and isinstance(odd, str):
                # A name that is looked up; what is wrong with others, the command line shows.
                continue
            with suppress(PenstockError):
                call(**{**others, argument: odd}).close()


def test_settings_of_other_names_are_refused_by_the_broker(doors: dict[str, str]) -> None:
    """They are those of its arguments; a client of ours would not send them."""

    async def work() -> None:
        transport = await transport_to(f"penstock://{doors['native']}")
        for name in ("self", "name", "group", "lanes", "is_replay", "from_us", "nope"):
            for request in (
                CreateGroup(f"new-{name}", {name: "x"}),
                ChangeGroup("new", {name: "x"}),
                CreateTopic(f"new-{name}", 1, {name: "x"}),
                ChangeTopic("orders", 1, {name: "x"}),
                Replay("orders", f"new-{name}", None, None, None, False, False, {name: "x"}),
            ):
                with pytest.raises((InvalidInput, NotFound)):
                    await transport.call(request)
        await transport.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", OBJECTS)
def test_odd_arguments_meet_errors_of_ours_only(
    on: Threads, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(failures(on, OBJECTS[kind]))
    assert not found, "\n".join(found)
    assert "orders" in [topic.name for topic in on.run(on.q.topics)]


def test_every_public_class_is_tried() -> None:
    public = {name for name, kind in vars(blocking).items() if getattr(kind, "__module__", "") == blocking.__name__}
    public = {name for name in public if name[0].isupper() and len(name) > 1} | {*aio.__all__} | {*ring.__all__}
    assert public - EXEMPT <= OBJECTS.keys()
