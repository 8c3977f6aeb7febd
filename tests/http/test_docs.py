"""The reference says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.limits import DEFAULT_LIMITS, MIB
from penstock.server.http.failures import STATUSES, status_of
from penstock.server.http.routes import BODY_MAX, batch_max, message_max
from penstock.server.http.table import ROUTES

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


def test_every_route_is_in_the_table() -> None:
    told = set()
    for methods, path in re.findall(r"^\| `([A-Z ]+) (/\S*)` \|", REFERENCE, re.MULTILINE):
        told |= {(method, path) for method in methods.split()}
    assert told == {(route.method, route.path) for route in ROUTES}


def test_the_bodies_that_are_allowed_are_in_the_table() -> None:
    rows = r"^\| (?:body of a publish|body of a batch|other bodies) \| .*?([0-9.]+) MiB"
    bounds = (message_max(DEFAULT_LIMITS), batch_max(DEFAULT_LIMITS), BODY_MAX)
    assert [float(mib) for mib in re.findall(rows, REFERENCE, re.MULTILINE)] == [bound / MIB for bound in bounds]


def test_every_status_is_in_the_table_with_its_codes() -> None:
    rows = dict(re.findall(r"^\| (\d{3}) \| (.*) \|$", REFERENCE, re.MULTILINE))
    by_status: dict[int, set[str]] = {}
    for kind in STATUSES:
        by_status.setdefault(status_of(kind), set()).add(kind.code)
    assert set(map(int, rows)) == set(by_status)
    for status, codes in by_status.items():
        told = set(re.findall(r"`(\w+)`", rows[str(status)]))
        assert codes <= told
        known = {kind.code: kind for kind in [*_below(PenstockError), *STATUSES]}
        assert all(status_of(known[code]) == status for code in told)


def _below(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(deeper for each in kind.__subclasses__() for deeper in _below(each))]
