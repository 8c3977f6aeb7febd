"""Errors that say nothing but that another node was to be asked, or the same one later."""

from __future__ import annotations

from penstock.errors import (
    ConnectionLost,
    EtcdUnavailable,
    LogFollows,
    NotCommitted,
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
    return isinstance(error, _MISPLACED) or (isinstance(error, ConnectionLost) and not error.in_doubt)


def is_unknown(error: PenstockError) -> bool:
    """Nobody knows whether it was carried out, and another node may. NotCommitted is not among these: it was, and all
    that is left is to wait."""
    return error.in_doubt and not isinstance(error, NotCommitted)


def is_behind(error: PenstockError) -> bool:
    """Of a node that does not know yet what others do, if they do: not carried out."""
    return isinstance(error, TopicNotFound | PartitionNotFound)
