"""That a node is there: its claim to its name, and its entry among the brokers.

    claim      before it opens anything: nobody else has the name
    announce   once its doors are open: others know of it, and let it fetch

Both are bound to one session, and made anew whenever one of them is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from penstock.cluster.core import unknown_fields
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import ABSENT, Put, Store, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.levels import Levels
from penstock.cluster.members import Members
from penstock.cluster.registration import Broker, Claim, Joined
from penstock.cluster.tally import Tally
from penstock.decoding import from_json
from penstock.errors import AlreadyExists, EtcdUnavailable, OutcomeUnknown, PenstockError, SessionLost

log = logging.getLogger("penstock.cluster")

_RETRY_S = 0.25
_LOOK_S = 1.0
# Beyond a session's time, until etcd has surely let go of it.
_GRACE_S = 2.0


class Presence:
    def __init__(
        self,
        name: str,
        store: Store,
        view: View,
        keys: Keys,
        members: Members,
        levels: Levels,
        ttl_s: int,
        tally: Tally,
        answers: Callable[[], Awaitable[bool]],
    ) -> None:
        """`answers` asks the node that is registered under the name whether it is alive."""
        # While the node is announced.
        self.session: Session | None = None
        self._claimed: Session | None = None
        self._name = name
        self._store = store
        self._view = view
        self._keys = keys
        self._members = members
        self._levels = levels
        self._ttl_s = ttl_s
        self._tally = tally
        self._answers = answers
        self._loop = asyncio.get_running_loop()

    @property
    def valid_until_us(self) -> int:
        """By the machine's boot time; 0 without a session."""
        return 0 if self.session is None else self.session.valid_until_us()

    async def claim(self, disk: str) -> None:
        """AlreadyExists if another node has the name."""
        session = await self._store.session(self._ttl_s)
        await self._win(session, disk, [])
        self._claimed = session

    async def announce(self, broker: Broker) -> None:
        """AlreadyExists if another node has the name by now."""
        # One of its own, if it was interrupted the last time.
        session, self._claimed = self._claimed or self.session, None
        if session is None or session.lost.is_set():
            session = await self._store.session(self._ttl_s)
        puts = [Put(self._keys.broker(self._name), msgspec.json.encode(broker), session)]
        joined = self._view.get(self._keys.nodes + self._name)
        if joined is None or self._members.levels.get(self._name) != broker.level:
            _, unknown = unknown_fields.decode(b"{}" if joined is None else joined.value, Joined)
            puts.append(Put(self._keys.nodes + self._name, unknown_fields.encode(Joined(broker.level), unknown)))
        # A process before this one may have said so, and its session not have ended yet.
        await self._win(session, broker.disk, puts, [self._keys.leaving + self._name], joins=True)
        # Not before all is read that was there when the node was registered: without a session for a while, it may have
        # been replaced, and a valid session would let it serve what it does not lead any more.
        self._claimed = session
        await self._view.refresh()
        self.session, self._claimed = session, None
        log.info("node %s has joined", self._name)

    async def _win(
        self, session: Session, disk: str, puts: list[Put], deletes: Sequence[str] = (), *, joins: bool = False
    ) -> None:
        """The name for that disk, and what goes with it. The session ends if that fails."""
        keys = (self._keys.claim(self._name), self._keys.broker(self._name))
        puts = [Put(keys[0], msgspec.json.encode(Claim(disk)), session), *puts]
        give_up = self._loop.time() + self._ttl_s + _GRACE_S
        try:
            while True:
                await self._view.refresh()
                found = {key: self._view.get(key) for key in keys}
                # One of the same data directory was here before, and is dead: the directory is locked.
                if any(item and from_json(item.value, Claim).disk != disk for item in found.values()):
                    # Dead, if it is this node's past with a disk that is gone: its session runs out by itself.
                    if self._loop.time() >= give_up or await self._answers():
                        raise self._taken()
                    await asyncio.sleep(_RETRY_S)
                    continue
                guards = {key: item.revision if item else ABSENT for key, item in found.items()}
                self._levels.check()
                level, keep_level = self._levels.joining()
                more = ({**guards, **level}, [*puts, keep_level]) if joins else (guards, puts)
                if isinstance(await self._store.commit(*more, deletes), Won):
                    return
        except BaseException:
            await session.close()
            raise

    def _taken(self) -> AlreadyExists:
        other = self._members.brokers.get(self._name)
        where = "" if other is None else f", at {other.native}"
        return AlreadyExists(
            f"there is a node {self._name} already{where}, with another data directory: give this one another id, or "
            "end that one first",
            node=self._name,
        )

    async def keep(self, broker: Broker, broke: Callable[[PenstockError], None]) -> None:
        is_told = False
        while True:
            session = self.session
            if session is not None:
                is_told = False
                await self._lost_or_gone(session, broker)
                log.warning("the session in etcd is lost: %s", session.failure or "the node's entry is gone")
                self.session = None
            try:
                await self.announce(broker)
            except (EtcdUnavailable, OutcomeUnknown, SessionLost) as error:
                self._tally.etcd_errors += 1
                # It is tried often, and said once.
                level = logging.DEBUG if is_told else logging.WARNING
                log.log(level, "the node can't be registered: %s", error.message)
                is_told = True
                await asyncio.sleep(_RETRY_S)
            except PenstockError as error:
                broke(error)
                return

    async def _lost_or_gone(self, session: Session, broker: Broker) -> None:
        """The lease, or only what was bound to it: an answer that came late may have let go of that."""
        while not session.lost.is_set():
            registered = self._members.live.get(self._name)
            if registered is None or registered.incarnation != broker.incarnation:
                await session.close()
                return
            try:
                async with asyncio.timeout(_LOOK_S):
                    await session.lost.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        sessions, self.session, self._claimed = (self.session, self._claimed), None, None
        for session in sessions:
            if session is not None:
                await session.close()
