"""The HTTP door of one node of a cluster, as a test asks it."""

from __future__ import annotations

import re
from typing import Any

import httpx

from cluster_nodes import LocalCluster
from penstock.server.http.table import ROUTES


class Door:
    """The HTTP door of one node."""

    def __init__(self, cluster: LocalCluster, node: str) -> None:
        self.cluster = cluster
        self.node = node
        self.at = str(cluster.nodes[node].where.http)
        # Routes by which it was asked.
        self.asked: set[str] = set()
        note = {"request": [lambda request: self.asked.add(_route(request.method, request.url.path))]}
        self.http = httpx.Client(base_url=f"http://{self.at}", timeout=25, event_hooks=note)

    def ok(self, method: str, path: str, json: Any = None, **more: Any) -> Any:
        """What it answers, which is a success."""
        reply = self.http.request(method, path, json=json, **more)
        assert reply.status_code in (200, 201, 204), reply.text
        return reply.json() if reply.content else None

    def fails(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, str]:
        """The status and the code of what went wrong."""
        reply = self.http.request(method, path, json=json, **more)
        return reply.status_code, reply.json()["code"]

    def topic(self, name: str, partitions: int = 3, **settings: Any) -> Any:
        return self.ok("POST", "/v1/topics", {"name": name, "partitions": partitions, **settings})

    def published(self, topic: str, *texts: str, **more: Any) -> list[str]:
        sent = [self.ok("POST", f"/v1/topics/{topic}/publish", {"text": text, **more}) for text in texts]
        return [one["id"] for one in sent]

    def polled(self, topics: str, group: str = "g", consumer: str = "c", **more: Any) -> list[dict[str, Any]]:
        given = {"topics": [topics], "consumer": consumer, **more}
        messages: list[dict[str, Any]] = self.ok("POST", f"/v1/groups/{group}/poll?as=text", given)["messages"]
        return messages

    def polled_all(self, topic: str, count: int, **more: Any) -> list[dict[str, Any]]:
        """Until there were so many."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.polled(topic, max=count - len(found), wait="5s", **more)
        return found

    def answered(self, how: str, messages: list[dict[str, Any]], group: str = "g", **more: Any) -> Any:
        receipts = [message["receipt"] for message in messages]
        return self.ok("POST", f"/v1/groups/{group}/{how}", {"receipts": receipts, **more})


def _route(method: str, path: str) -> str:
    for route in ROUTES:
        if route.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path):
            return f"{method} {route.path}"
    return f"{method} {path}"
