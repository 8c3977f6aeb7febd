"""What reads bytes from outside, each as one function of some bytes: it ends soon, with a typed error or without.

`packets` and `frames` are what the native door reads; `told` is what a client reads of a broker, `receipts` what
consumers hand back. They are called by Hypothesis, and by libFuzzer (`fuzzing.py`), which looks for new ways through.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from crc32c import crc32c

from penstock.batch import Batch
from penstock.client import requests as r
from penstock.client.answers import Ack, Nack
from penstock.clock import Instant
from penstock.codec import LZ4, NONE, ZSTD
from penstock.errors import InvalidInput, PenstockError, ProtocolError
from penstock.frame import HEADER_BYTES, Frame, Producer
from penstock.limits import Limits
from penstock.message import Message
from penstock.net.remote import deliveries_in, frames_in
from penstock.server.http import receipts as http_receipts
from penstock.server.http.failures import InvalidReceipt
from penstock.server.receipts import NotAReceipt, Place, key_of, read, written
from penstock.storage.log import Log, LogSettings
from penstock.testing import ManualClock, MemoryFiles
from penstock.wire import words
from penstock.wire.conversation import BrokerEnd, ClientEnd, State, failure_in
from penstock.wire.packets import Kind, Packet, packed
from penstock.wire.runs import from_runs

# Small ones, so that a fuzzer meets them.
LIMITS = Limits(
    frame_bytes_max=64 * 1024,
    batch_messages_max=100,
    message_bytes_max=8 * 1024,
    header_bytes_max=1024,
    headers_max=10,
)
_WORDS: dict[Kind, Any] = {
    Kind.HELLO: words.Hello,
    Kind.PUBLISH: words.PublishFrame,
    Kind.JOIN: words.Join,
    Kind.LEAVE: words.Leave,
    Kind.POLL: words.Poll,
    Kind.SUBSCRIBE: words.Subscribe,
    Kind.CREDIT: words.Credit,
    Kind.ANSWER: words.Answered,
    Kind.ACKS: words.Acked,
    Kind.READ: words.Read,
    Kind.CANCEL: words.Cancel,
    Kind.PING: words.Ping,
    Kind.GOODBYE: words.Goodbye,
}


def packets(data: bytes) -> None:
    """The first byte says how they are cut."""
    if not data:
        return
    step, data = data[0] or 1, data[1:]
    end = BrokerEnd(LIMITS)
    try:
        for at in range(0, len(data), step):
            for packet in end.receive(data[at : at + step]):
                _packet(packet, end)
            assert end.held <= LIMITS.frame_bytes_max + (17 << 20)
    except ProtocolError:
        pass


def _packet(packet: Packet, end: BrokerEnd) -> None:
    try:
        if packet.kind is Kind.HELLO:
            end.greeted(packet)
            end.welcome("x", 0, 0)
        elif packet.kind is Kind.CALL:
            words.request_of(packet.header)
        elif packet.kind in _WORDS:
            word = words.decoded(packet.header, _WORDS[packet.kind])
            if isinstance(word, words.Answered):
                from_runs(word.runs)
        if packet.kind is Kind.PUBLISH:
            Frame.accept(packet.payload, LIMITS)
    except (ProtocolError, InvalidInput):
        # Fails that request; of a HELLO, the connection.
        if packet.kind is Kind.HELLO:
            end.state = State.CLOSED


def told(data: bytes) -> None:
    """What a client takes from whoever says that it is a broker."""
    end = ClientEnd()
    end.state = State.OPEN
    end._decoder.bytes_max = 1 << 20
    try:
        for packet in end.receive(data):
            if packet.kind is Kind.FAILURE:
                failure_in(packet)
            elif packet.kind is Kind.DELIVER:
                deliveries_in(packet, 0, Instant(0, 0))
            elif packet.kind is Kind.REPLY:
                frames_in(packet.payload)
                for request in _REQUESTS:
                    words.reply_of(request, packet.header)
            elif packet.kind is Kind.GOODBYE:
                words.decoded(packet.header, words.Goodbye)
    except PenstockError:
        pass


_REQUESTS: list[Any] = [
    r.DescribeTopic("t"),
    r.ListGroups(),
    r.ListDeadLetters("t", r.Where(), False, 1),
    r.GetTrace("t:0:0"),
    r.GetStateAt("g", "t", 1),
]


class _Store:
    """A log that keeps what was accepted, and is what it was after what was not."""

    def __init__(self) -> None:
        self.new()

    def new(self) -> None:
        settings = LogSettings(segment_bytes_max=1 << 20)
        self.log = Log.open(MemoryFiles(), clock=ManualClock(), settings=settings)


_store = _Store()


def frames(data: bytes) -> None:
    """As they are, and with magic, lengths and checksum put right: a fuzzer would never guess those."""
    _frame(data)
    if len(data) >= HEADER_BYTES:
        right = bytearray(data + bytes(-len(data) % 8))
        right[:4] = b"PNS\x01"
        (length,) = struct.unpack_from("<I", right, 36)
        room = len(right) - HEADER_BYTES
        if not room - 7 <= length <= room:
            right[36:40] = struct.pack("<I", room)
        if right[54] == NONE:
            right[40:44] = right[36:40]
        right[32:36] = struct.pack("<I", crc32c(bytes(right[36:])))
        _frame(bytes(right))


def _frame(data: bytes) -> None:
    log = _store.log
    before = log.size, log.end_offset
    try:
        frame = Frame.accept(data, LIMITS)
    except InvalidInput:
        assert (log.size, log.end_offset) == before
        return
    sent = list(frame.batch().messages())
    assert len(sent) == frame.count <= LIMITS.batch_messages_max
    assert all(message.size <= LIMITS.message_bytes_max for message in sent)
    offset = log.end_offset
    log.append([frame])
    log.sync()
    (stored,) = log.read(offset, bytes_max=1 << 20)
    assert list(stored.batch().messages()) == sent
    # What was accepted once is accepted again, and what is in it can be written anew.
    assert Frame.accept(frame.data, LIMITS).count == frame.count
    Frame.of(frame.batch(), limits=LIMITS)
    if log.size > 1 << 20:
        _store.new()


_KEY = key_of("secret", "g")


def receipts(data: bytes) -> None:
    try:
        http_receipts.read(data.decode("latin-1"), _KEY)
    except InvalidReceipt:
        pass
    try:
        assert written(read(data, _KEY), _KEY) == data
    except NotAReceipt:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "packets": packets,
    "frames": frames,
    "told": told,
    "receipts": receipts,
}

# --- where to begin -----------------------------------------------------------------------------------------


def good_frames() -> Iterator[bytes]:
    values = [b"%d of some text that is the same in all of them" % number for number in range(20)]
    for codec in (NONE, LZ4, ZSTD):
        yield bytes(Frame.of(Batch.from_columns(values, now_us=1), codec=codec).data)
    rows = [
        Message(b"a", key=b"k", headers=(("h", b"v"), ("ü", b"")), priority=1, deliver_at=5, expires_at=9),
        Message(None, key=None, priority=-1, timestamp=7),
        Message(b"", headers=()),
    ]
    yield bytes(Frame.of(Batch.from_messages(rows, now_us=1), producer=Producer(7, 1, 2)).data)
    yield bytes(Frame.of_message(Message(b"x"), now_us=1).data)


def good_packets() -> Iterator[bytes]:
    hello = ClientEnd().hello("fuzz", "key")
    asked: list[tuple[Kind, object]] = [
        (Kind.JOIN, words.Join("g", "c", ("t",), {"visibility_us": 1})),
        (Kind.LEAVE, words.Leave("g", "c")),
        (Kind.POLL, words.Poll("g", "c", ("t",), 1, 1, 1)),
        (Kind.SUBSCRIBE, words.Subscribe("g", "c", ("t",), 1, 1)),
        (Kind.CREDIT, words.Credit(1, 1)),
        (Kind.ANSWER, words.Answered("g", "t", 0, 1, [0, 5, 9, 1], Ack())),
        (Kind.ANSWER, words.Answered("g", "t", 0, 1, [0, 5], Nack("x", 1))),
        (Kind.ACKS, words.Acked("g", "t", 0, [(1, [0, 5]), (2, [9, 1])], True)),
        (Kind.READ, words.Read("t", 0, 0, 1, 1)),
        (Kind.CANCEL, words.Cancel(1)),
        (Kind.PING, words.Ping(1)),
        (Kind.CALL, r.CreateTopic("t", 1, {"cleanup": "delete"})),
        (Kind.CALL, r.Replay("t", "g", None, None, {0: (1, 2)}, True, False, {})),
        (Kind.CALL, r.Redrive("t", r.Where(ids=("t:0:0",), key=b"k"), True, 1.0)),
        (Kind.CALL, r.CreateSchedule("s", "t", "@daily", "UTC", Message(b"x", headers=(("a", b"b"),)))),
    ]
    for kind, word in asked:
        yield b"\x40" + hello + packed(kind, 1, words.encoded(word))
    for frame in good_frames():
        yield b"\xff" + hello + packed(Kind.PUBLISH, 1, words.encoded(words.PublishFrame("t", 0)), len(frame)) + frame


def good_replies() -> Iterator[bytes]:
    end = BrokerEnd(LIMITS)
    yield end.failure(1, ProtocolError("x", limit=1))
    (frame, *_) = good_frames()
    given = words.Given("t", 0, 1, [0, 20], len(frame), [0, 2], 1, "none", "park", "strict")
    yield end.deliver(1, words.Delivered([given]), len(frame)) + frame
    yield end.reply(1, words.PageOf(1), len(frame)) + frame
    yield end.reply(1, [["t:0:0", [[1, "PUBLISHED"]]]])
    yield end.goodbye("closed", "x")


def good_receipts() -> Iterator[bytes]:
    place = Place("topic", 1, 2, 3)
    yield written(place, _KEY)
    yield http_receipts.written(place, _KEY).encode()


GOOD: dict[str, Callable[[], Iterator[bytes]]] = {
    "packets": good_packets,
    "frames": good_frames,
    "told": good_replies,
    "receipts": good_receipts,
}
