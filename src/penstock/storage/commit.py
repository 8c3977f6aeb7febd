"""Group commit: what arrives while the disk is busy is written and synced together.

    commit(frame)   ─► waiting ─┐
    commit(message) ─► waiting ─┤  one at a time, wherever the caller's `run` has it done:
    commit(message) ─► waiting ─┴► append all ─► one fdatasync ─► tell all

The sync may be left to somebody else (`begin`), who says when it is done; it is one at a time all the same.
Single messages that follow each other become one frame. Nobody waits on a timer: a lone message is written at once,
and the groups grow by themselves with the load. What is told "committed" is on disk, in the order handed in; if the log
need not be synced at once (`Log.sync_within`), it is written, and whoever has the log sees to the sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from penstock.clock import Clock
from penstock.errors import DiskFull, Fatal, LogClosed, Overloaded, PenstockError
from penstock.frame import Frame, check_appendable, check_message
from penstock.limits import DEFAULT_LIMITS, MIB, Limits
from penstock.message import Message
from penstock.storage.log import Appended, Log

Token = TypeVar("Token")

GROUP_BYTES_MAX = 8 * MIB
WAITING_BYTES_MAX = 64 * MIB
# What the columns around a message and around a header may add to its bytes.
_MESSAGE_OVERHEAD = 48
_HEADER_OVERHEAD = 16
# After so many groups the thread is given back, so that a busy log does not keep others from a small pool.
_GROUPS_IN_A_ROW = 8


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Where it is: one for each message published alone, so it must be cheap to make."""

    base_offset: int
    append_time: int


Outcome = Committed | PenstockError
# Has a function called, sooner or later, by some thread.
Run = Callable[[Callable[[], None]], object]
# Has the log synced, and calls a function then, with what went wrong.
Sync = Callable[[Callable[[PenstockError | None], None]], None]


# What waits, under which token, and how large it is. Not a class: one is made for every message.
_Waiting = tuple[Token, Frame | Message, int]


