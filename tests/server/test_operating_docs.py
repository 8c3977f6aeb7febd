"""docs/guides/operating.md is held to what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import trustme

from docs.page import blocks_of, plain_environment, serving
from penstock.server.access import Operation
from penstock.server.access_file import read
from penstock.server.config import LIMITS, SECRETS, Config, load

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")


def test_the_table_has_every_setting_with_its_names_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `?(--[\w-]+|no flag)`? \| (.*?) \|", GUIDE, re.MULTILINE)
    assert [row[0] for row in rows] == [field.name for field in fields(Config)]
    for name, variable, flag, default in rows:
        assert variable == f"PENSTOCK_{name.upper()}"
        assert flag == ("no flag" if name in SECRETS else "--" + name.replace("_", "-"))
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


def shown(language: str, text: str) -> str:
    """The one block with this text in it."""
    (block,) = [block for block in blocks_of(GUIDE) if block.language == language and text in block.text]
    return block.text


def environment() -> dict[str, str]:
    doors = {f"PENSTOCK_{door}": "127.0.0.1:0" for door in ("NATIVE", "HTTP", "GRPC")}
    return {**plain_environment(), **doors, "PENSTOCK_LOG_FORMAT": "json"}


def run(command: str, directory: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_keys_are_made_and_used_as_shown(tmp_path: Path) -> None:
    *creating, serve = shown("sh", "key create").splitlines()
    keys = [run(command, tmp_path, environment()).strip() for command in creating]
    assert [key.principal for key in read(tmp_path / "access.yaml").keys] == ["shop", "billing"]
    with serving(serve, tmp_path, environment()) as ready:
        for key in keys:
            run(
                f"penstock ping --server penstock://{ready['native']}", tmp_path, {**environment(), "PENSTOCK_KEY": key}
            )


def test_a_certificate_of_ones_own_is_trusted_as_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    with serving(shown("sh", "--tls-cert").strip(), tmp_path, environment()) as ready:
        port = ready["native"].rpartition(":")[2]
        run(shown("sh", "SSL_CERT_FILE").replace("7420", port), tmp_path, environment())
        (tmp_path / "program.py").write_text(shown("python", "cafile").replace("7420", port), encoding="utf-8")
        assert run(f"{sys.executable} program.py", tmp_path, environment()) == "[]\n"
