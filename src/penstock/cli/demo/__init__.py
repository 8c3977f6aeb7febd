"""penstock demo: a small shop, on a broker of its own.

chapters     the story: what happens, and what must be true of it
shop         what the chapters work with: orders, workers, how far they are
workers      those who work there, each with a connection and a thread of its own
server       the broker, as a process that can be killed and started again
telling      chapters, tables, and sentences that are checked before they are printed

The shop uses nothing but `penstock.connect`, as any program would.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.cli.output import EXIT_BAD_NEWS

if TYPE_CHECKING:
    from penstock.cli.demo.telling import Telling

Keep = Annotated[
    bool, typer.Option("--keep", help="Leave the broker running at the end, for the dashboard, until Ctrl-C.")
]


def demo(keep: Keep = False) -> None:
    """A small shop on a broker of its own; nothing is left behind.

    Orders, two groups, a second worker, priorities, delays, a broker that is killed, a poison message, traces, replay.
    Exit code 1: something was not as it should be.
    """
    from penstock.cli.demo.telling import NotSo, Telling

    telling = Telling()
    # A handler of the shop fails on purpose, and the story says so.
    logging.getLogger("penstock.consumer").addHandler(logging.NullHandler())
    try:
        with _exit_on_signals():
            _run(telling, keep)
    except NotSo as error:
        telling.failure(error)
        raise typer.Exit(EXIT_BAD_NEWS) from error


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Whoever ends this early shall not leave a broker behind."""
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _run(telling: Telling, keep: bool) -> None:
    import penstock
    from penstock.cli.demo.chapters import tell_all
    from penstock.cli.demo.server import Server
    from penstock.cli.demo.shop import Shop

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-shop-") as directory, Server(Path(directory) / "data") as server:
        server.start()
        with penstock.connect(server.address) as q:
            tell_all(Shop(telling, server, q))
        took_s = time.monotonic() - began
        if keep:
            telling.say_until_interrupted(f"The broker goes on, at {server.address}. Ctrl-C ends it.")
        code = server.stop()
        telling.check(code == 0, "Told to stop, the broker ends well", code)
    telling.say(f"{telling.checked} checks in {took_s:.0f} s, and nothing is left behind.")
    if not keep:
        telling.say("`penstock demo --keep` leaves the broker running, to look around with the dashboard.")
