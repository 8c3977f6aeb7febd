"""What users and operators do beside the main workload, each on topics and groups of its own, with checks of its own.

An operation is a coroutine. A seed enables some of them; each runs in a process of its own until the faults are healed,
then finishes and reports what is wrong. One that does not finish in time is a violation, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from history.violation import Violation
from simulation.world.faults import Stage
from simulation.world.notes import Notes
from simulation.world.operations import (
    cluster,
    cut_off,
    groups,
    letters,
    looking,
    producers,
    readers,
    schedules,
    topics,
)
from simulation.world.operations.context import Context
from simulation.world.workload import Shape
from simulation.world.world import World

Operation = Callable[[Context], Awaitable[None]]

OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for module in (cluster, cut_off, groups, letters, looking, producers, readers, schedules, topics)
    for each in module.OPERATIONS
}
# Topics of which something is deleted.
DELETED_FROM = "retain", "compact"


class Operations:
    """Between `start` and `end`."""

    def __init__(self, world: World, notes: Notes, names: Iterable[str], shape: Shape) -> None:
        self._contexts = [Context(name, world, notes, shape) for name in names]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def violations(self) -> list[Violation]:
        return [each for context in self._contexts for each in context.violations]

    @property
    def counts(self) -> Counter[str]:
        return Counter(
            {f"{each.name}: {what}": count for each in self._contexts for what, count in each.counts.items()}
        )

    def start(self, stage: Stage) -> None:
        for context in self._contexts:
            context.stage = stage
            self._tasks.append(context.world.start(f"op.{context.name}", _run(context)))

    async def end(self, within_s: float) -> None:
        if not self._tasks:
            return
        for context in self._contexts:
            context.end()
        _, late = await asyncio.wait(self._tasks, timeout=within_s)
        for context, task in zip(self._contexts, self._tasks, strict=True):
            if task in late:
                context.wrong("an operation does not end", context.doing)
                task.cancel()
            elif task.exception() is not None:
                context.wrong("an operation failed", f"{context.doing}: {task.exception()!r}")


async def _run(context: Context) -> None:
    context.client = await context.world.connect()
    try:
        await OPERATIONS[context.name](context)
    finally:
        await context.client.close()
