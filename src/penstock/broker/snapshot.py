"""The state of a partition's groups, delays and lanes as rows of the deliveries log.

Written now and then among the events, so that a start reads from the last one on and not from the beginning, and old
segments of the deliveries log can be deleted.

    control frames, one after the other: a row that tells the length, then the snapshot in pieces

A snapshot is whole when all its pieces are there; one that a crash cut short is passed over. Deadlines and waits are
dates in it: the date of the snapshot, which its rows have, and the time that was left then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.delays import Delays
from penstock.broker.delivery import Death, Delivery, Failure, Lease, Parked, wait_until
from penstock.broker.events import Assigned, Copying, Cursors, Started, pack, unpack
from penstock.broker.lanes import Lanes
from penstock.clock import Instant
from penstock.decoding import msgpack_decoder
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import CONTROL, Frame
from penstock.message import Message
from penstock.storage.log import Log

_PIECE_BYTES = 512 * 1024
_PIECES_IN_A_FRAME = 8


class GroupState(msgspec.Struct, array_like=True):
    name: str
    start: int
    end: int | None
    floor: int
    cursors: Cursors
    done: bytes
    ready: bytes
    hidden: bytes
    unseen: bytes
    leases: list[tuple[int, str, int, int, bytes]]
    waiting: list[tuple[int, bytes]]
    attempts: list[tuple[int, bytes]]
    failures: list[tuple[Failure, bytes]]
    dying: dict[int, Death]
    dead: list[tuple[int, bytes]]
    redriven: list[tuple[int, bytes]]
    parked: dict[bytes, Parked]
    copying: tuple[Copying, ...] = ()
    made_us: int = 0
    generation: int = 0


class Snapshot(msgspec.Struct, array_like=True):
    """`covered`: the messages below this offset have been looked at for lanes and delays."""

    covered: int
    high: bytes
    low: bytes
    pending: bytes
    cancelled: bytes
    moved: dict[int, int]
    owners: list[Assigned]
    groups: list[GroupState]


class _Encoded(msgspec.Struct, array_like=True):
    """As a `Snapshot`, of groups that are encoded already."""

    covered: int
    high: bytes
    low: bytes
    pending: bytes
    cancelled: bytes
    moved: dict[int, int]
    owners: list[Assigned]
    groups: list[msgspec.Raw]


class _Head(msgspec.Struct, array_like=True, tag="snapshot"):
    length: int


_snapshots = msgpack_decoder(Snapshot)
_heads = msgpack_decoder(_Head)


def encoded(group: Delivery, now: Instant) -> bytes:
    return msgspec.msgpack.encode(_state(group, now))


def take(
    covered: int, groups: Iterable[bytes], lanes: Lanes, delays: Delays, owners: list[Assigned], now: Instant
) -> list[Frame]:
    """As frames for the deliveries log. `groups`: as `encoded` at about this time."""
    snapshot = _Encoded(
        covered,
        pack(lanes.high),
        pack(lanes.low),
        pack(delays.pending),
        pack(delays.cancelled),
        delays.moved,
        owners,
        [msgspec.Raw(group) for group in groups],
    )
    data = msgspec.msgpack.encode(snapshot)
    pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
    rows = [Message(msgspec.msgpack.encode(_Head(len(data)))), *(Message(piece) for piece in pieces)]
    return [
        Frame.of(Batch.from_messages(rows[at : at + _PIECES_IN_A_FRAME], now.wall_us), is_control=True)
        for at in range(0, len(rows), _PIECES_IN_A_FRAME)
    ]


class Found(NamedTuple):
    """When it was taken, where it begins, and where the events behind it do."""

    snapshot: Snapshot
    at_us: int
    start: int
    next_offset: int


def find_last(log: Log, before: int | None = None) -> Found | None:
    """The last whole snapshot; with `before`, the last that ends before that offset."""
    for segment in reversed(log.segments):
        if before is not None and segment.base_offset >= before:
            continue
        starts = [head.base_offset for head in log.heads_of(segment) if head.flags & CONTROL]
        for start in reversed(starts):
            if start >= log.start_offset and (before is None or start < before):
                found = read(log, start)
                if found is not None and (before is None or found.next_offset <= before):
                    return found
    return None


def read(log: Log, start: int) -> Found | None:
    data, length, at_us = bytearray(), None, 0
    for frame in log.frames(start):
        if not frame.flags & CONTROL:
            break
        values, written_us = _rows(frame)
        announced = _length(values[0])
        if (announced is None) == (length is None):
            # The middle of one, or the next one: a crash has cut this one short.
            return None
        if length is None:
            length, values, at_us = announced, values[1:], written_us
        for value in values:
            data += value
        if length is not None and len(data) >= length:
            return Found(_snapshots.decode(bytes(data)), at_us, start, frame.next_offset)
    return None


def _rows(frame: Frame) -> tuple[list[bytes], int]:
    """What is in them, and when they were written."""
    try:
        batch = frame.batch(verify=False)
        return [value or b"" for value in batch.values()], batch.timestamp
    except InvalidFrame as error:
        raise LogCorrupt(f"a frame of the deliveries log can't be decoded: {error.message}") from error


def _length(value: bytes) -> int | None:
    """None if this frame is the middle of a snapshot."""
    try:
        return _heads.decode(value).length
    except msgspec.DecodeError:
        return None


def _state(group: Delivery, now: Instant) -> GroupState:
    failures: dict[Failure, BitMap64] = {}
    for offset, failed in group.failures.items():
        for failure in failed:
            failures.setdefault(failure, BitMap64()).add(offset)
    return GroupState(
        group.group,
        group.start,
        group.end,
        group.floor,
        group.cursors,
        pack(group.done),
        pack(group.ready),
        pack(group.hidden),
        pack(group.unseen),
        [
            (one.id, one.consumer, now.to_wall(one.deadline_us), one.leased_us, pack(one.offsets))
            for one in group.leases.values()
        ],
        [(now.to_wall(due), pack(offsets)) for due, offsets in group.waits()],
        [(count, pack(offsets)) for count, offsets in _by_number(group.attempts)],
        [(failure, pack(offsets)) for failure, offsets in sorted(failures.items(), key=_when)],
        group.dying,
        [(count, pack(offsets)) for count, offsets in _by_number(group.dead)],
        [(count, pack(offsets)) for count, offsets in _by_number(group.redriven)],
        group.parked,
        tuple(group.copying.values()),
        *group.origin,
    )


def _when(item: tuple[Failure, Any]) -> tuple[int, int]:
    """Attempts count up; the clock may be set back."""
    return item[0].attempt, item[0].failed_us


def _by_number(numbers: dict[int, int]) -> list[tuple[int, BitMap64]]:
    by_number: dict[int, BitMap64] = {}
    for offset, number in numbers.items():
        by_number.setdefault(number, BitMap64()).add(offset)
    return sorted(by_number.items(), key=lambda item: item[0])


def restore(state: GroupState, at_us: int, now: Instant | None = None) -> Delivery:
    """Of a snapshot that was taken at `at_us`. For `now` see `Delivery.apply`."""
    now = now or Instant.in_log(at_us)
    group = Delivery(state.name)
    group.apply(Started(state.name, state.start, b"", state.end, state.made_us, state.generation), 0)
    group.floor = state.floor
    group.cursors = state.cursors
    group.done, group.ready = unpack(state.done), unpack(state.ready)
    group.hidden, group.unseen = unpack(state.hidden), unpack(state.unseen)
    group.parked = state.parked
    group.dying = state.dying
    group.copying = {copying.offset: copying for copying in state.copying}
    group.dead = {offset: count for count, offsets in state.dead for offset in unpack(offsets).to_array()}
    group.redriven = {offset: count for count, offsets in state.redriven for offset in unpack(offsets).to_array()}
    for count, offsets in state.attempts:
        group.set_attempts(unpack(offsets), count)
    for failure, offsets in state.failures:
        for offset in unpack(offsets).to_array():
            group.failures[offset] = (*group.failures.get(offset, ()), failure)
    for due, offsets in state.waiting:
        group.wait(unpack(offsets), wait_until(due, at_us, now))
    for identity, consumer, deadline_us, leased_us, offsets in state.leases:
        group.hold(Lease(identity, consumer, now.monotonic_us + deadline_us - at_us, unpack(offsets), leased_us))
    return group
