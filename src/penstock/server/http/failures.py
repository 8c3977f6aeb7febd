"""Errors as HTTP tells them: a status, and a body with the stable code.

Each class of error has one status; a class that is not in the table has that of the nearest one above it.
"""

from __future__ import annotations

from math import ceil
from typing import Any, ClassVar

import msgspec

from penstock.errors import (
    AlreadyExists,
    ArchiveConflict,
    BatchTooLarge,
    ClusterError,
    ConnectionLost,
    DiskFull,
    EtcdError,
    Forbidden,
    FrameTooLarge,
    InternalError,
    InvalidInput,
    LeaseError,
    LeaseNotFound,
    LimitReached,
    NotFound,
    Overloaded,
    PenstockError,
    ProducerError,
    ProtocolError,
    QuotaExceeded,
    SettingsConflict,
    StorageError,
    TooManyPartitions,
    Unauthenticated,
    Unsupported,
)


class Refused(Exception):
    """What only HTTP knows, and no caller of the library can meet."""

    code: ClassVar[str]
    retriable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class RouteNotFound(Refused):
    code = "route_not_found"


class MethodNotAllowed(Refused):
    """`details` names those that are."""

    code = "method_not_allowed"


class ForeignSite(Refused):
    """A browser asks on behalf of a page of another site."""

    code = "foreign_site"


class NotHttp(Refused):
    code = "not_http"


class HeadTooLarge(Refused):
    code = "head_too_large"


class BodyTooLarge(Refused):
    code = "body_too_large"


class TooSlow(Refused):
    """The request did not come in time."""

    code = "too_slow"


class InvalidReceipt(Refused):
    """Nothing that a poll has given out."""

    code = "invalid_receipt"


Error = PenstockError | Refused

STATUSES: dict[type, int] = {
    InvalidInput: 400,
    InvalidReceipt: 400,
    NotHttp: 400,
    ProtocolError: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    ForeignSite: 403,
    NotFound: 404,
    RouteNotFound: 404,
    MethodNotAllowed: 405,
    TooSlow: 408,
    AlreadyExists: 409,
    SettingsConflict: 409,
    ArchiveConflict: 409,
    LeaseError: 409,
    ProducerError: 409,
    LeaseNotFound: 410,
    BodyTooLarge: 413,
    BatchTooLarge: 413,
    FrameTooLarge: 413,
    QuotaExceeded: 429,
    HeadTooLarge: 431,
    PenstockError: 500,
    InternalError: 500,
    Unsupported: 501,
    ConnectionLost: 503,
    ClusterError: 503,
    EtcdError: 503,
    Overloaded: 503,
    StorageError: 503,
    DiskFull: 507,
    TooManyPartitions: 507,
    LimitReached: 507,
}
_RETRY_AFTER = (b"retry-after", b"1")


class Failure(msgspec.Struct, frozen=True):
    """What went wrong: `code` for machines, which never changes, `message` for people, `details` to look into."""

    code: str
    message: str
    details: dict[str, Any]


def status_of(kind: type[Error]) -> int:
    return next(STATUSES[above] for above in kind.__mro__ if above in STATUSES)


def failure_of(error: Error) -> Failure:
    if isinstance(error, PenstockError):
        error = error.without_paths()
    return Failure(error.code, error.message, error.details)


def body_of(error: Error) -> bytes:
    return msgspec.json.encode(failure_of(error), enc_hook=str)


def headers_of(error: Error) -> list[tuple[bytes, bytes]]:
    """Those that this error has besides the usual ones."""
    if isinstance(error, QuotaExceeded):
        return [(b"retry-after", b"%d" % ceil(error.retry_after_s))]
    if error.retriable:
        return [_RETRY_AFTER]
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", ", ".join(error.details["allowed"]).encode())]
    return []
