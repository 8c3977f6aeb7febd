"""What doors that speak for others need of what is behind them, beyond a client's port.

A broker on its own has it all at hand (`local/transport`); a node of a cluster asks those who have it (`forwarding`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from pyroaring import BitMap64

from penstock.broker.broker import Broker
from penstock.broker.polling import ReplyMemory
from penstock.client.requests import ListGroups, ListTopics
from penstock.client.transport import Delivery, Lease, Transport


class Site(Transport, Protocol):
    """Belongs to one event loop."""

    @property
    def broker(self) -> Broker:
        """Of this process: in a cluster it knows all topics, and has the partitions that it leads."""

    @property
    def archive_dir(self) -> str | None: ...

    def check_ready(self) -> None:
        """Raises what keeps it from taking and giving messages."""

    async def catch_up(self) -> None:
        """Returns when what was made at other nodes before is known here, too."""

    async def names(self, request: ListTopics | ListGroups) -> Collection[str]:
        """Of all topics or groups there are, also those that were created at other nodes before."""

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """One that has to be heard of: as often as the group's `session` says. A new group is the owner's."""

    def heartbeat(self, group: str, consumer: str) -> None:
        """Of one that joined for a session. MemberNotFound if it is known to be none any more."""

    def is_member(self, group: str, consumer: str) -> bool:
        """False if it is known to be none any more."""

    async def poll(
        self,
        group: str,
        consumer: str,
        topics: Sequence[str],
        *,
        count: int,
        bytes_max: int,
        wait_us: int,
        visibility_us: int | None = None,
        memory: ReplyMemory | None = None,
    ) -> Sequence[Delivery]:
        """`memory`: see `Polling.poll`."""

    async def left(self, group: str, leases: Sequence[Lease]) -> list[BitMap64]:
        """Of each what is not answered for and not over."""
