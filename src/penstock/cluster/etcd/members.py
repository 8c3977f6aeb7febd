"""One member of etcd: the connections to it, each looked at before it is used.

A connection leads to one process for as long as it lasts. So what is asked once when it is made (which version, which
cluster, is there a leader) holds for every request on it, but for the leader; and that one is only there to go
elsewhere early.
"""

from __future__ import annotations

import logging
import ssl
from typing import Protocol

from penstock.cluster.etcd import versions
from penstock.cluster.etcd.answers import StatusAnswer, decode, encode, fault_of
from penstock.cluster.etcd.http import AnswerLost, Connection, NotSent, Reply
from penstock.cluster.etcd.settings import Endpoint
from penstock.errors import EtcdReplaced, EtcdVersionRefused
from penstock.limits import KIB

log = logging.getLogger("penstock.cluster")
_STATUS_BYTES_MAX = 64 * KIB


class Seen:
    """What the store was seen to be, by all answers together. Neither may ever be another, or less."""

    def __init__(self) -> None:
        self.cluster_id: int | None = None
        self.revision = 0

    def must_be_of(self, cluster_id: int, where: str) -> None:
        if self.cluster_id is None:
            self.cluster_id = cluster_id
        elif cluster_id != self.cluster_id:
            raise EtcdReplaced(
                f"the etcd at {where} is of cluster {cluster_id:x}, and this process worked with {self.cluster_id:x}:"
                " it was replaced, or the addresses are of two clusters",
                member=where,
            )


class Tokens(Protocol):
    """As whom etcd is asked."""

    def headers(self) -> dict[str, str]: ...

    def forget_token(self) -> bool:
        """Whether another one can be had."""

    async def authenticate(self, where: str, connection: Connection) -> None: ...


class Member:
    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, seen: Seen, tokens: Tokens) -> None:
        self.name = str(endpoint)
        self._endpoint = endpoint
        self._context = context
        self._seen = seen
        self._tokens = tokens
        self._idle: list[Connection] = []
        self._warned: str | None = None
        self._closed = False

    async def connection(self) -> Connection:
        """One that is free, or a new one. Raises `NotSent`."""
        while self._idle:
            kept = self._idle.pop()
            if kept.is_idle:
                return kept
            kept.close()
        return await self.fresh()

    async def fresh(self) -> Connection:
        connection = await Connection.to(self._endpoint, self._context)
        try:
            await self._look_at(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def take_back(self, connection: Connection) -> None:
        if connection.is_idle and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    def drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self.drop_idle()

    async def _look_at(self, connection: Connection) -> None:
        try:
            reply = await self._asked(connection)
            if reply.status not in (200, 404):
                fault = fault_of(reply)
                if fault.is_of_the_token and self._tokens.forget_token():
                    await self._tokens.authenticate(self.name, connection)
                    reply = await self._asked(connection)
                elif fault.is_of_the_token:
                    raise fault.error(self.name)
            if reply.status == 404:
                await self._tell_old(connection)
            if reply.status != 200:
                raise NotSent(f"it does not tell its status (HTTP {reply.status}); is that etcd?")
            status = decode(reply.body, StatusAnswer)
        except AnswerLost as error:
            # Only the question was sent. If its answer is no HTTP, the port is likely of something else.
            raise NotSent(f"it does not tell its status: {error}") from error
        warning = versions.check(status.version, self.name)
        if warning and warning != self._warned:
            log.warning(warning)
            self._warned = warning
        self._seen.must_be_of(status.header.cluster_id, self.name)
        if status.leader == 0:
            raise NotSent("it has no leader")

    async def _asked(self, connection: Connection) -> Reply:
        """From 3.5 on with a token, if etcd asks for one."""
        return await connection.request("/v3/maintenance/status", encode({}), self._tokens.headers(), _STATUS_BYTES_MAX)

    async def _tell_old(self, connection: Connection) -> None:
        """Before 3.4 the paths are others: the version says so better than a missing path."""
        reply = await connection.request("/version", b"", {}, _STATUS_BYTES_MAX, get=True)
        if reply.status == 200:
            said = decode(reply.body, dict[str, str])
            versions.check(said.get("etcdserver", ""), self.name)
            raise EtcdVersionRefused(
                f"etcd {said.get('etcdserver')} at {self.name} has its gateway switched off, or elsewhere (/v3)"
            )
