"""When whoever publishes is told that it is stored.

    all      it is on the disks of all replicas in sync, and those are as many as the topic demands
    leader   it is on the disk of the partition's leader: what no other replica has by then is lost if that one is
    none     at once: the client does not wait. It still hears later what has become of it, when the leader has it

A broker on its own is all the replicas there are: "leader" and "all" are the same there.

Below `min_isr`, "all" is refused (NotEnoughReplicas). "leader" and "none" are not, as in Kafka: whoever asks for no
more than one disk gets it as long as that one is there. Of what was taken before, "all" says after a while that nobody
knows (NotCommitted).
"""

from __future__ import annotations

from penstock.errors import InvalidInput

ALL, LEADER, NONE = ACKS = ("all", "leader", "none")


def check_acks(given: object) -> None:
    if given not in ACKS:
        raise InvalidInput(f"acks is {', '.join(ACKS)}, not {given!r}", argument="acks")


def check_waited(given: object) -> None:
    """For a request that is answered: there is no point in not waiting for it."""
    if given not in (ALL, LEADER):
        raise InvalidInput(f"acks is all or leader, not {given!r}; only a producer can do with none", argument="acks")
