"""What is on the disks of nodes that are not running: each replica by itself, as entries of a history."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cluster_processes import Cluster
from history.copies import NOTHING, copy_of, note_copies
from history.entries import Recorder
from penstock.cluster.keys import Keys
from penstock.storage.log import Log


def partitions_of(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """By their ids: topic and number. By what etcd says, which has to be running."""
    prefix = Keys().topics
    host, _, port = cluster.etcd.address.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    query = {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
    connection.request("POST", "/v3/kv/range", json.dumps(query))
    found = json.loads(connection.getresponse().read()).get("kvs", [])
    connection.close()
    topics = [json.loads(base64.b64decode(each["value"])) for each in found]
    return {
        identity: (topic["name"], number) for topic in topics for number, identity in enumerate(topic["partitions"])
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def note_disks(
    cluster: Cluster,
    recorder: Recorder,
    partitions: Mapping[str, tuple[str, int]],
    committed: Mapping[str, list[int]],
) -> None:
    """`committed` are the high watermarks of messages, as clients were told."""
    for identity, (topic, number) in partitions.items():
        copies = {name: _copy(node.data / "partitions" / identity) for name, node in cluster.nodes.items()}
        note_copies(recorder, topic, number, committed[topic][number], copies)


def _copy(directory: Path) -> dict[str, Any]:
    if not directory.exists():
        return NOTHING
    with closing(Log.open(directory / "messages")) as messages, closing(Log.open(directory / "deliveries")) as events:
        return copy_of(messages, events)
