"""The file with keys and rules, and reading it again when it has changed.

    keys:
      - {id: 3f9a1c2b4d5e, principal: billing, hash: 9f86d0…, expires: 2027-01-01T00:00:00Z}
    rules:
      - {principals: [billing], operations: [consume, read], topics: [orders, "payments.*"], groups: ["billing*"]}
      - {principals: ["*"], operations: [publish], topics: [audit], effect: deny}

`*` alone fits everything. A file that makes no sense is refused; if that happens while the server runs, it goes on with
what it had.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from penstock.durations import time_us
from penstock.errors import InvalidSetting, PenstockError
from penstock.server.access import Kind, Operation, Pattern, Rule, Rules
from penstock.server.keys import Key, Keys

_RULE_FIELDS = {"principals", "operations", "topics", "groups", "broker", "effect"}
_KEY_FIELDS = {"id", "principal", "hash", "expires"}


class Access(NamedTuple):
    keys: Keys
    rules: Rules


def read(file: str | os.PathLike[str]) -> Access:
    """InvalidSetting if it can't be, and where."""
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"the access file {os.fspath(file)} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"the access file {os.fspath(file)} is not YAML: {error}") from error
    if not isinstance(content, dict) or not content.keys() <= {"keys", "rules"}:
        raise InvalidSetting(f"the access file {os.fspath(file)} has keys and rules, and nothing else")
    keys = [_key(number, one) for number, one in enumerate(_list(content, "keys"))]
    if len({key.id for key in keys}) < len(keys):
        raise InvalidSetting("keys: two have the same id")
    has_rules = content.get("rules") is not None
    rules = [rule for number, one in enumerate(_list(content, "rules")) for rule in _rules(number, one)]
    return Access(Keys(keys), Rules(rules if has_rules else None))


def _list(content: dict[str, Any], name: str) -> list[Any]:
    found = content.get(name)
    if found is not None and not isinstance(found, list):
        raise InvalidSetting(f"{name} must be a list")
    return found or []


def _key(number: int, given: Any) -> Key:
    where = f"keys[{number}]"
    if not isinstance(given, dict) or not {"id", "principal", "hash"} <= given.keys() <= _KEY_FIELDS:
        raise InvalidSetting(f"{where} has id, principal, hash and, if it ends, expires")
    for name in ("id", "principal", "hash"):
        if not isinstance(given[name], str) or not given[name]:
            raise InvalidSetting(f"{where}.{name} must be text")
    return Key(given["id"], given["principal"], given["hash"], _expires(where, given.get("expires")))


def _expires(where: str, given: Any) -> int | None:
    if given is None:
        return None
    try:
        # YAML has times of its own; without a zone they are UTC.
        return time_us(given.isoformat() + ("" if given.tzinfo else "Z") if isinstance(given, datetime) else given)
    except (PenstockError, TypeError, ValueError) as error:
        raise InvalidSetting(f"{where}.expires is a time like 2027-01-01T00:00:00Z, not {given!r}") from error


def _rules(number: int, given: Any) -> list[Rule]:
    where = f"rules[{number}]"
    if not isinstance(given, dict) or not given.keys() <= _RULE_FIELDS:
        raise InvalidSetting(f"{where} has {', '.join(sorted(_RULE_FIELDS))}")
    principals = _patterns(where, given, "principals")
    operations = frozenset(_operation(where, one) for one in _texts(where, given, "operations"))
    effect = given.get("effect", "allow")
    if effect not in ("allow", "deny"):
        raise InvalidSetting(f"{where}.effect is allow or deny, not {effect!r}")
    allows = effect == "allow"
    found = []
    if "topics" in given:
        found.append(Rule(principals, operations, Kind.TOPIC, _patterns(where, given, "topics"), allows))
    if "groups" in given:
        found.append(Rule(principals, operations, Kind.GROUP, _patterns(where, given, "groups"), allows))
    if given.get("broker") is True:
        found.append(Rule(principals, operations, Kind.BROKER, (Pattern("", True),), allows))
    if not found:
        raise InvalidSetting(f"{where} must name topics, groups or broker: true")
    return found


def _operation(where: str, given: str) -> Operation:
    try:
        return Operation(given)
    except ValueError:
        raise InvalidSetting(f"{where}.operations are {', '.join(Operation)}, not {given!r}") from None


def _patterns(where: str, given: dict[str, Any], name: str) -> tuple[Pattern, ...]:
    return tuple(Pattern.of(text) for text in _texts(where, given, name))


def _texts(where: str, given: dict[str, Any], name: str) -> list[str]:
    texts = given.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidSetting(f"{where}.{name} must be a list of names")
    return texts
