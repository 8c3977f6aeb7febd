"""Those who work in the shop. Each has a connection and a thread of its own, as a process of its own would have."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from functools import partial
from threading import Condition, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import penstock
from penstock.cli.demo.telling import PATIENCE_S, NotSo

if TYPE_CHECKING:
    from penstock.client.blocking import Received


class Done(NamedTuple):
    """An order that was dealt with, and by whom."""

    worker: str
    id: str
    number: int
    customer: str


class Books:
    """What the workers of a group do with an order, and what they have done, in that order."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.done: list[Done] = []
        self._failures: list[str] = []
        self._changed = Condition()

    def handle(self, worker: str, message: Received) -> None:
        order = json.loads(message.value or b"")
        self.look_at(order)
        with self._changed:
            self.done.append(Done(worker, message.id, order["order"], order["customer"]))
            self._changed.notify_all()

    def look_at(self, order: dict[str, Any]) -> None:
        """Raises an error if there is something wrong with it."""

    def fail(self, worker: str, error: Exception) -> None:
        """That worker can't go on."""
        with self._changed:
            self._failures.append(f"{worker}: {error!r}")
            self._changed.notify_all()

    def until_done(self, ids: set[str]) -> list[Done]:
        """Waits for all of these; what was done of them, in order."""
        with self._changed:
            self._changed.wait_for(lambda: self._failures or not self._missing(ids), PATIENCE_S)
            if self._failures:
                raise NotSo(f"{self.group} goes on working", *self._failures)
            if missing := self._missing(ids):
                raise NotSo(
                    f"within {PATIENCE_S:g} s {self.group} has done {len(ids)} orders", f"not {sorted(missing)}"
                )
            return [each for each in self.done if each.id in ids]

    def _missing(self, ids: set[str]) -> set[str]:
        return ids - {each.id for each in self.done}


class Billing(Books):
    """Writes invoices. Until somebody teaches it, it can't read an amount with a comma."""

    reads_commas = False

    def look_at(self, order: dict[str, Any]) -> None:
        total = order["total"].replace(",", ".") if self.reads_commas else order["total"]
        try:
            Decimal(total)
        except InvalidOperation:
            raise ValueError(f"no amount: {total}") from None


class Worker:
    """A member of a group from the beginning of a `with` to its end."""

    def __init__(self, address: str, books: Books, topic: str, name: str, **settings: Any) -> None:
        self._books = books
        self._q = penstock.connect(address)
        self._consumer = self._q.consumer(books.group, topic, name=name, **settings)
        self._thread = Thread(target=self._work, name=name)

    def __enter__(self) -> Self:
        try:
            self._consumer.join()
        except BaseException:
            self._q.close()
            raise
        self._thread.start()
        return self

    def _work(self) -> None:
        name = self._consumer.name
        try:
            # Acknowledges when the handler returns, tries again later if it raises, until the consumer is closed.
            self._consumer.run(partial(self._books.handle, name), concurrency=4)
        except penstock.PenstockError as error:
            self._books.fail(name, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._consumer.close()
            self._thread.join()
        finally:
            self._q.close()
