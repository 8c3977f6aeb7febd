"""How etcd is reached: addresses of its members, TLS, a user, and how long to wait."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.errors import InvalidSetting
from penstock.limits import MIB

DEFAULT_PORT = 2379
MEMBERS_MAX = 16


class Endpoint(NamedTuple):
    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    endpoints: tuple[Endpoint, ...]
    # Files: whom to trust instead of the system's authorities; who we are, with the key in the same file or in another.
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_s: float = 2.0
    request_s: float = 3.0
    # Connections that requests share; a watch has one of its own.
    connections_max: int = 16
    response_bytes_max: int = 64 * MIB
    # All that a prefix may hold: metadata, not messages.
    snapshot_bytes_max: int = 256 * MIB

    def __post_init__(self) -> None:
        for name in ("connect_s", "request_s", "connections_max", "response_bytes_max", "snapshot_bytes_max"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"{name} is positive, not {getattr(self, name)}")
        if (self.user is None) != (self.password is None):
            raise InvalidSetting("etcd's user and password are given together, or not at all")
        if self.key and not self.cert:
            raise InvalidSetting("a key for etcd is of no use without its certificate")
        if (self.ca or self.cert) and not any(endpoint.tls for endpoint in self.endpoints):
            raise InvalidSetting("certificates for etcd are given, but its address is http://; say https://")

    def context(self) -> ssl.SSLContext | None:
        if not any(endpoint.tls for endpoint in self.endpoints):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise InvalidSetting(f"the certificates for etcd ({names}) can't be used: {error}") from error
        return context


def endpoints_of(addresses: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """`http://a:2379,http://b:2379`, or a list of such."""
    each = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    if not 1 <= len(each) <= MEMBERS_MAX:
        raise InvalidSetting(f"1 to {MEMBERS_MAX} addresses of etcd, not {len(each)}")
    found = tuple(_endpoint_of(address.strip()) for address in each)
    return tuple(dict.fromkeys(found))


def _endpoint_of(address: str) -> Endpoint:
    hint = "it looks like http://host:2379 or https://host:2379"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InvalidSetting(f"{address!r} is no address of etcd: {error}; {hint}") from error
    if parts.username is not None or parts.password is not None:
        raise InvalidSetting("user and password of etcd are settings of their own, and not part of its address")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise InvalidSetting(f"{address!r} is no address of etcd; {hint}")
    return Endpoint(parts.hostname, DEFAULT_PORT if port is None else port, parts.scheme == "https")
