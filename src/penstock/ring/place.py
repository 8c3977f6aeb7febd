"""The directory of a journal: one of its own, and named in what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import InvalidInput, InvalidSetting, LogCorrupt, UnknownFormat
from penstock.storage.files import DiskFiles, Files

_LOG_FILE = "manifest"
_BROKER_FILE, _BROKER_DIRECTORY = "catalog", "partitions"


def place(given: Any) -> Files:
    """Made if it is not there. InvalidSetting if somebody else has data in it."""
    if not isinstance(given, str | os.PathLike):
        if not hasattr(given, "lock"):
            raise InvalidSetting(f"journal is the path of a directory, not a value of type {type(given).__name__}")
        files: Files = given
    elif not os.fspath(given):
        raise InvalidSetting('journal is the path of a directory, and an empty text is none; "." is this one')
    else:
        files = DiskFiles(given)
    names = files.names()
    if _LOG_FILE not in names and (_BROKER_FILE in names or _BROKER_DIRECTORY in files.directories()):
        files.close()
        raise InvalidSetting(
            f"journal: {directory(files)} has the data of a broker; the journal of a ring has a directory of its own"
        )
    return files


def directory(files: Files) -> str:
    return str(getattr(files, "path", "in memory"))


@contextmanager
def named(files: Files) -> Iterator[None]:
    """What is wrong with it says where it is."""
    try:
        yield
    except (InvalidInput, LogCorrupt, UnknownFormat) as error:
        where = directory(files)
        details = {**error.details, "directory": where}
        raise type(error)(f"the journal {where}: {error.message}", **details) from error
