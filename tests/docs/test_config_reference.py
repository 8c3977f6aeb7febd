"""docs/reference/config.md has every setting, with its names and its default."""

from __future__ import annotations

import re
from dataclasses import fields

from typer.main import get_command

from docs.page import ROOT
from penstock.cli import broker
from penstock.cli.app import app
from penstock.durations import duration_text
from penstock.limits import DEFAULT_LIMITS
from penstock.server.config import LIMITS, LOG_FORMATS, LOG_LEVELS, SECRETS, Config

PAGE = (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `?(--[\w-]+|no flag)`? \| `(.*?)` \| (.*) \|$", PAGE, re.MULTILINE)


def test_the_table_has_every_setting_with_its_names_and_default() -> None:
    assert [row[0] for row in ROWS] == [field.name for field in fields(Config)]
    for name, variable, flag, default, _ in ROWS:
        assert variable == f"PENSTOCK_{name.upper()}"
        # Whoever lists processes sees their flags.
        assert flag == ("no flag" if name in SECRETS else "--" + name.replace("_", "-"))
        value = getattr(Config(), name)
        assert default == (str(value).lower() if value is None or isinstance(value, bool) else str(value))


def test_every_flag_of_serve_is_on_the_page() -> None:
    options = get_command(app).commands["serve"].params  # type: ignore[attr-defined]
    flags = {flag for option in options for flag in option.opts if flag.startswith("--")}
    assert flags == {row[2] for row in ROWS if row[0] not in SECRETS} | {"--config"}
    assert "`--config`" in PAGE
    assert "`PENSTOCK_CONFIG`" in PAGE


def test_every_value_that_can_be_chosen_is_named() -> None:
    meanings = {row[0]: row[4] for row in ROWS}
    assert all(f"`{value}`" in meanings["log_format"] for value in LOG_FORMATS)
    assert all(f"`{value}`" in meanings["log_level"] for value in LOG_LEVELS)


def test_what_clients_are_told_by_the_environment_is_on_the_page() -> None:
    assert f"| `PENSTOCK_SERVER` | `--server` | `{broker.ADDRESS}` |" in PAGE
    assert "| `PENSTOCK_KEY` | `--server-key` | none |" in PAGE


def test_the_table_of_limits_has_all_of_them_with_their_defaults() -> None:
    section = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section, re.MULTILINE)
    defaults = {}
    for name, field in LIMITS.items():
        value = getattr(DEFAULT_LIMITS, field)
        defaults[name] = str(value) if name == field else duration_text(value)
    assert rows == list(defaults.items())
