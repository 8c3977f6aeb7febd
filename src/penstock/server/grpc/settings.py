"""Settings have the same names in the proto as in the broker. What is not set is left out.

-1 stands for no bound and 0 for the default of a cluster; the broker calls both None, and a proto has no other word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.server.grpc import penstock_pb2 as pb

# What None is, of those settings that may be None.
_NONE = {"retention_age_us": -1, "retention_bytes": -1, "replicas": 0, "min_isr": 0}


def settings_in(given: pb.TopicSettings | pb.GroupSettings) -> dict[str, Any]:
    return {field.name: None if value == _NONE.get(field.name) else value for field, value in given.ListFields()}


def topic_settings(settings: Mapping[str, Any]) -> pb.TopicSettings:
    told: dict[str, Any] = {name: _NONE[name] if value is None else value for name, value in settings.items()}
    return pb.TopicSettings(**told)


def group_settings(settings: Mapping[str, Any]) -> pb.GroupSettings:
    """Without what nobody can set."""
    return pb.GroupSettings(**{name: value for name, value in settings.items() if name != "is_replay"})