class GroupCommit(Generic[Token]):
    """The one writer of a log. `commit` may be called from any thread."""

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        run: Run,
        tell: Callable[[Sequence[tuple[Token, Outcome]]], None],
        took: Callable[[int, bool], None] = lambda spent_us, is_synced: None,
        limits: Limits = DEFAULT_LIMITS,
        is_chained: bool = False,
        no_room: Callable[[DiskFull], None] | None = None,
    ) -> None:
        """`run` has a function called, on another thread or later on this one; `tell` is called there, once for each
        group, and so is `took`, with how long it took to write the group and whether that was with a sync.

        `is_chained`: each item builds on those before it, so once one could not be written, none behind it is.
        Otherwise each stands for itself, and what comes after a full disk may succeed.

        `no_room`: called instead of `tell` if the disk is full. The group stays the first of those that wait, and
        nothing is written until `retry`.
        """
        self._log = log
        self._clock = clock
        self._run = run
        self._tell = tell
        self._took = took
        self._limits = limits
        self._is_chained = is_chained
        # Why nothing is written any more: what the chain broke of, or that the writer was stopped.
        self._broken: PenstockError | None = None
        self._no_room = no_room
        # A group waits for room on the disk.
        self._lacks_room = False
        self._waiting: list[_Waiting[Token]] = []
        self._waiting_bytes = 0
        self._is_running = False
        self._lock = Lock()

    def commit(self, token: Token, item: Frame | Message) -> None:
        """Hands in a frame or a single message. Its outcome is told under `token`."""
        if isinstance(item, Message):
            size = check_message(item, self._limits) + _MESSAGE_OVERHEAD + _HEADER_OVERHEAD * len(item.headers)
        else:
            check_appendable(item)
            size = len(item.data)
        self._add([(token, item, size)], size)

    def commit_rows(self, token: Token, rows: Sequence[Message]) -> None:
        """Several messages of the broker's own, which need no check, each under this token; all of them or none."""
        waiting: list[_Waiting[Token]] = [(token, row, row.size + _MESSAGE_OVERHEAD) for row in rows]
        self._add(waiting, sum(size for _, _, size in waiting))

    def commit_alone(self, token: Token, frame: Frame) -> Outcome | None:
        """Written and synced by whoever calls this, before it returns. None if others wait or are being written: then
        it is to be handed in like them."""
        with self._lock:
            if self._is_running:
                return None
            self._is_running = True
        group: list[_Waiting[Token]] = [(token, frame, len(frame.data))]
        try:
            began = self._clock.monotonic_us()
            appended = self._appended(group)
            if isinstance(appended, Appended):
                appended = self._synced(appended, began)
        finally:
            with self._lock:
                self._is_running = bool(self._waiting)
            if self._is_running:
                # Other threads have handed them in meanwhile, and left them to us.
                self.start(self._run)
        if isinstance(appended, PenstockError):
            return self._failed(group, appended)[0][1]
        return Committed(appended.base_offsets[0], appended.append_time)

    def _add(self, waiting: list[_Waiting[Token]], size: int) -> None:
        with self._lock:
            if self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX:
                raise Overloaded(f"{self._waiting_bytes} bytes are waiting to be written", limit=WAITING_BYTES_MAX)
            self._waiting += waiting
            self._waiting_bytes += size
            if self._is_running:
                return
            self._is_running = True
        self.start(self._run)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many items, and of how many bytes."""
        with self._lock:
            return len(self._waiting), self._waiting_bytes

    def tokens(self) -> list[Token]:
        """Those of the items that wait."""
        with self._lock:
            return [token for token, _, _ in self._waiting]

    def retry(self) -> None:
        """Write what waits for room on the disk."""
        with self._lock:
            if not self._lacks_room:
                return
            self._lacks_room = False
        self.start(self._run)

    def end_wait(self, error: PenstockError) -> None:
        """Wait for room no longer, now and later. What waits for it fails with `error`, and so does all behind it."""
        with self._lock:
            self._no_room = None
            if not self._lacks_room:
                return
            self._broken = error
        self.retry()

    def stop(self, error: PenstockError) -> None:
        """Write nothing any more: what waits fails with `error`, and so does what is handed in later."""
        with self._lock:
            self._broken = error
        self.end_wait(error)

    def start(self, run: Run) -> None:
        """Once for each time that `run` was called: it may leave it to another one."""
        try:
            run(self._write_groups)
        except Exception as error:
            # The pool is gone. Nobody will write: those who wait shall hear it, and the next caller try again.
            with self._lock:
                left, self._waiting = self._waiting, []
                self._waiting_bytes = 0
                self._is_running = False
            self._tell(self._failed(left, LogClosed(f"nothing can be written any more: {error}")))

    def begin(self, sync: Sync) -> None:
        """As `start`, for one group, which is written before this returns; and told, by `sync`, when it is on disk."""
        group = self._next_group()
        if not group:
            return
        began = self._clock.monotonic_us()
        appended = self._appended(group)
        if isinstance(appended, DiskFull) and self._put_back(group, appended):
            return
        if isinstance(appended, PenstockError):
            self._ended(self._failed(group, appended))
            return

        def synced(error: PenstockError | None) -> None:
            if error is not None:
                self._ended(self._failed(group, error))
                return
            self._took(self._clock.monotonic_us() - began, True)
            self._ended(_outcomes(group, appended))

        try:
            sync(synced)
        except Exception as error:
            self._ended(self._failed(group, unexpected(error)))

    def _ended(self, outcomes: list[tuple[Token, Outcome]]) -> None:
        try:
            self._tell(outcomes)
        finally:
            with self._lock:
                self._is_running = bool(self._waiting)
                is_running = self._is_running
            if is_running:
                self.start(self._run)

    def _write_groups(self) -> None:
        for _ in range(_GROUPS_IN_A_ROW):
            group = self._next_group()
            if not group:
                return
            began = self._clock.monotonic_us()
            appended = self._appended(group)
            if isinstance(appended, DiskFull) and self._put_back(group, appended):
                return
            stored = appended if isinstance(appended, PenstockError) else self._synced(appended, began)
            try:
                self._tell(
                    self._failed(group, stored) if isinstance(stored, PenstockError) else _outcomes(group, stored)
                )
            except Exception:
                # Whoever waited is gone, with its event loop. Others may still be there.
                self.start(self._run)
                raise
        self.start(self._run)

    def _next_group(self) -> list[_Waiting[Token]]:
        with self._lock:
            size = taken = 0
            for _, _, item_size in self._waiting:
                size += item_size
                if taken and size > GROUP_BYTES_MAX:
                    break
                taken += 1
            group = self._waiting[:taken]
            del self._waiting[:taken]
            self._waiting_bytes -= sum(size for _, _, size in group)
            self._is_running = bool(group)
            return group

    def _put_back(self, group: list[_Waiting[Token]], error: DiskFull) -> bool:
        """Nothing of it was written. False if it is not to wait for room."""
        with self._lock:
            no_room = self._no_room
            if no_room is None or self._broken is not None:
                return False
            self._waiting[:0] = group
            self._waiting_bytes += sum(size for _, _, size in group)
            self._lacks_room = True
        no_room(error)
        return True

    def _synced(self, appended: Appended, began: int) -> Appended | PenstockError:
        """On disk now, if it is to be."""
        try:
            is_synced = self._log.sync_within_us is None
            if is_synced:
                self._log.sync()
            self._took(self._clock.monotonic_us() - began, is_synced)
        except PenstockError as error:
            return error
        except Exception as error:
            return unexpected(error)
        return appended

    def _appended(self, group: list[_Waiting[Token]]) -> Appended | PenstockError:
        """In the log now."""
        if self._broken is not None:
            return self._broken
        try:
            frames = [group[0][1]] if len(group) == 1 and isinstance(group[0][1], Frame) else self._frames(group)
            return self._log.append(frames)
        except PenstockError as error:
            return error
        except Exception as error:
            return unexpected(error)

    def _failed(self, group: list[_Waiting[Token]], error: PenstockError) -> list[tuple[Token, Outcome]]:
        if self._is_chained:
            self._broken = error
        return [(token, error.again()) for token, _, _ in group]

    def _frames(self, group: list[_Waiting[Token]]) -> list[Frame]:
        """Frames as they are; messages between them gathered, as many as a frame may hold."""
        frames: list[Frame] = []
        gathered: list[Message] = []
        size = 0

        def close() -> None:
            nonlocal size
            if gathered:
                frames.append(Frame.of_messages(gathered, now_us=self._clock.now_us(), limits=self._limits))
                gathered.clear()
                size = 0

        for _, item, item_size in group:
            if isinstance(item, Frame):
                close()
                frames.append(item)
                continue
            # Half of the limit leaves room for the columns around the bytes.
            if size + item_size > self._limits.frame_bytes_max // 2 or len(gathered) == self._limits.batch_messages_max:
                close()
            gathered.append(item)
            size += item_size
        close()
        return frames


def unexpected(error: Exception) -> Fatal:
    """A bug of ours. Those who wait must hear of it, and nobody may take it for a refusal."""
    fatal = Fatal(f"unexpected {error!r}")
    fatal.__cause__ = error
    return fatal


def _outcomes(group: list[_Waiting[Token]], appended: Appended) -> list[tuple[Token, Outcome]]:
    outcomes: list[tuple[Token, Outcome]] = []
    offset = appended.base_offsets[0]
    for token, item, _ in group:
        outcomes.append((token, Committed(offset, appended.append_time)))
        offset += item.count if isinstance(item, Frame) else 1
    assert offset == appended.next_offset
    return outcomes
