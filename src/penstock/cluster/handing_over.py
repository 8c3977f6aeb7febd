"""Before a planned end of a node: those who follow lead, and nobody waits for a session to run out.

Several may be stopped at a time. Each says so first, and then nobody hands over to it; if all are, nobody to anybody.

A leader whose disk is full hands over as well: the replicas may have room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from penstock.cluster.core.election import drain
from penstock.cluster.core.record import encode
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import Put, Store
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.leading import Leading, messages_first
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions
from penstock.errors import EtcdError, OutcomeUnknown

log = logging.getLogger("penstock.cluster")

_PATIENCE_S = 10.0
_LOOK_S = 0.05


async def hand_over(
    node: str, session: Session, store: Store, view: View, keys: Keys, members: Members, partitions: Partitions
) -> None:
    """Returns when nothing is led there that another could lead, or that has taken too long."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            # Said or not: what is led here can be handed over.
            with suppress(OutcomeUnknown):
                await store.commit({}, [Put(keys.leaving + node, b"{}", session)])
            # Those who have said so before are known then, too.
            await view.knows(keys.leaving)
            while await _ask(node, store, keys, members, partitions):
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        log.warning("not all partitions were handed over within %g s", _PATIENCE_S)
    except EtcdError as error:
        log.warning("partitions can't be handed over: %s", error.message)


async def hand_over_these(
    node: str, identities: Collection[str], store: Store, keys: Keys, members: Members, partitions: Partitions
) -> None:
    """Ask for that once. The caller repeats it while they are still led there."""
    try:
        await _ask(node, store, keys, members, partitions, identities)
    except EtcdError as error:
        log.debug("partitions can't be handed over: %s", error.message)


async def _ask(
    node: str,
    store: Store,
    keys: Keys,
    members: Members,
    partitions: Partitions,
    identities: Collection[str] | None = None,
) -> bool:
    """Have all that the node leads handed over, or these. Return whether any is still being handed over."""
    staying = {name: each for name, each in members.live.items() if name not in members.leaving}
    usable = {name: each for name, each in staying.items() if name not in members.draining}
    leading = Leading(partitions.records(), members.live)
    is_under_way = False
    for identity, placed in messages_first(partitions.items()):
        if placed.record.leader != node or (identities is not None and identity not in identities):
            continue
        rank = leading.rank(placed.record)
        # One that is being drained leads rather than nobody does.
        wanted = drain(placed.record, node, usable, rank) or drain(placed.record, node, staying, rank)
        if wanted is not None:
            leading.add(wanted)
            key = keys.partition(identity)
            await store.commit({key: placed.revision}, [Put(key, encode(wanted))])
        is_under_way |= wanted is not None or placed.record.successor is not None
    return is_under_way
