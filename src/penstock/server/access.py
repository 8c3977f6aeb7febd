"""Who may do what: rules of principal × operation × topic or group, by name or by the start of a name.

Without any rules, everybody who was let in may do everything. With rules, nothing is allowed but what a rule allows,
and a rule that denies wins over all that allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.errors import Forbidden


class Operation(StrEnum):
    """`describe` is to know that something is there and how it is set; `admin` is to make, change and delete."""

    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    DESCRIBE = "describe"
    ADMIN = "admin"


class Kind(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    # Everything there is: what no name can be given for.
    BROKER = "broker"


class Right(NamedTuple):
    """What somebody wants to do, and to what."""

    operation: Operation
    kind: Kind
    name: str


class Pattern(NamedTuple):
    """A name, or the start of names."""

    text: str
    is_prefix: bool

    @classmethod
    def of(cls, written: str) -> Pattern:
        """As it is written in a rule: `orders` is that topic, `orders.*` all that start like that, `*` all."""
        return cls(written.removesuffix("*"), written.endswith("*"))

    def fits(self, name: str) -> bool:
        return name.startswith(self.text) if self.is_prefix else name == self.text


class Rule(NamedTuple):
    principals: tuple[Pattern, ...]
    operations: frozenset[Operation]
    kind: Kind
    names: tuple[Pattern, ...]
    allows: bool

    def is_about(self, principal: str, right: Right) -> bool:
        return (
            right.operation in self.operations
            and right.kind is self.kind
            and any(pattern.fits(right.name) for pattern in self.names)
            and any(pattern.fits(principal) for pattern in self.principals)
        )


class Rules:
    """None at all allow everything."""

    def __init__(self, rules: Sequence[Rule] | None) -> None:
        self._rules = rules

    def allow(self, principal: str, right: Right) -> bool:
        if self._rules is None:
            return True
        about = [rule.allows for rule in self._rules if rule.is_about(principal, right)]
        return bool(about) and all(about)

    def check(self, principal: str, rights: Iterable[Right]) -> None:
        for right in rights:
            if not self.allow(principal, right):
                what = f"{right.operation} on {right.kind} {right.name}" if right.name else str(right.operation)
                raise Forbidden(f"{principal} may not {what}", operation=right.operation, name=right.name)
