"""Names that are none, wherever a name is wanted, through every door: a typed error, and nothing is different after it.

Each request of each door is asked with each of its names replaced, one at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import quote

import grpc
import msgspec
import pytest
from google.protobuf.message import Message as Proto

from cli.support import Run
from penstock.client.answers import Ack
from penstock.client.client import Client
from penstock.errors import InvalidInput, InvalidName, PenstockError
from penstock.server.grpc.table import SERVICES
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Kind
from security.doors import Doors, knock
from security.names import ALLOWED, HOSTILE, NOT_TEXT, SURROGATES
from security.serving import serving
from security.table import GROUP, GRPC, HTTP, ID, NATIVE, PARTS, SAMPLES, TOPIC, frame, outcome, prepare
from served import said

NAMES = ("name", "topic", "topics", "group", "consumer", "id")
# What is told of a name that is none, or of nothing that has such a name.
REFUSED = {
    # Of a cluster, which a broker on its own is none of.
    "unsupported",
    "invalid_name",
    "invalid_input",
    "invalid_receipt",
    "topic_not_found",
    "group_not_found",
    "member_not_found",
    "message_not_found",
    "not_found",
    "not_scheduled",
    "protocol_error",
}
# A path of HTTP with such a name in it may be another path.
LOST = {"route_not_found", "method_not_allowed"}


def _for(field: str, hostile: Any) -> Any:
    """A name, some names, or an id with such a name in it."""
    if field == "topics":
        return (hostile,)
    return f"{hostile}:0:0" if field == "id" and isinstance(hostile, str) else hostile


async def _unharmed(doors: Doors, before: dict[str, Any], path: Path) -> None:
    """Nothing was made, neither in the broker nor beside it."""
    assert doors.state() == before
    inside = re.compile(r"data(/catalog[.\w]*|/partitions(/[0-9a-f]+(/.*)?)?)?")
    strange = [name for found in path.rglob("*") if not inside.fullmatch(name := str(found.relative_to(path)))]
    assert not strange


def _check(path: Path, work: Callable[[Doors], Awaitable[None]]) -> None:
    async def checked(doors: Doors) -> None:
        await prepare(doors)
        before = doors.state()
        await work(doors)
        await _unharmed(doors, before, path)

    knock(path / "data", checked)


# --- native -------------------------------------------------------------------------------------------------


def _replaced(word: Any, hostile: str) -> Iterator[tuple[str, Any]]:
    for field in NAMES:
        if field in type(word).__struct_fields__:
            yield field, msgspec.structs.replace(word, **{field: _for(field, hostile)})


def test_natively(tmp_path: Path) -> None:
    asked: list[tuple[Kind, Any]] = [(kind, word) for kind, (_, word) in NATIVE.items() if kind is not Kind.SUBSCRIBE]
    asked += [(Kind.CALL, request) for request in SAMPLES.values()]

    async def work(doors: Doors) -> None:
        async with doors.connection() as connection:
            for kind, word in asked:
                payload = [frame().data] if kind is Kind.PUBLISH else []
                for hostile in HOSTILE:
                    for field, hostile_word in _replaced(word, hostile):
                        code = await outcome(connection.request(kind, hostile_word, payload))
                        assert code in REFUSED, (type(word).__name__, field, hostile[:50], code)
            assert connection.is_open

    _check(tmp_path, work)


def _may_be(request: type, field: str, value: object) -> bool:
    """A list of names is one, and of some things all there are is meant by none."""
    allows_none = type(None) in get_args(get_type_hints(request)[field])
    return (field == "topics" and isinstance(value, list)) or (value is None and allows_none)


def test_natively_what_is_not_even_text(tmp_path: Path) -> None:
    """MessagePack can say anything: not UTF-8, and things that are no text."""
    not_utf8 = msgspec.Raw(b"\xa2\xff\xfe")

    async def work(doors: Doors) -> None:
        async with doors.connection() as connection:
            for kind, (_, word) in NATIVE.items():
                fields = list(msgspec.to_builtins(word)) if kind is not Kind.ANSWER else [GROUP, TOPIC, 0, 1, [0, 1]]
                for hostile in (*NOT_TEXT, not_utf8):
                    for at, field in enumerate(type(word).__struct_fields__):
                        if field in NAMES and not (field == "topics" and isinstance(hostile, list)):
                            changed = [*fields[:at], hostile, *fields[at + 1 :]]
                            changed += [Ack()] if kind is Kind.ANSWER else []
                            assert await outcome(connection.request(kind, changed)) == "protocol_error"
            for request in SAMPLES.values():
                for field in NAMES:
                    if field in type(request).__struct_fields__:
                        for hostile in (*NOT_TEXT, not_utf8):
                            if _may_be(type(request), field, hostile):
                                continue
                            told = {**msgspec.to_builtins(request), field: hostile}
                            code = await outcome(connection.request(Kind.CALL, told))
                            assert code == "protocol_error", (type(request).__name__, field, hostile, code)

    _check(tmp_path, work)


def test_what_a_client_calls_itself_writes_no_lines_of_its_own_into_the_log(tmp_path: Path) -> None:
    named = "a\n12:00:00.000 info    stopped\x1b[2J\u202e"
    with serving(tmp_path / "data", doors=("native",)) as server:
        port = int(server.native.rpartition(":")[2])

        async def hang_up() -> None:
            goodbye = ClientEnd().follow_up(Kind.WELCOME, 0, None)
            await said(port, ClientEnd().hello(named, None) + goodbye)

        asyncio.run(hang_up())
    (closed,) = [line.removesuffix("\n") for line in server.log if "closed" in line]
    assert closed.isprintable()
    assert r"a\n12:00:00.000 info    stopped\x1b[2J\u202e as anybody" in closed


# --- the library --------------------------------------------------------------------------------------------

Act = Callable[[Client, Any], Awaitable[object]]


async def _read(q: Client, name: Any) -> None:
    async for _ in q.reader(name):
        pass


async def _produce(q: Client, name: Any) -> None:
    async with q.producer(name) as producer:
        await producer.send(b"x")


async def _consume(q: Client, **options: Any) -> None:
    consumer = q.consumer(**{"group": GROUP, "topics": TOPIC, **options})
    await consumer.poll()


ACTS: dict[str, Act] = {
    "publish": lambda q, name: q.publish(name, b"x"),
    "producer": _produce,
    "reader": _read,
    "consumer of a group": lambda q, name: _consume(q, group=name),
    "consumer of a topic": lambda q, name: _consume(q, topics=name),
    "consumer of topics": lambda q, name: _consume(q, topics=[TOPIC, name]),
    "consumer with a name": lambda q, name: _consume(q, name=name),
    "create_topic": lambda q, name: q.create_topic(name),
    "change_topic": lambda q, name: q.change_topic(name, partitions=2),
    "delete_topic": lambda q, name: q.delete_topic(name),
    "topic": lambda q, name: q.topic(name),
    "create_group": lambda q, name: q.create_group(name),
    "change_group": lambda q, name: q.change_group(name, max_retries=1),
    "delete_group": lambda q, name: q.delete_group(name),
    "group": lambda q, name: q.group(name),
    "lag": lambda q, name: q.lag(name),
    "seek a group": lambda q, name: q.seek(name, TOPIC, "latest"),
    "seek in a topic": lambda q, name: q.seek(GROUP, name, "latest"),
    "parked_keys": lambda q, name: q.parked_keys(name),
    "release_key": lambda q, name: q.release_key(name, TOPIC, "k"),
    "release_key of a topic": lambda q, name: q.release_key(GROUP, name, "k"),
    "replay a topic": lambda q, name: q.replay(name, "new", offsets={}),
    "replay to a group": lambda q, name: q.replay(TOPIC, name, offsets={}),
    "message": lambda q, name: q.message(_for("id", name)),
    "trace": lambda q, name: q.trace(_for("id", name)),
    "why": lambda q, name: q.why(ID, name),
    "state_at": lambda q, name: q.state_at(name, TOPIC, 1),
    "scheduled": lambda q, name: q.scheduled.list(name),
    "cancel": lambda q, name: q.scheduled.cancel(_for("id", name)),
    "schedule": lambda q, name: q.schedules.create(name, TOPIC, "@daily", b"x"),
    "schedule of a topic": lambda q, name: q.schedules.create("new", name, "@daily", b"x"),
    "delete a schedule": lambda q, name: q.schedules.delete(name),
    "dead letters": lambda q, name: q.dead_letters.list(name),
    "dead letter": lambda q, name: q.dead_letters.get(_for("id", name)),
    "redrive": lambda q, name: q.dead_letters.redrive(name),
    "discard": lambda q, name: q.dead_letters.discard(name),
}


@pytest.mark.parametrize("is_remote", [True, False], ids=["connected", "embedded"])
def test_through_the_library(tmp_path: Path, is_remote: bool) -> None:
    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            if is_remote:
                q = await stack.enter_async_context(doors.client())
            else:
                q = Client(doors.site, place="here")
                # Its broker goes on.
                stack.callback(setattr, q, "_is_closed", True)
            for what, act in ACTS.items():
                for hostile in (*HOSTILE, *SURROGATES, *NOT_TEXT):
                    # A list of names is one for those who take lists, and no name is one that is made up.
                    if hostile == ["a"] or (hostile is None and what == "consumer with a name"):
                        continue
                    try:
                        await act(q, hostile)
                    except PenstockError as error:
                        assert error.code in REFUSED, (what, hostile, error)
                    else:
                        raise AssertionError((what, hostile))

    _check(tmp_path, work)


def test_odd_names_are_names_all_the_same(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as q:
            for name in ALLOWED:
                await q.create_topic(name, 1)
                sent = await q.publish(name, b"x")
                assert (await q.message(sent.id)).message.value == b"x"
                reply = await doors.web.get(f"/v1/topics/{quote(name)}")
                assert reply.json()["name"] == name
                async with q.consumer(name, name, name=name, until_idle="1ms") as consumer:
                    (message,) = await consumer.poll(1)
                    await message.ack()
            assert len(list((tmp_path / "data" / "partitions").iterdir())) == len(ALLOWED)

    knock(tmp_path / "data", work)


def test_topics_for_dead_letters_are_the_brokers_to_make(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as q:
            with pytest.raises(InvalidName):
                await q.create_topic("mine.dlq")
            # Its dead letters could not be called anything.
            with pytest.raises(InvalidInput):
                await q.create_topic("x" * 200)

    _check(tmp_path, work)


# --- HTTP ---------------------------------------------------------------------------------------------------


def test_over_http(tmp_path: Path) -> None:
    """In the path, in the query and in the body."""

    async def work(doors: Doors) -> None:
        async def refused(route: str, path: str, given: Any, hostile: Any, codes: set[str]) -> None:
            method = route.partition(" ")[0]
            told: dict[str, Any] = {"params": given} if method == "GET" else {"json": given}
            async with doors.web.stream(method, path, **told) as reply:
                assert reply.status_code in (400, 404, 405), (route, str(hostile)[:50], reply.status_code)
                await reply.aread()
            assert reply.json().keys() == {"code", "message", "details"}
            assert reply.json()["code"] in codes, (route, str(hostile)[:50], reply.json())

        for route, (_, told) in HTTP.items():
            given = told(doors) if callable(told) else told
            path = route.partition(" ")[2]
            parts = re.findall(r"{(\w+)}", path)
            for hostile in HOSTILE:
                for part in parts:
                    # Dots too: httpx would take them for steps of the path.
                    written = quote(_for(part, hostile)[:20_000], safe="").replace(".", "%2E")
                    where = path.replace(f"{{{part}}}", written)
                    where = re.sub(r"{(\w+)}", lambda found: PARTS[found[1]], where)
                    await refused(route, where, given, hostile, REFUSED | LOST)
            where = re.sub(r"{(\w+)}", lambda found: PARTS[found[1]], path)
            for field in NAMES:
                if field in (given or ()):
                    for hostile in (*HOSTILE, *([] if route.startswith("GET") else [None, 7, True, {"a": 1}])):
                        if route.startswith("GET"):
                            hostile = hostile[:20_000]
                        await refused(route, where, {**given, field: hostile}, hostile, REFUSED)

    _check(tmp_path, work)


# --- gRPC ---------------------------------------------------------------------------------------------------


def _replaced_in(request: Proto, hostile: str) -> Iterator[tuple[str, Proto]]:
    for field in request.DESCRIPTOR.fields:
        if field.name in NAMES and field.type == field.TYPE_STRING:
            changed = type(request)()
            changed.CopyFrom(request)
            if field.name == "topics":
                del changed.topics[:]
                changed.topics.append(hostile)
            else:
                setattr(changed, field.name, _for(field.name, hostile))
            yield field.name, changed
        elif field.name == "subscribe":
            for inner, subscription in _replaced_in(request.subscribe, hostile):
                yield inner, type(request)(subscribe=subscription)


def test_over_grpc(tmp_path: Path) -> None:
    async def asked(doors: Doors, method: str, request: Proto) -> str:
        try:
            if method in ("PublishStream", "Subscribe"):
                stream = getattr(doors.stub, method)()
                await stream.write(request)
                reply = await stream.read()
                stream.cancel()
                return str(reply.failure.code) if method == "PublishStream" else "ok"
            call = getattr(doors.stub, method)(request)
            if isinstance(call, grpc.aio.UnaryStreamCall):
                await call.read()
                return "ok"
            reply = await call
        except grpc.aio.AioRpcError as error:
            return str(dict(error.trailing_metadata() or ()).get("penstock-code", error.code()))
        # An answer tells of each receipt what became of it.
        failed = getattr(reply, "failed", [])
        return str(failed[0].failure.code) if failed else "ok"

    async def work(doors: Doors) -> None:
        assert GRPC.keys() == {method for methods in SERVICES.values() for method in methods}
        for method, (_, made) in GRPC.items():
            for hostile in HOSTILE:
                for field, request in _replaced_in(made(doors), hostile):
                    code = await asked(doors, method, request)
                    assert code in REFUSED, (method, field, hostile[:50], code)

    _check(tmp_path, work)


# --- the command line ---------------------------------------------------------------------------------------

COMMANDS = [
    "topic create {}",
    "topic show {}",
    "topic set {} --partitions 2",
    "topic delete {} --yes",
    "group create {}",
    "group show {}",
    "group set {} --max-retries 1",
    "group delete {} --yes",
    "group seek {} t latest",
    "group parked {}",
    "group replay {} t --from-time 1h",
    "publish {} x",
    "consume {} --group g --until-idle 1ms",
    "consume t --group {} --until-idle 1ms",
    "read {}",
    "trace {}:0:0",
    "why t:0:0 {}",
    "scheduled list {}",
    "scheduled cancel {}:0:0 --yes",
    "schedule create {} t @daily x",
    "schedule delete {} --yes",
    "dlq list {}",
    "dlq redrive {} --yes",
    "dlq discard {} --yes",
]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    run = Run(capsys)
    with serving(tmp_path / "data", doors=("native",)) as server:
        monkeypatch.setenv("PENSTOCK_SERVER", f"penstock://{server.native}")
        run.ok("topic", "create", "t", "--partitions", "1")
        run.ok("group", "create", "g")
        before = run.ok("topic", "list", "-o", "json").out, run.ok("group", "list", "-o", "json").out
        for command in COMMANDS:
            for hostile in ("..", "../x", "a\nb", "a\0b", "\u202ea", "__x", "x" * 201, "", "a\x1b[31mb", "\udcff"):
                ran = run(*[part.replace("{}", hostile) for part in command.split(" ")])
                assert ran.code not in (0, 3), (command, hostile)
                assert ran.err, (command, hostile)
                assert "Traceback" not in ran.err
                assert "bug" not in ran.err
                assert "\x1b[31m" not in ran.err, command
        assert (run.ok("topic", "list", "-o", "json").out, run.ok("group", "list", "-o", "json").out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
