"""Clients for brokers, one for each process and way in: a Python worker of Spark's reads many partitions one by one.

What is sent to executors is a `Connecting`: where the broker is, as text. A client or a TLS context can't be sent.
"""

from __future__ import annotations

import os
import ssl
import time
from threading import Lock
from typing import NamedTuple

import penstock
from penstock.client.blocking import Client
from penstock.errors import ConnectionLost, InvalidSetting
from penstock.net.address import places_of

# With the process that made it: a worker may be forked from one that has clients already.
_clients: dict[Connecting, tuple[int, Client]] = {}
_lock = Lock()
_PAUSE_S = 0.2


class Connecting(NamedTuple):
    """How to get to a broker. The files are looked for where the client is made: on every executor."""

    url: str
    key: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def check(self) -> None:
        """What can be known to be wrong without connecting."""
        place, *_ = places_of(self.url)
        if place.tls is None and (self.tls_ca or self.tls_cert or self.tls_key):
            raise InvalidSetting(f"tls.* are for an address with TLS: {place.with_tls}, not {place.without_tls}")
        if self.tls_key and not self.tls_cert:
            raise InvalidSetting("tls.key is the key of a certificate: name that as tls.cert")

    def options(self) -> dict[str, str]:
        """As `format("penstock")` takes them."""
        names = ("url", "key", "tls.ca", "tls.cert", "tls.key")
        return {name: value for name, value in zip(names, self, strict=True) if value is not None}

    def __repr__(self) -> str:
        """Without the key: this ends up in logs."""
        return f"<{type(self).__name__} to {self.url}>"

    def __str__(self) -> str:
        return self.url

    def client(self, patience_s: float = 0) -> Client:
        """The one of this process. It stays open: nobody knows which task of a worker is its last.

        If it is the first, a broker that is not there is waited for: on executors, where it is known that it was.
        """
        with _lock:
            process, client = _clients.get(self, (0, None))
            if client is None or process != os.getpid():
                client = self._opened(patience_s)
                _clients[self] = os.getpid(), client
            return client

    def _opened(self, patience_s: float) -> Client:
        give_up = time.monotonic() + patience_s
        while True:
            try:
                return self.open()
            except ConnectionLost:
                if time.monotonic() + _PAUSE_S > give_up:
                    raise
                time.sleep(_PAUSE_S)

    def open(self) -> Client:
        """A client of its own, which whoever asked for it closes."""
        return penstock.connect(self.url, key=self.key, tls=self._context())

    def _context(self) -> ssl.SSLContext | None:
        if not (self.tls_ca or self.tls_cert):
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            named = ", ".join(filter(None, (self.tls_ca, self.tls_cert, self.tls_key)))
            raise InvalidSetting(f"the files of tls.* ({named}) can't be used on this machine: {error}") from error
        return context
