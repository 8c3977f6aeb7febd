"""An address is no identity: the next object may be at the same place. So `id(...)` is a key of nothing that lasts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
# By file and function: uses of `id` whose objects outlive the use, and why.
ALLOWED = {
    # The batch holds its jobs for as long as it has the index; jobs need not be hashable.
    ("penstock/ring/batch.py", "__init__"),
}


def uses_of_id(code: str) -> set[str]:
    """The functions that use the builtin `id`: called, or handed on as in `map(id, ...)`; "" at the top level."""
    found: set[str] = set()

    def walk(node: ast.AST, function: str, is_shadowed: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            names = {arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            stored = {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
            is_shadowed = is_shadowed or "id" in names | stored
            function = getattr(node, "name", function)
        if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load) and not is_shadowed:
            found.add(function)
        for child in ast.iter_child_nodes(node):
            walk(child, function, is_shadowed)

    walk(ast.parse(code), "", False)
    return found


def test_no_address_of_an_object_is_used_as_its_identity() -> None:
    found = {
        (str(file.relative_to(SOURCE)), function)
        for file in sorted(SOURCE.rglob("*.py"))
        for function in uses_of_id(file.read_text())
    }
    assert found == ALLOWED, "key by the object itself, or by a number that is never given twice"


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        ("def f(x): cache[id(x)] = 1", {"f"}),
        ("class C:\n  def m(self): return self.cache.get((id(self), 3))", {"m"}),
        ("keys = set(map(id, some))", {""}),
        ("def f(id): return shown(id)", set()),
        ("def f(x): return x.id", set()),
    ],
)
def test_the_check_sees_every_way_to_use_an_address(code: str, functions: set[str]) -> None:
    assert uses_of_id(code) == functions
