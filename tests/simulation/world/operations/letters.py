"""Dead letters: redriven and discarded."""

from __future__ import annotations

from collections import Counter
from functools import partial

from penstock.client.requests import DeadLetter
from penstock.errors import PenstockError
from simulation.world.operations.context import Context, Tap, place_of

_LETTERS_MAX = 10_000


async def redrive(context: Context) -> None:
    """Each rejected message is one dead letter; after a redrive it is delivered once more, until it is acknowledged;
    after a discard nothing is left of it."""
    topic, group, rng = "redrive", "mourners", context.rng
    letters = context.client.dead_letters
    await context.create_topic(topic, 2)
    tap = Tap(context, group, topic)
    # Of topics of the same name, which were deleted.
    old: set[str] = set()

    async def listed() -> list[DeadLetter]:
        found: list[DeadLetter] = []

        async def are_all_there() -> bool:
            found[:] = [
                each for each in await letters.list(topic, group=group, limit=_LETTERS_MAX) if each.id not in old
            ]
            return {":".join(map(str, place)) for place in tap.owed} <= {letter.original for letter in found}

        await context.until(f"list the dead letters of {sorted(tap.owed)}", are_all_there)
        return found

    while not context.is_over:
        async with context.producer(topic) as producer:
            await context.send_some(producer, tap)
            await _reject_all(context, tap, old)
            found = await listed()
            _check(context, found, {":".join(map(str, place)) for place in tap.owed})
            redriven = rng.sample(found, rng.randint(0, len(found)))
            if redriven:
                ids = [letter.id for letter in redriven]
                told = await context.surely("redrive", partial(letters.redrive, topic, ids=ids))
                assert told is not None
                # Those that an earlier attempt has redriven are not listed any more.
                if not {*told.in_place, *told.already} <= set(ids) or told.copied or told.refused:
                    context.wrong("a redrive of something else", f"{told} of {ids}")
            again = {letter.original for letter in redriven}
            tap.owed = {place: value for place, value in tap.owed.items() if ":".join(map(str, place)) in again}
            await tap.settle()
            if rng.random() < 0.3:
                old |= {letter.id for letter in found if letter not in redriven}
                await tap.close()
                await context.delete_topic(topic)
                await context.create_topic(topic, rng.randint(1, 2))
                tap = Tap(context, group, topic)
                continue
            await context.surely("discard", partial(letters.discard, topic, group=group))
            left = await context.surely("list", partial(letters.list, topic, group=group))
            old.clear()
            if left:
                context.wrong("dead letters after a discard", f"{[letter.original for letter in left]}")
            await context.pause()
    await tap.close()


async def _reject_all(context: Context, tap: Tap, old: set[str]) -> None:
    rejected = set()
    while tap.owed.keys() - rejected:
        context.doing = f"reject {sorted(tap.owed.keys() - rejected)[:5]}"
        for message in await tap.poll():
            if place_of(message) in rejected:
                context.wrong("delivered again after a rejection that was answered", message.id)
            try:
                await message.reject("regretted")
            except PenstockError as error:
                context.note(f"reject of {message.id}: {error.code}: {error.message}")
                if await _is_dead(context, message.id, old):
                    rejected.add(place_of(message))
            else:
                rejected.add(place_of(message))
        for place in sorted(tap.owed.keys() - rejected):
            if await _is_dead(context, ":".join(map(str, place)), old):
                rejected.add(place)


async def _is_dead(context: Context, id: str, old: set[str]) -> bool:
    try:
        return any(letter.id not in old for letter in await context.client.dead_letters.list("redrive", ids=id))
    except PenstockError:
        return False


def _check(context: Context, found: list[DeadLetter], meant: set[str]) -> None:
    counts = Counter(letter.original for letter in found)
    for original, count in counts.items():
        if count > 1 or original not in meant:
            context.wrong("not exactly one dead letter", f"{count} of {original}")


OPERATIONS = (redrive,)
