"""Penstock: a durable, replayable log and a per-message queue in one broker.

message batch columns body codec frame    what is stored, from row to bytes
partitioner published                     which partition a message goes to; where it went
errors limits clock durations             nouns every layer shares
storage    bytes on disk
broker     what a queue means
client     what users have in their hands
local      the broker embedded in a process
aio        the same for code with an event loop
testing    stand-ins for disk and time, a queue for tests, fixtures for pytest
cli        the `penstock` command
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.message import Message, Priority

if TYPE_CHECKING:
    import os

    from penstock import aio as aio
    from penstock.client.blocking import Client

__version__ = version("penstock")
__all__ = ["Message", "PenstockError", "Priority", "__version__", "aio", "open"]


def open(path: str | os.PathLike[str]) -> Client:
    """The broker in the directory `path`, in this process; the directory is made if it is not there.

    One process at a time: DirectoryLocked if it is open already. To be closed, or used in a `with`.
    """
    from penstock.local import open as open_local

    return open_local(path)


def __getattr__(name: str) -> object:
    # Imported when first asked for, so that `import penstock` stays cheap.
    if name == "aio":
        return import_module("penstock.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
