"""Who may come in, and what they may do."""

from __future__ import annotations

from typing import Protocol


class Principal(Protocol):
    """Whoever is behind a connection."""

    @property
    def name(self) -> str: ...


class Gate(Protocol):
    def admit(self, key: str | None) -> Principal:
        """Who it is that has this key."""


class Anybody:
    """Without keys: everybody who can reach the port may do everything. The port is on the loopback then."""

    name = "anybody"

    def admit(self, key: str | None) -> Principal:
        return self
