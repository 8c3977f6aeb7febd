"""`acks` through the native door of a broker on its own: each value, none at all, and some that are not there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.clock import SystemClock
from penstock.errors import InvalidInput, ProtocolError
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.connection import Connection
from penstock.net.remote import RemoteTransport
from penstock.wire import words
from penstock.wire.packets import Kind
from served import Served, serve


def frame(value: bytes) -> Frame:
    return Frame.of_message(Message(value), now_us=1)


def test_each_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        topic = await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        for offset, acks in enumerate(("all", "leader", "none")):
            stored = await transport.publish_frame("t", 0, frame(acks.encode()), acks)
            assert stored.offset == offset
            assert topic.partitions[0].messages.synced_offset == offset + 1
        message = Message(b"one")
        assert (await transport.publish("t", message, None, "leader")).offset == 3
        assert (await transport.publish("t", message, None)).offset == 4
        await transport.close()

    serve(tmp_path, work)


def test_a_client_that_does_not_say_it_is_answered_as_ever(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        connection = await Connection.to(here.place, SystemClock())
        reply = await connection.request(
            Kind.PUBLISH, msgspec.Raw(msgspec.msgpack.encode(["t", 0])), [frame(b"x").data]
        )
        assert words.decoded(reply.header, words.Stored).offset == 0
        await connection.close()

    serve(tmp_path, work)


def test_what_is_none_of_them_is_refused_and_the_connection_stays(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        with pytest.raises(InvalidInput, match="acks is all, leader, none, not 'some'"):
            await transport.publish_frame("t", 0, frame(b"x"), "some")
        with pytest.raises(ProtocolError):
            await transport.publish_frame("t", 0, frame(b"x"), 5)  # type: ignore[arg-type]
        assert (await transport.publish_frame("t", 0, frame(b"x"))).offset == 0
        await transport.close()

    serve(tmp_path, work)
