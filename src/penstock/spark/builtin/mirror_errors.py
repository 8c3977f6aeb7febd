"""What can go wrong with a mirror, beyond what `penstock.errors` knows."""

from __future__ import annotations

from penstock.errors import PenstockError


class MirrorConflict(PenstockError):
    """What is there does not go with this mirror: going on would double messages, leave some out, or go in a circle."""

    code = "mirror_conflict"
