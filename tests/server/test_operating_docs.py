"""docs/guides/operating.md is held to what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from penstock.server.access import Operation
from penstock.server.access_file import read
from penstock.server.config import LIMITS, Config, load

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")


def test_the_table_has_every_setting_with_its_names_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(--[\w-]+)` \| (.*?) \|", GUIDE, re.MULTILINE)
    assert [row[0] for row in rows] == [field.name for field in fields(Config)]
    for name, variable, flag, default in rows:
        assert variable == f"PENSTOCK_{name.upper()}"
        assert flag == "--" + name.replace("_", "-")
        value = getattr(Config(), name)
        if value is not None:
            assert default.strip("`") == (str(value).lower() if isinstance(value, bool) else str(value))


def test_the_access_file_shown_can_be_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "access.yaml").write_text(shown, encoding="utf-8")
    read(tmp_path / "access.yaml")


def test_the_table_of_operations_has_all_of_them() -> None:
    table = GUIDE.partition("| operation |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(Operation)


def test_the_table_of_limits_has_all_of_them_with_their_defaults() -> None:
    table = GUIDE.partition("| limit |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(LIMITS)
    told = ",".join(f"{name}={default}" for name, default in rows)
    assert load(None, {}, {"limits": told})[0].limits == Config().limits


def test_the_limits_shown_can_be_given() -> None:
    (shown,) = re.findall(r"--limits (\S+)", GUIDE)
    assert load(None, {}, {"limits": shown})[0].limits.idle_us == 600_000_000
