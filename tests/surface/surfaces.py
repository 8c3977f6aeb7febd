"""The public surface, as text: what users, clients in other languages, stored data and running clusters rely on.

Labels are those of the surface (packet kinds, file and key names), not of the classes that implement it. Renaming and
moving code changes nothing here; if a line changes, somebody's program, disk or rolling upgrade breaks.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import httpx
import msgspec
import typer

import penstock
import penstock.aio
from broker_process import BrokerProcess
from penstock import errors, limits
from penstock.broker import catalog, events, snapshot
from penstock.broker.letter import Obituary
from penstock.cli.app import app
from penstock.client import answers, blocking, client, requests, settings
from penstock.client import consumer as aio_consumer
from penstock.client import producer as aio_producer
from penstock.client import reader as aio_reader
from penstock.cluster import controller, levels, registration, restored, throttle, tombstones, unclaimed
from penstock.cluster import words as replication
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.record import encode as encode_partition
from penstock.cluster.keys import Keys
from penstock.message import Message
from penstock.ring import Ring
from penstock.server.config import Config
from penstock.server.grpc import penstock_pb2
from penstock.server.http.openapi import described
from penstock.server.http.table import ROUTES
from penstock.wire import failures, words
from penstock.wire.packets import Kind, packed
from surface.samples import sample, samples

_PYTHON: dict[str, Any] = {
    "penstock": penstock,
    "penstock.aio": penstock.aio,
    "penstock.Ring": Ring,
    "penstock.Message": Message,
    "client": blocking.Client,
    "client.scheduled": blocking.ScheduledMessages,
    "client.schedules": blocking.Schedules,
    "client.dead_letters": blocking.DeadLetters,
    "producer": blocking.Producer,
    "identified writer": blocking.IdentifiedWriter,
    "consumer": blocking.Consumer,
    "received message": blocking.Received,
    "received batch": blocking.ReceivedBatch,
    "reader": blocking.Reader,
    "deliveries": blocking.Deliveries,
    "aio client": client.Client,
    "aio producer": aio_producer.Producer,
    "aio consumer": aio_consumer.Consumer,
    "aio reader": aio_reader.Reader,
}
_PACKETS = [
    (Kind.HELLO, words.Hello),
    (Kind.PUBLISH, words.PublishFrame),
    (Kind.JOIN, words.Join),
    (Kind.LEAVE, words.Leave),
    (Kind.POLL, words.Poll),
    (Kind.READ, words.Read),
    (Kind.CANCEL, words.Cancel),
    (Kind.SUBSCRIBE, words.Subscribe),
    (Kind.CREDIT, words.Credit),
    (Kind.REPLICATE, replication.Replicate),
    (Kind.FETCH, replication.Fetches),
    (Kind.ACKS, words.Acked),
    (Kind.WELCOME, words.Welcome),
    (Kind.FAILURE, failures.Failed),
    (Kind.DELIVER, words.Delivered),
    (Kind.PING, words.Ping),
    (Kind.GOODBYE, words.Goodbye),
]
_REPLIES = [
    ("reply to PUBLISH", words.Stored),
    ("reply to READ", words.PageOf),
    ("reply to ACKS", words.NotAcked),
    ("DELIVER of replication", replication.Answers),
]
_STORED = [
    ("topic", catalog.TopicRecord),
    ("group", catalog.GroupRecord),
    ("schedule", catalog.ScheduleRecord),
    ("catalog", catalog.Contents),
    ("dead letter header", Obituary),
    ("disk", registration.Disk),
    ("seen", restored.Seen),
]
_IN_ETCD = [
    ("cluster", levels.Cluster),
    ("claims/<node>", registration.Claim),
    ("brokers/<node>", registration.Broker),
    ("controller", controller.Chosen),
    ("level", levels.Finalized),
    ("nodes/<node>", registration.Joined),
    ("throttle", throttle.Setting),
    ("deleted/<id>", tombstones._Deleted),
    ("restored", restored._Restored),
    ("unclaimed/<id>", unclaimed._Written),
    ("catalog/topics/<name>", catalog.TopicRecord),
    ("catalog/groups/<name>", catalog.GroupRecord),
    ("catalog/schedules/<name>", catalog.ScheduleRecord),
]


# --- Python -------------------------------------------------------------------------------------------------


def python_api() -> Iterator[str]:
    for label, owner in _PYTHON.items():
        names = owner.__all__ if isinstance(owner, ModuleType) else [name for name in dir(owner) if name[0] != "_"]
        for name in sorted(names):
            yield f"{label}.{name}{_form(inspect.getattr_static(owner, name, None), getattr(owner, name))}"
    for label in ("open", "connect"):
        yield f"penstock.aio.{label}{_parameters(getattr(penstock.aio, label))}"


def _form(static: object, value: object) -> str:
    if isinstance(value, type | ModuleType):
        return ""
    if isinstance(static, property) or not callable(value):
        return ": attribute"
    return _parameters(value)


_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "keyword "}


def _parameters(function: Callable[..., object]) -> str:
    """Without annotations: those name classes, which users get and do not import."""
    parts = []
    for one in inspect.signature(function).parameters.values():
        star = _STARS.get(one.kind.name, "")
        default = "" if one.default is inspect.Parameter.empty else f"={_default(one.default)}"
        parts.append(f"{star}{one.name}{default}")
    return f"({', '.join(parts)})"


def _default(value: object) -> str:
    text = value.name if isinstance(value, Enum) else repr(value)
    return re.sub(r"<(function|object) ?[^>]*>|<.* at 0x[0-9a-f]+>", "<object>", text)


def error_codes() -> Iterator[str]:
    def below(kind: type[errors.PenstockError]) -> Iterator[type[errors.PenstockError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    for kind in sorted(below(errors.PenstockError), key=lambda kind: kind.code):
        parents = ", ".join(base.__name__ for base in kind.__bases__)
        yield f"{kind.__name__}({parents}) {kind.code} retriable={kind.retriable}"


# --- bytes --------------------------------------------------------------------------------------------------


def native() -> Iterator[str]:
    yield "prefix " + packed(Kind.POLL, 7, b"header", 3).hex()
    yield from (f"{kind.name} {int(kind)}" for kind in Kind)
    for label, value in samples((kind.name, word) for kind, word in _PACKETS):
        yield f"{label} {words.encoded(value).hex()}"
    for label, value in samples(_REPLIES):
        yield f"{label} {words.encoded(value).hex()}"
    for number, kind in enumerate(answers.Answer.__args__):
        answered = msgspec.structs.replace(sample(words.Answered), answer=sample(kind))
        yield f"ANSWER {number} {words.encoded(answered).hex()}"
    for request, reply in sorted(words._REPLIES.items(), key=lambda item: item[0].__name__):
        value = sample(request)
        yield f"CALL {type(value).__struct_config__.tag} {words.encoded(value).hex()}"
        yield from (f"    reply {words.encoded(one).hex()}" for _, one in samples([("", reply)]))
    yield f"page of a listing: {requests.PAGE_MAX}"


def on_disk() -> Iterator[str]:
    """Rows of the deliveries log, records in files. Frames, segments and indexes: tests/test_format_docs.py."""
    for event in _events():
        yield f"event {event.__struct_config__.tag} {msgspec.msgpack.encode(sample(event)).hex()}"
    yield f"snapshot {msgspec.msgpack.encode(sample(snapshot.Snapshot), enc_hook=_encoded).hex()}"
    for label, kind in _STORED:
        yield f"{label} {_json(sample(kind))}"


def _events() -> list[type[Any]]:
    kinds = [one for one in vars(events).values() if isinstance(one, type) and issubclass(one, events.Event)]
    return sorted(
        (kind for kind in kinds if kind is not events.Event), key=lambda kind: str(kind.__struct_config__.tag)
    )


def in_etcd() -> Iterator[str]:
    yield from sorted(f"key {key}" for key in vars(Keys("name")).values())
    for label, kind in _IN_ETCD:
        yield f"{label} {_json(sample(kind))}"
    record = msgspec.structs.replace(sample(PartitionRecord), unknown=())
    yield f"partitions/<id> {encode_partition(record).decode()}"


def _encoded(value: object) -> object:
    return bytes(value.serialize()) if hasattr(value, "serialize") else str(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- listeners and tools ------------------------------------------------------------------------------------


def openapi() -> Iterator[str]:
    """Without prose and examples."""
    document = msgspec.json.decode(msgspec.json.encode(described(ROUTES, "0")))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            route = f"{method.upper()} {path}"
            yield f"{route} {operation['operationId']}"
            for parameter in operation.get("parameters", ()):
                yield f"{route} {parameter['in']} {parameter['name']} {_bare(parameter['schema'])}"
            yield f"{route} body {_content(operation.get('requestBody', {}))}"
            yield from (f"{route} {status} {_content(reply)}" for status, reply in operation["responses"].items())
    for name, schema in document["components"]["schemas"].items():
        yield f"{name} required {schema.get('required', [])}"
        yield from (f"{name}.{field} {_bare(kind)}" for field, kind in schema.get("properties", {}).items())


def _content(body: dict[str, Any]) -> str:
    return " ".join(f"{kind} {_bare(given.get('schema', {}))}" for kind, given in body.get("content", {}).items())


def _bare(schema: object) -> str:
    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            prose = ("description", "title", "example", "examples")
            return {name: kept(one) for name, one in value.items() if name not in prose or isinstance(one, dict)}
        return [kept(one) for one in value] if isinstance(value, list) else value

    return json.dumps(kept(schema), sort_keys=True)


def grpc() -> Iterator[str]:
    file = penstock_pb2.DESCRIPTOR
    for service in file.services_by_name.values():
        for method in service.methods:
            sides = f"{method.input_type.name} -> {method.output_type.name}"
            streams = f"client={method.client_streaming} server={method.server_streaming}"
            yield f"{service.full_name}.{method.name} {sides} {streams}"
    for message in file.message_types_by_name.values():
        for field in message.fields:
            yield f"{message.full_name}.{field.name} = {field.number} type={field.type} repeated={field.is_repeated}"


def cli() -> Iterator[str]:
    yield from _command(typer.main.get_command(app), "penstock")


def _command(command: Any, path: str) -> Iterator[str]:
    for parameter in command.params:
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        flags = [word for word in ("required", "multiple", "is_flag") if getattr(parameter, word, False)]
        yield " ".join([path, parameter.param_type_name, names, *flags])
    for name in sorted(getattr(command, "commands", {})):
        yield f"{path} {name}"
        yield from _command(command.commands[name], f"{path} {name}")


def configuration() -> Iterator[str]:
    yield from (f"{field.name} = {getattr(Config(), field.name)}" for field in fields(Config) if field.name != "limits")
    defaults = limits.DEFAULT_LIMITS
    yield from (f"limits.{field.name} = {getattr(defaults, field.name)}" for field in fields(defaults))
    yield from (f"topic.{name}" for name in settings.TOPIC)
    yield from (f"group.{name}" for name in settings.GROUP)


def metrics() -> Iterator[str]:
    """Types, names and labels at /metrics of a broker with a topic and a group."""
    with TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), "--http", "127.0.0.1:0", "--grpc", "none")
        try:
            with penstock.connect(broker.address) as q:
                q.create_topic("orders", partitions=1)
                q.publish("orders", b"1")
                (message,) = q.consumer("billing", "orders").poll(1, wait="10s")
                message.ack()
            http = re.search(r"http=(\S+)", broker.said)
            assert http is not None, broker.said
            lines = httpx.get(f"http://{http[1]}/metrics").text.splitlines()
        finally:
            broker.kill()
    labelled = {f"{name}{{{','.join(re.findall('([a-z_]+)=', labels))}}}" for name, labels in _labelled(lines)}
    return iter([*sorted(line for line in lines if line.startswith("# TYPE")), *sorted(labelled)])


def _labelled(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if match := re.match(r"([a-z_]+)(\{.*\})? ", line):
            yield match[1], match[2] or ""


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "python": python_api,
    "errors": error_codes,
    "native": native,
    "disk": on_disk,
    "etcd": in_etcd,
    "openapi": openapi,
    "grpc": grpc,
    "cli": cli,
    "configuration": configuration,
    "metrics": metrics,
}


def shown(name: str) -> str:
    return "\n".join(SURFACES[name]()) + "\n"
