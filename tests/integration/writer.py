"""A real process that writes to a real log until it is killed, and says what was acknowledged.

One line of JSON for each thing that happened, written before the next thing is tried:
    {"opened": notes}   {"ok": value, "offset": n}   {"failed": code, "value": value}   {"stopped": code}
Exit status 70 after a fatal storage error, as a broker would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.disk import Disk
from penstock.broker.journal import Journal
from penstock.clock import SystemClock
from penstock.errors import Fatal, PenstockError
from penstock.message import Message
from penstock.storage.files import DiskFiles
from penstock.storage.kernel_syncs import KernelSyncs
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames

SETTINGS = LogSettings(segment_bytes_max=64 << 10)
TASKS = 16


def say(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def keep_merging(log: Log) -> None:
    """Background work, so that a kill may hit that too."""
    while True:
        for segment in log.segments[:-1]:
            merge_small_frames(log, segment)
        threading.Event().wait(0.002)


async def write(log: Log, run: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    syncs = KernelSyncs() if "SYNCS" in os.environ else None
    journal = Journal(log, clock=SystemClock(), disk=Disk(ThreadPoolExecutor(2), syncs=syncs), loop=loop)

    async def task(name: int) -> None:
        for i in range(count):
            value = f"{run}-{name}-{i}"
            try:
                committed = await journal.commit(Message(value.encode().ljust(200), key=b"%d" % name))
            except Fatal:
                raise
            except PenstockError as error:
                say(failed=error.code, value=value)
            else:
                say(ok=value, offset=committed.base_offset)

    await asyncio.gather(*[task(name) for name in range(TASKS)])


def main(directory: str, run: str, count: str = "1000000000", merging: str = "yes") -> int:
    try:
        log = Log.open(DiskFiles(directory), clock=SystemClock(), settings=SETTINGS)
        say(opened=log.recovery_notes)
        if merging == "yes":
            threading.Thread(target=keep_merging, args=(log,), daemon=True).start()
        asyncio.run(write(log, run, int(count)))
        log.close()
    except Fatal as error:
        say(stopped=error.code)
        os._exit(70)
    except PenstockError as error:
        say(stopped=error.code)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
