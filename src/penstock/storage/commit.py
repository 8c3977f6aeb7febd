"""Group commit: frames that arrive while the disk is busy are written and synced together.

    commit(frame) ─► waiting ─┐
    commit(frame) ─► waiting ─┤  one at a time, on a thread of the caller's pool:
    commit(frame) ─► waiting ─┴► append all ─► one fdatasync ─► tell all

Nobody waits on a timer: a lone frame is written at once, and the groups grow by themselves with the load. What is
told "committed" is on disk. Frames keep the order in which they were handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.storage.log import Log

Token = TypeVar("Token")

GROUP_BYTES_MAX = 8 * MIB
# After so many groups the thread is given back, so that a busy log does not keep others from a small pool.
_GROUPS_IN_A_ROW = 8


class Committed(NamedTuple):
    base_offset: int
    append_time: int


Outcome = Committed | PenstockError


class GroupCommit(Generic[Token]):
    """The one writer of a log. `commit` may be called from any thread."""

    def __init__(
        self,
        log: Log,
        *,
        run: Callable[[Callable[[], None]], object],
        tell: Callable[[Sequence[tuple[Token, Outcome]]], None],
    ) -> None:
        """`run` starts a function on another thread; `tell` is called there, once for each group."""
        self._log = log
        self._run = run
        self._tell = tell
        self._waiting: list[tuple[Token, Frame]] = []
        self._is_running = False
        self._lock = Lock()

    def commit(self, token: Token, frame: Frame) -> None:
        """Hands in a frame. Its outcome is told under `token`."""
        with self._lock:
            self._waiting.append((token, frame))
            if self._is_running:
                return
            self._is_running = True
        self._run(self._write_groups)

    def _write_groups(self) -> None:
        for _ in range(_GROUPS_IN_A_ROW):
            group = self._next_group()
            if not group:
                return
            self._tell(self._write(group))
        self._run(self._write_groups)

    def _next_group(self) -> list[tuple[Token, Frame]]:
        with self._lock:
            size = taken = 0
            for _, frame in self._waiting:
                size += len(frame.data)
                if taken and size > GROUP_BYTES_MAX:
                    break
                taken += 1
            group = self._waiting[:taken]
            del self._waiting[:taken]
            self._is_running = bool(group)
            return group

    def _write(self, group: list[tuple[Token, Frame]]) -> list[tuple[Token, Outcome]]:
        try:
            appended = self._log.append([frame for _, frame in group])
            self._log.sync()
        except PenstockError as error:
            return [(token, error) for token, _ in group]
        time = appended.append_time
        return [
            (token, Committed(base_offset, time))
            for (token, _), base_offset in zip(group, appended.base_offsets, strict=True)
        ]
