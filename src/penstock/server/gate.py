"""Who may come in, and what they see of the broker then."""

from __future__ import annotations

import logging
import os
from hmac import compare_digest
from pathlib import Path

from penstock.errors import InvalidSetting
from penstock.server.access import Rules
from penstock.server.access_file import Access, read
from penstock.server.guard import Guarded
from penstock.server.site import Site

log = logging.getLogger("penstock.access")


class Gate:
    """With a file of keys and rules; or without: everybody who can reach a door may do everything then."""

    def __init__(self, site: Site, file: str | os.PathLike[str] | None, *, secret: str | None = None) -> None:
        """`secret` is what the nodes of a cluster know each other by."""
        self._site = site
        self._secret = secret
        self._file = None if file is None else Path(file)
        self._access: Access | None = None if file is None else read(file)
        self._stamp = self._changed()

    def admit(self, key: str | None, site: Site | None = None) -> Guarded:
        """The broker for whoever has this key. Unauthenticated if nobody has. `site`: by that way to it."""
        site = site or self._site
        if self._secret is not None and key is not None and compare_digest(key.encode(), self._secret.encode()):
            return Guarded(site, "node", _everything, is_node=True)
        if self._access is None:
            return Guarded(site, "anybody", _everything)
        return Guarded(site, self._access.keys.principal_of(key, site.now_us()), self._rules)

    def _rules(self) -> Rules:
        assert self._access is not None
        return self._access.rules

    def refresh(self) -> None:
        """Reads the file again if it has changed. One that makes no sense changes nothing."""
        stamp = self._changed()
        if self._file is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._access = read(self._file)
        except InvalidSetting as error:
            log.error("the access file has changed and makes no sense; the old one stays in force: %s", error.message)
        else:
            log.info("the access file has been read again")

    def _changed(self) -> tuple[int, int] | None:
        try:
            found = None if self._file is None else self._file.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_ino)


_NO_RULES = Rules(None)


def _everything() -> Rules:
    return _NO_RULES
