"""Pages of listings: bounded in items, in rows and in bytes, and made in slices of the event loop's time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

from penstock.client.requests import PAGE_MAX, Listed
from penstock.errors import InvalidInput, LimitReached
from penstock.limits import MIB
from penstock.local.handlers import Site

T = TypeVar("T")

# Of what the items of a page hold: partitions, members and their assignments.
ROWS_MAX = 20_000
# Of the messages in a page.
BYTES_MAX = 4 * MIB
# What an older client, which knows no pages, gets at once.
UNPAGED_MAX = 1_000
UNPAGED_BYTES_MAX = 32 * MIB


def check_limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidInput(f"limit is 1 to {PAGE_MAX} items of a page, not {limit}", argument="limit")
    return limit


def unpaged_limit(limit: int) -> int:
    """Of a client that knows no pages: one more than it may get, for `check_unpaged` to notice."""
    if limit < 0:
        raise InvalidInput(f"limit is a number of items, not {limit}", argument="limit")
    return min(limit, UNPAGED_MAX + 1)


def names_in(given: tuple[str, ...] | None, known: Collection[str]) -> list[str]:
    """Those that a request names, or all that there are, in order."""
    if given is None:
        return sorted(known)
    if len(given) > UNPAGED_MAX:
        raise InvalidInput(f"names are {UNPAGED_MAX} at most, not {len(given)}", argument="names")
    return sorted(given)


def check_unpaged(what: str, count: int) -> None:
    if count > UNPAGED_MAX:
        raise LimitReached(
            f"there are more than {UNPAGED_MAX} {what}, and this client lists them without pages: update the client, "
            "or say `after` and `limit`",
            limit="unpaged_max",
            maximum=UNPAGED_MAX,
        )


def check_unpaged_bytes(what: str, size: int) -> None:
    if size > UNPAGED_BYTES_MAX:
        raise LimitReached(
            f"these {what} have more than {UNPAGED_BYTES_MAX} bytes, and this client lists them without pages: update "
            "the client, or list fewer at once",
            limit="unpaged_bytes_max",
            maximum=UNPAGED_BYTES_MAX,
        )


async def named_page(
    site: Site,
    what: str,
    names: Sequence[str],
    after: str | None,
    limit: int,
    make: Callable[[str], T | None],
    rows_of: Callable[[T], int],
) -> list[T] | Listed[T]:
    """Of these names, which are in order, those behind `after`. `make` returns None for one that is gone."""
    if after is None:
        check_unpaged(what, len(names))
        return await site.broker.walk(make(name) for name in names)
    check_limit(limit)
    left = names[bisect_right(names, after) :]
    last = ""

    def items() -> Iterator[T | None]:
        nonlocal last
        rows = 0
        for name in left[:limit]:
            item = make(name)
            last = name
            yield item
            rows += 0 if item is None else rows_of(item)
            if rows >= ROWS_MAX:
                return

    found = await site.broker.walk(items())
    return Listed(found, last if left and last != left[-1] else "")


def smallest(rows: Iterator[T | None], limit: int, key: Callable[[T], Any]) -> Iterator[list[T] | None]:
    """For a scan or a walk: the first `limit` of the rows by their keys, in one list behind a None for each row. More
    are held for a while: rows have no messages."""
    found: list[T] = []
    for row in rows:
        if row is not None:
            found.append(row)
        if len(found) > 2 * limit + 1_000:
            found = nsmallest(limit, found, key=key)
        yield None
    yield nsmallest(limit, found, key=key)


def page_of(items: Sequence[T], limit: int, next_of: Callable[[T], str], size_of: Callable[[T], int]) -> Listed[T]:
    """Of items that were cut off behind the first `limit`: those that fit in `BYTES_MAX`, and one at least."""
    taken, size = 0, 0
    for item in items[:limit]:
        size += size_of(item)
        if taken and size > BYTES_MAX:
            break
        taken += 1
    is_last = taken == len(items) < limit
    return Listed(list(items[:taken]), "" if is_last or not taken else next_of(items[taken - 1]))


def place_in(after: str) -> tuple[str, int, int]:
    """What `place_text` has written."""
    first, *numbers = after.rsplit(":", 2)
    if len(numbers) < 2 or not all(one.isascii() and one.isdigit() and len(one) < 20 for one in numbers):
        raise _not_a_place(after)
    return first, int(numbers[0]), int(numbers[1])


def time_in(after: str) -> tuple[int, int, int]:
    """The same, if the first is a time."""
    first, partition, offset = place_in(after)
    if not (first.isascii() and first.isdigit() and len(first) < 20):
        raise _not_a_place(after)
    return int(first), partition, offset


def place_text(first: str | int, partition: int, offset: int) -> str:
    return f"{first}:{partition}:{offset}"


def _not_a_place(after: str) -> InvalidInput:
    return InvalidInput(f"after is the `next` of the page before, not {after[:50]!r}", argument="after")
