"""How often to ask again, and when to give up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock.client.patience import patience_left_s
from penstock.errors import EtcdUnavailable, PenstockError


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. A new leader is there within the time of a node's session and a little; `patience_s` is several times
    that."""

    patience_s: float = 30.0
    # For etcd to be back, if that is what keeps something from being changed.
    etcd_s: float = 30.0
    # Between one attempt and the next, longer and longer; the dice, from 0 to 1, spread those who wait for the same.
    pause_s: float = 0.02
    pause_s_max: float = 0.5
    dice: Callable[[], float] = random.random
    # Where things are changes now and then: a consumer looks so often without being told.
    refresh_s: float = 10.0
    # Who has not said where things are by `other_s` may hang: another one is asked, too. By `ask_s` all are given up.
    other_s: float = 0.3
    ask_s: float = 3.0
    # A leader that has not answered for so long may not be one any more.
    suspect_s: float = 1.0
    # Until somebody is told that a consumer leaves whose coordinator is gone: about when there is another one.
    leave_s: float = 8.0
    # For leaders that are not there, if what is known of the others will do.
    partial_s: float = 1.0
    # Beyond what a poll waits: for an answer that is on its way.
    grace_s: float = 1.0


class Attempts:
    """Of one request. For no longer than whoever asked for it waits."""

    def __init__(self, pace: Pace) -> None:
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        patience_s = min(pace.patience_s, patience_left_s())
        self._give_up = self._loop.time() + patience_s
        self._give_up_etcd = self._loop.time() + min(pace.etcd_s, patience_s)
        self._pause_s = pace.pause_s

    async def pause(self, error: PenstockError) -> None:
        """Before the next one. Raises the error if that would be too late."""
        pause_s = self._pause_s * (0.5 + self._pace.dice() / 2)
        if self._loop.time() + pause_s > (self._give_up_etcd if isinstance(error, EtcdUnavailable) else self._give_up):
            raise error
        self._pause_s = min(2 * self._pause_s, self._pace.pause_s_max)
        await asyncio.sleep(pause_s)
