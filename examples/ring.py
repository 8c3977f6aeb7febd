"""A queue within one process: workers, attempts, back-pressure, and a journal that outlives a kill.

It prints:

    done by 4 threads: 1000 jobs
    tried 3 times, then given up: cleo, no address
    when it is full: there is room for 2
    killed with 3 jobs, of which 1 was acknowledged; after a restart: b, attempt 2; c, attempt 1
"""

import os
import signal
import subprocess
import sys
import tempfile

import penstock
from penstock.ring import JobBatch


def workers() -> None:
    done = []
    with penstock.Ring() as ring:
        ring.put_many(range(1_000))
        ring.run(done.extend, workers=4, until_idle="10ms")
    print("done by 4 threads:", len(done), "jobs")


def attempts() -> None:
    def handle(batch: JobBatch) -> None:
        for job in batch:
            if "@" not in job:
                batch.retry([job], reason="no address")

    with penstock.Ring(max_attempts=3, backoff={"initial": "1ms"}) as ring:
        ring.put_many(["ann@example.org", "cleo"])
        ring.start(handle)
        ring.join()
        (failed,) = ring.failed()
        print(f"tried {failed.attempts} times, then given up: {failed.job}, {failed.reason}")


def back_pressure() -> None:
    with penstock.Ring(capacity=2, when_full="reject") as ring:
        try:
            ring.put_many(["a", "b", "c"])
        except penstock.errors.RingFull as error:
            print("when it is full:", str(error).rpartition("; ")[2])


def be_killed(path: str) -> None:
    ring = penstock.Ring(journal=path)
    ring.put_many(["a", "b", "c"])
    ring.take().ack()
    ring.take()
    # What is older than `flush_interval` is on disk anyway; this waits for the rest.
    ring.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def restart(path: str) -> None:
    ended = subprocess.run([sys.executable, __file__, path], check=False)
    assert ended.returncode == -signal.SIGKILL
    with penstock.Ring(journal=path) as ring, ring.take(10) as batch:
        left = "; ".join(f"{job}, attempt {attempt}" for job, attempt in zip(batch, batch.attempts, strict=True))
    print("killed with 3 jobs, of which 1 was acknowledged; after a restart:", left)


def main() -> None:
    workers()
    attempts()
    back_pressure()
    with tempfile.TemporaryDirectory() as directory:
        restart(os.path.join(directory, "jobs"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_killed(sys.argv[1])
    else:
        main()
