"""Jobs in a process of one's own: a bounded queue for threads, tasks and processes, without a broker.

ring        Ring: put, take, join, close
batch       what `take` hands out, and how it is answered for
settings    how a ring is to behave, checked
portions    the jobs of one put, as they go into the journal
waiting     threads and tasks that wait for their turn
retries     jobs that wait for their next attempt
failed      jobs that nobody could do
stats       what can be seen of a ring, and why it is slow
complaints  what it tells the log of the program
journal     what a restart has to know, written behind
place       the directory that it is in
records     the bytes of the journal
pending     what was not written to it yet
flusher     the thread that does
store       where jobs lie in it, and its compaction
replay      from those bytes to jobs
recovery    from those jobs to a ring; its end, if nobody closes it
forked      what a forked child has of it
handlers    what can be a handler
workers     threads that take and handle
tasks       the same with `await`
processes   handlers in processes of their own
spawned     one of those, as it is seen from here
child       and from inside
exchange    what the two say to each other
"""

from penstock.ring.batch import JobBatch
from penstock.ring.failed import FailedJob
from penstock.ring.ring import Ring
from penstock.ring.stats import JournalStats, RingStats

__all__ = ["FailedJob", "JobBatch", "JournalStats", "Ring", "RingStats"]
