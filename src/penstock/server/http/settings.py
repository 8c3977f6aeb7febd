"""Settings as they come in, to those that the client takes: what was not given is left out."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.http import shapes

_NOT_SETTINGS = ("name", "partitions", "config")


def settings_in(given: shapes.TopicSettings | shapes.GroupSettings | UnsetType) -> dict[str, Any]:
    """With those that stand in `config`."""
    if isinstance(given, UnsetType):
        return {}
    settings = settings_in(getattr(given, "config", UNSET))
    for name, value in msgspec.structs.asdict(given).items():
        if value is not UNSET and name not in _NOT_SETTINGS:
            settings[name] = _plain(value)
    return settings


def _plain(value: Any) -> Any:
    if not isinstance(value, msgspec.Struct):
        return value
    return {name: part for name, part in msgspec.structs.asdict(value).items() if part is not UNSET}
