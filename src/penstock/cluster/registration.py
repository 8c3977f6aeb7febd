"""Who a node is: its entry among the brokers, and the id of its disk.

    file "disk" in the data directory: magic "PND", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON

The id of the disk is made with the data directory and never changes. In-sync replicas are named by it, so a node that
comes back with an empty disk is in none of them. A data directory that has partitions but no such file belongs to a
broker on its own, and is not taken.
"""

from __future__ import annotations

import msgspec

from penstock.broker.broker import PARTITIONS
from penstock.broker.catalog import NAME as CATALOG
from penstock.client.placement import NodeInfo
from penstock.decoding import from_json
from penstock.errors import InvalidSetting
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import Files

NAME = "disk"
_MAGIC = b"PND\x01"


class Disk(msgspec.Struct, frozen=True):
    """`cluster` is the id of the one that it belongs to: partitions of two clusters must not meet on a disk."""

    id: str
    node: str
    cluster: str


class Claim(msgspec.Struct, frozen=True):
    """To a node's name, in etcd: by the disk of the node that has it."""

    disk: str


class Joined(msgspec.Struct, frozen=True):
    """A node that has joined before, in etcd: with a build that supports this feature level."""

    level: int = 1


class Broker(msgspec.Struct, frozen=True):
    """A live node, in etcd."""

    disk: str
    incarnation: str
    native: str
    http: str = ""
    grpc: str = ""
    rack: str = ""
    version: str = ""
    # When this process joined, by its own clock.
    since_us: int = 0
    # Whether its native door speaks TLS.
    tls: bool = False
    # The highest feature level that its build supports.
    level: int = 1

    def info(self, node: str) -> NodeInfo:
        return NodeInfo(node, self.native, self.http, self.grpc, self.rack, self.version)


def read_disk(files: Files) -> Disk | None:
    body = read_checked(files, NAME, _MAGIC, "file with the disk's id")
    if body is None:
        if CATALOG in files.names() or PARTITIONS in files.directories():
            raise InvalidSetting(
                "the data directory belongs to a broker on its own; a node of a cluster begins with an empty one",
                setting="data",
            )
        return None
    return from_json(body, Disk)


def own_disk(files: Files, node: str, cluster: str, new_id: bytes) -> Disk:
    """Of a directory that is ours, or will be if it is empty (`mark_disk`). InvalidSetting if it is another node's or
    cluster's."""
    disk = read_disk(files) or Disk(new_id.hex(), node, cluster)
    if disk.node != node:
        raise InvalidSetting(f"the data directory is that of node {disk.node}, not of {node}", setting="node_id")
    if disk.cluster != cluster:
        raise InvalidSetting(
            f"the data directory belongs to cluster {disk.cluster}, and etcd holds cluster {cluster}: either etcd was "
            "replaced, or this is the wrong directory",
            setting="data",
        )
    return disk


def mark_disk(files: Files, disk: Disk) -> None:
    """From now on the directory is that node's."""
    if read_disk(files) is None:
        write_checked(files, NAME, _MAGIC, msgspec.json.encode(disk))
