"""Python transforms: `module:function` or `file.py:function`, beside the pipeline's file or among what is installed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import InvalidInput, PipelineFailed


def check_function(text: str, directory: Path) -> tuple[str, str]:
    """Where it is and what it is called. Nothing is run: that there is such a function is read in the file."""
    place, colon, function = text.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise InvalidInput(f"is module:function or file.py:function, not {text!r}")
    file = directory / place if place.endswith(".py") else _module_file(place, directory)
    if file is None:
        return place, function
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise InvalidInput(f"{file} can't be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"{file} is not Python: {error}") from error
    names = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    names |= {
        target.id
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    names |= {
        alias.asname or alias.name for each in tree.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    if function not in names:
        raise InvalidInput(f"{file} has no function {function}")
    return place, function


def _module_file(module: str, directory: Path) -> Path | None:
    """None if its code can't be looked at."""
    for beside in (
        (directory / Path(*module.split("."))).with_suffix(".py"),
        directory / Path(*module.split(".")) / "__init__.py",
    ):
        if beside.is_file():
            return beside
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InvalidInput(f"there is no module {module}, neither beside the file nor among what is installed")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def load_function(place: str, function: str, directory: Path) -> Callable[..., Any]:
    """What is beside the pipeline's file goes to executors by value: they have no such file."""
    from pyspark import cloudpickle

    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        module = _load_file(directory / place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise PipelineFailed(f"{place} can't be imported: {type(error).__name__}: {error}") from error
    origin = getattr(module, "__file__", None)
    if origin is not None and directory in Path(origin).resolve().parents:
        cloudpickle.register_pickle_by_value(module)
    found: Callable[..., Any] = getattr(module, function)
    return found


def _load_file(file: Path) -> ModuleType:
    # Not as it is called itself: a file named json.py must not become the module json.
    name = f"penstock_pipeline_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
