"""Connecting to a broker somewhere else."""

from __future__ import annotations

import ssl

from penstock.client import blocking
from penstock.client.client import Client
from penstock.client.portal import Portal
from penstock.clock import SystemClock
from penstock.net.address import place_of
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport


def connect(address: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> blocking.Client:
    place = place_of(address, key=key, tls=tls)
    portal = Portal()
    try:
        transport = portal.run(_connected(place))
        return blocking.Client(Client(transport, place=str(place)), portal, at_once=transport)
    except BaseException:
        portal.stop()
        raise


async def _connected(place: Place) -> RemoteTransport:
    transport = await RemoteTransport.to(place, SystemClock())
    transport.serve_threads()
    return transport


async def connect_async(address: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> Client:
    place = place_of(address, key=key, tls=tls)
    transport = await RemoteTransport.to(place, SystemClock())
    return Client(transport, place=str(place))
