"""What a forked child has of the rings of its parent.

One without a journal goes on as a copy, with all that waits; what others had taken stays taken. One with a journal is
of no use there: the journal is its parent's, who goes on writing it. Threads that wait or work are in the parent only.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

from penstock.ring.complaints import Complaints

if TYPE_CHECKING:
    from penstock.ring.ring import Ring

_rings: WeakSet[Ring] = WeakSet()
# To be called with every ring that is made.
note = _rings.add


def _renew_all() -> None:
    for ring in list(_rings):
        # Whoever held one may not be there to release it.
        ring._lock, ring._starting = Lock(), Lock()
        ring._complaints = Complaints(ring._steady)
        for line in (ring._takers, ring._putters, ring._joiners):
            line.waiters.clear()
        ring._workers.clear()
        if ring._journal is not None:
            ring._finalizer.detach()
            ring._journal.disown(ring._lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
