"""What a consumer can say of a message that it was given."""

from __future__ import annotations

import msgspec


class Ack(msgspec.Struct, frozen=True, tag=True):
    """Done: never again to this group. `again`: it was said before, and the answer was lost."""

    again: bool = False


class Nack(msgspec.Struct, frozen=True, tag=True):
    """To be tried again: after `delay_us`, or by the group's back-off."""

    reason: str
    delay_us: int | None = None


class Reject(msgspec.Struct, frozen=True, tag=True):
    """Never to be tried again: a dead letter at once."""

    reason: str


class Release(msgspec.Struct, frozen=True, tag=True):
    """Given back unseen: this delivery does not count."""


class Extend(msgspec.Struct, frozen=True, tag=True):
    """More time from now on, for all of the lease."""

    visibility_us: int | None


Answer = Ack | Nack | Reject | Release | Extend
