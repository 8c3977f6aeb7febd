"""Errors on their way to the other side, by their stable code."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import BrokerError, ConnectionLost, Fatal, LogClosed, PenstockError


class Failed(msgspec.Struct, frozen=True, array_like=True):
    code: str
    message: str
    details: dict[str, Any]


def _kinds(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _kinds(below))]


_BY_CODE = {kind.code: kind for kind in _kinds(PenstockError)}


def failed(error: PenstockError) -> Failed:
    return Failed(error.code, error.message, error.details)


def error_of(failure: Failed) -> PenstockError:
    """The error as it is for this side.

    The broker behind the connection can't go on, or is being closed: for whoever asked it, that is a broker that is
    lost. Its disk is not this process's, which goes on; whether the request was carried out is not known.
    """
    kind = _BY_CODE.get(failure.code)
    if kind is not None and issubclass(kind, Fatal | LogClosed):
        return ConnectionLost(f"the broker is stopping: {failure.message}", code=failure.code)
    if kind is None:
        return BrokerError(failure.message, **{**failure.details, "code": failure.code})
    return kind(failure.message, **{str(name): value for name, value in failure.details.items() if name != "message"})
