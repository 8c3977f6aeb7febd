"""What others do while a reader finds out where to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.requests import FindOffsets
from penstock.testing import VirtualQueue


def after_each_look(
    queue: VirtualQueue, work: Callable[[Client, FindOffsets], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`work` is done after each answer to where something is, before the next question."""
    ask = queue._transport.call

    async def call(request: Any) -> Any:
        answer = await ask(request)
        if isinstance(request, FindOffsets):
            await work(queue._inner, request)
        return answer

    monkeypatch.setattr(queue._transport, "call", call)


def publish_after_the_end_was_seen(queue: VirtualQueue, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(client: Client, request: FindOffsets) -> None:
        if request.at == "latest":
            await client.publish(topic, b"10")

    after_each_look(queue, publish, monkeypatch)
