"""What topics and groups may be called.

Names end up in URLs, metrics, file listings and other systems' topic names, so they are plain: no separators, nothing
that a shell, a path or a header could take for something else. Directories are named by generated ids, never by these.
"""

from __future__ import annotations

import re

from penstock.errors import InvalidName
from penstock.limits import NAME_LENGTH_MAX

# What a topic's dead letters are in is called like the topic, with this behind it.
DEAD_LETTERS = ".dlq"
# The topic of the audit log (`server/audit.py`), which the broker creates.
AUDIT = "__audit"
_PLAIN = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]*", re.ASCII)


def check_new_topic(name: object) -> str:
    """What users may call a topic: not as the broker calls those that it makes itself."""
    if check_name("topic", name).endswith(DEAD_LETTERS):
        raise InvalidName(
            f"topics whose names end in {DEAD_LETTERS} are for dead letters, and made with the first one: {name!r}",
            kind="topic",
        )
    if name == AUDIT:
        raise InvalidName(f"{AUDIT} has the audit log: the broker creates it (audit_topic: true)", kind="topic")
    return str(name)


def check_publishable(topic: str) -> None:
    """Of a topic that exists: whether clients may publish to it."""
    if topic.endswith(DEAD_LETTERS):
        raise InvalidName(
            f"only the broker publishes to {topic}, which has dead letters: publish to {topic[: -len(DEAD_LETTERS)]}",
            kind="topic",
        )


def check_name(kind: str, name: object) -> str:
    """The name as it is, or InvalidName saying what is wrong with it. `kind` is for the sentence."""
    if not isinstance(name, str):
        raise InvalidName(f"a {kind} name must be text, not {type(name).__name__}", kind=kind)
    if not name or len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"a {kind} name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}", kind=kind)
    if not _PLAIN.fullmatch(name):
        raise InvalidName(
            f"a {kind} name is made of a-z A-Z 0-9 . _ - and does not start with a dot: {name[:50]!r}", kind=kind
        )
    if name.startswith("__") and not (kind == "topic" and name == AUDIT):
        raise InvalidName(f"{kind} names that start with __ are the broker's own: {name[:50]!r}", kind=kind)
    return name
