"""Settings have the same names in the proto as in the broker. What is not set is left out.

-1 stands for no bound, which the broker calls None: a proto has no other word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.server.grpc import penstock_pb2 as pb

_NO_BOUND = -1
_UNBOUNDED = ("retention_age_us", "retention_bytes")


def settings_in(given: pb.TopicSettings | pb.GroupSettings) -> dict[str, Any]:
    return {
        field.name: None if field.name in _UNBOUNDED and value == _NO_BOUND else value
        for field, value in given.ListFields()
    }


def topic_settings(settings: Mapping[str, Any]) -> pb.TopicSettings:
    told: dict[str, Any] = {name: _NO_BOUND if value is None else value for name, value in settings.items()}
    return pb.TopicSettings(**told)


def group_settings(settings: Mapping[str, Any]) -> pb.GroupSettings:
    """Without what nobody can set."""
    return pb.GroupSettings(**{name: value for name, value in settings.items() if name != "is_replay"})
