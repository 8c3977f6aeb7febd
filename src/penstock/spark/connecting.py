"""Clients for brokers, one per process and `Connecting`: a Python worker of Spark's reads many partitions in turn.

Executors receive a `Connecting`: the broker's address, as text. A client or a TLS context can't be pickled.

Every connection retries for `retry_us` (the option `retryFor`), on the driver and on executors alike: the first
connection, and every request of a client whose broker restarts.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from threading import Lock
from typing import NamedTuple

from penstock.client.blocking import Client
from penstock.durations import duration_text
from penstock.errors import ConnectionLost, InvalidSetting
from penstock.net.address import places_of
from penstock.net.connecting import connect
from penstock.net.routing.pace import Pace

log = logging.getLogger("penstock.spark")

# A broker with a large disk needs about a minute to restart. `delivery.timeout.ms` of Kafka's producers is 120 s, too.
RETRY_US = 120_000_000

# With the process that made it: a worker may be forked from one that has clients already.
_clients: dict[Connecting, tuple[int, Client]] = {}
_lock = Lock()
_PAUSE_S = 0.2


class Connecting(NamedTuple):
    """Address and credentials of a broker. Each executor opens the certificate files itself."""

    url: str
    key: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    retry_us: int = RETRY_US

    def check(self) -> None:
        """What can be known to be wrong without connecting."""
        place, *_ = places_of(self.url)
        if place.tls is None and (self.tls_ca or self.tls_cert or self.tls_key):
            raise InvalidSetting(f"tls.* are for an address with TLS: {place.with_tls}, not {place.without_tls}")
        if self.tls_key and not self.tls_cert:
            raise InvalidSetting("tls.key is the key of a certificate: name that as tls.cert")

    def options(self) -> dict[str, str]:
        """As `format("penstock")` takes them."""
        given = {"url": self.url, "key": self.key, "tls.ca": self.tls_ca, "tls.cert": self.tls_cert}
        given |= {"tls.key": self.tls_key, "retryFor": duration_text(self.retry_us)}
        return {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        """Without the key: this ends up in logs."""
        return f"<{type(self).__name__} to {self.url}>"

    def __str__(self) -> str:
        return self.url

    def client(self) -> Client:
        """Return this process's client. It stays open: a worker does not know which of its tasks is the last."""
        with _lock:
            process, client = _clients.get(self, (0, None))
            if client is None or process != os.getpid():
                client = self._opened()
                _clients[self] = os.getpid(), client
            return client

    def _opened(self) -> Client:
        give_up = time.monotonic() + self.retry_us / 1e6
        is_reported = False
        while True:
            try:
                return self.open()
            except ConnectionLost as error:
                # A certificate does not become trusted by waiting.
                if isinstance(error.__cause__, ssl.SSLError) or time.monotonic() + _PAUSE_S > give_up:
                    raise
                if not is_reported:
                    log.warning("%s; retrying for %s (retryFor)", error.message, duration_text(self.retry_us))
                    is_reported = True
                time.sleep(_PAUSE_S)

    def open(self) -> Client:
        """Open a client that the caller closes. Fails at once if the broker is away: the address may be wrong."""
        return connect(self.url, key=self.key, tls=self._context(), pace=Pace(patience_s=self.retry_us / 1e6))

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
