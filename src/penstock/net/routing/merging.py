"""Many replies to one. Each part is the numbers of the partitions that were asked for, and the reply about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from penstock.client import requests as r
from penstock.client.requests import Request

T = TypeVar("T")
Part = tuple[tuple[int, ...], T]


def merged(request: Request[Any], parts: Sequence[Part[Any]]) -> Any:
    return _MERGES[type(request)](request, parts)


def by_number(parts: Sequence[Part[Sequence[T]]]) -> list[T]:
    """One for each partition, in the order of their numbers."""
    found: dict[int, T] = {}
    for numbers, values in parts:
        found |= zip(numbers, values, strict=True)
    return [found[number] for number in sorted(found)]


def _topic(request: r.DescribeTopic, parts: Sequence[Part[r.TopicInfo]]) -> r.TopicInfo:
    infos = [info for _, info in parts]
    partitions = sorted((one for info in infos for one in info.partitions), key=lambda one: one.number)
    return msgspec.structs.replace(
        infos[0], partitions=tuple(partitions), scheduled=sum(info.scheduled for info in infos)
    )


def _archive(request: r.FindArchive, parts: Sequence[Part[r.ArchiveInfo]]) -> r.ArchiveInfo:
    whole_from = by_number([(numbers, info.whole_from) for numbers, info in parts])
    return msgspec.structs.replace(parts[0][1], whole_from=tuple(whole_from))


def _scheduled(request: r.ListScheduled, parts: Sequence[Part[list[r.Scheduled]]]) -> list[r.Scheduled]:
    return nsmallest(request.limit, (one for _, some in parts for one in some), key=lambda one: one.deliver_at)


def _letters(request: r.ListDeadLetters, parts: Sequence[Part[list[r.DeadLetter]]]) -> list[r.DeadLetter]:
    return sorted((letter for _, some in parts for letter in some), key=_place)[: request.limit]


def _place(letter: r.DeadLetter) -> tuple[int, int]:
    _, partition, offset = letter.id.split(":")
    return int(partition), int(offset)


def _redriven(request: r.Redrive, parts: Sequence[Part[r.Redriven]]) -> r.Redriven:
    # A letter whose partition has moved in between may be told of twice.
    lists = [
        tuple(dict.fromkeys(one for _, done in parts for one in getattr(done, name)))
        for name in r.Redriven.__struct_fields__
    ]
    return r.Redriven(*lists)


def _states(request: r.GetStateAt, parts: Sequence[Part[list[r.StateAt]]]) -> list[r.StateAt]:
    return sorted((state for _, some in parts for state in some), key=lambda state: state.partition)


def _sum(request: Request[int], parts: Sequence[Part[int]]) -> int:
    return sum(count for _, count in parts)


def _nothing(request: Request[None], parts: Sequence[Part[None]]) -> None:
    return None


def _by_number(request: Request[Any], parts: Sequence[Part[list[Any]]]) -> list[Any]:
    return by_number(parts)


_MERGES: dict[type[Request[Any]], Callable[[Any, Sequence[Part[Any]]], Any]] = {
    r.DescribeTopic: _topic,
    r.FindOffsets: _by_number,
    r.FindArchive: _archive,
    r.FindDeliveries: _by_number,
    r.Seek: _nothing,
    r.ReleaseKey: _sum,
    r.ListScheduled: _scheduled,
    r.ListDeadLetters: _letters,
    r.Redrive: _redriven,
    r.Discard: _sum,
    r.GetStateAt: _states,
}
