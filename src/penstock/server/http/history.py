"""Routes about single messages: what happened to them, and those that were given up."""

from __future__ import annotations

from typing import Any, TypedDict

from msgspec import UNSET

from penstock.client import requests
from penstock.client.requests import AskWhy, GetMessage, GetTrace, ListDeadLetters, Redriven, Why
from penstock.client.rows import StoredMessage
from penstock.client.words import Bytes, Time, where
from penstock.clock import rfc3339
from penstock.errors import InvalidInput, MessageNotFound, TopicNotFound
from penstock.message import Message
from penstock.server.http import shapes
from penstock.server.http.asking import time_in
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.routes import Route
from penstock.server.http.rows import key_of, stored


def _stored(id: str, append_time: int, message: Message, as_: str | None) -> shapes.Message:
    topic, partition, offset = id.split(":")
    return stored(StoredMessage(topic, int(partition), int(offset), append_time, message), as_)


# --- one message --------------------------------------------------------------------------------------------


async def get_message(desk: Desk, asked: Asked[None, shapes.Shown]) -> shapes.Message:
    found = await asked.site.call(GetMessage(asked.path["id"]))
    return _stored(asked.path["id"], found.append_time, found.message, asked.query.as_)


async def trace(desk: Desk, asked: Asked[None, Any]) -> shapes.Trace:
    found = await asked.site.call(GetTrace(asked.path["id"]))
    return shapes.Trace(id=found.id, steps=[_step(step) for step in found.steps])


def _step(step: requests.Step) -> shapes.Step:
    return shapes.Step(
        time=rfc3339(step.time_us),
        what=step.what,
        group=UNSET if step.group is None else step.group,
        consumer=UNSET if step.consumer is None else step.consumer,
        attempt=UNSET if step.attempt is None else step.attempt,
        reason=UNSET if step.reason is None else step.reason,
        until=UNSET if step.until_us is None else rfc3339(step.until_us),
        place=UNSET if step.place is None else step.place,
    )


async def why(desk: Desk, asked: Asked[None, shapes.WhyQuery]) -> Why:
    return await asked.site.call(AskWhy(asked.path["id"], asked.query.group))


# --- dead letters -------------------------------------------------------------------------------------------


class _Meant(TypedDict):
    group: str | None
    ids: list[str] | None
    key: Bytes | None
    reason: str | None
    since: Time | None
    until: Time | None


def _meant(given: shapes.Redrive | shapes.Discard) -> _Meant:
    where = given.where or shapes.Where()
    return {
        "group": given.group,
        "ids": where.ids,
        "key": key_of(where.key, where.key_base64),
        "reason": where.reason,
        "since": where.since,
        "until": where.until,
    }


async def dead_letters(desk: Desk, asked: Asked[None, shapes.LettersQuery]) -> shapes.DeadLetters:
    query = asked.query
    meant = where(
        group=query.group,
        ids=None if query.ids is None else query.ids.split(","),
        key=query.key,
        reason=query.reason,
        since=time_in(query.since),
        until=time_in(query.until),
    )
    page = await asked.page(ListDeadLetters(asked.path["topic"], meant, query.with_settled, query.limit))
    letters = [_letter(letter, query.as_) for letter in page.items]
    return shapes.DeadLetters(dead_letters=letters, next=page.next or None)


async def dead_letter(desk: Desk, asked: Asked[None, shapes.Shown]) -> shapes.DeadLetter:
    return _letter(await asked.dead_letters.get(asked.path["id"]), asked.query.as_)


def _letter(letter: requests.DeadLetter, as_: str | None) -> shapes.DeadLetter:
    failures = [
        shapes.FailedAttempt(
            attempt=failure.attempt,
            leased_at=rfc3339(failure.leased_us),
            failed_at=rfc3339(failure.failed_us),
            consumer=failure.consumer,
            reason=failure.reason,
        )
        for failure in letter.failures
    ]
    return shapes.DeadLetter(
        id=letter.id,
        original=letter.original,
        group=letter.group,
        reason=letter.reason,
        attempts=letter.attempts,
        failures=failures,
        round=letter.round,
        published_at=rfc3339(letter.published_us),
        died_at=rfc3339(letter.died_us),
        is_settled=letter.is_settled,
        message=_stored(letter.original, letter.published_us, letter.message, as_),
    )


async def redrive(desk: Desk, asked: Asked[shapes.Redrive, Any]) -> Redriven:
    given = asked.body
    return await asked.dead_letters.redrive(
        asked.path["topic"], **_meant(given), dry_run=given.dry_run, rate=given.rate
    )


async def discard(desk: Desk, asked: Asked[shapes.Discard, Any]) -> shapes.Discarded:
    return shapes.Discarded(discarded=await asked.dead_letters.discard(asked.path["topic"], **_meant(asked.body)))


ROUTES = (
    Route(
        "GET",
        "/v1/messages/{id}",
        get_message,
        "One message, by its id: topic:partition:offset.",
        query=shapes.Shown,
        reply=shapes.Message,
        errors=(MessageNotFound, TopicNotFound, InvalidInput),
    ),
    Route(
        "GET",
        "/v1/messages/{id}/trace",
        trace,
        "Everything that happened to a message, in all groups.",
        reply=shapes.Trace,
        errors=(MessageNotFound, TopicNotFound),
        reply_example={
            "id": "orders:0:41",
            "steps": [
                {"time": "2026-01-14T15:00:00.000120Z", "what": "PUBLISHED"},
                {
                    "time": "2026-01-14T15:00:00.002000Z",
                    "what": "DELIVERED",
                    "group": "billing",
                    "consumer": "worker-1",
                    "attempt": 1,
                },
            ],
        },
    ),
    Route(
        "GET",
        "/v1/messages/{id}/why",
        why,
        "One plain answer to why the group has not got it, or what became of it there.",
        query=shapes.WhyQuery,
        reply=Why,
        errors=(MessageNotFound, TopicNotFound),
        reply_example={"code": "acknowledged", "answer": "worker-1 acknowledged it."},
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/dead-letters",
        dead_letters,
        "Messages of the topic that groups have given up, the oldest first, partition by partition.",
        query=shapes.LettersQuery,
        reply=shapes.DeadLetters,
        errors=(TopicNotFound,),
    ),
    Route(
        "GET",
        "/v1/dead-letters/{id}",
        dead_letter,
        "One dead letter, by its own id.",
        query=shapes.Shown,
        reply=shapes.DeadLetter,
        errors=(MessageNotFound, TopicNotFound),
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/dead-letters/redrive",
        redrive,
        "Back to the groups that gave them up: in place where the message is still in the log, otherwise as a copy.",
        body=shapes.Redrive,
        reply=Redriven,
        errors=(TopicNotFound,),
        example={"group": "billing", "where": {"reason": "timeout"}, "dry_run": True, "rate": 100},
        reply_example={"in_place": ["orders.dlq:0:3"], "copied": [], "refused": [], "already": []},
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/dead-letters/discard",
        discard,
        "Put dead letters away: they are not listed any more, nor redriven.",
        body=shapes.Discard,
        reply=shapes.Discarded,
        errors=(TopicNotFound,),
        example={"group": "billing", "where": {"ids": ["orders.dlq:0:3"]}},
        reply_example={"discarded": 1},
    ),
)
