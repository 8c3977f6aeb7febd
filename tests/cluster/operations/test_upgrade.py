"""Two builds in one cluster, each in processes of its own: nodes are replaced one after the other.

The older build is this one, and a build that differs by a level and a field is the newer one; or the older build is the
last one without feature levels, taken from the repository's history.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import threading
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
TESTS = Path(__file__).parents[2]
NEWER = (sys.executable, str(TESTS / "newer_build.py"))
# The last commit whose nodes do not look at the feature level of their cluster.
WITHOUT_LEVELS = "3fd0949"


class Upgrade:
    """An etcd, and nodes of either build; a node keeps its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.etcd = Etcd(directory, OneHost())
        self.nodes: dict[str, Node] = {}

    def node(self, name: str, program: tuple[str, ...] = ()) -> Node:
        build = {"program": program} if program else {}
        self.nodes[name] = Node(name, self._directory, OneHost(), self.etcd.address, "3s", **build)  # type: ignore[arg-type]
        self.nodes[name].start()
        return self.nodes[name]

    def start(self, *names: str, program: tuple[str, ...] = ()) -> None:
        for node in [self.node(name, program) for name in names]:
            node.wait_ready()

    @property
    def address(self) -> str:
        return "penstock://" + ",".join(node.address for node in self.nodes.values())

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
    upgrade.start("a", "b")
    upgrade.start("c", program=NEWER)
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
    upgrade.start("b", program=NEWER)
    upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 3)
    assert [record["observers"] for record in upgrade.items(KEYS.partitions)] == [["x"]] * 3
    assert upgrade.items(KEYS.level) == [{"level": LEVEL}]
    # The last one that is older has replicas, also while it is down.
    upgrade.nodes["a"].stop()
    assert upgrade.items(KEYS.level) == [{"level": LEVEL}]
    upgrade.start("a", program=NEWER)
    upgrade.until(KEYS.level, lambda level: level["level"] == LEVEL + 1)
    late = upgrade.node("d")
    assert late.process is not None
    assert late.process.wait(60) != 0
    assert late.says(f"the cluster is at feature level {LEVEL + 1}, and this build supports levels up to {LEVEL}")
    with penstock.connect(f"penstock://{upgrade.nodes['a'].address}") as queue:
        queue.publish("t", b"on")
        assert [message.value for message in queue.reader("t")] == [b"on"]


@pytest.fixture(scope="module")
def without_levels(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    directory = tmp_path_factory.mktemp("older")
    archive = subprocess.run(
        ["git", "-C", str(TESTS.parent), "archive", WITHOUT_LEVELS, "src"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this clone has no commit {WITHOUT_LEVELS}: {archive.stderr.decode(errors='replace').strip()}")
    (directory / "src.tar").write_bytes(archive.stdout)
    with tarfile.open(directory / "src.tar") as files:
        files.extractall(directory, filter="data")
    return sys.executable, str(TESTS / "older_build.py"), str(directory / "src")


class Writer:
    """Publishes until it is closed; `values` are those that were acknowledged."""

    def __init__(self, address: str) -> None:
        self.values: list[bytes] = []
        self.failure: Exception | None = None
        self._address = address
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with penstock.connect(self._address) as queue, queue.producer("t", retry_for="60s") as producer:
                while not self._ends.wait(0.02):
                    value = b"%d" % len(self.values)
                    producer.send(value, key=value).result()
                    self.values.append(value)
        except Exception as error:
            self.failure = error

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


def test_a_cluster_without_feature_levels_is_upgraded_under_load_and_closed_to_its_old_build(
    upgrade: Upgrade, without_levels: tuple[str, ...]
) -> None:
    upgrade.start("a", "b", "c", program=without_levels)
    with penstock.connect(upgrade.address) as queue:
        queue.create_topic("t", 3)
    writer = Writer(upgrade.address)
    try:
        for name in "abc":
            upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 3)
            upgrade.nodes[name].stop()
            upgrade.start(name)
        upgrade.until(KEYS.partitions, lambda record: len(record["isr"]) == 3)
        upgrade.until(KEYS.level, lambda level: level["level"] == LEVEL)
    finally:
        writer.close()
    assert writer.failure is None
    with penstock.connect(upgrade.address) as queue:
        assert sorted(message.value for message in queue.reader("t")) == sorted(writer.values)
    late = upgrade.node("d", without_levels)
    assert late.process is not None
    assert late.process.wait(60) != 0
    # All nodes may be down: the cluster's record decides.
    upgrade.nodes["a"].stop()
    upgrade.start("a")
