"""All routes."""

from __future__ import annotations

from penstock.server.http import about, answering, consuming, groups, history, later, topics
from penstock.server.http.routes import Route

ROUTES: tuple[Route, ...] = (
    *about.ROUTES,
    *topics.ROUTES,
    *consuming.ROUTES,
    *answering.ROUTES,
    *groups.ROUTES,
    *history.ROUTES,
    *later.ROUTES,
)
