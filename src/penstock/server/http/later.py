"""Routes about messages that come later: delayed ones, and those that come again and again."""

from __future__ import annotations

from typing import Any

from penstock.client import requests
from penstock.clock import rfc3339
from penstock.errors import AlreadyExists, InvalidInput, NotFound, NotScheduled, TopicNotFound
from penstock.message import Priority
from penstock.server.http import shapes
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.routes import Route, message_max
from penstock.server.http.rows import content_of, fields_of, key_shown, to_come


async def list_scheduled(desk: Desk, asked: Asked[None, shapes.ListQuery]) -> shapes.ScheduledMessages:
    query = asked.query
    page = await asked.page(requests.ListScheduled(asked.path["topic"], query.limit))
    found = [_scheduled(one, query.as_) for one in page.items]
    return shapes.ScheduledMessages(scheduled=found, next=page.next or None)


async def get_scheduled(desk: Desk, asked: Asked[None, shapes.Shown]) -> shapes.Message:
    return _scheduled(await asked.scheduled.get(asked.path["id"]), asked.query.as_)


async def reschedule(desk: Desk, asked: Asked[shapes.Reschedule, Any]) -> None:
    delay: Any = asked.body.delay
    await asked.scheduled.reschedule(asked.path["id"], deliver_at=asked.body.deliver_at, delay=delay)


async def cancel(desk: Desk, asked: Asked[None, Any]) -> None:
    await asked.scheduled.cancel(asked.path["id"])


def _scheduled(one: requests.Scheduled, as_: str | None) -> shapes.Message:
    return to_come(one.id, one.message, one.deliver_at, as_)


async def create_schedule(desk: Desk, asked: Asked[shapes.CreateSchedule, Any]) -> shapes.Schedule:
    given = asked.body
    return _schedule(
        await asked.schedules.create(
            given.name, given.topic, given.cron, content_of(given), timezone=given.timezone, **fields_of(given)
        )
    )


async def list_schedules(desk: Desk, asked: Asked[None, shapes.PageQuery]) -> shapes.Schedules:
    page = await asked.page(requests.ListSchedules())
    return shapes.Schedules(schedules=[_schedule(one) for one in page.items], next=page.next or None)


async def delete_schedule(desk: Desk, asked: Asked[None, Any]) -> None:
    await asked.schedules.delete(asked.path["schedule"])


def _schedule(one: requests.Schedule) -> shapes.Schedule:
    key, _ = key_shown(one.message.key)
    return shapes.Schedule(
        name=one.name,
        topic=one.topic,
        cron=one.cron,
        timezone=one.timezone,
        created_at=rfc3339(one.created_us),
        due=rfc3339(one.due_us),
        pending=one.pending,
        key=key,
        priority=Priority(one.message.priority).name.lower(),
    )


ROUTES = (
    Route(
        "GET",
        "/v1/topics/{topic}/scheduled",
        list_scheduled,
        "Delayed messages that are not due yet, the next one due first.",
        query=shapes.ListQuery,
        reply=shapes.ScheduledMessages,
        errors=(TopicNotFound,),
    ),
    Route(
        "GET",
        "/v1/scheduled/{id}",
        get_scheduled,
        "A delayed message that is not due yet.",
        query=shapes.Shown,
        reply=shapes.Message,
        errors=(NotScheduled, TopicNotFound),
    ),
    Route(
        "PATCH",
        "/v1/scheduled/{id}",
        reschedule,
        "Move a delayed message to another time.",
        body=shapes.Reschedule,
        status=204,
        errors=(NotScheduled, TopicNotFound, InvalidInput),
        example={"delay": "10m"},
    ),
    Route(
        "DELETE",
        "/v1/scheduled/{id}",
        cancel,
        "Cancel a delayed message: it never appears to any group. Readers of the log still see it.",
        status=204,
        errors=(NotScheduled, TopicNotFound),
    ),
    Route(
        "POST",
        "/v1/schedules",
        create_schedule,
        "A message that comes again and again.",
        body=shapes.CreateSchedule,
        reply=shapes.Schedule,
        status=201,
        errors=(TopicNotFound, AlreadyExists, InvalidInput),
        example={"name": "nightly", "topic": "jobs", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "text": "go"},
        body_max=message_max,
    ),
    Route(
        "GET", "/v1/schedules", list_schedules, "Schedules, by name.", query=shapes.PageQuery, reply=shapes.Schedules
    ),
    Route(
        "DELETE",
        "/v1/schedules/{schedule}",
        delete_schedule,
        "Delete a schedule, with the message that was to come next.",
        status=204,
        errors=(NotFound,),
    ),
)
