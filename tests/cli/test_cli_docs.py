"""docs/reference/cli.md names every command and option, and its examples print what it says.

In its `sh` blocks a line that starts with `$` is run, and the lines up to the next one are what it prints; `…` stands
for anything. They are run in order, against one server, in one directory.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from archive.support import archive_topic
from cli.support import Run, script
from penstock.cli.app import app
from penstock.client.blocking import Client

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


class Example(NamedTuple):
    command: str
    printed: str


def examples() -> list[Example]:
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append(Example(command, printed))
    return found


def plain(text: str) -> str:
    """Columns are as wide as what is in them: how many blanks there are does not matter."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def is_as_told(example: Example, printed: str) -> bool:
    told = re.escape(plain(example.printed)).replace("…", ".*")
    return re.fullmatch(told, plain(printed), re.DOTALL) is not None


def prepare(q: Client) -> None:
    """What the page says that it needs."""
    q.create_topic("copies", 1)
    q.create_topic("payments", 1)
    with q.consumer("ledger", "payments", ordering="key") as consumer:
        for key, reason in (("ann", "card declined"), ("bob", "timeout"), ("cleo", "card declined")):
            q.publish("payments", f"12.50 of {key}", key=key)
            consumer.poll(1, wait="5s")[0].reject(reason)
    assert len(q.dead_letters.list("payments")) == 3
    archive_topic(q, "payments", Path("parquet"))


def test_every_example_prints_what_the_page_says(
    q: Client, address: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(q)
    assert len(examples()) > 40
    for example in examples():
        if "|" in example.command:
            ran = script(f"set -o pipefail; {example.command}", address, cwd=tmp_path)
            code, out, err = ran.returncode, ran.stdout.decode(), ran.stderr.decode()
        else:
            code, out, err = vars(run(*shlex.split(example.command)[1:])).values()
        assert code in (0, 141), (example.command, err)
        assert is_as_told(example, out + err), f"{example.command}\n{out}{err}"


def commands() -> dict[str, list[str]]:
    """The options of each, by its name."""
    found = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for path, each in [(f"{name} {sub}", each) for sub, each in vars(command).get("commands", {}).items()] or [
            (name, command)
        ]:
            found[path] = [option for each_one in each.params for option in each_one.opts if option.startswith("--")]
    return found


@pytest.mark.parametrize("path", commands())
def test_every_command_has_its_options_and_an_example_on_the_page(path: str) -> None:
    common, *_ = PAGE.partition("\n### ")
    section = re.search(rf"^### penstock {path}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    missing = [option for option in commands()[path] if f"`{option}" not in section[1] + common]
    assert missing == []
    assert f"penstock {path} " in section[1].partition("```")[2] + " " or f"penstock {path}\n" in section[1]
