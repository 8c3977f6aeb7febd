"""Moves of partitions between nodes, and nodes that are to be emptied.

A move is what the record of a partition says it is to be; whoever leads it sees to it, by letting the new replicas
catch up first. All of a request is checked before anything of it is changed. A partition's dead letters are led where
the partition is, so both are moved together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from penstock.broker.names import DEAD_LETTERS
from penstock.broker.settings import REPLICAS_MAX
from penstock.client.cluster_requests import CancelMoves, DrainNode, Move, Plan, Reassign, Rebalance, UndrainNode
from penstock.cluster.balancing import balanced, replaced
from penstock.cluster.core import election
from penstock.cluster.etcd.store import Put
from penstock.cluster.keys import check_node
from penstock.cluster.node import Node
from penstock.cluster.placing import check_enough
from penstock.cluster.records import Records, listed, source_of
from penstock.cluster.registration import Broker
from penstock.cluster.throttle import RATE_MIN, Setting
from penstock.errors import InvalidInput, NotEnoughReplicas, StaleMetadata

# Of a topic that somebody else changes at the same time.
_TRIES = 20

log = logging.getLogger("penstock.cluster")


class Moves:
    def __init__(self, node: Node, records: Records) -> None:
        self._node = node
        self._records = records

    async def reassign(self, request: Reassign) -> list[Move]:
        throttle = _throttle(request.throttle)
        await self._records.refresh()
        partitions = self._records.named(request.topic, request.partition)
        self._records.check_together(request.topic)
        self._check_nodes(request.nodes)
        wanted: dict[str, tuple[str, ...]] = {}
        for identity, record in partitions.items():
            if len(request.nodes) < record.min_isr:
                raise InvalidInput(
                    f"{record.topic} has a min_isr of {record.min_isr}, and {len(request.nodes)} replicas can't hold "
                    "that; name more nodes",
                    topic=record.topic,
                )
            turn = 0 if request.partition is not None else record.number % len(request.nodes)
            wanted[identity] = request.nodes[turn:] + request.nodes[:turn]
        moves = await self._move(wanted, throttle)
        await self._put_replicas(request.topic)
        return moves

    async def cancel(self, request: CancelMoves) -> list[Move]:
        await self._records.refresh()
        partitions = self._records.with_dead_letters(self._records.named(request.topic, request.partition))
        moving = {identity: record.replicas for identity, record in partitions.items() if record.target}
        if not moving:
            raise InvalidInput(f"nothing of {request.topic} is being moved", topic=request.topic)
        moves = await self._move(moving, None, takes_along=False)
        await self._put_replicas(request.topic)
        return moves

    async def rebalance(self, request: Rebalance) -> Plan:
        throttle = _throttle(request.throttle)
        await self._records.refresh()
        racks = self._records.racks()
        members = self._node.members
        _check_any(members.usable)
        placed, fixed = {}, []
        skipped = 0
        for identity, record in self._records.units().items():
            replicas = record.target or record.replicas
            # Moved, it would wait for all of its replicas to be in sync.
            is_waiting = any(node not in members.live and node not in members.draining for node in replicas)
            if is_waiting or record.target:
                fixed.append(replicas)
                skipped += is_waiting
            else:
                placed[identity] = replicas
        wanted = dict(await self._node.on_a_thread(partial(balanced, placed, racks, fixed=fixed)))
        if request.is_dry:
            return Plan(self._moves(self._taken_along(wanted)), skipped)
        return Plan(await self._move(wanted, throttle), skipped)

    async def drain(self, request: DrainNode) -> list[Move]:
        throttle = _throttle(request.throttle)
        node = check_node(request.node)
        await self._records.refresh()
        members = self._node.members
        if node not in members.brokers and not any(record.hosts(node) for record in self._node.partitions.records()):
            raise self._records.unknown(node)
        others = {name: broker for name, broker in members.usable.items() if name != node}
        _check_any(others)
        wanted: dict[str, tuple[str, ...]] = {}
        if request.moves:
            racks = {name: rack for name, rack in self._records.racks().items() if name != node}
            units = {identity: record.target or record.replicas for identity, record in self._records.units().items()}
            leaving = {identity: replicas for identity, replicas in units.items() if node in replicas}
            fixed = [replicas for identity, replicas in units.items() if identity not in leaving]
            wanted = dict(await self._node.on_a_thread(partial(replaced, leaving, racks, fixed=fixed)))
            for identity, replicas in leaving.items():
                if node in wanted.get(identity, replicas):
                    check_enough(len(replicas), others)
        self._check(self._taken_along(wanted))
        await self._records.put(self._node.keys.drained(node), b"{}")
        log.warning("node %s is being drained", node)
        return await self._move(wanted, throttle)

    async def undrain(self, request: UndrainNode) -> None:
        node = check_node(request.node)
        await self._records.refresh()
        if node not in self._node.members.draining:
            raise InvalidInput(f"node {node} is not being drained", node=node)
        await self._records.delete(self._node.keys.drained(node))
        log.warning("node %s is not being drained any more", node)

    async def _move(
        self, wanted: dict[str, tuple[str, ...]], throttle: int | None, *, takes_along: bool = True
    ) -> list[Move]:
        if takes_along:
            wanted = self._taken_along(wanted)
        self._check(wanted)
        live = self._node.members.live
        moves = self._moves(wanted)
        if throttle == 0:
            await self._records.delete(self._node.keys.throttle)
        for identity, target in wanted.items():
            # With the first one that is moved: without a move the controller would take the throttle away.
            also = [] if not throttle else [Put(self._node.keys.throttle, msgspec.json.encode(Setting(throttle)))]
            if await self._records.change(identity, partial(election.reassign, target=target, live=live), also):
                throttle = None
        if throttle and any(record.target for record in self._node.partitions.records()):
            await self._records.put(self._node.keys.throttle, msgspec.json.encode(Setting(throttle)))
        for move in moves:
            log.info("partition %d of %s moves to %s", move.number, move.topic, ", ".join(move.target))
        return moves

    async def _put_replicas(self, topic: str) -> None:
        """Once all partitions of a topic are on as many nodes, or are to be, so will be those that it gets later. The
        same of its dead letters."""
        for name in (topic, topic + DEAD_LETTERS):
            for _ in range(_TRIES):
                if not self._node.catalog.has_topic(name):
                    break
                records = self._records.named(name, None).values()
                replicas = {len(record.target or record.replicas) for record in records}
                min_isrs = {record.min_isr for record in records}
                if len(replicas) != 1:
                    break
                least = min_isrs.pop() if len(min_isrs) == 1 else None
                nodes = len(self._node.members.known - self._node.members.draining)
                try:
                    await self._node.catalog.put_replicas(self._node.on_a_thread, name, replicas.pop(), least, nodes)
                    break
                except StaleMetadata:
                    # Decided anew: it may have got more partitions.
                    continue
            else:
                raise StaleMetadata(f"{name} is changed all the time; try again", topic=name)

    def _check(self, wanted: dict[str, tuple[str, ...]]) -> None:
        for identity, target in wanted.items():
            election.reassign(self._records.record(identity), target, self._node.members.live)
        self._node.placing.check_room_for(wanted)

    def _moves(self, wanted: dict[str, tuple[str, ...]]) -> list[Move]:
        """Those that are any."""
        found = []
        for identity, target in wanted.items():
            record = self._records.record(identity)
            if target != (record.target or record.replicas):
                found.append(Move(record.topic, record.number, record.replicas, target))
        return sorted(found, key=lambda move: (move.topic, move.number))

    def _taken_along(self, wanted: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """With the dead letters of each."""
        by_place = {
            (self._records.record(identity).topic, self._records.record(identity).number): to
            for identity, to in wanted.items()
        }
        found = dict(wanted)
        for identity, record in self._records.all().items():
            target = by_place.get((source_of(record.topic) or "", record.number))
            if target is not None:
                found[identity] = target
        return found

    def _check_nodes(self, nodes: Sequence[str]) -> None:
        if not nodes or len(set(nodes)) < len(nodes):
            raise InvalidInput(f"replicas are on different nodes, and on one at least, not on {listed(nodes)}")
        if len(nodes) > REPLICAS_MAX:
            raise InvalidInput(f"a partition has at most {REPLICAS_MAX} replicas, not {len(nodes)}", nodes=list(nodes))
        for node in nodes:
            if node not in self._node.members.live:
                raise self._records.unknown(node)
            if node in self._node.members.draining:
                raise InvalidInput(f"{node} is being drained; it gets no replicas until that is undone", node=node)


def _check_any(brokers: Mapping[str, Broker]) -> None:
    if not brokers:
        raise NotEnoughReplicas(
            "there is no other node that is alive and not being drained: start one, or undo a drain "
            "(`penstock cluster drain NODE --undo`)"
        )


def _throttle(rate: int | None) -> int | None:
    if rate is not None and rate != 0 and rate < RATE_MIN:
        raise InvalidInput(
            f"a throttle is at least {RATE_MIN} bytes a second, or none (0); not {rate}", argument="throttle"
        )
    return rate
