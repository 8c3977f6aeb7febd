"""A certificate, and taking up a new one without a restart: for connections made from then on. Whom to trust about
those of other nodes."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from penstock.errors import InvalidSetting

log = logging.getLogger("penstock.tls")


class Tls:
    def __init__(self, certificate: str, key: str | None) -> None:
        """Both are PEM files; without a `key`, the certificate's has it too."""
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamps = self._changed()
        try:
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            if key is None and _is_without_key(certificate):
                told = f"the certificate {certificate} has no key: name its file (tls_key)"
                raise InvalidSetting(told, setting="tls_key") from error
            raise InvalidSetting(f"the certificate {certificate} can't be used: {error}", setting="tls_cert") from error

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._certificate, self._key)

    def refresh(self) -> None:
        """Takes up the files if they have changed. What can't be used changes nothing."""
        stamps = self._changed()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            # Tried first: one that fails half way would leave a certificate without its key.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate has changed and can't be used; the old one stays in force: %s", error)
        else:
            log.info("the certificate has been read again")

    def _changed(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in (self._certificate, self._key) if file is not None]


def trusting(authorities: str | None) -> ssl.SSLContext:
    """Certificates that these have signed, in a PEM file; without one, whom the system trusts. Names are checked."""
    try:
        context = ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"{authorities} can't be used to trust by: {error}", setting="tls_ca") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_without_key(file: str) -> bool:
    """OpenSSL says of this only that it is wrong."""
    try:
        content = Path(file).read_bytes()
    except OSError:
        return False
    return b"-----BEGIN CERTIFICATE-----" in content and b"PRIVATE KEY-----" not in content


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
