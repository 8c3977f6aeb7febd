"""Two builds in one cluster, each in processes of its own: nodes are replaced one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from cluster_processes import Etcd, Node, OneHost
from etcd_support import needs_etcd, opened, run
from penstock.cluster.keys import Keys
from penstock.cluster.levels import LEVEL

pytestmark = needs_etcd

KEYS = Keys()
NEWER = (sys.executable, str(Path(__file__).parents[2] / "newer_build.py"))


class Upgrade:
    """An etcd, and nodes of either build; a node keeps its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.etcd = Etcd(directory, OneHost())
        self.nodes: dict[str, Node] = {}

    def node(self, name: str, *, is_newer: bool) -> Node:
        build = {"program": NEWER} if is_newer else {}
        self.nodes[name] = Node(name, self._directory, OneHost(), self.etcd.address, "3s", **build)  # type: ignore[arg-type]
        self.nodes[name].start()
        return self.nodes[name]

    def start(self, *names: str, is_newer: bool) -> None:
        for node in [self.node(name, is_newer=is_newer) for name in names]:
            node.wait_ready()

    def items(self, prefix: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def read() -> None:
            async with opened(self.etcd.address) as store:
                items = (await store.get(prefix)).items
                found.extend(msgspec.json.decode(item.value) for item in items.values())

        run(read)
        return found

    def until(self, prefix: str, holds: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Of all values there."""
        while not (items := self.items(prefix)) or not all(map(holds, items)):
            pass
        return items

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.kill()


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[Upgrade]:
    found = Upgrade(tmp_path)
    try:
        found.etcd.start()
        found.etcd.wait_ready()
        yield found
    finally:
        found.close()


def test_nodes_are_replaced_by_newer_ones_and_none_of_them_breaks_what_another_relies_on(upgrade: Upgrade) -> None:
    upgrade.start("a", "b", is_newer=False)
    upgrade.start("c", is_newer=True)
    with penstock.connect(f"penstock://{upgrade.nodes['c'].address}") as queue:
        # Made by the newer build, and led by the others, too.
        queue.create_topic("t", 3)
    records = upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 3)
    assert {record["leader"] for record in records} == {"a", "b", "c"}
    # As far as all of them go.
    assert upgrade.until(KEYS.level, lambda level: level["level"] >= LEVEL) == [{"level": LEVEL}]
    # Elections by the controller, which is an older one, and changes of the ISR by a leader of each build.
    upgrade.nodes["b"].kill()
    upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 2 and record["leader"] != "b")
    upgrade.start("b", is_newer=True)
    upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 3)
    assert [record["observers"] for record in upgrade.items(KEYS.partitions)] == [["x"]] * 3
    assert upgrade.items(KEYS.level) == [{"level": LEVEL}]
    # The last one that is older has replicas, also while it is down.
    upgrade.nodes["a"].stop()
    assert upgrade.items(KEYS.level) == [{"level": LEVEL}]
    upgrade.start("a", is_newer=True)
    upgrade.until(KEYS.level, lambda level: level["level"] == LEVEL + 1)
    late = upgrade.node("d", is_newer=False)
    assert late.process is not None
    assert late.process.wait(60) != 0
    assert late.says(f"the cluster is at feature level {LEVEL + 1}, and this build supports levels up to {LEVEL}")
    with penstock.connect(f"penstock://{upgrade.nodes['a'].address}") as queue:
        queue.publish("t", b"on")
        assert [message.value for message in queue.reader("t")] == [b"on"]
