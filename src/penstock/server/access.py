"""Who may do what: rules of principal × operation × topic or group, by name or by the start of a name.

Without any rules, everybody who was let in may do everything. With rules, nothing is allowed but what a rule allows,
and a rule that denies wins over all that allow.

The topic `__audit` is the broker's own: no client may publish to it, and only a rule that names it allows anything
else. `*` does not include it. Without rules, clients may not create, change or delete it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.broker.names import AUDIT
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

    def is_for(self, principal: str) -> bool:
        return any(pattern.fits(principal) for pattern in self.principals)

    def is_about(self, right: Right) -> bool:
        is_own = self.allows and right.name == AUDIT
        return (
            right.operation in self.operations
            and right.kind is self.kind
            and any(pattern.fits(right.name) for pattern in self.names if not is_own or pattern.text)
        )


class Rules:
    """None at all allow everything."""

    def __init__(self, rules: Sequence[Rule] | None) -> None:
        self._rules = rules
        # Those that are for one principal each, by its name, and all others.
        self._named: dict[str, list[Rule]] = {}
        self._others: list[Rule] = []
        for rule in rules or ():
            if any(pattern.is_prefix for pattern in rule.principals):
                self._others.append(rule)
            else:
                for name in {pattern.text for pattern in rule.principals}:
                    self._named.setdefault(name, []).append(rule)
        self._by_principal: dict[str, list[Rule]] = {}

    def _of(self, principal: str) -> list[Rule]:
        """The rules for this principal. Kept: there are as many principals as keys, and each asks again and again."""
        found = self._by_principal.get(principal)
        if found is None:
            others = [rule for rule in self._others if rule.is_for(principal)]
            found = self._by_principal[principal] = self._named.get(principal, []) + others
        return found

    @property
    def allow_all(self) -> bool:
        """To everybody."""
        return self._rules is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and other._rules == self._rules

    __hash__ = None  # type: ignore[assignment]

    def allow(self, principal: str, right: Right) -> bool:
        is_own = right.name == AUDIT
        if is_own and right.operation is Operation.PUBLISH:
            return False
        if self._rules is None:
            return not (is_own and right.operation is Operation.ADMIN)
        about = [rule.allows for rule in self._of(principal) if rule.is_about(right)]
        return bool(about) and all(about)

    def may(self, principal: str, operation: Operation) -> bool:
        """Whether a rule allows it on anything. Another one may deny all of that."""
        if self._rules is None:
            return True
        return any(rule.allows and operation in rule.operations for rule in self._of(principal))

    def may_anything(self, principal: str) -> bool:
        """Whether any rule allows the principal anything."""
        if self._rules is None:
            return True
        return any(pattern.fits(principal) for rule in self._rules if rule.allows for pattern in rule.principals)

    def check(self, principal: str, rights: Iterable[Right]) -> None:
        for right in rights:
            if not self.allow(principal, right):
                what = f"{right.operation} on {right.kind} {right.name}" if right.name else str(right.operation)
                raise Forbidden(
                    f"{principal} may not {what}. Add a rule that allows it to the broker's access file",
                    operation=right.operation,
                    name=right.name,
                )
