"""A client made from docs/reference/wire-protocol.md, which knows nothing of ours but how to make and read frames."""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_process import broker_process
from penstock.batch import Batch
from penstock.codec import CODECS
from penstock.frame import Frame, Producer, frame_size
from penstock.message import Message
from penstock.wire import words
from penstock.wire.packets import Kind

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "wire-protocol.md"
HELLO, PUBLISH, JOIN, POLL, ANSWER, READ, CALL, ACKS = 1, 2, 3, 5, 6, 7, 8, 15
WELCOME, REPLY, FAILURE, DELIVER, PING, PONG, GOODBYE = 32, 33, 34, 35, 64, 65, 66


class Client:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._number = 0

    def send(self, kind: int, header: Any, payload: bytes = b"", number: int = 0) -> None:
        packed = msgspec.msgpack.encode(header)
        prefix = struct.pack("<HBBIII", 0x5350, kind, 0, number, len(packed), len(payload))
        self._socket.sendall(prefix + packed + payload)

    def ask(self, kind: int, header: Any, payload: bytes = b"") -> tuple[int, Any, bytes]:
        self._number += 1
        self.send(kind, header, payload, self._number)
        said, number, answer, rest = self.hear()
        assert number == self._number
        return said, answer, rest

    def hear(self) -> tuple[int, int, Any, bytes]:
        magic, kind, flags, number, header, payload = struct.unpack("<HBBIII", self._read(16))
        assert (magic, flags) == (0x5350, 0)
        return kind, number, msgspec.msgpack.decode(self._read(header)), self._read(payload)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            some = self._socket.recv(count - len(data))
            assert some, "closed"
            data += some
        return data

    def close(self) -> None:
        self._socket.close()


def frames_in(payload: bytes, bytes_max: int = 8 << 20) -> Iterator[Frame]:
    view = memoryview(payload)
    while len(view):
        size = frame_size(view, bytes_max)
        yield Frame(view[:size])
        view = view[size:]


def messages_in(payload: bytes) -> list[tuple[int, bytes]]:
    found = []
    for frame in frames_in(payload):
        batch = frame.batch()
        found += list(zip(frame.offsets(batch).tolist(), map(bytes, batch.values()), strict=True))
    return found


