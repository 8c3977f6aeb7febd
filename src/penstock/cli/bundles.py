"""Options that belong together: a class has them, and every command that takes one of it has them, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar


class Bundle:
    """Its options are the parameters of its constructor."""

    # Behind those of the command, in its help; otherwise where the command has the bundle.
    comes_last: ClassVar[bool] = False


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer understands it, which knows options only: bundles are made of them when it is called."""
    bundles: dict[str, tuple[type[Bundle], list[str]]] = {}
    options: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Bundle):
            parts = inspect.signature(kind, eval_str=True).parameters
            bundles[parameter.name] = kind, list(parts)
            (last if kind.comes_last else options).extend(parts.values())
        else:
            options.append(parameter)
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options + last]
    assert bundles, f"{command.__name__} takes no bundle"

    @wraps(command)
    def run(**given: Any) -> None:
        made = {name: kind(**{part: given.pop(part) for part in parts}) for name, (kind, parts) in bundles.items()}
        command(**made, **given)

    # Typer reads both.
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run
