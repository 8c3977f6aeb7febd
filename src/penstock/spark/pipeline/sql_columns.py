"""Columns that a pipeline's SQL names and no source has, found without Spark.

SQLite resolves the names: it has tables with the sources' columns, and explains the query. It does not know all of
Spark's SQL. Where it can't tell (other syntax, fields of a STRUCT, columns that a function makes) nothing is reported:
`penstock pipeline validate --plan` has Spark itself look. A parser of Spark's dialect would not be simpler: sqlglot
30.30 does not parse `window(…)`, which most aggregations of streams use, and takes `user` and the `col` of `explode`
for unknown columns.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing

# Names without parentheses that Spark has a value for.
_VALUES = ("current_user", "user", "session_user", "localtimestamp", "current_catalog", "current_database")
_ROUNDS_MAX = 200
# Not behind one of these, a second word in a row is an alias without AS.
_KEYWORDS = ("SELECT", "DISTINCT", "ALL", "AND", "OR", "NOT", "BY", "WHERE", "THEN", "ELSE", "WHEN", "ON", "IN", "IS")
_NO_KEYWORD = "".join(rf"(?<!\b{word})" for word in (*_KEYWORDS, "BETWEEN", "LIKE", "CASE", "HAVING"))
# Syntax of Spark in which SQLite takes something else for a column: lambdas, typed literals, units of time, columns
# that a generator or a pivot makes.
_UNSURE = re.compile(
    r"->|=>|\b(date|timestamp|timestamp_ntz|interval|r|x)\s*'|\b(date_?(add|diff|sub|part|trunc)|timestamp(add|diff)"
    r"|extract|explode\w*|posexplode\w*|inline\w*|stack|json_tuple)\s*\(|\b(lateral|pivot|unpivot|interval|values)\b",
    re.I,
)


def unknown_columns(sql: str, sources: Mapping[str, Sequence[str]]) -> list[str]:
    found: list[str] = []
    added: set[str] = set()
    if _UNSURE.search(sql):
        return found
    with closing(sqlite3.connect(":memory:")) as database:
        for source, columns in sources.items():
            database.execute(f"CREATE TABLE {_quoted(source)} ({', '.join(map(_quoted, columns))})")
        for _ in range(_ROUNDS_MAX):
            try:
                database.execute(f"EXPLAIN {sql}")
                break
            except sqlite3.Error as error:
                kind, _, name = str(error).partition(": ")
            if kind == "no such function":
                database.create_function(name, -1, lambda *_: None)
                continue
            if kind != "no such column":
                break
            owner, _, column = name.rpartition(".")
            if _is_column(owner, sources):
                # A field of a STRUCT, which SQLite does not have.
                sql = re.sub(rf"\b{re.escape(owner)}\s*\.\s*{re.escape(column)}\b", owner, sql)
                continue
            if (owner and not _is_source(owner, sources, sql)) or column in added:
                break
            lacking = [source for source, columns in sources.items() if not _is_column(column, {source: columns})]
            is_elsewhere = len(lacking) < len(sources)
            if is_elsewhere and not (owner and lacking):
                # A subquery leaves it out.
                break
            if not _is_made(sql, column):
                found.append(name if is_elsewhere else column)
            added.add(column)
            for source in lacking:
                database.execute(f"ALTER TABLE {_quoted(source)} ADD COLUMN {_quoted(column)}")
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_column(name: str, sources: Mapping[str, Sequence[str]]) -> bool:
    return any(name.lower() == column.lower() for columns in sources.values() for column in columns)


def _is_source(name: str, sources: Mapping[str, Sequence[str]], sql: str) -> bool:
    """Or an alias of one."""
    return any(
        name.lower() == source.lower()
        or re.search(rf"\b{re.escape(source)}`?\s+(?:AS\s+)?{re.escape(name)}\b", sql, re.I)
        for source in sources
    )


def _is_made(sql: str, name: str) -> bool:
    """By the query itself: under an alias, by a function of that name, or as text in double quotes."""
    word = re.escape(name)
    made = rf"\bAS\s+`?{word}\b|\b{word}\s*\(|\"{word}\"|[\w)\]'`]{_NO_KEYWORD}\s+`?{word}`?\s*(,|\bFROM\b)"
    return name.lower() in _VALUES or re.search(made, sql, re.I) is not None
