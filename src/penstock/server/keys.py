"""API keys: `pk_<id>_<secret>`. Only hashes of the secrets are kept, and they are compared in constant time.

A secret is 32 random bytes, so a plain SHA-256 of it can't be guessed back. A principal may have several keys at a
time: that is how one is replaced by another without a break.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import Unauthenticated

_PREFIX = "pk"
_ID_BYTES = 6
_SECRET_BYTES = 32
# As long as that of a key that is there, so that a wrong id takes as long as a wrong secret.
_NOBODY = hashlib.sha256(b"nobody").hexdigest()


class Key(NamedTuple):
    """`expires_us` None: never."""

    id: str
    principal: str
    hash: str
    expires_us: int | None = None

    def is_over(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us


def make(principal: str, expires_us: int | None = None) -> tuple[str, Key]:
    """The key to be told to whoever uses it, once, and what is kept of it."""
    identity, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    return f"{_PREFIX}_{identity}_{secret}", Key(identity, principal, _hash(secret), expires_us)


def id_of(key: str) -> str | None:
    """The id in a whole key; None if this is not one."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == _PREFIX and rest else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.id: key for key in keys}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def is_valid(self, key: Key, now_us: int) -> bool:
        """Whether a key that was given earlier is still in force: not revoked, replaced or expired."""
        kept = self._keys.get(key.id)
        return kept is not None and (kept is key or kept[:3] == key[:3]) and not kept.is_over(now_us)

    def identity_of(self, given: str | None) -> str:
        """The id in what was given as a key, if a key has that id. Nothing else of it may be shown to anybody."""
        identity = "" if given is None else given.partition("_")[2].partition("_")[0]
        return identity if identity in self._keys else ""

    def next_expiry_us(self, now_us: int) -> int | None:
        """When the next of them expires."""
        later = (key.expires_us for key in self if key.expires_us is not None and key.expires_us > now_us)
        return min(later, default=None)

    def find(self, given: str | None, now_us: int) -> Key:
        """Return the matching key. The error does not reveal which part was wrong."""
        if given is None:
            raise Unauthenticated(
                "this broker requires a key, and none was given. Pass it as key=… to penstock.connect, as "
                "$PENSTOCK_KEY to the command line, or as `Authorization: Bearer KEY` over HTTP and gRPC. The "
                "broker's operator creates one: penstock key create NAME"
            )
        prefix, _, rest = given.partition("_")
        identity, _, secret = rest.partition("_")
        key = self._keys.get(identity)
        is_right = hmac.compare_digest(_hash(secret), _NOBODY if key is None else key.hash)
        if key is None or not is_right or prefix != _PREFIX or key.is_over(now_us):
            raise Unauthenticated(
                "this key is unknown, or no longer valid. The broker's operator creates one: penstock key create NAME"
            )
        return key


def changes(before: Keys, after: Keys) -> Iterator[tuple[str, Key]]:
    """What happened to which key: `add_key`, `remove_key` or `change_key`."""
    old, new = ({key.id: key for key in keys} for keys in (before, after))
    for identity in sorted(old.keys() | new.keys()):
        if identity not in new:
            yield "remove_key", old[identity]
        elif identity not in old:
            yield "add_key", new[identity]
        elif old[identity] != new[identity]:
            yield "change_key", new[identity]
