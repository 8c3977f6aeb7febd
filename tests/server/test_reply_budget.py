"""Bytes of replies are reserved before a reply is prepared: without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.limits import MIB
from penstock.server.reply_budget import PATIENCE_S, UNSENT_BYTES_MAX, ReplyAccount, ReplyBudget, Reservation


class Client:
    """A connection whose client takes what the test says."""

    def __init__(self, budget: ReplyBudget) -> None:
        self.unsent = 0
        self.evicted: list[str] = []
        self.account = ReplyAccount(budget, self, 16 * MIB, lambda: self.unsent)

    def evict(self, reason: str) -> None:
        self.evicted.append(reason)
        self.account.close()

    def begin(self, size: int) -> tuple[Reservation, asyncio.Task[None]]:
        reservation = self.account.reservation()
        return reservation, asyncio.ensure_future(reservation.reserve(size))

    def send(self, reservation: Reservation, size: int) -> None:
        self.unsent += size
        reservation.release()

    def take(self, size: int) -> None:
        self.unsent -= size
        self.account.refresh()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def granted(begun: list[tuple[Reservation, asyncio.Task[None]]]) -> list[bool]:
    return [task.done() for _, task in begun]


def test_replies_of_one_connection_wait_until_it_has_sent_others() -> None:
    async def work() -> None:
        budget = ReplyBudget()
        client = Client(budget)
        begun = [client.begin(7 * MIB) for _ in range(4)]
        await turns()
        assert granted(begun) == [True, True, False, False]
        client.send(begun[0][0], 7 * MIB)
        await turns()
        assert granted(begun) == [True, True, False, False], "sent to nobody yet"
        client.take(7 * MIB)
        await turns()
        assert granted(begun) == [True, True, True, False]
        begun[1][0].release()
        await turns()
        assert granted(begun) == [True] * 4
        assert budget.size == 14 * MIB
        for reservation, _ in begun:
            reservation.release()
        assert budget.size == 0

    run(work)


def test_a_reply_that_is_larger_than_both_budgets_goes_out_alone() -> None:
    async def work() -> None:
        client = Client(ReplyBudget(bytes_max=8 * MIB))
        client.unsent = UNSENT_BYTES_MAX // 2
        begun = [client.begin(32 * MIB), client.begin(1)]
        await turns()
        assert granted(begun) == [False, False]
        client.take(UNSENT_BYTES_MAX // 2)
        await turns()
        assert granted(begun) == [True, False]
        begun[0][0].release()
        await turns()
        assert granted(begun) == [True, True]

    run(work)


def test_connections_of_a_principal_share_its_budget_and_take_turns() -> None:
    async def work() -> None:
        budget = ReplyBudget(bytes_max=8 * MIB)
        greedy, other, elsewhere = Client(budget), Client(budget), Client(ReplyBudget(bytes_max=8 * MIB))
        first, *rest = [greedy.begin(8 * MIB) for _ in range(3)]
        of_other, of_another = other.begin(8 * MIB), elsewhere.begin(8 * MIB)
        await turns()
        assert granted([first, *rest, of_other, of_another]) == [True, False, False, False, True]
        first[0].release()
        await turns()
        rest[0][0].release()
        await turns()
        assert granted([*rest, of_other]) == [True, False, True]

    run(work)


def test_a_reply_that_is_given_up_holds_nothing_and_nobody_up() -> None:
    async def work() -> None:
        budget = ReplyBudget(bytes_max=8 * MIB)
        client, other = Client(budget), Client(budget)
        begun = [client.begin(8 * MIB) for _ in range(3)]
        of_other = other.begin(8 * MIB)
        await turns()
        begun[1][1].cancel()
        # Granted and cancelled in the same turn of the loop.
        begun[0][0].release()
        begun[2][1].cancel()
        of_other[1].cancel()
        await turns()
        assert (budget.size, len(budget.waiting)) == (0, 0)
        client.account.close()
        other.account.close()
        assert budget.is_idle

    run(work)


def test_a_connection_that_is_lost_frees_its_bytes_and_cancels_its_replies() -> None:
    async def work() -> None:
        budget = ReplyBudget(bytes_max=8 * MIB)
        client, other = Client(budget), Client(budget)
        begun, of_other = [client.begin(8 * MIB) for _ in range(2)], other.begin(8 * MIB)
        await turns()
        client.account.close()
        await turns()
        assert begun[1][1].cancelled()
        assert of_other[1].done()
        begun[0][0].release()
        late, task = client.begin(8 * MIB)
        await task
        late.release()
        assert budget.size == 8 * MIB

    run(work)


def test_clients_that_take_nothing_are_closed_only_while_others_wait() -> None:
    async def work() -> None:
        clock = Clock()
        budget = ReplyBudget(bytes_max=8 * MIB, now=clock)
        stuck, quick, waiting = Client(budget), Client(budget), Client(budget)
        for client in (stuck, quick):
            reservation, task = client.begin(4 * MIB)
            await task
            client.send(reservation, 4 * MIB)
        for _ in range(3):
            clock.now += PATIENCE_S
            budget.check()
        _, task = waiting.begin(2 * MIB)
        await turns()
        assert not stuck.evicted
        assert not task.done()
        budget.check()
        clock.now += PATIENCE_S
        quick.unsent -= MIB // 2
        budget.check()
        await turns()
        assert stuck.evicted
        assert not quick.evicted
        assert task.done()

    run(work)


def test_a_cancelled_reply_gives_its_place_to_those_behind_it() -> None:
    async def work() -> None:
        budget = ReplyBudget(64 * MIB)
        clients = [Client(budget) for _ in range(6)]
        for client in clients[:4]:
            await client.account.reserve(15 * MIB)
        _, first = clients[4].begin(8 * MIB)
        _, second = clients[5].begin(1 * MIB)
        await asyncio.sleep(0)
        assert not second.done()
        first.cancel()
        await second

    run(work)
