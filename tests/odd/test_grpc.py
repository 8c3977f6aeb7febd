"""Every field of every gRPC method, as the descriptors have them, odd in turn: no answer says that it is our fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from odd.values import right
from penstock.server.grpc import penstock_pb2 as pb

NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 253_402_300_800_000_000]
FLOATS = [0.0, -1.0, 5e-324, 1e300, float("nan"), float("inf"), -float("inf")]
STRINGS = ["", "x", "grün", "\0", "a/b", "x" * 300, "orders:0:" + "9" * 20, "orders:0:0", "none", "strict", "9" * 5_000]
ODD = {FieldDescriptor.CPPTYPE_STRING: STRINGS, FieldDescriptor.CPPTYPE_BOOL: [False, True]}
ODD |= dict.fromkeys((FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT), FLOATS)
FAULTS = {grpc.StatusCode[name] for name in ("INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED")}


def paths(kind: Descriptor, depth: int = 0) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in kind.fields:
        yield (field,)
        if field.message_type and depth < 3:
            yield from ((field, *rest) for rest in paths(field.message_type, depth + 1))


def values(field: FieldDescriptor) -> list[Any]:
    if field.message_type:
        return [None]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", b"\xff\xfe"]
    return ODD.get(field.cpp_type, NUMBERS)


def put(message: Message, path: tuple[FieldDescriptor, ...], value: Any) -> None:
    """ValueError if the field can't hold it."""
    field, *rest = path
    if field.message_type and field.message_type.GetOptions().map_entry:
        entries = getattr(message, field.name)
        if field.message_type.fields_by_name["value"].message_type:
            entries[5].SetInParent()
        else:
            entries[5] = 5
    elif field.message_type:
        inner = getattr(message, field.name)
        inner = inner.add() if field.is_repeated else inner
        inner.SetInParent()
        if rest:
            put(inner, tuple(rest), value)
    elif field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def requests(kind: Descriptor) -> Iterator[Message]:
    made = GetMessageClass(kind)
    base = made()
    for field in kind.fields:
        if field.name in ("topic", "group", "id", "cron", "consumer") and not field.is_repeated:
            setattr(base, field.name, right(field.name) if field.name != "consumer" else "c")
    for path in paths(kind):
        for value in values(path[-1]):
            request = made()
            request.CopyFrom(base)
            try:
                put(request, path, value)
            except ValueError:
                continue
            yield request


def test_no_request_meets_an_internal_error(doors: dict[str, str]) -> None:
    found = []
    with grpc.insecure_channel(doors["grpc"]) as channel:
        for service in pb.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kinds = ("stream" if each else "unary" for each in (method.client_streaming, method.server_streaming))
                call = getattr(channel, "_".join(kinds))(
                    f"/{service.full_name}/{method.name}", request_serializer=lambda each: each.SerializeToString()
                )
                for request in requests(method.input_type):
                    if hasattr(request, "wait_us"):
                        request.wait_us = min(request.wait_us, 1_000)
                    try:
                        replies = call(iter([request]) if method.client_streaming else request, timeout=20)
                        if method.server_streaming:
                            list(replies)
                    except grpc.RpcError as error:
                        if error.code() in FAULTS:
                            found.append((method.name, error.code(), error.details(), str(request)[:200]))
    assert not found, found[:5]
