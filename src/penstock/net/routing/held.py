"""What has come for a consumer, and waits for it to ask. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.client.transport import Delivery

_Lease = tuple[str, int, int]


class Held:
    """Invariant: no node has more than one answer here, in the order in which they came."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[Delivery]] = {}

    def __bool__(self) -> bool:
        return bool(self._answers)

    def has(self, node: str) -> bool:
        return node in self._answers

    def add(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """If there is something of that node here already, behind it."""
        self._answers.setdefault(node, deque()).extend(deliveries)

    def take(self, count: int, bytes_max: int) -> list[Delivery]:
        """About so much. Of what has an order, a lease comes as a whole: whoever gives back one message of it must know
        of all others that come after it."""
        taken: list[Delivery] = []
        while self._answers and count > 0 and bytes_max > 0:
            node = next(iter(self._answers))
            some = self._next(self._answers[node], count)
            if not self._answers[node]:
                del self._answers[node]
            taken += some
            count -= sum(len(one.receipt.offsets) for one in some)
            bytes_max -= sum(len(frame.data) for one in some for frame in one.frames)
        return taken

    def _next(self, answer: deque[Delivery], count: int) -> list[Delivery]:
        first = answer.popleft()
        if first.terms.ordering == "none":
            if len(first.receipt.offsets) > count:
                answer.appendleft(_with(first, slice(count, None)))
                first = _with(first, slice(count))
            return [first]
        some = [first]
        while answer and _lease(answer[0]) == _lease(first):
            some.append(answer.popleft())
        return some

    def drop(self, node: str) -> list[Delivery]:
        """All that is there of that node."""
        return list(self._answers.pop(node, ()))

    def nodes(self) -> list[str]:
        return list(self._answers)


def _lease(delivery: Delivery) -> _Lease:
    return delivery.receipt.topic, delivery.receipt.partition, delivery.receipt.lease


def _with(delivery: Delivery, some: slice) -> Delivery:
    receipt = delivery.receipt._replace(offsets=delivery.receipt.offsets[some])
    return delivery._replace(receipt=receipt)
