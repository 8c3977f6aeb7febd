"""The description of the door in OpenAPI 3.1, made from the table of routes and the structs that go in and out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import Forbidden, InternalError, InvalidInput, QuotaExceeded, Unauthenticated
from penstock.limits import NAME_LENGTH_MAX
from penstock.server.http.failures import BodyTooLarge, Error, Failure, ForeignSite, TooSlow, status_of
from penstock.server.http.routes import Route

_REF = "#/components/schemas/{name}"
_PART = re.compile(r"{(\w+)}")
# As `broker/names.py` has it, which refuses those that do not fit.
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-][a-zA-Z0-9._-]*$", "maxLength": NAME_LENGTH_MAX}
_ID = {"type": "string", "pattern": "^[a-zA-Z0-9_-][a-zA-Z0-9._-]*:[0-9]{1,19}:[0-9]{1,19}$"}
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": ("The name of a topic.", _NAME),
    "group": ("The name of a group.", _NAME),
    "id": ("The id of a message: topic:partition:offset.", _ID),
    "consumer": ("The name of a consumer.", _NAME),
    "schedule": ("The name of a schedule.", _NAME),
}
_Json = dict[str, Any]


def described(routes: Sequence[Route], version: str) -> _Json:
    kinds: list[Any] = [Failure]
    for route in routes:
        kinds += [kind for kind in (route.described or route.body, route.reply, route.query) if kind is not None]
    kinds = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    queries = {kind.__name__ for kind in {route.query for route in routes}}
    paths: dict[str, _Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "A durable, replayable log and a per-message queue in one broker.",
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, by_kind: dict[Any, _Json], components: _Json) -> _Json:
    operation: _Json = {
        "operationId": route.act.__name__,
        "summary": route.summary,
        "tags": [route.act.__module__.rpartition(".")[2]],
        "parameters": [*_path_parameters(route.path), *_query_parameters(components[route.query.__name__])],
        "responses": {str(route.status): _success(route, by_kind), **_failures(route)},
    }
    body = route.described or route.body
    if body is not None:
        content: _Json = {"schema": by_kind[body]}
        if route.example is not None:
            content["example"] = route.example
        is_required = bool(components[body.__name__].get("required"))
        operation["requestBody"] = {"required": is_required, "content": {"application/json": content}}
    if route.is_open:
        operation["security"] = []
    return operation


def _path_parameters(path: str) -> list[_Json]:
    return [
        {"name": name, "in": "path", "required": True, "description": _PARTS[name][0], "schema": _PARTS[name][1]}
        for name in _PART.findall(path)
    ]


def _query_parameters(schema: _Json) -> list[_Json]:
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": each.get("description", ""),
            "schema": {key: value for key, value in each.items() if key != "description"},
        }
        for name, each in schema["properties"].items()
    ]


def _success(route: Route, by_kind: dict[Any, _Json]) -> _Json:
    if route.reply is None:
        return {"description": "Done."}
    content: _Json = {"schema": by_kind[route.reply]}
    if route.reply_example is not None:
        content["example"] = route.reply_example
    if route.is_stream:
        # There is no way to say that the data of each event is one of these.
        return {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"description": "Done.", "content": {"application/json": content}}


def _failures(route: Route) -> _Json:
    """By status, with the codes that it stands for."""
    kinds: list[type[Error]] = [InvalidInput, InternalError, *route.errors]
    if not route.is_open:
        kinds += [Unauthenticated, Forbidden, ForeignSite, QuotaExceeded]
    if route.body is not None:
        kinds += [BodyTooLarge, TooSlow]
    codes: dict[int, list[str]] = {}
    for kind in kinds:
        codes.setdefault(status_of(kind), []).append(kind.code)
    return {str(status): _failure(list(dict.fromkeys(some))) for status, some in sorted(codes.items())}


def _failure(codes: list[str]) -> _Json:
    example = {"code": codes[-1], "message": "a sentence for people", "details": {}}
    schema = {"$ref": _REF.format(name=Failure.__name__)}
    return {
        "description": " or ".join(codes),
        "content": {"application/json": {"schema": schema, "example": example}},
    }
