"""Penstock: a durable, replayable log and a per-message queue in one broker, embedded in a Python process.

    import penstock

    with penstock.open("data") as q:                                      # a directory; made if it is not there
        q.create_topic("orders", exist_ok=True)
        q.publish("orders", "order 1", key="user-1")                      # on disk when this returns
        for message in q.consumer("billing", "orders", until_idle="1s"):
            message.ack()                                                 # or nack("10s"), reject("bad"), extend("1m")

`help(q)` tells what else there is. `penstock.aio` is the same with `await`, `penstock.Ring` a queue of jobs within one
process, `penstock.errors` has everything that can go wrong, `penstock.testing` a queue in memory whose time moves when
told. Durations are text ("30s", "1h30m"); times are text ("2026-01-14T15:00:00Z"), datetimes with a zone, or numbers
of microseconds since 1970 as they are given out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import errors as errors
from penstock.errors import PenstockError
from penstock.message import Message, Priority

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Mapping

    from penstock import aio as aio
    from penstock.client.blocking import Client
    from penstock.ring import Ring as Ring

__version__: str
__all__ = ["Message", "PenstockError", "Priority", "Ring", "__version__", "aio", "connect", "errors", "open"]


def open(path: str | os.PathLike[str], *, limits: Mapping[str, int] | None = None) -> Client:
    """The broker in the directory `path`, in this process; the directory is made if it is not there.

    One process at a time: DirectoryLocked if it is open already. To be closed, or used in a `with`. `limits` are those
    of a server, as {"disk_free_percent_min": 1}; durations in microseconds.
    """
    from penstock.local import open as open_local

    return open_local(path, limits)


def connect(address: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> Client:
    """The broker at penstock://host:port (7420 if no port is named), which `penstock serve` starts. Of a cluster, any
    node will do; with several, as in penstock://a:7420,b:7420, one of them has to be there.

    ConnectionLost if it is not there. Later a lost connection is made again by itself; what was under way and may be
    repeated, is. `penstocks://` is with TLS. To be closed, or used in a `with`.
    """
    from penstock.net import connect as connect_remote

    return connect_remote(address, key=key, tls=tls)


def __dir__() -> list[str]:
    """What users may rely on, and not how it is made."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    # Imported when first asked for, so that `import penstock` stays cheap.
    if name == "aio":
        from importlib import import_module

        return import_module("penstock.aio")
    if name == "Ring":
        from penstock.ring import Ring

        return Ring
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
