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


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.id: key for key in keys}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def principal_of(self, given: str | None, now_us: int) -> str:
        """Whose it is. The error does not tell whether it was the id, the secret or the time that was wrong."""
        if given is None:
            raise Unauthenticated("this broker wants a key")
        prefix, _, rest = given.partition("_")
        identity, _, secret = rest.partition("_")
        key = self._keys.get(identity)
        is_right = hmac.compare_digest(_hash(secret), _NOBODY if key is None else key.hash)
        if key is None or not is_right or prefix != _PREFIX or key.is_over(now_us):
            raise Unauthenticated("nobody has this key, or it is no longer valid")
        return key.principal
