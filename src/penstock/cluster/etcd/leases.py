"""Leases over etcd's gateway, for sessions. All of it may be asked twice: a lease that nobody heard of runs out."""

from __future__ import annotations

from penstock.cluster.etcd.answers import Answer, GrantAnswer, KeepAnswer
from penstock.cluster.etcd.gateway import Gateway
from penstock.cluster.etcd.session import Granted
from penstock.errors import SessionLost


class GatewayLeases:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def grant(self, ttl_s: int) -> Granted:
        answer = await self._gateway.ask("/v3/lease/grant", {"TTL": str(ttl_s)}, GrantAnswer)
        return Granted(answer.ID, answer.TTL)

    async def keep(self, lease: int, within_us: int) -> int:
        # Shared between the members, so that all of them can be asked in that time.
        within_s = within_us / 1_000_000 / self._gateway.size
        answer = await self._gateway.ask("/v3/lease/keepalive", {"ID": str(lease)}, KeepAnswer, within_s=within_s)
        return answer.result.TTL

    async def revoke(self, lease: int) -> None:
        try:
            await self._gateway.ask("/v3/lease/revoke", {"ID": str(lease)}, Answer)
        except SessionLost:
            pass
