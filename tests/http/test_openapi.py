"""The description: whether it is one, and whether it is true."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.client.settings import GROUP, TOPIC
from penstock.server.http import shapes
from penstock.server.http.openapi import described
from penstock.server.http.table import ROUTES

DESCRIPTION = msgspec.json.decode(msgspec.json.encode(described(ROUTES, "1.2.3")))
# From the design: these never change.
CONTRACT = """
GET /health
GET /ready
POST /v1/topics
GET /v1/topics
GET /v1/topics/{topic}
PATCH /v1/topics/{topic}
DELETE /v1/topics/{topic}
POST /v1/topics/{topic}/publish
POST /v1/topics/{topic}/publish/batch
GET /v1/topics/{topic}/messages
GET /v1/topics/{topic}/scheduled
GET /v1/scheduled/{id}
PATCH /v1/scheduled/{id}
DELETE /v1/scheduled/{id}
POST /v1/groups/{group}/poll
POST /v1/groups/{group}/ack
POST /v1/groups/{group}/nack
POST /v1/groups/{group}/reject
POST /v1/groups/{group}/extend
GET /v1/groups
GET /v1/groups/{group}
PATCH /v1/groups/{group}
DELETE /v1/groups/{group}
POST /v1/groups/{group}/seek
GET /v1/messages/{id}
GET /v1/messages/{id}/trace
GET /v1/messages/{id}/why
GET /v1/topics/{topic}/dead-letters
POST /v1/topics/{topic}/dead-letters/redrive
GET /v1/cluster
"""


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, found) for path, all in DESCRIPTION["paths"].items() for method, found in all.items()]


def test_the_contract_is_kept() -> None:
    there = {f"{method.upper()} {path}" for path, method, _ in operations()}
    assert set(CONTRACT.split("\n")[1:-1]) <= there


def test_it_is_served(serve: Any) -> None:
    async def work(here: Any) -> None:
        served = await here.ok("GET", "/openapi.json")
        assert served["openapi"] == "3.1.0"
        assert served["paths"] == DESCRIPTION["paths"]

    serve(work)


def test_every_reference_leads_somewhere() -> None:
    schemas = DESCRIPTION["components"]["schemas"]
    names = set(re.findall(r'"#/components/schemas/(\w+)"', msgspec.json.encode(DESCRIPTION).decode()))
    assert names == set(schemas)


def test_every_operation_is_whole() -> None:
    ids = [found["operationId"] for _, _, found in operations()]
    assert len(set(ids)) == len(ids)
    for path, _, found in operations():
        assert found["summary"]
        named = [each["name"] for each in found["parameters"] if each["in"] == "path"]
        assert named == re.findall(r"{(\w+)}", path)
        assert all(each["required"] for each in found["parameters"] if each["in"] == "path")
        statuses = list(found["responses"])
        assert any(status.startswith("2") for status in statuses)
        assert {"400", "500"} <= set(statuses)
        for status, reply in found["responses"].items():
            assert reply["description"]
            if not status.startswith("2"):
                schema = reply["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Failure"}


@pytest.mark.parametrize("route", [route for route in ROUTES if route.example or route.reply_example])
def test_examples_are_what_they_are_examples_of(route: Any) -> None:
    if route.example is not None:
        msgspec.json.decode(msgspec.json.encode(route.example), type=route.described or route.body)
    if route.reply_example is not None:
        msgspec.convert(route.reply_example, route.reply)


def test_the_settings_are_those_that_there_are() -> None:
    def names(kind: Any, prefix: str = "") -> set[str]:
        inner = {"retention": shapes.Retention, "backoff": shapes.Backoff}
        found: set[str] = set()
        for name in kind.__struct_fields__:
            found |= names(inner[name], f"{name}.") if name in inner and not prefix else {prefix + name}
        return found

    assert names(shapes.TopicSettings) == set(TOPIC)
    assert names(shapes.GroupSettings) == set(GROUP)
