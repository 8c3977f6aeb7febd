"""What a history must not have, each kind with a name."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


# Of messages.
LOST_PREFIX = "acknowledged and lost, at the beginning of a log"
LOST_MIDDLE = "acknowledged and lost, in the middle of a log"
LOST_TAIL = "acknowledged and lost, at the end of a log"
PHANTOM = "stored, and never sent"
FAILED_STORED = "stored, though its sender was told that it failed"
TWO_VALUES = "two values at one offset"
VANISHED = "seen by somebody, and not there any more"
DUPLICATE = "one value at two offsets"
ORDER = "out of the order in which its producer sent it"
# Of replicas.
DIVERGED = "replicas differ below the high watermark"
BEHIND = "a replica ends below the high watermark"
WENT_BACK = "the high watermark went back"
# Of deliveries.
REDELIVERED = "delivered again after an acknowledgement that was answered"
ACK_LOST = "an acknowledgement that was answered is not in the log"
LEASE_UNKNOWN = "delivered by a lease that is not in the log"
OVERLAP = "two leases on one message at the same time"
DEAD_LETTERS = "not exactly one dead letter"
EARLY = "delivered early"
LATE = "delivered late"
OUT_OF_TURN = "delivered before an earlier message, in a group that keeps the order"
LOST_TIMER = "delayed, and never delivered"
UNDELIVERED = "acknowledged to its sender, and never delivered"
# Of the run.
NO_FAULT = "a fault did not happen"
NO_LOAD = "too little was going on"
NOT_HEALED = "not well again in time after the faults"
STUCK = "a group made no progress in time after the faults"
DIED = "a process ended by itself"
