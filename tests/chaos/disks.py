"""What is on the disks of nodes that are not running: each replica by itself, as entries of a history."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cluster_processes import Cluster
from history.entries import Recorder
from penstock.broker import events as e
from penstock.broker.letter import obituary_of
from penstock.cluster.keys import Keys
from penstock.frame import CONTROL
from penstock.storage.log import Log

# As entries of a history have them. Rows of other kinds are compared, and not looked into.
_TAGS: dict[type, str] = {
    e.Leased: "L",
    e.Extended: "E",
    e.Acknowledged: "A",
    e.Nacked: "N",
    e.Expired: "X",
    e.Released: "R",
    e.Exhausted: "D",
    e.Started: "S",
}


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
    """`committed` are the high watermarks of messages, as clients were told. Of the deliveries nobody is told: all that
    is on every disk is, once all replicas are in sync and nothing is going on."""
    for identity, (topic, number) in partitions.items():
        copies = {name: _copy(node.data / "partitions" / identity) for name, node in cluster.nodes.items()}
        shortest = min(copy["ends"][1] for copy in copies.values())
        for name, copy in copies.items():
            copy["events"] = [event for at, event in copy["events"] if at < shortest]
            if not topic.endswith(".dlq"):
                del copy["letters"]
            both = [committed[topic][number], shortest]
            recorder.note(name, "replica", "ok", topic=topic, partition=number, committed=both, **copy)


def _copy(directory: Path) -> dict[str, Any]:
    if not directory.exists():
        return {"ends": [0, 0], "messages": [], "deliveries": [], "letters": [], "events": []}
    messages: list[list[Any]] = []
    letters: list[list[Any]] = []
    with closing(Log.open(directory / "messages")) as log:
        ends = [log.end_offset]
        for frame in log.frames(log.start_offset):
            batch = frame.batch()
            for offset, message in zip(frame.offsets(batch).tolist(), batch.messages(), strict=True):
                messages.append([offset, frame.leader_epoch, (message.value or b"").decode()])
                obituary = obituary_of(message)
                if obituary is not None:
                    letters.append([obituary.group, obituary.topic, obituary.partition, obituary.offset])
    deliveries: list[list[Any]] = []
    events: list[tuple[int, list[Any]]] = []
    with closing(Log.open(directory / "deliveries")) as log:
        ends.append(log.end_offset)
        for frame in log.frames(log.start_offset):
            batch = frame.batch()
            for offset, message in zip(frame.offsets(batch).tolist(), batch.messages(), strict=True):
                digest = blake2b(message.value or b"", digest_size=8).hexdigest()
                deliveries.append([offset, frame.leader_epoch, digest])
                # A snapshot says again what rows before it have said.
                if not frame.flags & CONTROL:
                    events += [(offset, told) for told in _events(message.value, message.timestamp)]
    return {"ends": ends, "messages": messages, "deliveries": deliveries, "letters": letters, "events": events}


def _events(value: bytes | None, at_us: int) -> Iterator[list[Any]]:
    for event, at in e.from_value(value, at_us):
        tag = _TAGS.get(type(event))
        if tag is not None:
            told: dict[str, Any] = {}
            for field in ("lease", "deadline_us"):
                if hasattr(event, field):
                    told[field.removesuffix("_us")] = getattr(event, field)
            if hasattr(event, "offsets"):
                told["offsets"] = list(e.unpack(event.offsets))
            yield [at, tag, event.group, told]
