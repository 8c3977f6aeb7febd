"""Two thousand connections that want nothing good, at a real server: it stays small, and serves others as before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from penstock.aio import connect
from penstock.limits import KIB, MIB
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import PREFIX_BYTES, Kind
from security.serving import serving

# Fewer strangers than a door has room for; others are refused right away.
SILENT, SLOW_HEADS, IDLE, SLOW_CONSUMERS = 400, 400, 1_180, 20
VALUE = 100 * KIB
STORED = 200
# What may wait to be sent to somebody who does not read, and a delivery more.
HELD_MAX = 12 * MIB
CONNECTION_MAX = 64 * KIB


def _used(pid: int) -> int:
    """Bytes in memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("the server is gone")


async def _opened(stack: AsyncExitStack, port: int, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=KIB)
    stack.callback(writer.close)
    writer.write(first)
    return reader, writer


async def _latencies(q: Any) -> list[float]:
    spent = []
    for _ in range(200):
        began = perf_counter()
        await q.publish("others", b"x")
        spent.append(perf_counter() - began)
    return sorted(spent)


async def _crowd(native: int, http: int, stack: AsyncExitStack) -> None:
    hello = ClientEnd().hello("crowd", None)
    for _ in range(SILENT):
        await _opened(stack, native, b"")
    for number in range(SLOW_HEADS):
        await _opened(stack, http, b"POST /v1/topics/t/publish HTTP/1.1\r\nHost: x\r\nX-%d: " % number)
    for _ in range(IDLE):
        reader, _ = await _opened(stack, native, hello)
        prefix = await reader.readexactly(PREFIX_BYTES)
        assert prefix[2] == Kind.WELCOME
    for number in range(SLOW_CONSUMERS):
        group = f"slow-{number}"
        asked = ClientEnd()
        join = asked.request(Kind.JOIN, words.Join(group, "c", ("large",), {}))[1]
        subscribe = asked.request(Kind.SUBSCRIBE, words.Subscribe(group, "c", ("large",), 10_000, 1 << 30))[1]
        await _opened(stack, native, hello + join + subscribe)


async def _run(address: str, native: int, http: int, pid: int) -> None:
    async with await connect(address) as q, AsyncExitStack() as stack:
        await q.create_topic("others", 1)
        await q.create_topic("large", 1)
        for _ in range(STORED):
            await q.publish("large", bytes(VALUE))
        before, alone = _used(pid), await _latencies(q)
        await _crowd(native, http, stack)
        while len([group for group in await q.groups() if group.members]) < SLOW_CONSUMERS:
            pass
        crowded = await _latencies(q)
        grown = _used(pid) - before
        print(f"{grown / MIB:.0f} MiB more; p99 {alone[-2] * 1e3:.1f} ms, then {crowded[-2] * 1e3:.1f} ms")
        total = SILENT + SLOW_HEADS + IDLE + SLOW_CONSUMERS
        assert grown < total * CONNECTION_MAX + SLOW_CONSUMERS * HELD_MAX
        # The machine has other things to do as well, and so has its disk.
        assert crowded[len(crowded) // 2] <= 2 * alone[len(alone) // 2] + 0.2
        assert crowded[-2] <= 2 * alone[-2] + 10.0
        assert len([message async for message in q.reader("others")]) == 2 * len(alone)


def test_a_crowd_costs_little_and_others_do_not_notice(tmp_path: Path) -> None:
    with serving(tmp_path / "data", doors=("native", "http")) as server:
        ports = [int(place.rpartition(":")[2]) for place in (server.native, server.http)]
        asyncio.run(_run(f"penstock://{server.native}", *ports, server.process.pid))
