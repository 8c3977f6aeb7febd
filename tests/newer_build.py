"""`penstock`, as a newer build would be: it supports another feature level, and new partition records have a field that
this build does not know."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.cluster import levels, node, placing
from penstock.cluster.core.election import first
from penstock.cluster.core.record import PartitionRecord

levels.LEVEL += 1
node.LEVEL = levels.LEVEL


def _first(*given: Any) -> PartitionRecord:
    return replace(first(*given), unknown=((("observers",), b'["x"]'),))


placing.first = _first

if __name__ == "__main__":
    from penstock.cli.app import main

    main()
