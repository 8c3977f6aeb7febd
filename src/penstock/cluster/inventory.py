"""Which copies of partitions are on this disk, and of which logs they are made.

    file "copies" in the data directory: magic "PNI", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON

A node that is in sync by its disk may be elected for what it has. If a directory of a partition were missing, an empty
one in its place would be taken for a copy that has everything: so what was here is written down apart from it, and
whatever is not there any more, or is another log, is refused.
"""

from __future__ import annotations

from threading import Lock

import msgspec

from penstock.decoding import from_json
from penstock.errors import LogCorrupt
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import Files
from penstock.storage.log import Log

NAME = "copies"
_MAGIC = b"PNI\x01"


class Inventory:
    """Used on threads."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        # By the id of the partition: the ids of its logs.
        self._copies: dict[str, tuple[str, str]] = _read(files)

    def check(self, partition: str, directories: list[str]) -> None:
        """Before it is opened, and made if it is not there."""
        if partition in self._copies and partition not in directories:
            raise LogCorrupt(
                f"the copy of partition {partition} was in the data directory and is not there any more: put it back, "
                "or empty the data directory, and the node begins anew with what the others have",
                file=f"partitions/{partition}",
                position=0,
            )

    def add(self, partition: str, logs: tuple[Log, Log]) -> None:
        """It is open. On disk when this returns: only then may the node say that it has it."""
        found = logs[0].log_id.hex(), logs[1].log_id.hex()
        with self._lock:
            known = self._copies.get(partition)
            if known == found:
                return
            if known is not None:
                raise LogCorrupt(
                    f"a log of partition {partition} is not the one that was there: put that one back, or empty "
                    "the data directory, and the node begins anew with what the others have",
                    file=f"partitions/{partition}",
                    position=0,
                )
            self._save({**self._copies, partition: found})

    def remove(self, partition: str) -> None:
        """Before its directory is."""
        with self._lock:
            if partition in self._copies:
                self._save({name: logs for name, logs in self._copies.items() if name != partition})

    def _save(self, copies: dict[str, tuple[str, str]]) -> None:
        write_checked(self._files, NAME, _MAGIC, msgspec.json.encode(copies))
        self._copies = copies


def _read(files: Files) -> dict[str, tuple[str, str]]:
    body = read_checked(files, NAME, _MAGIC, "list of copies")
    return {} if body is None else from_json(body, dict[str, tuple[str, str]])
