"""A process is killed while it works; everything it had been told is there when the directory is opened again.

It prints:

    the process was killed
    published and told so: all there
    acknowledged and told so: none comes again
    everything else comes again, once
"""

import os
import signal
import subprocess
import sys
import tempfile

import penstock


def work(path: str) -> None:
    """Publishes, consumes, and says what it has been told. Never ends by itself."""
    with penstock.open(path) as q:
        q.create_topic("jobs", partitions=2)
        consumer = q.consumer("workers", "jobs", visibility="5s")
        number = 0
        while True:
            for _ in range(10):
                print("published", q.publish("jobs", f"job {number}", key=str(number)).id, flush=True)
                number += 1
            for message in consumer.poll(5):
                message.ack()
                print("acknowledged", message.id, flush=True)


def main(path: str) -> None:
    lines = []
    with subprocess.Popen([sys.executable, __file__, path], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            lines.append(line.split())
            if len(lines) == 500:
                os.kill(child.pid, signal.SIGKILL)
    print("the process was killed" if child.returncode == -signal.SIGKILL else child.returncode)
    lines = [line for line in lines if len(line) == 2]
    published = {id for what, id in lines if what == "published"}
    acknowledged = {id for what, id in lines if what == "acknowledged"}

    with penstock.open(path) as q:
        stored = {message.id for message in q.reader("jobs")}
        print("published and told so:", "all there" if published <= stored else published - stored)
        # What was leased when the process died comes again when its leases have run out.
        again = []
        for message in q.consumer("workers", "jobs", until_idle="10s"):
            again.append(message.id)
            message.ack()
        twice = acknowledged & set(again)
        print("acknowledged and told so:", twice or "none comes again")
        # One acknowledgement may have been on disk without having been told any more.
        missing = stored - acknowledged - set(again)
        is_once = len(again) == len(set(again)) and len(missing) <= 1
        print("everything else comes again, once" if is_once else (missing, len(again)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
