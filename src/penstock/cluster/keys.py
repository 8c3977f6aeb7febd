"""The names of things in etcd, all below one prefix for a cluster.

<prefix>/cluster               the cluster's id, and the secret by which its nodes know each other
<prefix>/claims/<node>         whose a node's name is, before it is there for others, too: bound to its session
<prefix>/brokers/<node>        a live node: bound to its session
<prefix>/controller            the node that elects leaders: bound to its session
<prefix>/level                 the feature level that all nodes support
<prefix>/nodes/<node>          a node that has ever joined, alive or not, and the level of its build
<prefix>/leaving/<node>        one that is being stopped, and hands over what it leads: bound to its session
<prefix>/draining/<node>       a node that is to lead nothing, alive or not: stays until an operator takes it back
<prefix>/throttle              how fast replicas that are moved may catch up: gone when no move is under way
<prefix>/partitions/<id>       a partition's record: who leads, who is in sync
<prefix>/deleted/<id>          ids of partitions that were deleted on purpose: gone after a week
<prefix>/restored              how often etcd was found to be set back to a backup
<prefix>/unclaimed/<id>        ids of partitions that have records and no topic: of one being made, or deleted
<prefix>/catalog/topics/…      topics, groups and schedules, each under its name
"""

from __future__ import annotations

import re

from penstock.errors import InvalidSetting

_NAME = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")


def check_node(name: object) -> str:
    """A node's id, or a cluster's name: it is part of keys, and shown everywhere."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"a node id or cluster name is 1 to 100 of a-z, A-Z, 0-9, '.', '_' and '-', not beginning with a dot; "
            f"not {name!r}",
            setting="node_id",
        )
    return name


class Keys:
    def __init__(self, cluster: str = "default") -> None:
        self.prefix = f"/penstock/{check_node(cluster)}/"
        self.cluster = self.prefix + "cluster"
        self.claims = self.prefix + "claims/"
        self.brokers = self.prefix + "brokers/"
        self.controller = self.prefix + "controller"
        self.level = self.prefix + "level"
        self.nodes = self.prefix + "nodes/"
        self.draining = self.prefix + "draining/"
        self.leaving = self.prefix + "leaving/"
        self.throttle = self.prefix + "throttle"
        self.partitions = self.prefix + "partitions/"
        self.deleted = self.prefix + "deleted/"
        self.restored = self.prefix + "restored"
        self.unclaimed = self.prefix + "unclaimed/"
        self.topics = self.prefix + "catalog/topics/"
        self.groups = self.prefix + "catalog/groups/"
        self.schedules = self.prefix + "catalog/schedules/"

    def claim(self, node: str) -> str:
        return self.claims + node

    def broker(self, node: str) -> str:
        return self.brokers + node

    def drained(self, node: str) -> str:
        return self.draining + node

    def partition(self, identity: str) -> str:
        return self.partitions + identity

    def name(self, key: str) -> str:
        """The last part of a key."""
        return key.rpartition("/")[2]
