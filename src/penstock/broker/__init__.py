"""What a queue means. No sockets, no files of its own. docs/internals/delivery.md tells how it fits together.

broker       topics and groups in a data directory; every door ends here, and is handed on to:
  topics       made, changed, deleted; directories has their partitions
  groups       made, changed, deleted; and each of them on each topic
  polling      members join, ask for messages, wait, leave
  replays      groups that get again what was there before
  history      what happened to a message; trace reads it
  chronicle    the deliveries log as a table; tries follows how often each message was tried
  graveyards   where dead letters go, and when
  upkeep       what is done without being asked
  work         on a thread, one after the other, or in the background
catalog      which topics, groups and schedules there are, on disk
settings     what can be set on a topic and on a group
names ids    what topics and groups may be called; message ids; checks of other arguments
topic        its partitions, and which of them a message goes to
partition    its two logs
reading      the messages of a partition as its groups see them; frame_cache keeps what was read last
projection   some columns of the log, for readers
producers    idempotent producers: what comes again is recognised
recollection what has to be known of the messages before they can be led, read ahead of time
journal      the way into a log: commit, and wait until it is on disk
ledger       the same for rows of the deliveries log; those nobody waits for are held back a moment

group        a group on a topic: lease, ack, nack, seek, replay
deliveries   all groups of a partition, and the log of what happened
working      a group at work in a partition: what its settings make of its state
delivery     the state of one group in one partition: decide, apply
events       what happens to messages: the rows of the deliveries log
snapshot     the state as rows
leasing      what is leased next: lanes, delays, expiry, order
ordering     how messages wait for one another; key_order by key; key_hash tells keys apart,
             key_marks knows which are busy
lanes        priority lanes, and whose turn it is
delays       delayed messages; wheel has the timers; scheduled is for looking at them
schedules    messages that come again and again; cron says when
retries      how long to wait before a message is tried again
dead_letters messages that were given up; letter is one of them
members      who is in a group; assignor says who gets what; membership for all groups
trace        what happened, why not, and what was at some time
offsets      sets of offsets
bell timers  waiting until something may be ready, or a time has come
"""
