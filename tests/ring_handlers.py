"""Handlers for worker processes, which import them by name. What they want to tell is the reason of a failed job."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from penstock.errors import NotLeased
from penstock.ring import JobBatch


@dataclass
class Mail:
    to: str


def nothing(batch: JobBatch) -> None:
    pass


def tell(batch: JobBatch) -> None:
    """Each job as it is here, how often it was tried, and where."""
    for job, attempts in zip(list(batch), batch.attempts, strict=True):
        batch.fail([job], f"{job!r} {attempts} {os.getpid()}")


def tell_modules(batch: JobBatch) -> None:
    batch.fail(reason=" ".join(sys.modules))


def tell_sum(batch: JobBatch) -> None:
    batch.fail([batch[0]], f"{len(batch)} {sum(sum(job) for job in batch)}")


_kept: list[Any] = []


def keep_and_tell_the_first(batch: JobBatch) -> None:
    _kept.append(batch[0])
    batch.fail(reason=f"{sum(_kept[0])}")


def answer(batch: JobBatch) -> None:
    """As each job says."""
    kinds = {job["id"]: job for job in batch}
    batch.ack([job for job in kinds.values() if job["do"] == "ack"])
    batch.retry([job for job in kinds.values() if job["do"] == "retry"], "1h", reason="later")
    batch.fail([job for job in kinds.values() if job["do"] == "fail"], "no use")


def answer_and_raise(batch: JobBatch) -> None:
    batch.ack([batch[0]])
    raise ValueError("bad \udcff job")


def raise_when_all_is_answered(batch: JobBatch) -> None:
    batch.ack()
    raise ValueError("too late to matter")


def answer_wrongly(batch: JobBatch) -> None:
    batch.retry(delay="soon")


_last: list[JobBatch] = []


def answer_late(batch: JobBatch) -> None:
    """For the batch before this one, too."""
    _last.append(batch)
    try:
        if len(_last) > 1:
            _last[0].retry()
    except NotLeased as error:
        batch.fail(reason=f"{type(error).__name__}: {error}")


def end(batch: JobBatch) -> None:
    """As the job says, the first time."""
    how = batch[0]
    if batch.attempts[0] > 1:
        tell(batch)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "os._exit":
        os._exit(4)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def fork_and_end(batch: JobBatch) -> None:
    """The first time; who was forked waits for word."""
    if batch.attempts[0] > 1:
        return
    if os.fork() == 0:
        open(batch[0]["word"]).close()
    os._exit(4)


def start_and_end(batch: JobBatch) -> None:
    """The first time; what was started waits for word, and has all files that it was given."""
    if batch.attempts[0] > 1:
        return
    if batch[0]["gives_all"]:
        for fd in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(fd), True)
    os.system(f"cat '{batch[0]['word']}' &")
    os._exit(4)


def wait_for_word(batch: JobBatch) -> None:
    """Tells that it has begun by opening one pipe, and waits until the other is opened and closed."""
    job: dict[str, Any] = batch[0]
    if job.get("ignores_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(job["begun"], "w") as begun:
        begun.write(f"{os.getpid()}\n")
        begun.flush()
        with open(job["word"]) as word:
            word.read()


def leave_a_thread(batch: JobBatch) -> None:
    threading.Thread(target=threading.Event().wait).start()


async def tell_loop(batch: JobBatch) -> None:
    await asyncio.sleep(0)
    batch.fail(reason=f"{os.getpid()} {id(asyncio.get_running_loop())}")


def tell_later(batch: JobBatch) -> Any:
    return tell_loop(batch)


class Handler:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    async def __call__(self, batch: JobBatch) -> None:
        batch.fail(reason=self.greeting)
