"""One server a module, and names of topics that no other test has."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator

import pytest

import penstock
from cli.support import Run, serving
from penstock.client.blocking import Client


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server") / "data") as address:
        yield address


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "PENSTOCK_SERVER", "PENSTOCK_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one that commands use unless told otherwise."""
    monkeypatch.setenv("PENSTOCK_SERVER", address)
    return address


@pytest.fixture
def q(server: str) -> Iterator[Client]:
    """To prepare, and to look at, what commands do."""
    with penstock.connect(server) as client:
        yield client


@pytest.fixture
def topic(q: Client, request: pytest.FixtureRequest) -> str:
    """A new one with one partition."""
    name = re.sub("[^a-z0-9_]", "-", request.node.name.lower())[-150:].lstrip("_-")
    q.create_topic(name, 1)
    return name


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give
