"""Every field, query and path of HTTP, as /openapi.json has them, odd in turn: no answer says that it is our fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx

from odd.values import HUGE, right

ODD: list[Any] = [None, True, 0, -1, 1 << 63, HUGE, 1.5, 5e-324, 1e300, "", "x", "grün", "\ud800", "a/b", "9" * 5_000]
ODD += [[], [None], ["x"], [HUGE], {}, {"a": None}, {"0": HUGE}, {"9" * 50: 0}, {"0": [0, HUGE]}, {"0": [1, 0]}]
RIGHT = {"consumer": "c", "schedule": "s", "messages": [{"text": "x"}], "text": "x", "receipts": ["x"]}
# One of several that exclude one another, which the schema does not say.
TEXT = {"Publish", "CreateSchedule"}


def properties(document: Any, schema: Any, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of a body, and of the objects in it."""
    for each in [schema, *schema.get("anyOf", ())]:
        name = each.get("$ref", "").rpartition("/")[2]
        for field, inner in document["components"]["schemas"].get(name, {}).get("properties", {}).items():
            yield (field,)
            if depth < 1:
                yield from ((field, *rest) for rest in properties(document, inner, depth + 1))


def value_of(name: str) -> Any:
    return RIGHT[name] if name in RIGHT else right(name)


def requests(document: Any) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            content = operation.get("requestBody", {}).get("content", {})
            schema = next(iter(content.values()))["schema"] if content else {}
            name = schema.get("$ref", "").rpartition("/")[2]
            required = document["components"]["schemas"].get(name, {}).get("required", [])
            body = {each: value_of(each) for each in [*required, *(["text"] if name in TEXT else [])]}
            given = {each["name"]: value_of(each["name"]) for each in parameters if each.get("required")}
            for number, odd in enumerate(ODD):
                # Of paths and queries only the text is seen.
                for each in parameters if isinstance(odd, str | int) else ():
                    yield method, path, {**given, each["name"]: odd}, body
                if content:
                    yield method, path, given, odd
                for field, *inner in properties(document, schema):
                    # Objects in bodies are the same in several: some values for each will do.
                    if inner and number % 3:
                        continue
                    value = odd
                    for part in reversed(inner):
                        value = {part: value}
                    yield method, path, given, {**body, field: value}


def test_no_request_meets_an_internal_error(doors: dict[str, str]) -> None:
    with httpx.Client(base_url=f"http://{doors['http']}", timeout=20) as http:
        http.post("/v1/topics", json={"name": "orders", "partitions": 1})
        found = []
        for method, path, given, body in requests(http.get("/openapi.json").json()):
            texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
            texts = {name: value.encode("utf-8", "surrogatepass") for name, value in texts.items()}
            names = [name for name in texts if f"{{{name}}}" in path]
            place = path.format(**{name: quote(texts.pop(name), safe="") for name in names})
            query = "&".join(f"{name}={quote(value)}" for name, value in texts.items())
            with http.stream(method.upper(), f"{place}?{query}", content=json.dumps(body)) as reply:
                if reply.status_code >= 500 and reply.status_code != 501:
                    found.append((method, path, given, body, reply.status_code, reply.read()))
        assert not found, found[:5]
