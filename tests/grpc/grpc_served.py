"""A gRPC door on a real port, and a client whose methods come from the descriptors of the proto."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local.transport import LocalTransport
from penstock.server.gate import Gate
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.door import GrpcDoor
from penstock.storage.files import DiskFiles
from stalling import loop_watched


def stub_of(channel: grpc.aio.Channel) -> SimpleNamespace:
    """All methods of all services; their names are different."""
    methods: dict[str, Any] = {}
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            kind = f"{_kind(method.client_streaming)}_{_kind(method.server_streaming)}"
            methods[method.name] = getattr(channel, kind)(
                f"/{service.full_name}/{method.name}",
                request_serializer=asked.SerializeToString,
                response_deserializer=answered.FromString,
            )
    return SimpleNamespace(**methods)


def _kind(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


class Served:
    def __init__(self, site: LocalTransport, door: GrpcDoor, port: int, broken: list[PenstockError]) -> None:
        self.site = site
        self.door = door
        self.address = f"127.0.0.1:{port}"
        # What the door says after which the broker must not go on.
        self.broken = broken

    @asynccontextmanager
    async def channel(self, *options: tuple[str, Any]) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own: channels of one process share theirs otherwise."""
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1), *options]
        ) as channel:
            yield channel

    def in_flight(self, topic: str, group: str) -> int:
        states = [partition.groups.state(group) for partition in self.site.broker.topic(topic).partitions]
        return sum(state.in_flight for state in states)


@asynccontextmanager
async def served(path: Path, access: Path | None = None, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[Served]:
    site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock(), limits=limits)
    broken: list[PenstockError] = []
    door = GrpcDoor(site, Gate(site, access), broke=broken.append)
    try:
        with loop_watched():
            yield Served(site, door, await door.open("127.0.0.1", 0), broken)
    finally:
        await door.close()
        await site.close()


def serve(path: Path, work: Callable[[Served, Any], Awaitable[None]], **options: Any) -> None:
    """`work` gets a client as well."""

    async def run() -> None:
        async with asyncio.timeout(30), served(path / "data", **options) as here, here.channel() as channel:
            await work(here, stub_of(channel))

    asyncio.run(run())


async def failure(calling: Awaitable[Any]) -> tuple[grpc.StatusCode, str | None]:
    """How a call fails: its status, and the stable code."""
    try:
        reply = await calling
    except grpc.aio.AioRpcError as error:
        return error.code(), dict(error.trailing_metadata()).get("penstock-code")
    raise AssertionError(f"it did not fail: {reply}")


async def publish(q: Any, topic: str, *values: bytes, **fields: Any) -> list[str]:
    """Their ids."""
    messages = [pb.NewMessage(value=value, **fields) for value in values]
    at = await q.PublishBatch(pb.PublishBatchRequest(topic=topic, messages=messages))
    return [f"{topic}:{partition}:{offset}" for partition, offset in zip(at.partitions, at.offsets, strict=True)]


async def topic(q: Any, name: str = "t", partitions: int = 1, **settings: Any) -> pb.Topic:
    request = pb.CreateTopicRequest(name=name, partitions=partitions, settings=pb.TopicSettings(**settings))
    created: pb.Topic = await q.CreateTopic(request)
    return created


def polled(group: str = "g", consumer: str = "c", topics: tuple[str, ...] = ("t",), **fields: Any) -> pb.PollRequest:
    return pb.PollRequest(group=group, consumer=consumer, topics=topics, **fields)


async def listed(call: Any) -> list[Any]:
    """Everything that comes until the call ends."""
    found = []
    while (one := await call.read()) is not grpc.aio.EOF:
        found.append(one)
    return found
