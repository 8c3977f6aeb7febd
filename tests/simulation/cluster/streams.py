"""Streams between two nodes, as `following` and `feeding` have them: what a follower says to a leader besides fetches.

A follower sends heartbeats to every leader that it has ever fetched from, for as long as it runs. A stream that breaks
is opened anew under the next number, and what was said on an earlier one is void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.core.events import Contact
from penstock.cluster.core.messages import Fetch, Withdraw

if TYPE_CHECKING:
    from simulation.cluster.node import Node


class Outgoing:
    """To a leader."""

    def __init__(self, node: Node, leader: str) -> None:
        self._node = node
        self._leader = leader
        self.number = 1
        # When the leader sent the last packet that arrived on this stream, by the leader's clock.
        self.echo_us = 0

    def send(self, withdrawn: tuple[int, Withdraw] | None = None) -> None:
        """A heartbeat, or a withdrawal from a partition."""
        node, leader = self._node, self._node.world.nodes[self._leader]
        if not node.world.network.send_in_order(
            node.name, leader.name, leader.heard, node.name, node.incarnation, self.number, self.echo_us, withdrawn
        ):
            self.number, self.echo_us = self.number + 1, 0


class Incoming:
    """From a follower."""

    def __init__(self, incarnation: str, number: int, now_us: int) -> None:
        self.incarnation = incarnation
        self.number = number
        self._since_us = self._heard_us = now_us
        self._confirmed_us = 0

    def fetched(self, now_us: int, echo_us: int) -> None:
        self._heard_us = now_us
        self.confirm(echo_us)

    def confirm(self, echo_us: int) -> None:
        self._confirmed_us = max(self._confirmed_us, echo_us)

    @property
    def contact(self) -> Contact:
        return Contact(self._since_us, self._heard_us, self._confirmed_us)


def last_words(fetch: Fetch) -> Withdraw:
    return Withdraw(fetch.node, fetch.disk, fetch.incarnation, fetch.epoch, fetch.request)
