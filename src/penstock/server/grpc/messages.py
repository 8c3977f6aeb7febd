"""Single messages: what they are, what happened to them; and the log as it was written."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.client import requests
from penstock.client.reader import Reader
from penstock.client.requests import AskWhy, GetMessage, GetTrace
from penstock.errors import InvalidInput
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods
from penstock.server.grpc.rows import by_id, stored


async def get_message(call: Call, request: pb.GetMessageRequest) -> pb.StoredMessage:
    found = await call.site.call(GetMessage(request.id))
    return by_id(request.id, found.append_time, found.message)


async def trace_message(call: Call, request: pb.TraceMessageRequest) -> pb.Trace:
    found = await call.site.call(GetTrace(request.id))
    return pb.Trace(id=found.id, steps=[_step(step) for step in found.steps])


def _step(step: requests.Step) -> pb.Step:
    return pb.Step(
        time_us=step.time_us,
        what=step.what,
        group=step.group,
        consumer=step.consumer,
        attempt=step.attempt,
        reason=step.reason,
        until_us=step.until_us,
        place=step.place,
    )


async def why_message(call: Call, request: pb.WhyMessageRequest) -> pb.Why:
    why = await call.site.call(AskWhy(request.id, request.group))
    return pb.Why(code=why.code, answer=why.answer)


async def read(call: Call, request: pb.ReadRequest) -> AsyncIterator[pb.StoredMessage]:
    if request.limit < 0:
        raise InvalidInput("limit is 0 or more")
    count = 0
    async for message in _reader(call, request):
        yield stored(message)
        count += 1
        if count == request.limit:
            return


def _reader(call: Call, request: pb.ReadRequest) -> Reader:
    start, end = request.WhichOneof("from"), request.WhichOneof("to")
    if (start == "from_offset" or end == "to_offset") and not request.HasField("partition"):
        raise InvalidInput("an offset is one of a partition; say which")
    return Reader(
        call.site,
        request.topic,
        from_time=request.from_time_us if start == "from_time_us" else None,
        to_time=request.to_time_us if end == "to_time_us" else None,
        from_offset=request.from_offset if start == "from_offset" else None,
        to_offset=request.to_offset if end == "to_offset" else None,
        partitions=[request.partition] if request.HasField("partition") else None,
    )


METHODS: Methods = {
    "GetMessage": get_message,
    "TraceMessage": trace_message,
    "WhyMessage": why_message,
    "Read": read,
}
