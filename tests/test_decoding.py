"""Threads that decode the first thing of a kind at the same time: in a process of its own, since what fails is that."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
SNAPSHOTS = """
from types import SimpleNamespace

from penstock.broker import snapshot
from penstock.clock import Instant
from penstock.broker.delays import Delays
from penstock.broker.lanes import Lanes

frames = snapshot.take(0, [], Lanes(), Delays(1), [], Instant(1, 1))
log = SimpleNamespace(frames=lambda start: iter(frames))


def decode():
    assert snapshot.read(log, 0) is not None
"""
# With many fields, each of a type that is to be looked at.
JSON = """
import msgspec

from penstock.decoding import from_json

inner = [msgspec.defstruct(f"Inner{number}", [("a", int), ("b", str)]) for number in range(50)]
Outer = msgspec.defstruct("Outer", [(f"f{number}", kind | None, None) for number, kind in enumerate(inner)])


def decode():
    assert from_json(b'{"f49": {"a": 1, "b": "x"}}', Outer).f49.a == 1
"""
CONVERTED = JSON.replace("from_json", "convert").replace(
    """b'{"f49": {"a": 1, "b": "x"}}'""", '{"f49": {"a": 1, "b": "x"}}'
)
TOGETHER = """
import sys
from threading import Barrier, Thread

sys.setswitchinterval(1e-6)
together = Barrier(8)
decoded = []


def decode_often():
    together.wait()
    for _ in range(50):
        decode()
    decoded.append(50)


threads = [Thread(target=decode_often) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(decoded) == 8
"""


@pytest.mark.parametrize("program", [SNAPSHOTS, JSON, CONVERTED], ids=["snapshots", "json", "converted"])
def test_threads_may_decode_their_first_at_once(program: str) -> None:
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", program + TOGETHER], check=False).returncode == 0


def test_nobody_else_makes_decoders_of_types() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}: {ast.unparse(call)}"
        for file in PACKAGE.rglob("*.py")
        if file != PACKAGE / "decoding.py" and "msgspec" in (text := file.read_text())
        for call in ast.walk(ast.parse(text))
        if (isinstance(call, ast.Call) and looks_at_a_type(call)) or imports_a_part(call)
    ]
    assert found == []


def looks_at_a_type(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    is_typed = any(keyword.arg == "type" for keyword in call.keywords)
    return name.startswith("msgspec.") and (
        name.endswith((".Decoder", ".convert")) or (name.endswith(".decode") and is_typed)
    )


def imports_a_part(node: ast.AST) -> bool:
    """By which it could be called."""
    return (
        isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "msgspec"
        and not {"convert", "decode", "Decoder", "json", "msgpack"}.isdisjoint(alias.name for alias in node.names)
    )
