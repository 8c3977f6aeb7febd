"""The native protocol on a real port: the same client as in the same process, and what a connection adds to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.client import requests
from penstock.client.answers import Ack, Answer
from penstock.client.transport import Receipt
from penstock.clock import Instant, SystemClock
from penstock.errors import (
    ConnectionLost,
    InternalError,
    InvalidFrame,
    InvalidInput,
    LeaseNotFound,
    MemberNotFound,
    NotLeader,
    NotLeased,
    PartitionNotFound,
    PenstockError,
    ProtocolError,
    SettingsConflict,
    TopicNotFound,
)
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.net.connection import Connection
from penstock.net.remote import RemoteTransport, deliveries_in
from penstock.server.session import _ACTIONS, Session
from penstock.wire import conversation, words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Decoder, Kind, Packet
from served import Served, serve


def test_publish_consume_and_look_at_it_over_a_connection(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("orders", partitions=2)
            sent = await q.publish("orders", b"one", key="k", headers={"a": b"b"})
            async with q.consumer("g", "orders", until_idle="100ms") as consumer:
                message = await consumer.next()
                assert message is not None
                assert (message.value, message.key, message.id) == (b"one", b"k", sent.id)
                assert message.headers == (("a", b"b"),)
                await message.ack()
                with pytest.raises(NotLeased):
                    await message.ack()
            assert [step.what for step in (await q.trace(sent.id)).steps][:3] == [
                "PUBLISHED",
                "DELIVERED",
                "ACKNOWLEDGED",
            ]
            assert (await q.why(sent.id, "g")).code == "acknowledged"
            assert [message.value async for message in q.reader("orders")] == [b"one"]

    serve(tmp_path, work)


def test_errors_arrive_as_what_they_were(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            with pytest.raises(TopicNotFound, match="nowhere"):
                await q.publish("nowhere", b"x")
            await q.create_topic("t")
            await q.create_group("g", ordering="key")
            with pytest.raises(SettingsConflict):
                await q.consumer("g", "t", ordering="none").join()
            transport = await RemoteTransport.to(here.place, SystemClock())
            with pytest.raises(MemberNotFound):
                await transport.poll("g", "nobody", ["t"], count=1, bytes_max=1, wait_us=0)
            await transport.join("g", "c", ["t"], {})
            with pytest.raises(LeaseNotFound):
                await transport.answer("g", Receipt("t", 0, 99, BitMap64([1])), Ack())
            with pytest.raises(InvalidFrame):
                await transport.publish_frame("t", 0, Frame(memoryview(b"not a frame at all")))
            await transport.close()

    serve(tmp_path, work)


@pytest.mark.parametrize("is_older", [False, True])
def test_leases_are_acknowledged_together_or_one_by_one_if_the_broker_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    if is_older:
        monkeypatch.setattr(conversation, "ACK_LEASES", "nobody_knows_what")
        monkeypatch.delitem(_ACTIONS, Kind.ACKS)

    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            for number in range(5):
                await q.publish("t", b"%d" % number)
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            given = []
            for _ in range(5):
                (one,) = await transport.poll("g", "c", ["t"], count=1, bytes_max=1_000, wait_us=0)
                given.append((one.receipt.lease, one.receipt.offsets))
            await transport.answer("g", Receipt("t", 0, *given[3]), Ack())

            found = await transport.ack_all("g", "t", 0, given)

            assert [None if error is None else error.code for error in found] == [None] * 3 + ["lease_not_found", None]
            assert await q.lag("g") == {"t": [0]}
            assert await transport.ack_all("g", "t", 0, given, again=True) == [None] * 5
            await transport.close()

    serve(tmp_path, work)


def test_acknowledgements_that_an_older_broker_has_only_heard_in_part_are_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "ACK_LEASES", "nobody_knows_what")

    async def work(here: Served) -> None:
        transport = await RemoteTransport.to(here.place, SystemClock())
        failures: list[PenstockError | None] = [NotLeader("moved"), None, LeaseNotFound("over")]

        async def answer(group: str, receipt: Receipt, answer: Answer) -> None:
            failure = failures[receipt.lease]
            if failure is not None:
                raise failure

        monkeypatch.setattr(transport, "answer", answer)
        given = [(number, BitMap64([number])) for number in range(3)]
        with pytest.raises(ConnectionLost, match="moved"):
            await transport.ack_all("g", "t", 0, given)
        with pytest.raises(NotLeader):
            await transport.ack_all("g", "t", 0, given[:1])
        failures[1] = ConnectionLost("gone")
        with pytest.raises(ConnectionLost, match="not all of them"):
            await transport.ack_all("g", "t", 0, given[:2])
        await transport.close()

    serve(tmp_path, work)


def test_what_is_wrong_with_acknowledgements_as_a_whole_is_told_and_none_is_carried_out(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            await q.publish("t", b"x")
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            (one,) = await transport.poll("g", "c", ["t"], count=1, bytes_max=1_000, wait_us=0)
            mine = (one.receipt.lease, one.receipt.offsets)
            with pytest.raises(InvalidInput, match="twice"):
                await transport.ack_all("g", "t", 0, [mine, mine])
            with pytest.raises(PartitionNotFound):
                await transport.ack_all("g", "t", 1, [mine])
            connection = await Connection.to(here.place, SystemClock())
            too_many = [(1, [0, 600_000]), (2, [600_000, 600_000])]
            for leases in ([], [(number, [0, 1]) for number in range(1_001)], [(1, [0])], too_many):
                with pytest.raises(ProtocolError):
                    await connection.request(Kind.ACKS, words.Acked("g", "t", 0, leases))
            await connection.close()
            assert await q.lag("g") == {"t": [1]}
            await transport.close()

    serve(tmp_path, work)


def test_frames_that_are_sent_at_once_are_stored_in_their_order(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            frames = [
                Frame.of(Batch.from_columns([b"%d" % number], now_us=1), producer=Producer(7, 0, number))
                for number in range(200)
            ]
            stored = await asyncio.gather(*[transport.publish_frame("t", 0, frame) for frame in frames])
            assert [one.offset for one in stored] == list(range(200))
            # Sent again, as after a lost connection: recognised.
            assert (await transport.publish_frame("t", 0, frames[-1])).offset == 199
            assert len([message async for message in q.reader("t")]) == 200
            await transport.close()

    serve(tmp_path, work)


def test_of_a_frame_only_what_is_wanted_is_sent(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            values = [b"%04d" % number + bytes(996) for number in range(1_000)]
            await transport.publish_frame("t", 0, Frame.of(Batch.from_columns(values, now_us=1)))
            await transport.join("g", "c", ["t"], {})
            connection = await transport._link.connect()
            seen: list[bytes] = []
            for count in (3, 300, 697):
                word = words.Poll("g", "c", ("t",), count, 8_000_000, 0)
                reply = await connection.request(Kind.POLL, word)
                assert count * 1_000 < len(reply.payload) < count * 1_000 + 20_000
                (delivery,) = deliveries_in(reply, 0, Instant(0, 0))
                for frame in delivery.frames:
                    batch = frame.batch()
                    assert frame.offsets(batch).tolist() == list(range(len(seen), len(seen) + count))
                    seen += [bytes(value) for value in batch.values()]
            assert seen == values
            await transport.close()

    serve(tmp_path, work)


def test_scattered_messages_come_without_those_between_them(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            values = [b"%04d" % number + bytes(996) for number in range(1_000)]
            priorities = [int(number % 100 == 7) for number in range(1_000)]
            frame = Frame.of(Batch.from_columns(values, priorities=priorities, now_us=1))
            await transport.publish_frame("t", 0, frame)
            await transport.join("g", "c", ["t"], {})
            (delivery,) = await transport.poll("g", "c", ["t"], count=10, bytes_max=8_000_000, wait_us=0)
            assert sum(len(frame.data) for frame in delivery.frames) < 20_000
            (frame,) = delivery.frames
            assert frame.offsets(frame.batch()).tolist() == list(range(7, 1_000, 100))
            await transport.close()

    serve(tmp_path, work)


def test_a_poll_that_is_given_up_has_leased_nothing(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            kept = 0
            for number in range(40):
                polling = asyncio.ensure_future(
                    transport.poll("g", "c", ["t"], count=1, bytes_max=1_000, wait_us=30_000_000)
                )
                # Wherever it is: not sent yet, on its way, or answered.
                for _ in range(number % 11):
                    await asyncio.sleep(0)
                polling.cancel()
                (polled, _) = await asyncio.gather(polling, q.publish("t", b"x"), return_exceptions=True)
                kept += isinstance(polled, list)
            assert kept < 20
            state = here.site.broker.topic("t").partitions[0].groups.state("g")
            while state.in_flight > kept:
                # Given back by the client, when it came too late.
                await asyncio.sleep(0)
            found = 0
            while deliveries := await transport.poll("g", "c", ["t"], count=100, bytes_max=100_000, wait_us=0):
                assert not any(delivery.attempts for delivery in deliveries)
                found += sum(len(delivery.receipt.offsets) for delivery in deliveries)
            assert found == 40 - kept
            await transport.close()

    serve(tmp_path, work)


def test_messages_are_pushed_as_far_as_there_is_credit(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            await q.create_group("g")
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            connection = await transport._link.connect()
            came: asyncio.Queue[Packet | None] = asyncio.Queue()
            word = words.Subscribe("g", "c", ("t",), 3, 1_000_000)
            correlation = connection.subscribe(word, came.put_nowait)
            for number in range(10):
                await q.publish("t", b"%d" % number)
            seen = []
            for credit in (3, 2, 5):
                got = 0
                while got < credit:
                    packet = await came.get()
                    assert packet is not None
                    got += sum(len(one.receipt.offsets) for one in deliveries_in(packet, 0, Instant(0, 0)))
                assert got == credit
                state = here.site.broker.topic("t").partitions[0].groups.state("g")
                seen.append(state.in_flight)
                connection.tell(Kind.CREDIT, correlation, words.Credit(2 if credit == 3 else 5, 0))
            assert seen == [3, 5, 10]
            connection.unsubscribe(correlation, came.put_nowait)
            assert await came.get() is None
            await transport.close()

    serve(tmp_path, work)


def test_a_stopping_broker_does_not_wait_for_those_who_wait_for_messages(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock())
            await transport.join("g", "c", ["t"], {})
            connection = await transport._link.connect()
            came: asyncio.Queue[Packet | None] = asyncio.Queue()
            connection.subscribe(words.Subscribe("g", "c", ("t",), 3, 1_000_000), came.put_nowait)
            while not any(session.requests for session in here.door.sessions):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await here.door.close()
            assert await came.get() is None
            await transport.close()

    serve(tmp_path, work)


def test_a_topic_that_is_made_again_with_fewer_partitions_is_asked_for_anew(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=8)
            await asyncio.gather(*[q.publish("t", b"x", key=f"{number}") for number in range(50)])
            await q.delete_topic("t")
            await q.create_topic("t", partitions=1)
            outcomes = [await _outcome(q.publish("t", b"x", key=f"{number}")) for number in range(20)]
            assert outcomes.count(None) >= 19
            assert outcomes[-1] is None

    serve(tmp_path, work)


async def _outcome(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except PartitionNotFound as error:
        return error
    return None


def test_a_request_that_makes_the_broker_hang_up_is_not_repeated_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung_up = 0

    async def hang_up(session: Session, packet: Packet) -> tuple[object, tuple[()]]:
        nonlocal hung_up
        hung_up += 1
        session.abort()
        return None, ()

    async def work(here: Served) -> None:
        async with here.client() as q:
            monkeypatch.setitem(_ACTIONS, Kind.CALL, hang_up)
            with pytest.raises(ConnectionLost):
                await q.topics()
        assert 1 < hung_up < 10

    serve(tmp_path, work)


def test_a_bug_while_a_message_is_stored_is_told_and_counted_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> tuple[asyncio.Future[None], int]:
        storing = asyncio.get_running_loop().create_future()
        storing.set_exception(ZeroDivisionError("secret"))
        return storing, 1

    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            monkeypatch.setattr(here.site, "storing", broken)
            with pytest.raises(InternalError) as raised:
                await q.publish("t", b"x")
            assert "secret" not in raised.value.message
        outcomes = {outcome for _, kind, outcome in here.door.counts.requests if kind == "publish"}
        assert outcomes == {"internal_error"}

    serve(tmp_path, work)


def test_who_says_goodbye_has_left_and_who_is_cut_off_may_come_back(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=2)
            first = await RemoteTransport.to(here.place, SystemClock())
            second = await RemoteTransport.to(here.place, SystemClock())
            await first.join("g", "one", ["t"], {})
            await second.join("g", "two", ["t"], {})
            assert set((await q.group("g")).members) == {"one", "two"}
            connection = await second._link.connect()
            connection.abort(ConnectionLost("cut"))
            await first.close()
            while len(here.door.sessions) > 1:
                await asyncio.sleep(0)
            assert set((await q.group("g")).members) == {"two"}
            # Connected anew, by whoever needs it next; still a member.
            assert await second.poll("g", "two", ["t"], count=1, bytes_max=1, wait_us=0) == []
            await second.close()

    serve(tmp_path, work)


async def _said(port: int, data: bytes) -> list[Packet]:
    """What the broker says to these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    writer.close()
    return list(Decoder(1_000_000).feed(answer))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "protocol_error"),
        (b"\x50\x53\x08\x00" + bytes(12), "protocol_error"),
        (ClientEnd().follow_up(Kind.HELLO, 0, words.Hello((9,))), "version_mismatch"),
        (ClientEnd().hello("x" * 10_000, None), "packet_too_large"),
        (ClientEnd().hello("x", None) * 2, "protocol_error"),
        (ClientEnd().hello("x", None) + ClientEnd().follow_up(Kind.WELCOME, 0, None), "protocol_error"),
        (ClientEnd().hello("x", None) + ClientEnd().follow_up(Kind.POLL, 0, None), "protocol_error"),
    ],
)
def test_what_is_not_the_protocol_is_told_so_and_let_go(tmp_path: Path, data: bytes, code: str) -> None:
    async def work(here: Served) -> None:
        *_, last = await _said(here.place.port, data)
        assert last.kind is Kind.GOODBYE
        assert words.decoded(last.header, words.Goodbye).code == code
        async with here.client() as q:
            assert await q.topics() == []

    serve(tmp_path, work)


