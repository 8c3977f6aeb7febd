"""Schemas as Spark writes them: `id BIGINT, tags ARRAY<STRING>, at STRUCT<lat: DOUBLE, lon: DOUBLE>`.

Spark's own parser needs a running JVM; a file is checked without one.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from penstock.errors import InvalidInput

_WHOLE = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
_REAL = ("float", "real", "double", "decimal", "dec", "numeric")
_TIMES = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
PLAIN = (*_WHOLE, *_REAL, *_TIMES, "string", "char", "varchar", "binary", "boolean", "variant")
_NESTED = ("array", "map", "struct")
_NUMBERS = {"decimal": (0, 2), "dec": (0, 2), "numeric": (0, 2), "char": (1, 1), "varchar": (1, 1)}
_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\d+)|(.))"
)


def columns_of(text: str) -> list[str]:
    """The names of the columns. InvalidInput if it is no schema."""
    return _Parser(text).columns()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check_type(text: str) -> None:
    """InvalidInput if it is no type."""
    parser = _Parser(text)
    parser.type()
    parser.end()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [match[0].strip() for match in _TOKEN.finditer(text) if match[0].strip()]
        self._at = 0

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next
        self._at += 1
        return token

    def _expect(self, token: str, where: str) -> None:
        if self._next != token:
            raise InvalidInput(f"expected {token!r} {where}, not {self._next or 'the end'!r}")
        self._at += 1

    def end(self) -> None:
        if self._next:
            raise InvalidInput(f"expected ',' or the end, not {self._next!r}")

    def columns(self) -> list[str]:
        found: list[str] = []
        while True:
            name = self._name()
            if name.lower() in (each.lower() for each in found):
                raise InvalidInput(f"the column {name} is there twice")
            found.append(name)
            if self._next == ":":
                self._take()
            self.type()
            self._rest()
            if self._next != ",":
                self.end()
                return found
            self._take()

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token):
            raise InvalidInput(
                f"expected the name of a column, not {token or 'the end'!r}; odd names go in `backticks`"
            )
        return token

    def _rest(self) -> None:
        if self._next.lower() == "not":
            self._take()
            if self._take().lower() != "null":
                raise InvalidInput("NOT is followed by NULL")
        if self._next.lower() == "comment":
            self._take()
            if not self._take().startswith(("'", '"')):
                raise InvalidInput("COMMENT is followed by a text in quotes")

    def type(self) -> None:
        word = self._take()
        name = word.lower()
        match name:
            case "array":
                self._expect("<", "after ARRAY")
                self.type()
                self._expect(">", "to end ARRAY<")
            case "map":
                self._expect("<", "after MAP")
                self.type()
                self._expect(",", "between the two types of a MAP")
                self.type()
                self._expect(">", "to end MAP<")
            case "struct":
                self._struct()
            case _ if name in PLAIN:
                self._numbers(name)
            case _:
                near = get_close_matches(name, [*PLAIN, *_NESTED], n=1)
                did = f"; did you mean {near[0].upper()}?" if near else ", as in BIGINT, DOUBLE, STRING or TIMESTAMP"
                raise InvalidInput(f"there is no type {word or 'at the end'!r}{did}")

    def _struct(self) -> None:
        self._expect("<", "after STRUCT")
        while True:
            self._name()
            if self._next == ":":
                self._take()
            self.type()
            self._rest()
            if self._next != ",":
                break
            self._take()
        self._expect(">", "to end STRUCT<")

    def _numbers(self, name: str) -> None:
        least, most = _NUMBERS.get(name, (0, 0))
        count = 0
        if self._next == "(" and most:
            self._take()
            while self._take().isdigit():
                count += 1
                if self._next != ",":
                    break
                self._take()
            self._expect(")", f"after {name.upper()}(")
        if not least <= count <= most:
            raise InvalidInput(f"{name.upper()} has {'its length' if least else 'at most two numbers'} in parentheses")
