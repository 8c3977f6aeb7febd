"""A certificate for gRPC, which has TLS of its own. A new one is taken up with the next connection."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from penstock.errors import InvalidSetting

log = logging.getLogger("penstock.grpc")


def credentials(certificate: str, key: str | None) -> grpc.ServerCredentials:
    """Both are PEM files; without a `key`, the certificate's has it too."""
    files = _Files(certificate, key)
    try:
        first = files.read()
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"the certificate {certificate} can't be used: {error}", setting="tls_cert") from error
    # The stubs do not know that nothing may have changed.
    return grpc.dynamic_ssl_server_credentials(first, files.changed)  # type: ignore[arg-type]


class _Files:
    def __init__(self, certificate: str, key: str | None) -> None:
        self._certificate = Path(certificate)
        self._key = self._certificate if key is None else Path(key)
        self._seen = b"", b""

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Also checked: gRPC would only hang up on everybody."""
        self._seen = self._key.read_bytes(), self._certificate.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
        return grpc.ssl_server_certificate_configuration([self._seen])

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC for each connection, on a thread of its own. None: as before."""
        try:
            if self._seen == (self._key.read_bytes(), self._certificate.read_bytes()):
                return None
            found = self.read()
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate has changed and can't be used; the old one stays in force: %s", error)
            return None
        log.info("the certificate has been read again")
        return found
