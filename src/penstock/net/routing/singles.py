"""Single messages: each topic has a producer of its own, so that they have an identity and can be sent again."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from functools import partial

from penstock.acks import ALL
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.sender import Way
from penstock.client.transport import Stored, Transport
from penstock.errors import InvalidName, NotFound
from penstock.message import Message

# Nothing is to wait for others, but what comes at the same time goes together.
_AT_ONCE = ProducerOptions(linger="0s")


class Singles:
    """Belongs to one event loop, except for `publish_at_once`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
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
        fresh = Producer(self._transport, topic, options, new_id=partial(secrets.token_bytes, 16))
        await fresh.start()
        return await self._producers.setdefault(name, fresh).stored(message, partition)

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

    async def close(self) -> None:
        for producer in list(self._producers.values()):
            await producer.close()