def test_who_does_not_say_who_it_is_is_let_go(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        (packet,) = await _said(here.place.port, b"")
        assert words.decoded(packet.header, words.Goodbye).code == "handshake_timeout"

    serve(tmp_path, work, limits=Limits(handshake_us=50_000))


def test_a_header_that_makes_no_sense_fails_that_request_only(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        connection = await Connection.to(here.place, SystemClock())
        with pytest.raises(ProtocolError):
            await connection.request(Kind.POLL, {"not": "a poll"})
        with pytest.raises(ProtocolError):
            await connection.request(Kind.CALL, ["unknown"])
        assert connection.is_open
        await connection.close()

    serve(tmp_path, work)


def test_a_stopping_broker_answers_what_it_was_asked_and_says_goodbye(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("t", partitions=1)
            transport = await RemoteTransport.to(here.place, SystemClock(), patience_s=0)
            frame = Frame.of(Batch.from_columns([b"x"], now_us=1))
            publishing = asyncio.ensure_future(transport.publish_frame("t", 0, frame))
            connection = await transport._link.connect()
            while not any(session.requests for session in here.door.sessions):
                await asyncio.sleep(0)
            await here.door.close()
            assert (await publishing).offset == 0
            await connection.ended.wait()
            with pytest.raises(ConnectionLost):
                await transport.publish_frame("t", 0, frame)
            await transport.close()

    serve(tmp_path, work)


def test_what_is_not_read_before_the_end_is_not_carried_out(tmp_path: Path) -> None:
    """Otherwise it would be done without an answer, and done again by a client that asks again."""

    async def work(here: Served) -> None:
        await here.site.call(requests.CreateTopic("t", 1, {}))
        connection = await Connection.to(here.place, SystemClock())
        started, may_end = asyncio.Event(), asyncio.Event()

        async def slow(*_: object) -> tuple[None, tuple[()]]:
            started.set()
            await may_end.wait()
            return None, ()

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(_ACTIONS, Kind.LEAVE, slow)
            first = asyncio.ensure_future(connection.request(Kind.LEAVE, words.Leave("g", "c")))
            await started.wait()
            closing = asyncio.ensure_future(here.door.close())
            await asyncio.sleep(0)
            frame = Frame.of(Batch.from_columns([b"late"], now_us=1))
            late = asyncio.ensure_future(connection.request(Kind.PUBLISH, words.PublishFrame("t", 0), [frame.data]))
            await asyncio.sleep(0)
            may_end.set()
            await first
            with pytest.raises(ConnectionLost):
                await late
            await closing
        assert here.site.broker.topic("t").partition(0).messages.end_offset == 0

    serve(tmp_path, work)


def test_a_topic_that_is_created_again_with_fewer_partitions_is_published_to(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as client:
            await client.create_topic("t", partitions=6)
            producer = client.producer("t")
            for _ in range(6):
                await client.publish("t", b"1")
                await (await producer.send(b"1"))
            await client.delete_topic("t")
            await client.create_topic("t", partitions=2)
            for _ in range(6):
                assert (await client.publish("t", b"2")).partition < 2
            failed = 0
            for _ in range(20):
                try:
                    await (await producer.send(b"2"))
                except PartitionNotFound:
                    failed += 1
            # Those that were on their way to partitions which are gone; then it knows.
            assert failed <= 4
            await producer.close()

    serve(tmp_path, work)
