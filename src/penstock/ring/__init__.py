"""Jobs in a process of one's own: a bounded queue for threads, tasks and processes, without a broker.

ring        Ring: put, take, join, close
batch       what `take` hands out, and how it is answered for
settings    how a ring is to behave, checked
waiting     threads and tasks that wait for their turn
retries     jobs that wait for their next attempt
failed      jobs that nobody could do
stats       what can be seen of a ring, and why it is slow
journal     what a restart has to know, written behind
records     the bytes of the journal
replay      from those bytes to jobs
workers     threads that take and handle
tasks       the same with `await`
processes   handlers in processes of their own
"""

from penstock.ring.batch import JobBatch
from penstock.ring.failed import FailedJob
from penstock.ring.ring import Ring
from penstock.ring.stats import JournalStats, RingStats

__all__ = ["FailedJob", "JobBatch", "JournalStats", "Ring", "RingStats"]
