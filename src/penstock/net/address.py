"""Where a broker is: penstock://host:port, or penstocks:// with TLS. With commas, several nodes of one cluster:
penstock://a:7420,b:7420."""

from __future__ import annotations

import re
import ssl
from urllib.parse import urlsplit

from penstock.errors import InvalidInput
from penstock.net.connection import Place

PORT = 7420


def places_of(address: object, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> list[Place]:
    """One or more, of nodes of the same cluster. InvalidInput if one of them is none."""
    if not isinstance(address, str) or "," not in address or "@" in address:
        return [place_of(address, key=key, tls=tls)]
    scheme, mark, hosts = address.rpartition("://")
    if scheme == "penstocks" and tls is None:
        tls = ssl.create_default_context()
    return [place_of(f"{scheme}{mark}{host}", key=key, tls=tls) for host in hosts.rstrip("/").split(",")]


def place_of(address: object, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> Place:
    """InvalidInput if it is no address. A plain host or host:port will do."""
    if not isinstance(address, str) or not address:
        shown = "empty" if address == "" else f"a {type(address).__name__}"
        raise InvalidInput(f"an address is a text like penstock://host:port, and this is {shown}")
    if "@" in address:
        raise InvalidInput("a key does not belong into the address: pass it as key=")
    if key is not None and not isinstance(key, str):
        raise InvalidInput(f"a key is text, not a {type(key).__name__}")
    if key is not None and not key.isascii():
        raise InvalidInput("a key has ASCII characters only")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise InvalidInput(f"tls is an ssl.SSLContext, not a {type(tls).__name__}")
    # Whoever writes something behind these may mean it as a secret: it is not told.
    shown = re.split("[?#]", address)[0]
    try:
        parts = urlsplit(address if "://" in address else f"penstock://{address}")
        port = PORT if parts.port is None else parts.port
        # As it is looked up: a label that is too long or empty is refused here.
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise InvalidInput(f"{shown!r} is not an address: {error}") from error
    is_more = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("penstock", "penstocks") or not parts.hostname or is_more:
        raise InvalidInput(
            f"an address is penstock://host:port, and nothing behind it, not {shown!r}. The port is that of the native "
            f"listener, {PORT} by default"
        )
    if parts.scheme == "penstocks" and tls is None:
        tls = ssl.create_default_context()
    return Place(parts.hostname, port, key, tls)
