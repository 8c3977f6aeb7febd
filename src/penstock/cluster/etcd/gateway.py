"""Requests to etcd: to the member that answered last, and if it does not, to the next.

`ask` is for what may be done twice. `tell` is for what may not: it goes elsewhere only as long as nothing was sent, or
if etcd has said that nothing was done. A token is fetched when there is none, and again when etcd does not know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from penstock.cluster.etcd.answers import Fault, TokenAnswer, decode, encode, fault_of
from penstock.cluster.etcd.http import AnswerLost, Connection, NotSent, Reply, TlsRefused, TooMuch
from penstock.cluster.etcd.members import Member, Seen
from penstock.cluster.etcd.settings import EtcdSettings
from penstock.errors import EtcdUnavailable, OutcomeUnknown
from penstock.limits import KIB

_TOKEN_BYTES_MAX = 64 * KIB
T = TypeVar("T")


class Larger(Exception):
    """The answer is larger than may come at once."""


class _Refused(Exception):
    def __init__(self, fault: Fault, where: str) -> None:
        super().__init__(fault.words)
        self.fault = fault
        self.where = where


class Gateway:
    def __init__(self, settings: EtcdSettings) -> None:
        self.seen = Seen()
        self._settings = settings
        context = settings.context()
        self._members = [Member(endpoint, context, self.seen, self) for endpoint in settings.endpoints]
        self._current = 0
        self._token: str | None = None
        self._room = asyncio.Semaphore(settings.connections_max)
        self._open: set[Connection] = set()
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._members)

    async def ask(self, path: str, request: dict[str, Any], kind: type[T], *, within_s: float | None = None) -> T:
        body = encode(request)
        said: list[tuple[str, Exception]] = []
        for member in self._in_turn():
            try:
                async with self._slot():
                    return decode((await self._asked(member, path, body, within_s)).body, kind)
            except TooMuch as error:
                raise Larger(str(error)) from error
            except (NotSent, AnswerLost) as error:
                said.append((member.name, error))
            except _Refused as error:
                if error.fault.is_of_size:
                    raise Larger(error.fault.words) from error
                if error.fault.is_certain:
                    raise error.fault.error(error.where) from error
                said.append((member.name, error))
        raise self._unavailable(said)

    async def tell(self, path: str, request: dict[str, Any], kind: type[T]) -> T:
        body = encode(request)
        said: list[tuple[str, Exception]] = []
        for member in self._in_turn():
            async with self._slot():
                try:
                    connection = await self._connected(member)
                except NotSent as error:
                    said.append((member.name, error))
                    continue
                try:
                    return decode((await self._exchange(member, connection, path, body)).body, kind)
                except NotSent as error:
                    said.append((member.name, error))
                except AnswerLost as error:
                    raise OutcomeUnknown(
                        f"a change was sent to etcd at {member.name}, and the answer was lost: {error}",
                        member=member.name,
                    ) from error
                except _Refused as error:
                    if error.fault.is_certain:
                        raise error.fault.error(error.where) from error
                    raise OutcomeUnknown(
                        f"etcd at {member.name} does not say whether a change was carried out: {error}",
                        member=member.name,
                    ) from error
        raise self._unavailable(said)

    @asynccontextmanager
    async def stream(self, path: str, request: dict[str, Any]) -> AsyncGenerator[Connection]:
        """A connection of its own, of which the lines are the answer."""
        body = encode(request)
        said: list[tuple[str, Exception]] = []
        for member in self._in_turn():
            try:
                connection = await self._connected(member, fresh=True)
            except NotSent as error:
                said.append((member.name, error))
                continue
            try:
                await self._begin(member, connection, path, body)
            except (NotSent, AnswerLost) as error:
                connection.close()
                said.append((member.name, error))
                continue
            except BaseException:
                connection.close()
                raise
            self._open.add(connection)
            try:
                yield connection
            finally:
                self._open.discard(connection)
                connection.close()
            return
        raise self._unavailable(said)

    def forget_token(self) -> bool:
        """Whether another one can be had."""
        self._token = None
        return self._settings.user is not None

    def close(self) -> None:
        self._closed = True
        for member in self._members:
            member.close()
        for connection in self._open:
            connection.close()

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        """A bound on requests that are under way, and on how long one waits for them."""
        try:
            async with asyncio.timeout(self._settings.request_s):
                await self._room.acquire()
        except TimeoutError as error:
            raise EtcdUnavailable(
                f"{self._settings.connections_max} requests to etcd are under way, and none came to its end within"
                f" {self._settings.request_s:g} s"
            ) from error
        try:
            yield
        finally:
            self._room.release()

    def _in_turn(self) -> Iterator[Member]:
        """All members, from the current one on; the one that was reached last stays the current one."""
        if self._closed:
            raise EtcdUnavailable("the connection to etcd was closed here")
        first = self._current
        for step in range(len(self._members)):
            self._current = (first + step) % len(self._members)
            yield self._members[self._current]
        self._current = (first + 1) % len(self._members)

    async def _asked(self, member: Member, path: str, body: bytes, within_s: float | None) -> Reply:
        connection = await self._connected(member, within_s)
        try:
            return await self._exchange(member, connection, path, body, within_s)
        except TooMuch:
            raise
        except (NotSent, AnswerLost) as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            # The connection may have been a kept one, to a process that is gone. A new one shows.
            member.drop_idle()
            return await self._exchange(member, await self._connected(member, within_s), path, body, within_s)

    async def _connected(self, member: Member, within_s: float | None = None, *, fresh: bool = False) -> Connection:
        within_s = min(within_s or self._settings.connect_s, self._settings.connect_s)
        try:
            async with asyncio.timeout(within_s):
                connection = await (member.fresh() if fresh else member.connection())
                try:
                    if self._settings.user is not None and self._token is None:
                        await self.authenticate(member.name, connection)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError as error:
            raise NotSent(f"no connection within {within_s:g} s") from error

    async def _exchange(
        self, member: Member, connection: Connection, path: str, body: bytes, within_s: float | None = None
    ) -> Reply:
        """An answer that is good. The connection goes back to its member, or is closed."""
        within_s = min(within_s or self._settings.request_s, self._settings.request_s)
        try:
            async with asyncio.timeout(within_s):
                reply = await connection.request(path, body, self.headers(), self._settings.response_bytes_max)
                if reply.status != 200 and fault_of(reply).is_of_the_token and self.forget_token():
                    await self.authenticate(member.name, connection)
                    reply = await connection.request(path, body, self.headers(), self._settings.response_bytes_max)
        except TimeoutError as error:
            connection.close()
            raise AnswerLost(f"no answer within {within_s:g} s") from error
        except BaseException:
            connection.close()
            raise
        member.take_back(connection)
        if reply.status != 200:
            raise _Refused(fault_of(reply), member.name)
        return reply

    async def _begin(self, member: Member, connection: Connection, path: str, body: bytes) -> None:
        headers = {**self.headers(), "Grpc-Metadata-hasleader": "true"}
        try:
            async with asyncio.timeout(self._settings.request_s):
                reply = await connection.stream(path, body, headers, self._settings.response_bytes_max)
        except TimeoutError as error:
            raise AnswerLost(f"no answer within {self._settings.request_s:g} s") from error
        if reply is not None:
            fault = fault_of(reply)
            if fault.is_certain:
                raise fault.error(member.name)
            raise AnswerLost(fault.words)

    async def authenticate(self, where: str, connection: Connection) -> None:
        request = encode({"name": self._settings.user, "password": self._settings.password})
        try:
            reply = await connection.request("/v3/auth/authenticate", request, {}, _TOKEN_BYTES_MAX)
            if reply.status == 200:
                self._token = decode(reply.body, TokenAnswer).token
                return
        except AnswerLost as error:
            raise NotSent(f"no token could be had: {error}") from error
        fault = fault_of(reply)
        if "authentication is not enabled" in fault.words:
            self._token = ""
        elif fault.is_certain:
            raise fault.error(where)
        else:
            raise NotSent(f"no token could be had: {fault.words}")

    def headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _unavailable(self, said: list[tuple[str, Exception]]) -> EtcdUnavailable:
        told = [f"{name}: {error}" for name, error in said]
        is_of_tls = all(isinstance(error, TlsRefused) for _, error in said)
        return EtcdUnavailable(f"etcd does not answer ({'; '.join(told)})", members=told, is_of_tls=is_of_tls)
