"""A watch over etcd's gateway: one request, whose answer is a line for each thing that happens.

After the line that says it was made, a watch is silent for as long as nothing happens, so silence proves nothing. etcd
gives a sign of life every ten minutes by default, which is too seldom to rely on; `View` looks by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NoReturn

from penstock.cluster.etcd.answers import Event, WatchAnswer, WatchResult, decode, fault_in
from penstock.cluster.etcd.gateway import Gateway
from penstock.cluster.etcd.http import AnswerLost, Connection, TooMuch
from penstock.errors import EtcdRefused, EtcdUnavailable, WatchBehind

# By version, also for a token that has run out.
_OF_RIGHTS = ("permission denied", "invalid auth token", "user name is empty", "revision of auth store is old")


class _Denied(Exception):
    pass


class Watching:
    def __init__(self, gateway: Gateway, begin_s: float, bytes_max: int) -> None:
        self._gateway = gateway
        self._begin_s = begin_s
        self._bytes_max = bytes_max

    async def results(self, key: bytes, range_end: bytes, from_revision: int) -> AsyncGenerator[WatchResult]:
        request = {
            "create_request": {
                "key": key,
                "range_end": range_end,
                "start_revision": str(from_revision),
                "progress_notify": True,
                # Much at once comes in parts, none of which is larger than what the gateway lets through.
                "fragment": True,
            }
        }
        renewed = False
        while True:
            async with self._gateway.stream("/v3/watch", request) as stream:
                try:
                    result = await self._begun(stream)
                except _Denied as error:
                    if renewed or not self._gateway.forget_token():
                        raise EtcdRefused(f"etcd at {stream.endpoint} refuses the watch: {error}") from error
                    renewed = True
                    continue
                while True:
                    yield result
                    result = await self._next(stream)

    async def _begun(self, stream: Connection) -> WatchResult:
        try:
            async with asyncio.timeout(self._begin_s):
                return await self._next(stream)
        except TimeoutError as error:
            raise EtcdUnavailable(f"etcd at {stream.endpoint} did not begin a watch in {self._begin_s:g} s") from error

    async def _next(self, stream: Connection) -> WatchResult:
        """Put together if it came in fragments."""
        events: list[Event] = []
        size = 0
        while True:
            try:
                line = await stream.line(self._bytes_max - size)
                if line is None:
                    raise AnswerLost("etcd ended it")
                answer = decode(line, WatchAnswer)
            except TooMuch as error:
                raise WatchBehind(f"too much has happened to be told at once: {error}") from error
            except AnswerLost as error:
                raise EtcdUnavailable(f"the watch at {stream.endpoint} broke: {error}") from error
            result = answer.result
            if result is None:
                _raise_fault(answer.error or {}, stream)
            if result.canceled:
                _raise_cancelled(result, stream)
            size += len(line)
            events += result.events
            if not result.fragment:
                result.events = events
                return result


def _raise_fault(said: dict[str, Any], stream: Connection) -> NoReturn:
    fault = fault_in(said)
    if fault.is_of_size:
        raise WatchBehind(f"too much has happened to be told at once: {fault.words}")
    if fault.is_certain:
        raise fault.error(str(stream.endpoint))
    raise EtcdUnavailable(f"the watch at {stream.endpoint} broke: {fault.words}")


def _raise_cancelled(result: WatchResult, stream: Connection) -> NoReturn:
    if result.compact_revision:
        raise WatchBehind(
            f"etcd has forgotten what happened before revision {result.compact_revision}",
            compacted=result.compact_revision,
        )
    if result.created and any(sign in result.cancel_reason for sign in _OF_RIGHTS):
        raise _Denied(result.cancel_reason)
    raise EtcdUnavailable(f"etcd at {stream.endpoint} ended the watch: {result.cancel_reason or 'no reason given'}")
