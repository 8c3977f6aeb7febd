"""HTML and SVG that can't be injected into: text becomes markup by one way only, and is escaped on it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Made by `tag` and `joined`, and of what is written in our code."""


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """`class_` is class, `stroke_width` is stroke-width; an attribute that is None is left out."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{named}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))
