"""Messages that groups have given up: to look at, to try again, or to put away."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.client import requests
from penstock.client.pages import pages
from penstock.client.requests import Discard, GetDeadLetter, ListDeadLetters, Redrive, Where
from penstock.client.words import LIMIT_DEFAULT, limit_of
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Call, Methods
from penstock.server.grpc.rows import by_id


def _where(given: pb.Where) -> Where:
    return Where(
        group=given.group if given.HasField("group") else None,
        ids=tuple(given.ids) or None,
        key=given.key if given.HasField("key") else None,
        reason_contains=given.reason_contains if given.HasField("reason_contains") else None,
        since_us=given.since_us if given.HasField("since_us") else None,
        until_us=given.until_us if given.HasField("until_us") else None,
    )


def _letter(letter: requests.DeadLetter) -> pb.DeadLetter:
    failures = [
        pb.FailedAttempt(
            attempt=failure.attempt,
            leased_us=failure.leased_us,
            failed_us=failure.failed_us,
            consumer=failure.consumer,
            reason=failure.reason,
        )
        for failure in letter.failures
    ]
    return pb.DeadLetter(
        id=letter.id,
        group=letter.group,
        reason=letter.reason,
        attempts=letter.attempts,
        failures=failures,
        round=letter.round,
        died_us=letter.died_us,
        is_settled=letter.is_settled,
        original=by_id(letter.original, letter.published_us, letter.message),
    )


async def list_dead_letters(call: Call, request: pb.ListDeadLettersRequest) -> AsyncIterator[pb.DeadLetter]:
    limit = limit_of(request.limit or LIMIT_DEFAULT)
    asked = ListDeadLetters(request.topic, _where(request.where), request.with_settled, limit)
    async for page in pages(call.site, asked, limit):
        for letter in page:
            yield _letter(letter)


async def get_dead_letter(call: Call, request: pb.GetDeadLetterRequest) -> pb.DeadLetter:
    return _letter(await call.site.call(GetDeadLetter(request.id)))


async def redrive(call: Call, request: pb.RedriveRequest) -> pb.RedriveReply:
    rate = request.rate if request.HasField("rate") else None
    done = await call.site.call(Redrive(request.topic, _where(request.where), request.dry_run, rate))
    return pb.RedriveReply(in_place=done.in_place, copied=done.copied, refused=done.refused, already=done.already)


async def discard(call: Call, request: pb.DiscardRequest) -> pb.DiscardReply:
    return pb.DiscardReply(discarded=await call.site.call(Discard(request.topic, _where(request.where))))


METHODS: Methods = {
    "ListDeadLetters": list_dead_letters,
    "GetDeadLetter": get_dead_letter,
    "Redrive": redrive,
    "Discard": discard,
}
