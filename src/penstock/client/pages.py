"""Listings, page by page: a broker answers with no more than `PAGE_MAX` items at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

import msgspec

from penstock.client.requests import PAGE_MAX, Listed, Request

R = TypeVar("R")
T = TypeVar("T")


class Calling(Protocol):
    async def call(self, request: Request[R]) -> R: ...


async def page_of(site: Calling, request: Request[list[T] | Listed[T]], after: str, limit: int) -> Listed[T]:
    """Of a broker that is older than pages, everything."""
    reply = await site.call(msgspec.structs.replace(request, after=after, limit=min(limit, PAGE_MAX)))
    return reply if isinstance(reply, Listed) else Listed(reply)


async def pages(
    site: Calling, request: Request[list[T] | Listed[T]], most: int | None = None
) -> AsyncIterator[list[T]]:
    """All there are, or the first `most`."""
    after = ""
    while most is None or most > 0:
        page = await page_of(site, request, after, PAGE_MAX if most is None else most)
        items = page.items if most is None else page.items[:most]
        yield items
        if not page.next:
            return
        after = page.next
        most = None if most is None else most - len(items)


async def listed(site: Calling, request: Request[list[T] | Listed[T]], most: int | None = None) -> list[T]:
    return [item async for some in pages(site, request, most) for item in some]
