"""Replication of one partition on one node: `Replica.step(now_us, event)` returns what is to be done.

No I/O, no clock, no randomness, no messages: whoever runs it appends, sends and asks etcd, and tells what came of it.
Both logs of a partition, `MESSAGES` and `DELIVERIES`, are replicated together, at the same epoch.

replica      the state machine: which role the record gives this node; hands events on to
  leader       fetches, high watermarks, and what it would have the record say:
    membership   who is in sync
    succession   to whom it hands over
    progress     what a leader knows of a follower
    ballot       what the leader proposed to change in the record, and whose word counts meanwhile
  follower     asks its leader, cuts what the leader does not have, stores what it has
  site         what both share: who this node is, its logs, its surroundings
events       what happens; effects: what is to be done; messages: what replicas say to each other
record       the partition record in etcd: who may lead, and since which epoch
lineage      which epoch wrote which offsets of a log
extent       how far a copy of a log goes
timing       how long is too long
election     what a controller or an operator makes of a record

What holds, in every step, whatever is late, lost or repeated:
- Two copies of a log that have the same epoch at the same offset have the same frames up to there.
- What is below a high watermark is on the disks of all members of the ISR, as it is in etcd and as it may become there.
- A leader is elected from the ISR, at an epoch nobody had, for one start of one process. So it has all of that.
"""
