"""The short way for threads that publish one message at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import trustme

import penstock
from broker_process import broker_process
from penstock.client.requests import CreateTopic
from penstock.client.transport import Stored
from penstock.clock import SystemClock
from penstock.errors import PartitionNotFound, TopicNotFound
from penstock.frame import Frame, Producer
from penstock.limits import DEFAULT_LIMITS
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.express import OFTEN_S, REST_S, Express
from penstock.server.gate import Gate
from penstock.server.native import NativeDoor
from penstock.server.tls import Tls
from served import Served, serve


class Watch:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Sent:
    """Messages of one producer, each with the next sequence."""

    def __init__(self, express: Express) -> None:
        self._express = express
        self._sequence = 0

    async def next(self, value: bytes = b"x") -> Stored | None:
        frame = Frame.of_message(
            Message(value), now_us=1, producer=Producer(7, 0, self._sequence), limits=DEFAULT_LIMITS
        )
        stored = await asyncio.to_thread(self._express.publish_frame, "orders", 0, frame)
        self._sequence += stored is not None
        return stored


def tried(tmp_path: Path, work: Callable[[Served, Express, Watch, Sent], Any]) -> None:
    async def run(here: Served) -> None:
        await here.site.call(CreateTopic("orders", 1, {}))
        watch = Watch()
        express = Express(here.place, SystemClock(), now_s=watch)
        await work(here, express, watch, Sent(express))
        express.close()

    serve(tmp_path, run)


def test_it_is_opened_for_the_second_message_and_not_for_those_that_come_now_and_then(tmp_path: Path) -> None:
    async def work(here: Served, express: Express, watch: Watch, sent: Sent) -> None:
        assert await sent.next() is None
        watch.now_s += 2 * OFTEN_S
        assert await sent.next() is None
        assert not express.is_open
        for offset in range(3):
            stored = await sent.next()
            assert stored is not None
            assert (stored.partition, stored.offset, stored.partitions) == (0, offset, 1)

    tried(tmp_path, work)


def test_it_is_closed_when_it_rests_and_opened_again(tmp_path: Path) -> None:
    async def work(here: Served, express: Express, watch: Watch, sent: Sent) -> None:
        await sent.next()
        assert await sent.next() is not None
        express.rest()
        assert express.is_open
        watch.now_s += REST_S + 1
        # Nobody may have told it to rest; the broker may have hung up by now.
        assert await sent.next() is None
        assert await sent.next() is not None
        watch.now_s += REST_S + 1
        express.rest()
        assert not express.is_open
        await sent.next()
        assert await sent.next() is not None
        express.close()
        assert not express.is_open
        assert await sent.next() is None

    tried(tmp_path, work)


def test_a_broker_that_is_not_there_is_not_asked_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        place = Place("127.0.0.1", nobody.getsockname()[1])
    watch = Watch()
    express = Express(place, SystemClock(), now_s=watch)
    frame = Frame.of_message(Message(b"x"), now_us=1, producer=Producer(7, 0, 0), limits=DEFAULT_LIMITS)
    assert express.publish_frame("orders", 0, frame) is None
    assert express.publish_frame("orders", 0, frame) is None
    with socket.create_server(("127.0.0.1", place.port)) as somebody:
        somebody.setblocking(False)
        assert express.publish_frame("orders", 0, frame) is None
        with pytest.raises(BlockingIOError):
            somebody.accept()


def test_with_tls_too(tmp_path: Path) -> None:
    authority = trustme.CA()
    file = tmp_path / "server.pem"
    file.write_bytes(authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())

    async def work(here: Served, express: Express, watch: Watch, sent: Sent) -> None:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        door = NativeDoor(here.site, Gate(here.site, None))
        port = await door.open("127.0.0.1", 0, Tls(str(file), None).context)
        secret = Express(Place("127.0.0.1", port, tls=context), SystemClock(), now_s=watch)
        through = Sent(secret)
        await through.next()
        stored = await through.next()
        assert stored is not None
        assert stored.offset == 0
        secret.close()
        while door.counts.connections["native"]:
            await asyncio.sleep(0)
        await door.close()

    tried(tmp_path / "data", work)


def test_what_the_broker_refuses_is_raised_and_the_connection_stays(tmp_path: Path) -> None:
    async def work(here: Served, express: Express, watch: Watch, sent: Sent) -> None:
        await sent.next()
        await sent.next()
        frame = Frame.of_message(Message(b"x"), now_us=1, producer=Producer(8, 0, 0), limits=DEFAULT_LIMITS)
        with pytest.raises(PartitionNotFound):
            await asyncio.to_thread(express.publish_frame, "orders", 5, frame)
        assert express.is_open
        assert await sent.next() is not None

    tried(tmp_path, work)


def test_a_client_publishes_on_it_in_order_through_everything(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker, penstock.connect(broker.address) as q:
        q.create_topic("orders", partitions=1)
        ids = [q.publish("orders", f"{number}").id for number in range(5)]
        broker.kill()
        broker.start()
        ids += [q.publish("orders", f"{number}").id for number in range(5, 10)]
        assert ids == [f"orders:0:{number}" for number in range(10)]
        q.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            q.publish("orders", "nobody")
        q.create_topic("orders", partitions=2)
        assert q.publish("orders", "again", partition=1).id == "orders:1:0"
        with pytest.raises(PartitionNotFound):
            q.publish("orders", "nowhere", partition=2)
        q.publish("orders", "again", partition=0)
        q.change_topic("orders", partitions=3)
        assert q.publish("orders", "now there", partition=2).id == "orders:2:0"


def test_threads_that_publish_at_the_same_time_do_not_hear_of_each_other(tmp_path: Path) -> None:
    heard: dict[str, str] = {}
    with broker_process(tmp_path) as broker, penstock.connect(broker.address) as q:
        q.create_topic("orders", partitions=3)
        start = Barrier(4)

        def publish(thread: int) -> None:
            start.wait()
            for number in range(50):
                told = f"{thread}-{number}"
                heard[q.publish("orders", told, key=f"k{thread}").id] = told

        threads = [Thread(target=publish, args=[thread]) for thread in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        stored = {message.id: (message.value or b"").decode() for message in q.reader("orders")}
    assert stored == heard
    assert len(heard) == 200
