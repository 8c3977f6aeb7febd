"""Opening a broker in this process, for one process at a time."""

from __future__ import annotations

import os
from functools import partial

from penstock.client import blocking
from penstock.client.client import Client
from penstock.client.portal import Portal
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.local.transport import LocalTransport
from penstock.storage.files import DiskFiles

Path = str | os.PathLike[str]


def open(path: Path) -> blocking.Client:
    """The broker in the directory `path`, which is made if it is not there; DirectoryLocked if it is open already."""
    _check(path)
    portal = Portal()
    try:
        return blocking.Client(portal.run(open_async(path)), portal)
    except BaseException:
        portal.stop()
        raise


async def open_async(path: Path) -> Client:
    """The same, on the event loop of the caller."""
    _check(path)
    transport = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock())
    return Client(transport, place=os.fspath(path))


def _check(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidInput(f"the path of a directory, not {path!r}")
