"""The shop: what it sells to whom, who works there, and how far they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count, cycle, islice
from typing import TYPE_CHECKING, Any

from penstock.cli.demo.server import Server
from penstock.cli.demo.telling import Telling, until
from penstock.cli.demo.workers import Billing, Books, Done, Worker
from penstock.cli.output import Column

if TYPE_CHECKING:
    from penstock.client.blocking import Client

CUSTOMERS = ("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
# Of one customer, one order after the other; each is tried three times, 200 and 400 ms apart.
BILLING: dict[str, Any] = {
    "ordering": "key",
    "max_retries": 2,
    "backoff": {"initial": "200ms", "jitter": 0},
}
# How long a message is away that was on its way to a worker when the broker was killed.
VISIBILITY = "5s"


class Shop:
    """What the chapters work with."""

    def __init__(self, telling: Telling, server: Server, q: Client) -> None:
        self.tell = telling
        self.server = server
        self.q = q
        self.billing = Billing("billing")
        self.analytics = Books("analytics")
        self.stock = Books("stock")
        self._numbers = count(1)
        self._customers = cycle(CUSTOMERS)

    # --- orders ------------------------------------------------------------------------------------------

    def publish_orders(self, orders: int) -> set[str]:
        """Of all customers in turn; the ids of the messages, which are on disk then."""
        with self.q.producer("orders") as producer:
            sent = [producer.send(value, key=key) for key, value in self.orders(orders)]
        return {each.result().id for each in sent}

    def orders(self, orders: int) -> Iterable[tuple[str, str]]:
        """Keys and values."""
        return ((customer, self.order(customer)) for customer in islice(self._customers, orders))

    def order(self, customer: str, total: str = "12.50") -> str:
        return json.dumps({"order": next(self._numbers), "customer": customer, "total": total})

    # --- workers -----------------------------------------------------------------------------------------

    def billing_worker(self, name: str) -> Worker:
        return Worker(self.server.address, self.billing, "orders", name, visibility=VISIBILITY, **BILLING)

    def analytics_worker(self) -> Worker:
        return Worker(self.server.address, self.analytics, "orders", "ada", visibility=VISIBILITY)

    def stock_worker(self) -> Worker:
        return Worker(self.server.address, self.stock, "cancellations", "sam", visibility=VISIBILITY)

    def partitions(self, group: str) -> dict[str, set[int]]:
        """By worker."""
        members = self.q.group(group).members
        return {name: {number for _, number in owned} for name, owned in sorted(members.items())}

    # --- how far they are --------------------------------------------------------------------------------

    def to_do(self, group: str) -> int:
        return sum(map(sum, self.q.lag(group).values()))

    def all_done(self, books: Books, ids: set[str]) -> list[Done]:
        """Waits until the group has done these, and until the broker knows that nothing is left to do."""
        done = books.until_done(ids)
        until(lambda: self.to_do(books.group), lambda to_do: to_do == 0, f"{books.group} has nothing left to do")
        return done

    def show_groups(self) -> None:
        rows = [
            (group.name, sum(map(sum, group.lag.values())), ", ".join(sorted(group.members)) or "-")
            for group in self.q.groups()
        ]
        self.tell.table(["group", Column("to do", is_number=True), "workers"], rows)
