"""A small file that is replaced as a whole, and believed only if it is what was written.

magic (3 bytes) and version (1) · CRC-32C of the rest (4 bytes) · contents
"""

from __future__ import annotations

from crc32c import crc32c

from penstock.errors import LogCorrupt, UnknownFormat
from penstock.storage.files import Files, replace_file


def read_checked(files: Files, name: str, magic: bytes, what: str) -> bytes | None:
    """None if it is not there; UnknownFormat of a later version, LogCorrupt if it is damaged."""
    if name not in files.names():
        return None
    file = files.open(name, "read")
    data = file.read_at(0, file.size())
    file.close()
    if data[:3] == magic[:3] and data[3:4] not in (b"", magic[3:]):
        raise UnknownFormat(f"{what} version {data[3]}; this build reads version {magic[3]}", file=name)
    if data[:4] != magic or crc32c(data[8:]) != int.from_bytes(data[4:8], "little"):
        raise LogCorrupt(f"the {what} is damaged", file=name, position=0)
    return data[8:]


def write_checked(files: Files, name: str, magic: bytes, contents: bytes) -> None:
    """On disk when this returns."""
    replace_file(files, name, [magic, crc32c(contents).to_bytes(4, "little"), contents])