@pytest.mark.parametrize("large", [1_000, 30])
def test_no_delivered_frame_is_larger_than_a_client_has_to_accept(tmp_path: Path, large: int) -> None:
    """All messages have 20,000 bytes, or the first 30 have almost all bytes of the frame, which is small."""
    rng = random.Random(1)
    parts = [rng.randbytes(100) for _ in range(50)]
    sizes = [20_000_000 // large] * large + [10] * (9_000 if large == 30 else 0)
    values = [b"".join(rng.choices(parts, k=size // 100 or 1))[:size] for size in sizes]
    frame = Frame.of(Batch.from_messages([Message(value) for value in values], 1), codec=CODECS["zstd"])
    with broker_process(tmp_path / "data") as broker, closing(Client(broker.port)) as client:
        client.send(HELLO, [[1], "by the book", None])
        limits = client.hear()[2][4]
        assert len(frame.data) < limits["frame_bytes_max"] < frame.raw_length
        client.ask(CALL, {"type": "CreateTopic", "name": "t", "partitions": 1, "settings": {}})
        assert client.ask(PUBLISH, ["t", 0], bytes(frame.data))[0] == REPLY
        assert client.ask(JOIN, ["g", "me", ["t"], {}])[0] == REPLY
        found = []
        for count in (1, large * 7 // 10, 3, len(values)):
            kind, (given,), payload = client.ask(POLL, ["g", "me", ["t"], count, 1_000_000, 0])
            assert kind == REPLY
            assert sum(given[0][3][1::2]) == min(count, len(values) - len(found))
            for one in frames_in(payload, limits["frame_bytes_max"]):
                assert one.raw_length <= limits["frame_bytes_max"] * limits["decompressed_frames_max"]
            first, many = given[0][3]
            found += [value for offset, value in messages_in(payload) if first <= offset < first + many]
        assert found == values


def test_a_client_made_from_the_reference_works(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        client = Client(broker.port)
        client.send(HELLO, [[1], "by the book", None])
        kind, _, (version, name, now_us, silence_us, limits, cluster, principal), _ = client.hear()
        assert (kind, version, limits["message_bytes_max"]) == (WELCOME, 1, 1 << 20)
        assert name == "penstock"
        assert (silence_us, cluster, principal) == (15_000_000, "", "")
        client.send(PING, [now_us])
        assert client.hear()[0] == PONG

        kind, topic, _ = client.ask(CALL, {"type": "CreateTopic", "name": "t", "partitions": 1, "settings": {}})
        assert (kind, topic["name"], len(topic["partitions"])) == (REPLY, "t", 1)
        frame = Frame.of(Batch.from_columns([b"a", b"b", b"c"], now_us=1), producer=Producer(77, 0, 0))
        for _ in range(2):
            # Sent again, it is where it was.
            kind, (partition, offset, append_time, partitions), _ = client.ask(PUBLISH, ["t", 0], bytes(frame.data))
            assert (kind, partition, offset, partitions) == (REPLY, 0, 0, 1)
            assert append_time >= now_us

        assert client.ask(JOIN, ["g", "me", ["t"], {"max_retries": 5}])[:2] == (REPLY, None)
        kind, (given,), payload = client.ask(POLL, ["g", "me", ["t"], 2, 1_000_000, 0])
        ((topic_name, partition, lease, runs, size, attempts, deadline_us, *terms, lasts_us),) = given
        assert (topic_name, partition, runs, attempts, size) == ("t", 0, [0, 2], [], len(payload))
        assert terms == ["none", "park", "strict"]
        assert deadline_us > now_us
        assert 0 < lasts_us <= 31_000_000
        leased = [value for offset, value in messages_in(payload) if runs[0] <= offset < runs[0] + runs[1]]
        assert leased == [b"a", b"b"]
        assert client.ask(ANSWER, ["g", "t", 0, lease, [0, 1], {"type": "Ack"}])[:2] == (REPLY, None)
        nack = {"type": "Nack", "reason": "no", "delay_us": 0}
        assert client.ask(ANSWER, ["g", "t", 0, lease, [1, 1], nack])[:2] == (REPLY, None)
        kind, (code, sentence, _), _ = client.ask(ANSWER, ["g", "t", 0, lease, [0, 1], {"type": "Ack"}])
        assert (kind, code) == (FAILURE, "lease_not_found")
        assert sentence
        _, (given,), payload = client.ask(POLL, ["g", "me", ["t"], 10, 1_000_000, 0])
        assert [one[3] for one in given] == [[1, 2]]
        assert given[0][5] == [1, 2]

        assert limits["ack_leases_max"] == 1_000
        kind, (failures,), _ = client.ask(ACKS, ["g", "t", 0, [[lease, [0, 1]], [given[0][2], [1, 2]]]])
        assert (kind, [(at, code) for at, (code, *_) in failures]) == (REPLY, [(0, "lease_not_found")])
        assert client.ask(ACKS, ["g", "t", 0, [[given[0][2], [1, 2]]], True])[:2] == (REPLY, [[]])

        kind, (next_offset, epoch), payload = client.ask(READ, ["t", 0, 0, 3, 1_000_000])
        assert (kind, next_offset, messages_in(payload)) == (REPLY, 3, [(0, b"a"), (1, b"b"), (2, b"c")])
        assert epoch == 0, "it is no cluster"
        _, trace, _ = client.ask(CALL, {"type": "GetTrace", "id": "t:0:0"})
        assert [step["what"] for step in trace["steps"]][:3] == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]
        client.send(GOODBYE, ["closed", "done"])
        client.close()


def test_the_tables_of_the_reference_are_those_of_the_code() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    kinds = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \|", text, re.MULTILINE)}
    assert kinds == {kind.name: kind.value for kind in Kind}
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .*\|$", text, re.MULTILINE))
    for request in words._REPLIES:
        fields = [field.partition(":")[0] for field in re.split(r", (?=\w+: )", told[request.__name__]) if field]
        assert fields == list(request.__struct_fields__), request.__name__
