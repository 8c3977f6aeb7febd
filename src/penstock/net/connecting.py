"""Connecting to a broker somewhere else, or to a cluster of them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial

from penstock.client import blocking
from penstock.client.client import Client
from penstock.client.placement import NodeInfo
from penstock.client.portal import Portal
from penstock.environment import Environment
from penstock.errors import ConnectionLost
from penstock.limits import Limits
from penstock.net.address import place_of, places_of
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.net.routing.pace import Pace
from penstock.net.routing.transport import RoutedTransport
from penstock.standard_files import reopen_closed

_Found = RemoteTransport | RoutedTransport
# A leader that takes longer may not be one any more, which the long way finds out.
_ANSWER_S = 1.0


def connect(
    address: str, *, key: str | None = None, tls: ssl.SSLContext | None = None, pace: Pace | None = None
) -> blocking.Client:
    """`pace.patience_s` is how long requests wait for a broker that is away; the rest of `pace` is for a cluster."""
    places = places_of(address, key=key, tls=tls)
    portal = Portal()
    try:
        transport = portal.run(_connected(places, Environment(), serves_threads=True, pace=pace))
        return blocking.Client(Client(transport, place=_shown(places)), portal, at_once=transport)
    except BaseException:
        portal.stop()
        raise


async def connect_async(
    address: str,
    *,
    key: str | None = None,
    tls: ssl.SSLContext | None = None,
    pace: Pace | None = None,
    environment: Environment | None = None,
) -> Client:
    places, environment = places_of(address, key=key, tls=tls), environment or Environment()
    transport = await _connected(places, environment, serves_threads=False, pace=pace)
    return Client(transport, place=_shown(places), new_id=environment.new_id)


async def transport_to(address: str, *, key: str | None = None, pace: Pace | None = None) -> _Found:
    """For requests that no method of a client is for."""
    return await _connected(places_of(address, key=key), Environment(), serves_threads=False, pace=pace)


async def _connected(
    places: Sequence[Place], environment: Environment, *, serves_threads: bool, pace: Pace | None
) -> _Found:
    """To the broker that answers first; if it is a node of a cluster, to all of that."""
    reopen_closed()
    pace = pace or Pace(dice=environment.dice)
    transport = await _first(places, environment, pace.patience_s)
    if not transport.cluster:
        if serves_threads:
            transport.serve_threads()
        return transport
    await transport.close()
    make = partial(_to_node, places[0], environment, transport.limits, transport.principal, serves_threads)
    seeds = [NodeInfo("", _address(place)) for place in places]
    return await RoutedTransport.to(seeds, make, pace, environment.new_id)


async def _first(places: Sequence[Place], environment: Environment, patience_s: float) -> RemoteTransport:
    connect = partial(RemoteTransport.to, clock=environment.clock, patience_s=patience_s, new_id=environment.new_id)
    *others, last = places
    for place in others:
        try:
            return await connect(place)
        except ConnectionLost:
            # Any one will do.
            pass
    return await connect(last)


def _to_node(
    known: Place, environment: Environment, limits: Limits, principal: str, serves_threads: bool, node: NodeInfo
) -> RemoteTransport:
    """One that can't be reached is not waited for: another node may lead what it led."""
    place = place_of(node.native, key=known.key, tls=known.tls)
    transport = RemoteTransport(place, environment.clock, patience_s=0, limits=limits, new_id=environment.new_id)
    transport.principal = principal
    if serves_threads:
        transport.serve_threads(_ANSWER_S)
    return transport


def _address(place: Place) -> str:
    return f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"


def _shown(places: Sequence[Place]) -> str:
    first, *others = places
    return ",".join([str(first), *map(_address, others)])
