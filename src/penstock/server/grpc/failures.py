"""Errors as gRPC tells them: a status code, the sentence as its details, and more in the trailing metadata.

    penstock-code       the stable code
    penstock-details    what a program may want to read, as a JSON object in ASCII; left out if there is none

Each class of error has one status code; a class that is not in the table has that of the nearest one above it.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from grpc import StatusCode

from penstock.errors import (
    AlreadyExists,
    ArchiveConflict,
    ArchiveCorrupt,
    ClusterError,
    ConnectionLost,
    DiskFull,
    EtcdError,
    Fatal,
    Forbidden,
    InternalError,
    InvalidInput,
    LeaseError,
    LimitReached,
    LogClosed,
    LogCorrupt,
    LogFollows,
    LogTruncated,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    PenstockError,
    ProducerError,
    ProducerFenced,
    ProtocolError,
    SettingsConflict,
    StorageError,
    TooManyPartitions,
    Unauthenticated,
    Unsupported,
)
from penstock.server.grpc import penstock_pb2 as pb


class TooSlow(Exception):
    """The request did not come in time: told as HTTP tells it. No caller of the library can meet it."""

    code: ClassVar[str] = "too_slow"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = {}


Error = PenstockError | TooSlow

CODES: dict[type, StatusCode] = {
    PenstockError: StatusCode.UNKNOWN,
    InvalidInput: StatusCode.INVALID_ARGUMENT,
    OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    NotFound: StatusCode.NOT_FOUND,
    ProtocolError: StatusCode.INVALID_ARGUMENT,
    TooSlow: StatusCode.DEADLINE_EXCEEDED,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    Forbidden: StatusCode.PERMISSION_DENIED,
    ConnectionLost: StatusCode.UNAVAILABLE,
    ClusterError: StatusCode.UNAVAILABLE,
    LogTruncated: StatusCode.DATA_LOSS,
    EtcdError: StatusCode.UNAVAILABLE,
    InternalError: StatusCode.INTERNAL,
    Unsupported: StatusCode.UNIMPLEMENTED,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    TooManyPartitions: StatusCode.RESOURCE_EXHAUSTED,
    LimitReached: StatusCode.RESOURCE_EXHAUSTED,
    SettingsConflict: StatusCode.FAILED_PRECONDITION,
    ArchiveConflict: StatusCode.FAILED_PRECONDITION,
    LeaseError: StatusCode.FAILED_PRECONDITION,
    ProducerError: StatusCode.FAILED_PRECONDITION,
    ProducerFenced: StatusCode.ABORTED,
    StorageError: StatusCode.INTERNAL,
    DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    LogClosed: StatusCode.UNAVAILABLE,
    LogFollows: StatusCode.UNAVAILABLE,
    LogCorrupt: StatusCode.DATA_LOSS,
    ArchiveCorrupt: StatusCode.DATA_LOSS,
    Fatal: StatusCode.UNAVAILABLE,
}
# All metadata of a call together may have 8 KiB by gRPC's defaults.
_DETAILS_BYTES_MAX = 4_096
_SENTENCE_MAX = 1_024


def code_of(kind: type[Error]) -> StatusCode:
    return next(CODES[above] for above in kind.__mro__ if above in CODES)


def sentence_of(error: Error) -> str:
    return error.message if len(error.message) <= _SENTENCE_MAX else error.message[:_SENTENCE_MAX] + "…"


def details_of(error: Error) -> str:
    """Nothing, if that is more than anybody wants to hear."""
    written = json.dumps(error.details, default=str) if error.details else ""
    return written if len(written) <= _DETAILS_BYTES_MAX else ""


def metadata_of(error: Error) -> list[tuple[str, str]]:
    details = details_of(error)
    code = ("penstock-code", error.code)
    return [code, ("penstock-details", details)] if details else [code]


def failure_of(error: PenstockError) -> pb.Failure:
    error = error.without_paths()
    return pb.Failure(code=error.code, message=sentence_of(error), details_json=details_of(error))
