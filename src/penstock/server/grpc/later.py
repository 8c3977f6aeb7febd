"""Messages that come later: delayed ones, and those that come again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from penstock.client import requests
from penstock.client.pages import pages
from penstock.client.requests import (
    CancelScheduled,
    CreateSchedule,
    DeleteSchedule,
    GetScheduled,
    ListScheduled,
    ListSchedules,
    Reschedule,
)
from penstock.client.words import LIMIT_DEFAULT, duration_of, limit_of, time_of
from penstock.errors import InvalidInput
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods, page_in
from penstock.server.grpc.rows import message_in, new, to_come


async def list_scheduled(call: Call, request: pb.ListScheduledRequest) -> AsyncIterator[pb.StoredMessage]:
    limit = limit_of(request.limit or LIMIT_DEFAULT)
    async for page in pages(call.site, ListScheduled(request.topic, limit), limit):
        for one in page:
            yield to_come(one.id, one.deliver_at, one.message)


async def get_scheduled(call: Call, request: pb.GetScheduledRequest) -> pb.StoredMessage:
    one = await call.site.call(GetScheduled(request.id))
    return to_come(one.id, one.deliver_at, one.message)


async def cancel_scheduled(call: Call, request: pb.CancelScheduledRequest) -> pb.CancelScheduledReply:
    await call.site.call(CancelScheduled(request.id))
    return pb.CancelScheduledReply()


async def reschedule(call: Call, request: pb.RescheduleRequest) -> pb.RescheduleReply:
    match request.WhichOneof("to"):
        case "deliver_at_us":
            due_us = time_of("deliver_at_us", request.deliver_at_us)
        case "delay_us":
            due_us = call.site.now_us() + duration_of("delay_us", timedelta(microseconds=request.delay_us))
        case _:
            raise InvalidInput("a message is moved to a deliver_at_us, or by a delay_us")
    await call.site.call(Reschedule(request.id, due_us))
    return pb.RescheduleReply()


async def create_schedule(call: Call, request: pb.CreateScheduleRequest) -> pb.Schedule:
    message = message_in(request.message, call.site.now_us())
    timezone = request.timezone or "UTC"
    asked = CreateSchedule(request.name, request.topic, request.cron, timezone, message)
    return _schedule(await call.site.call(asked))


async def list_schedules(call: Call, request: pb.ListSchedulesRequest) -> pb.ListSchedulesReply:
    page = await page_in(call, request, ListSchedules())
    return pb.ListSchedulesReply(schedules=[_schedule(one) for one in page.items], next=page.next)


async def delete_schedule(call: Call, request: pb.DeleteScheduleRequest) -> pb.DeleteScheduleReply:
    await call.site.call(DeleteSchedule(request.name))
    return pb.DeleteScheduleReply()


def _schedule(one: requests.Schedule) -> pb.Schedule:
    return pb.Schedule(
        name=one.name,
        topic=one.topic,
        cron=one.cron,
        timezone=one.timezone,
        message=new(one.message),
        created_us=one.created_us,
        due_us=one.due_us,
        pending=one.pending,
    )


METHODS: Methods = {
    "ListScheduled": list_scheduled,
    "GetScheduled": get_scheduled,
    "CancelScheduled": cancel_scheduled,
    "Reschedule": reschedule,
    "CreateSchedule": create_schedule,
    "ListSchedules": list_schedules,
    "DeleteSchedule": delete_schedule,
}
