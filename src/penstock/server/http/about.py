"""Routes about the broker itself."""

from __future__ import annotations

from typing import Any

import penstock
from penstock.clock import rfc3339
from penstock.errors import StorageError
from penstock.server.http import shapes
from penstock.server.http.desk import Asked, Desk
from penstock.server.http.routes import Route


async def health(desk: Desk, asked: Asked[None, Any]) -> shapes.Status:
    return shapes.Status(status="ok")


async def ready(desk: Desk, asked: Asked[None, Any]) -> shapes.Status:
    desk.check_ready()
    return shapes.Status(status="ready")


async def cluster(desk: Desk, asked: Asked[None, Any]) -> shapes.Cluster:
    """Of what there is, as much as one may know of."""
    topics, groups, now = await asked.admin.topics(), await asked.admin.groups(), desk.site.now_us()
    node = shapes.Node(
        name="penstock", version=penstock.__version__, started_at=rfc3339(desk.started_us), now=rfc3339(now)
    )
    return shapes.Cluster(
        mode="single",
        nodes=[node],
        topics=len(topics),
        partitions=sum(len(topic.partitions) for topic in topics),
        groups=len(groups),
    )


ROUTES = (
    Route("GET", "/health", health, "The process is there.", reply=shapes.Status, is_open=True),
    Route(
        "GET",
        "/ready",
        ready,
        "The broker takes and gives messages.",
        reply=shapes.Status,
        errors=(StorageError,),
        is_open=True,
    ),
    Route("GET", "/v1/cluster", cluster, "The nodes, and how much there is.", reply=shapes.Cluster),
)
