"""The file with keys, rules and quotas, and reading it again when it has changed.

    keys:
      - {id: 3f9a1c2b4d5e, principal: billing, hash: 9f86d0…, expires: 2027-01-01T00:00:00Z}
    rules:
      - {principals: [billing], operations: [consume, read], topics: [orders, "payments.*"], groups: ["billing*"]}
      - {principals: ["*"], operations: [publish], topics: [audit], effect: deny}
    quotas:
      - {principals: ["*"], requests_per_s: 1000}
      - {principals: [billing], publish_bytes_per_s: 1048576, storage_bytes: 1073741824}

`*` alone fits everything. A file that makes no sense is refused; if that happens while the server runs, it goes on with
what it had.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from penstock.clock import rfc3339
from penstock.durations import time_us
from penstock.errors import InvalidInput, InvalidSetting, NotFound, PenstockError
from penstock.limits import NAME_LENGTH_MAX
from penstock.server.access import Kind, Operation, Pattern, Rule, Rules
from penstock.server.keys import Key, Keys, id_of
from penstock.server.quotas import NAMES as QUOTAS
from penstock.server.quotas import Quota, QuotaRule

log = logging.getLogger("penstock.access")

_RULE_FIELDS = {"principals", "operations", "topics", "groups", "broker", "effect"}
_KEY_FIELDS = {"id", "principal", "hash", "expires"}
_SECTIONS = {"keys", "rules", "quotas"}
# So that sums of them stay whole numbers in a float.
_QUOTA_MAX = 1 << 53


class Access(NamedTuple):
    keys: Keys
    rules: Rules
    quotas: Sequence[QuotaRule] = ()


def read(file: str | os.PathLike[str]) -> Access:
    """InvalidSetting if it can't be, and where."""
    content = _content(file)
    keys = [_key(number, one) for number, one in enumerate(_list(content, "keys"))]
    if len({key.id for key in keys}) < len(keys):
        raise InvalidSetting("keys: two have the same id")
    has_rules = "rules" in content
    if has_rules and not content["rules"]:
        log.warning("the access file %s has an empty list of rules: nothing is allowed", os.fspath(file))
    rules = [rule for number, one in enumerate(_list(content, "rules")) for rule in _rules(number, one)]
    quotas = [_quota(number, one) for number, one in enumerate(_list(content, "quotas"))]
    return Access(Keys(keys), Rules(rules if has_rules else None), quotas)


def _content(file: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"the access file {os.fspath(file)} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSetting(
            f"the access file {os.fspath(file)} is not YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict) or not content.keys() <= _SECTIONS:
        raise InvalidSetting(f"the access file {os.fspath(file)} has keys, rules and quotas, and nothing else")
    return content


def add_key(file: str | os.PathLike[str], key: Key) -> None:
    """At the end of the keys. Comments do not survive it."""
    name = key.principal
    # It is shown in logs, tables and errors.
    if not (1 <= len(name) <= NAME_LENGTH_MAX and name.isprintable() and name == name.strip()):
        raise InvalidInput(
            f"a principal has 1 to {NAME_LENGTH_MAX} printable characters and no space at either end, not {name[:50]!r}"
        )
    content: dict[str, Any] = _content(file) if Path(file).exists() else {}
    told = {"id": key.id, "principal": key.principal, "hash": key.hash}
    if key.expires_us is not None:
        told["expires"] = rfc3339(key.expires_us)
    _write(file, {**content, "keys": [*_list(content, "keys"), told]})


def remove_key(file: str | os.PathLike[str], identity: str) -> None:
    known = id_of(identity)
    if known is not None:
        # The message must not repeat the secret.
        raise InvalidInput(f"this is a whole key, and a key is revoked by its id: penstock key revoke {known}")
    content = _content(file)
    keys = _list(content, "keys")
    kept = [key for key in keys if not (isinstance(key, dict) and key.get("id") == identity)]
    if len(kept) == len(keys):
        raise NotFound(
            f'{os.fspath(file)} has no key with the id "{identity}". List its keys: penstock key list --file '
            f"{os.fspath(file)}",
            id=identity,
        )
    _write(file, {**content, "keys": kept})


def set_quota(file: str | os.PathLike[str], principal: str, changes: Mapping[str, int | None]) -> None:
    """Change some quotas of a principal, or of the principals of a pattern; None takes one away. Comments in the file
    do not survive it."""
    content: dict[str, Any] = _content(file) if Path(file).exists() else {}
    rules = _list(content, "quotas")
    found = [one for one in rules if isinstance(one, dict) and one.get("principals") == [principal]]
    known = {name: value for one in found for name, value in one.items()} | dict(changes)
    changed = {name: known[name] for name in QUOTAS if known.get(name) is not None}
    kept = [one for one in rules if one not in found]
    if changed:
        kept.append({"principals": [principal], **changed})
    _write(file, {**{name: value for name, value in content.items() if name != "quotas"}, "quotas": kept})


def _write(file: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """As a whole, or not at all, and for nobody else to read."""
    path = Path(file)
    new = path.with_name(path.name + ".new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            yaml.safe_dump(content, stream, sort_keys=False)
        read(new)
        os.replace(new, path)
    except OSError as error:
        raise InvalidSetting(f"the access file {path} can't be written: {error.strerror}") from error
    finally:
        new.unlink(missing_ok=True)


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


def _quota(number: int, given: Any) -> QuotaRule:
    where = f"quotas[{number}]"
    if not isinstance(given, dict) or not given.keys() <= {"principals", *QUOTAS}:
        raise InvalidSetting(f"{where} has principals, and {', '.join(QUOTAS)}")
    for name in given.keys() - {"principals"}:
        value = given[name]
        if type(value) is not int or not 1 <= value <= _QUOTA_MAX:
            raise InvalidSetting(f"{where}.{name} is a whole number from 1 to {_QUOTA_MAX}, not {value!r}")
    quota = Quota(**{name: given.get(name) for name in QUOTAS})
    return QuotaRule(_patterns(where, given, "principals"), quota)


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
