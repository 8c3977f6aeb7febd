"""Messages that are pushed as they come, as far as there is credit, and answers on the same stream."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import grpc

from penstock.client.answers import Answer, Nack, Release
from penstock.client.transport import Lease
from penstock.errors import InvalidInput, PenstockError
from penstock.limits import MIB
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.answering import Said, answered, give_back
from penstock.server.grpc.calls import Call
from penstock.server.grpc.consuming import fitting, leases_of
from penstock.server.grpc.intake import Account
from penstock.server.grpc.replies import Replies, until_first
from penstock.server.grpc.settings import settings_in
from penstock.server.subscription import Subscription

AT_ONCE_MAX = 1_000
_PUSH_BYTES_MAX = 1 * MIB
_WAIT_US = 15_000_000
_ANSWERS = ("ack", "nack", "reject", "release", "extend")
# More leases than that are looked through for those that are over.
_LEASES_MANY = 64
# gRPC tells of the end of the requests and of the cancellation apart, one right after the other, in either order.
_CANCELLED_WITHIN_S = 0.1


async def subscribe(call: Call) -> None:
    with call.desk.intake.stream(call.context) as account:
        wanted = await _joined(call, account)
        with (
            call.desk.members.waiting(wanted.group, wanted.consumer),
            closing(_Stream(call, wanted, account)) as stream,
        ):
            await _run(stream)


class _Wanted(NamedTuple):
    """The first request of a stream, as far as it is needed later."""

    group: str
    consumer: str
    topics: list[str]
    credit: int


async def _joined(call: Call, account: Account) -> _Wanted:
    while account.is_full:
        await account.change()
    first = await call.context.read()
    if first is grpc.aio.EOF or first.request.WhichOneof("request") != "subscribe":
        raise InvalidInput("the first request on this stream is a subscribe")
    call.desk.check()
    wanted: pb.Subscription = first.request.subscribe
    account.add(first.size)
    try:
        await call.site.join(wanted.group, wanted.consumer, list(wanted.topics), settings_in(wanted.settings))
        # Each of them once: they stay as long as the stream does.
        return _Wanted(wanted.group, wanted.consumer, list(dict.fromkeys(wanted.topics)), wanted.credit)
    finally:
        account.settle(first.size)


async def _run(stream: _Stream) -> None:
    answer: Answer = Nack("the stream of its consumer broke off")
    try:
        await stream.run()
        # A client that cancels may look for a moment like one that has said all it wanted to.
        await asyncio.sleep(_CANCELLED_WITHIN_S if stream.holds_any else 0)
        answer = Release()
    except PenstockError:
        answer = Release()
        raise
    finally:
        stream.let_go(answer)


class _Stream:
    """Invariant: whatever was leased for it and not answered for is in one of `_leases`."""

    def __init__(self, call: Call, wanted: _Wanted, account: Account) -> None:
        self._call = call
        self._wanted = wanted
        # Bytes are bounded by the flow control of HTTP/2.
        self._subscription = Subscription(wanted.credit, 1)
        self._leases: set[Lease] = set()
        self._many = _LEASES_MANY
        self._writing = asyncio.Lock()
        self._replies = Replies(self._answer, account)
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call.site.revoked, call.site.changed = self._refuse, self._check

    def close(self) -> None:
        self._replies.end()

    def _check(self) -> None:
        try:
            self._call.site.check_consuming(self._wanted.group, self._wanted.topics)
        except PenstockError as error:
            self._refuse(error)

    def _refuse(self, error: PenstockError) -> None:
        """End it, also while it waits for credit, or for its client to read."""
        if not self._refused.done():
            self._refused.set_exception(error)

    @property
    def holds_any(self) -> bool:
        """Perhaps: some may have been answered for."""
        return bool(self._leases)

    async def run(self) -> None:
        await self._write(pb.SubscribeReply(subscribed=pb.Subscribed()))
        await until_first(
            self._replies.take(self._call.context.read, self._begun),
            self._push(),
            self._replies.tell(),
            self._stop(),
            self._allowed(),
        )

    async def _allowed(self) -> None:
        """As long as it is."""
        await self._refused

    async def _stop(self) -> None:
        await self._call.desk.over()
        await self._replies.told()
        self._call.desk.check()

    # --- what comes in -----------------------------------------------------------------------------------

    def _begun(self, request: pb.SubscribeRequest) -> Coroutine[Any, Any, pb.AnswerReply] | None:
        kind = request.WhichOneof("request")
        if kind in _ANSWERS:
            return self._answered(getattr(request, kind))
        if kind != "credit":
            raise InvalidInput("what follows a subscribe is credit, or an answer")
        self._subscription.add(request.credit.messages, 0)
        return None

    async def _answered(self, said: Said) -> pb.AnswerReply:
        group = self._wanted.group
        if said.group not in ("", group):
            raise InvalidInput(f"this stream is for group {group}, not {said.group}")
        return await answered(self._call, group, said)

    # --- what goes out -----------------------------------------------------------------------------------

    async def _push(self) -> None:
        wanted = self._wanted
        while True:
            credit, _ = await self._subscription.credit()
            deliveries = await self._call.site.poll(
                wanted.group,
                wanted.consumer,
                wanted.topics,
                count=min(credit, AT_ONCE_MAX),
                bytes_max=_PUSH_BYTES_MAX,
                wait_us=_WAIT_US,
            )
            await self._note(leases_of(deliveries))
            messages, left = fitting(self._call.desk, wanted.group, deliveries)
            for receipt in left:
                # If it fails, they come back when their time is up.
                with suppress(PenstockError):
                    await self._call.site.answer(wanted.group, receipt, Release())
            if messages:
                self._subscription.spend(len(messages), 0)
                await self._write(pb.SubscribeReply(delivered=pb.PollReply(messages=messages)))
            if self._call.site.memory is not None:
                self._call.site.memory.release()

    async def _answer(self, reply: pb.AnswerReply) -> None:
        await self._write(pb.SubscribeReply(answered=reply))

    async def _write(self, reply: Any) -> None:
        """One after the other; returns when the client takes it."""
        async with self._writing:
            await self._call.write(reply)

    # --- the end -----------------------------------------------------------------------------------------

    async def _note(self, leases: Sequence[Lease]) -> None:
        self._leases.update(leases)
        if len(self._leases) > self._many:
            known = list(self._leases)
            left = await self._call.desk.site.left(self._wanted.group, known)
            self._leases = {lease for lease, offsets in zip(known, left, strict=True) if offsets}
            self._many = max(2 * len(self._leases), _LEASES_MANY)

    def let_go(self, answer: Answer) -> None:
        """Unless the broker stops: then its consumer may go on with what it has, through another stream."""
        if not self._call.desk.is_over:
            self._call.desk.do(self._left(answer))

    async def _left(self, answer: Answer) -> None:
        desk, wanted = self._call.desk, self._wanted
        # Another stream of the same consumer may have taken over.
        if not desk.members.has(wanted.group, wanted.consumer):
            await desk.site.leave(wanted.group, wanted.consumer)
        await give_back(desk, wanted.group, list(self._leases), answer)
