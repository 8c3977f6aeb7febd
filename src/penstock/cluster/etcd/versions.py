"""Which versions of etcd are used, refused, or warned of.

3.5.0 to 3.5.5 can apply a change on some members and not on others after a crash, and nobody notices. Before 3.4 the
gateway has other paths. 3.4 has no fixes any more: it is what Debian has, and good for trying out and for tests.
"""

from __future__ import annotations

import re

from penstock.errors import EtcdVersionRefused

RECOMMENDED = (3, 5, 28)
_OLDEST = (3, 4, 0)
_CORRUPTING = ((3, 5, 0), (3, 5, 5))


def check(version: str, where: str) -> str | None:
    """What to warn of, if anything. Raises if it must not be used."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise EtcdVersionRefused(
            f"{where} says its version is {version[:50]!r}, which is none of etcd's", version=version[:50]
        )
    numbers = (int(found[1]), int(found[2]), int(found[3]))
    advice = f"use {'.'.join(map(str, RECOMMENDED))} or later"
    if numbers < _OLDEST:
        raise EtcdVersionRefused(f"etcd {version} at {where} is too old: {advice}", version=version)
    if _CORRUPTING[0] <= numbers <= _CORRUPTING[1]:
        raise EtcdVersionRefused(f"etcd {version} at {where} can corrupt its data: {advice}", version=version)
    if numbers[:2] == (3, 4):
        return f"etcd {version} at {where} is for development and tests only: {advice}"
    if numbers < RECOMMENDED:
        return f"etcd {version} at {where} lacks fixes: {advice}"
    return None
