"""Requests are sent in the order in which they are made, also if some had to wait for room, or for a connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.clock import SystemClock
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.connection import Connection
from penstock.net.remote import RemoteTransport
from served import Served, serve


def frame(number: int) -> Frame:
    return Frame.of_message(Message(b"%d" % number), now_us=1)


async def stored(here: Served) -> list[bytes | None]:
    async with here.client() as client:
        return [message.value async for message in client.reader("t")]


def test_who_comes_when_there_is_room_again_goes_behind_those_who_waited_for_it(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(here.place, SystemClock())
        connection = transport.session
        assert isinstance(connection, Connection)
        connection.pause_writing()
        early = [asyncio.ensure_future(transport.publish_frame("t", 0, frame(number))) for number in range(3)]
        await asyncio.sleep(0)
        late = [asyncio.ensure_future(transport.publish_frame("t", 0, frame(number))) for number in range(3, 6)]
        # Those who waited are woken behind those who have just come.
        connection.resume_writing()
        await asyncio.gather(*early, *late)
        assert await stored(here) == [b"%d" % number for number in range(6)]
        await transport.close()

    serve(tmp_path, work)


def test_who_comes_when_there_is_a_connection_again_goes_behind_those_who_waited_for_it(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = RemoteTransport(here.place, SystemClock())
        publishing = [asyncio.ensure_future(transport.publish_frame("t", 0, frame(number))) for number in range(3)]
        while transport.session is None:
            await asyncio.sleep(0)
        publishing += [asyncio.ensure_future(transport.publish_frame("t", 0, frame(number))) for number in range(3, 6)]
        await asyncio.gather(*publishing)
        assert await stored(here) == [b"%d" % number for number in range(6)]
        await transport.close()

    serve(tmp_path, work)
