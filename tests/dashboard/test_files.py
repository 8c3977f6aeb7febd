"""The files of the dashboard, as they are served; without a browser."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

PAGE = files("penstock.server.http").joinpath("page")


def test_nobody_needs_a_key_for_the_page(guarded: Any) -> None:
    del guarded.http.headers["authorization"]
    assert guarded.http.get("/v1/topics").status_code == 401
    index = guarded.http.get("/")
    assert index.status_code == 200
    for address in _addresses(index.text):
        assert guarded.http.get(f"/{address}").status_code == 200


def _addresses(index: str) -> list[str]:
    found = re.findall(r'(?:src|href)="(page/[^"]+)"', index)
    assert len(found) >= 4
    return found


def test_the_page_may_run_and_ask_nothing_but_its_own(broker: Any) -> None:
    index = broker.http.get("/")
    policy = dict(one.strip().split(" ", 1) for one in index.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert index.headers["x-content-type-options"] == "nosniff"
    for part in PAGE.iterdir():
        said = part.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in said, part.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\b| style=", said), part.name


def test_a_file_is_kept_for_good_and_the_page_is_asked_for_again(broker: Any) -> None:
    index = broker.http.get("/")
    assert index.headers["cache-control"] == "no-cache"
    again = broker.http.get("/", headers={"if-none-match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert broker.http.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for address in _addresses(index.text):
        part = broker.http.get(f"/{address}")
        assert part.headers["cache-control"].endswith("immutable")
        assert part.headers["content-type"].startswith(types[address[address.rindex(".") :]])
        assert broker.http.head(f"/{address}").headers["content-length"] == str(len(part.content))


def test_files_that_are_not_there_and_methods_that_make_no_sense(broker: Any) -> None:
    version = _addresses(broker.http.get("/").text)[0].split("/")[1]
    for path in ("/page/", "/page/other/page.js", f"/page/{version}/no.js", f"/page/{version}/../app.py", "/page"):
        reply = broker.http.get(path)
        assert (reply.status_code, reply.json()["code"]) == (404, "route_not_found")
    refused = broker.http.post("/", json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


def test_every_module_that_is_imported_is_there() -> None:
    names = {part.name for part in PAGE.iterdir()}
    for name in sorted(names):
        if name.endswith(".js"):
            imported = re.findall(r'from "\./([^"]+)"', PAGE.joinpath(name).read_text(encoding="utf-8"))
            assert set(imported) <= names
