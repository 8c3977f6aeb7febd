"""Opening a broker in this process, for one process at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import partial

from penstock.client import blocking
from penstock.client.client import Client
from penstock.client.portal import Portal
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local.transport import LocalTransport
from penstock.storage.files import DiskFiles

Path = str | os.PathLike[str]


def open(path: Path, limits: Mapping[str, int] | None = None) -> blocking.Client:
    """The broker in the directory `path`, which is made if it is not there; DirectoryLocked if it is open already."""
    _check(path)
    portal = Portal()
    try:
        return blocking.Client(portal.run(open_async(path, limits)), portal)
    except BaseException:
        portal.stop()
        raise


async def open_async(path: Path, limits: Mapping[str, int] | None = None) -> Client:
    """The same, on the event loop of the caller."""
    _check(path)
    transport = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock(), limits=_limits(limits))
    return Client(transport, place=os.fspath(path))


def _limits(given: Mapping[str, int] | None) -> Limits:
    if given is None:
        return DEFAULT_LIMITS
    known = [field.name for field in fields(Limits)]
    if not isinstance(given, Mapping):
        raise InvalidInput(f"limits are names and whole numbers, not {given!r}")
    for name in given:
        if name not in known:
            raise InvalidInput(f"there is no limit {name!r}; there are {', '.join(known)}", limit=str(name))
    return Limits(**given)


def _check(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidInput(f"the path of a directory, not {path!r}")
