"""penstock config show."""

from __future__ import annotations

import pytest

from cli.support import Run


def test_who_said_what_is_told_but_secrets_are_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ETCD_PASSWORD", "open sesame")
    node = ["--cluster", "https://etcd:2379", "--node-id", "a", "--etcd-user", "root"]
    told = run.ok("config", "show", *node, "-o", "json")
    assert told.json["etcd_password"] == {"value": "(hidden)", "source": "PENSTOCK_ETCD_PASSWORD"}
    assert told.json["etcd_user"] == {"value": "root", "source": "--etcd-user"}
    assert told.json["session_ttl"] == {"value": "6s", "source": "default"}
    shown = run.ok("config", "show", *node)
    assert "sesame" not in told.out + shown.out


def test_a_secret_that_is_not_set_is_told_to_be_none(run: Run) -> None:
    assert run.ok("config", "show", "-o", "json").json["etcd_password"] == {"value": "none", "source": "default"}
