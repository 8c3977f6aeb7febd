"""The nodes of the cluster that are alive, as the view has them, and those that are being drained."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.client.placement import NodeInfo
from penstock.cluster.core.events import Registered
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.keys import Keys
from penstock.cluster.registration import Broker, Joined
from penstock.decoding import from_json
from penstock.errors import LogCorrupt


class Members:
    """`changed` is told on the loop, when a node has come, gone, is another process by now, or is to be drained."""

    def __init__(self, view: View, keys: Keys) -> None:
        self._keys = keys
        self.brokers: dict[str, Broker] = {}
        # As replicas want it; replaced as a whole.
        self.live: dict[str, Registered] = {}
        # Those that are to lead nothing, whether they are alive or not.
        self.draining: frozenset[str] = frozenset()
        # Those that are being stopped.
        self.leaving: frozenset[str] = frozenset()
        # Those that have ever joined.
        self.known: frozenset[str] = frozenset()
        # Of each of those, the feature level of the build that joined last.
        self.levels: dict[str, int] = {}
        # The revision of the last change: whoever knows the same has seen the same nodes.
        self.term = 0
        self._view = view
        self.changed: Callable[[], None] = lambda: None
        view.on_change(keys.brokers, self._follow)
        view.on_change(keys.draining, self._follow_draining)
        view.on_change(keys.leaving, self._follow_leaving)
        view.on_change(keys.nodes, self._follow_known)

    def _follow(self, known: Known) -> None:
        node = self._keys.name(known.key)
        before = self.brokers.get(node)
        if known.now is None:
            self.brokers.pop(node, None)
        else:
            try:
                self.brokers[node] = from_json(known.now.value, Broker)
            except msgspec.MsgspecError as error:
                raise LogCorrupt(f"{known.key} in etcd can't be read: {error}") from error
        if self.brokers.get(node) != before:
            self.live = {name: Registered(each.disk, each.incarnation) for name, each in self.brokers.items()}
            self.changed()

    def _follow_draining(self, known: Known) -> None:
        node = self._keys.name(known.key)
        self.draining = self.draining - {node} if known.now is None else self.draining | {node}
        self.changed()

    def _follow_leaving(self, known: Known) -> None:
        node = self._keys.name(known.key)
        self.leaving = self.leaving - {node} if known.now is None else self.leaving | {node}

    def _follow_known(self, known: Known) -> None:
        node = self._keys.name(known.key)
        if known.now is None:
            self.known -= {node}
            self.levels.pop(node, None)
        else:
            self.known |= {node}
            self.levels[node] = from_json(known.now.value, Joined).level

    @property
    def usable(self) -> dict[str, Broker]:
        """Those that may lead, and get replicas."""
        return {node: broker for node, broker in self.brokers.items() if node not in self.draining}

    def infos(self) -> tuple[NodeInfo, ...]:
        return tuple(broker.info(node) for node, broker in sorted(self.brokers.items()))

    def info(self, node: str) -> NodeInfo | None:
        broker = self.brokers.get(node)
        return None if broker is None else broker.info(node)
