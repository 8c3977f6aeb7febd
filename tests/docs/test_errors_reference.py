"""docs/reference/errors.md has every error, with what each door makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.page import ROOT
from penstock.errors import PenstockError
from penstock.server.grpc.failures import code_of
from penstock.server.http.failures import Refused, status_of

PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
ERRORS = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| `(\w+)` \| (yes|no) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
OF_HTTP = re.findall(r"^\| `(\w+)` \| (\d+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def test_every_error_is_on_the_page_as_it_is() -> None:
    kinds: list[type[PenstockError]] = [PenstockError, *below(PenstockError)]
    are = [
        (kind.code, kind.__name__, str(status_of(kind)), code_of(kind).name, "yes" if kind.retriable else "no")
        for kind in kinds
        if kind.__module__ == PenstockError.__module__
    ]
    assert sorted(ERRORS) == sorted(are)


def test_every_error_that_only_http_has_is_on_the_page() -> None:
    kinds: list[type[Refused]] = list(below(Refused))
    assert sorted(OF_HTTP) == sorted((kind.code, str(status_of(kind))) for kind in kinds)
    assert not any(kind.retriable for kind in kinds)


def test_a_root_says_that_it_is_one() -> None:
    rows = dict(re.findall(r"^\| `\w+` \| `(\w+)` \| \d+ \| `\w+` \| \w+ \| (.+?) \|", PAGE, re.MULTILINE))
    for kind in [PenstockError, *below(PenstockError)]:
        has_some = any(each.__module__ == PenstockError.__module__ for each in kind.__subclasses__())
        if has_some and kind.__module__ == PenstockError.__module__:
            assert "root of" in rows[kind.__name__], f"{kind.__name__}: {rows[kind.__name__]}"
