"""gRPC's reflection service, behind the same admission as every other call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.server.grpc.calls import Call, Methods

DESCRIBED = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


def methods_of(services: Iterable[str]) -> Methods:
    servicer: Any = reflection.aio.ReflectionServicer(services)

    async def tell(call: Call) -> None:
        with call.desk.intake.stream(call.context):
            async for reply in servicer.ServerReflectionInfo(_requests(call), call.context):
                await call.context.write(reply)

    return {"ServerReflectionInfo": tell}


async def _requests(call: Call) -> AsyncIterator[Any]:
    while (came := await call.context.read()) is not grpc.aio.EOF:
        yield came.request
