"""Many replies to one. Each part is the numbers of the partitions that were asked for, and the reply about them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
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


def merged_page(
    pages: Sequence[list[T] | r.Listed[T]],
    limit: int,
    key: Callable[[T], Any],
    next_of: Callable[[T], str],
    *,
    is_paged: bool,
) -> list[T] | r.Listed[T]:
    """Of pages of the same listing, each of another node: what all of them have told by then, in order.

    Behind the last item of a page that has a next one, its node may have others; so the page ends there.
    """
    ends = [key(page.items[-1]) for page in pages if isinstance(page, r.Listed) and page.next]
    items = sorted((one for page in pages for one in items_of(page)), key=key)
    if ends:
        items = items[: bisect_right(items, min(ends), key=key)]
    if not is_paged:
        return items[:limit]
    has_more = bool(ends) or len(items) > limit
    items = items[:limit]
    return r.Listed(items, next_of(items[-1]) if has_more else "")


def page_of_names(
    names: Sequence[str], request: r.ListTopics | r.ListGroups, nexts: Sequence[str]
) -> tuple[list[str], str]:
    """Of names in order that nodes told of, those of the page, and the `next` of the page.

    `nexts` are those of the nodes' pages. Behind the first of them, its node has not told of anything yet.
    """
    # Names that are asked for are all meant.
    after = (request.after or "") if request.names is None else ""
    end = min((one for one in nexts if one), default=None)
    left = [name for name in names if name > after and (end is None or name <= end)]
    some = left[: request.limit]
    return some, some[-1] if len(some) < len(left) else end or ""


def items_of(page: list[T] | r.Listed[T]) -> list[T]:
    """A node that is older than pages answers with a list."""
    return page.items if isinstance(page, r.Listed) else page


def _scheduled(
    request: r.ListScheduled, parts: Sequence[Part[list[r.Scheduled] | r.Listed[r.Scheduled]]]
) -> list[r.Scheduled] | r.Listed[r.Scheduled]:
    def due(one: r.Scheduled) -> tuple[int, int, int]:
        return one.deliver_at, *_place(one.id)

    def next_of(one: r.Scheduled) -> str:
        return ":".join(map(str, due(one)))

    pages = [page for _, page in parts]
    return merged_page(pages, request.limit, due, next_of, is_paged=request.after is not None)


def _letters(
    request: r.ListDeadLetters, parts: Sequence[Part[list[r.DeadLetter] | r.Listed[r.DeadLetter]]]
) -> list[r.DeadLetter] | r.Listed[r.DeadLetter]:
    pages = [page for _, page in parts]
    return merged_page(
        pages,
        request.limit,
        lambda letter: _place(letter.id),
        lambda letter: letter.id,
        is_paged=request.after is not None,
    )


def _place(identity: str) -> tuple[int, int]:
    _, partition, offset = identity.split(":")
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
