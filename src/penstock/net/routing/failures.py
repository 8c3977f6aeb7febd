"""Errors that say nothing but that another node was to be asked, or the same one later."""

from __future__ import annotations

from penstock.errors import (
    ConnectionLost,
    EtcdUnavailable,
    LeadershipLost,
    LogFollows,
    NotCoordinator,
    NotLeader,
    PartitionNotFound,
    PenstockError,
    StaleMetadata,
    TopicNotFound,
)

_MISPLACED = (EtcdUnavailable, LogFollows, NotCoordinator, NotLeader, StaleMetadata)


def is_misplaced(error: PenstockError) -> bool:
    """It was not carried out."""
    return isinstance(error, _MISPLACED) or (
        isinstance(error, ConnectionLost) and error.details.get("was_sent") is False
    )


def is_unknown(error: PenstockError) -> bool:
    """Nobody knows whether it was carried out, and another node may. NotCommitted is not among these: it was, and all
    that is left is to wait."""
    return isinstance(error, ConnectionLost | LeadershipLost) and not is_misplaced(error)


def is_behind(error: PenstockError) -> bool:
    """Of a node that does not know yet what others do, if they do: not carried out."""
    return isinstance(error, TopicNotFound | PartitionNotFound)
