"""penstock quota: quotas are set in the access file, and shown as they apply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import astuple

from cli.support import Run
from penstock.server.access_file import read
from penstock.server.quotas import Quota, quota_of


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_quotas_are_set_shown_and_taken_away(run: Run) -> None:
    run("key", "create", "shop")
    assert run("quota", "set", "*", "--requests", "1000", "--connections", "50").code == 0
    assert run("quota", "set", "shop", "--publish", "10MB", "--consume", "20MB", "--storage", "10GiB").code == 0
    assert quota_of(read("access.yaml").quotas, "shop") == Quota(10**7, 2 * 10**7, 1000, 50, 10 << 30)
    rows = [json.loads(line) for line in run("quota", "list", "-o", "json").out.splitlines()]
    assert [(row["principal"], row["requests_per_s"], row["storage_bytes"]) for row in rows] == [
        ("*", 1000, None),
        ("shop", 1000, 10 << 30),
    ]
    assert "9.5 MiB" in run("quota", "list").out
    counts = ("--topics", "5", "--groups", "6", "--schedules", "7", "--members", "8", "--producers", "9")
    assert run("quota", "set", "billing", *counts).code == 0
    assert astuple(quota_of(read("access.yaml").quotas, "billing"))[-5:] == (5, 6, 7, 8, 9)
    assert run("quota", "set", "shop", "--publish", "none", "--consume", "none", "--storage", "none").code == 0
    assert quota_of(read("access.yaml").quotas, "shop") == Quota(requests_per_s=1000, connections=50)
    assert [key.principal for key in read("access.yaml").keys] == ["shop"]


@pytest.mark.parametrize(
    "given", [(), ("--requests", "5MB"), ("--publish", "fast"), ("--connections", "0"), ("--connections", "-1")]
)
def test_a_quota_that_makes_no_sense_is_refused(run: Run, given: tuple[str, ...]) -> None:
    run("key", "create", "shop")
    before = Path("access.yaml").read_text(encoding="utf-8")
    assert run("quota", "set", "shop", *given).code == 2
    assert Path("access.yaml").read_text(encoding="utf-8") == before


def test_a_file_without_quotas_and_keys_is_said_to_have_none(run: Run) -> None:
    Path("access.yaml").write_text("rules: []\n", encoding="utf-8")
    assert run("quota", "list").code == 0
    assert run("quota", "list", "--file", "nowhere.yaml").code == 2
