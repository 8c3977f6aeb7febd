"""penstock key: keys are told once, kept as hashes, and can be taken away."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from cli.support import Run
from penstock.clock import SystemClock
from penstock.errors import Unauthenticated
from penstock.server.access_file import read


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_key_is_told_once_and_opens_the_door_until_it_is_revoked(run: Run) -> None:
    secret = run("key", "create", "billing").out.strip()
    other = json.loads(run("key", "create", "shop", "--expires", "1h", "-o", "json").out)
    now = SystemClock().now_us()
    assert read("access.yaml").keys.find(secret, now).principal == "billing"
    assert secret.split("_", 2)[2] not in Path("access.yaml").read_text(encoding="utf-8")
    assert stat.S_IMODE(Path("access.yaml").stat().st_mode) == 0o600
    with pytest.raises(Unauthenticated):
        read("access.yaml").keys.find(other["key"], now + 3_601_000_000)
    listed = [json.loads(line) for line in run("key", "list", "-o", "json").out.splitlines()]
    assert [row["principal"] for row in listed] == ["billing", "shop"]
    assert run("key", "revoke", listed[0]["id"]).code == 0
    with pytest.raises(Unauthenticated):
        read("access.yaml").keys.find(secret, now)
    assert run("key", "revoke", "nobody").code == 2


def test_rules_stay_and_a_file_that_makes_no_sense_is_not_touched(run: Run) -> None:
    rules = "rules:\n- {principals: [a], operations: [read], topics: [t]}\n"
    Path("access.yaml").write_text(rules, encoding="utf-8")
    assert run("key", "create", "a").code == 0
    assert "rules:" in Path("access.yaml").read_text(encoding="utf-8")
    Path("bad.yaml").write_text("keys: 5\n", encoding="utf-8")
    assert run("key", "create", "a", "--file", "bad.yaml").code == 2
    assert Path("bad.yaml").read_text(encoding="utf-8") == "keys: 5\n"
    assert run("key", "list", "--file", "nowhere.yaml").code == 2
    assert run("key", "create", "a", "--expires", "soon").code == 2
