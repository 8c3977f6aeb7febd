"""Where a broker is: penstock://host:port, or penstocks:// with TLS."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from penstock.errors import InvalidInput
from penstock.net.connection import Place

PORT = 7420


def place_of(address: object, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> Place:
    """InvalidInput if it is no address. A plain host or host:port will do."""
    if not isinstance(address, str) or not address:
        raise InvalidInput(f"an address is penstock://host:port, not {address!r}")
    parts = None
    try:
        parts = urlsplit(address if "://" in address else f"penstock://{address}")
        port = PORT if parts.port is None else parts.port
    except ValueError as error:
        raise InvalidInput(f"{address!r} is not an address: {error}") from error
    if parts.scheme not in ("penstock", "penstocks") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise InvalidInput(f"an address is penstock://host:port, not {address!r}")
    if parts.username is not None:
        raise InvalidInput("a key does not belong into the address: pass it as key=")
    if parts.scheme == "penstocks" and tls is None:
        tls = ssl.create_default_context()
    return Place(parts.hostname, port, key, tls)
