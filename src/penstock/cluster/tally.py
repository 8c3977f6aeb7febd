"""What a node has counted of its part in the cluster, since it was started. For its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """Belongs to one event loop."""

    # Changes of the in-sync replicas that this node has made, as a leader.
    isr_shrinks: int = 0
    isr_expands: int = 0
    # Made by this node as the controller, and won by it.
    elections: int = 0
    leaderships: int = 0
    # Frames of partitions, to followers and from leaders.
    sent_bytes: int = 0
    fetched_bytes: int = 0
    etcd_errors: int = 0
