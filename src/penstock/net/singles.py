"""Single messages: each topic has a producer of its own, so that they have an identity and can be sent again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

from penstock.acks import ALL
from penstock.client.closing import CLOSE_S, all_done
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.sender import Way
from penstock.client.transport import Stored, Transport
from penstock.errors import InvalidName, NotFound
from penstock.message import Message

# Nothing is to wait for others, but what comes at the same time goes together.
_AT_ONCE = ProducerOptions(linger="0s")
# Topics come and go, and a client lives long: one that publishes to more of them at a time asks about some again.
_PRODUCERS_MAX = 1_000


class Singles:
    """Belongs to one event loop, except for `publish_at_once`."""

    def __init__(self, transport: Transport, new_id: Callable[[], bytes]) -> None:
        self._transport = transport
        self._new_id = new_id
        # By topic, and by how far they are to be stored, if that is not everywhere.
        self._producers: dict[str | tuple[str, str], Producer] = {}

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        if not isinstance(topic, str):
            raise InvalidName(f"a topic name must be text, not {type(topic).__name__}", kind="topic")
        name = topic if acks == ALL else (topic, acks)
        known = self._producers.get(name)
        if known is not None:
            try:
                return await known.stored(message, partition)
            except NotFound:
                # It may have more partitions by now, or have been deleted and made again: asked for anew.
                self._producers.pop(name, None)
        options = _AT_ONCE._replace(acks=acks)
        fresh = Producer(self._transport, topic, options, new_id=self._new_id)
        await fresh.start()
        if len(self._producers) >= _PRODUCERS_MAX:
            self._forget_one()
        return await self._producers.setdefault(name, fresh).stored(message, partition)

    def _forget_one(self) -> None:
        """The oldest that has nothing under way: what comes next must not overtake that."""
        idle = next((name for name, producer in self._producers.items() if producer.is_idle), None)
        if idle is not None:
            del self._producers[idle]

    def publish_at_once(
        self, topic: str, message: Message, partition: int | None, way: Way
    ) -> Stored | Future[Stored] | None:
        """On the thread that waits for it, or by the loop if it had to take over. None: not at all.

        Only for a topic that was published to before, without it.
        """
        producer = self._producers.get(topic) if isinstance(topic, str) else None
        if producer is None:
            return None
        try:
            return producer.stored_at_once(message, partition, way)
        except NotFound:
            # What is known of the topic may be old. The long way finds out.
            return None

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        timeout = timedelta(seconds=timeout_s)
        await all_done(*[producer.close(timeout) for producer in list(self._producers.values())])
