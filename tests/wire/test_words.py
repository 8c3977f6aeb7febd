"""What is said arrives as it was said; what makes no sense is refused with a typed error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock import errors
from penstock.client import requests
from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.errors import (
    BrokerError,
    ConnectionLost,
    Fatal,
    InvalidInput,
    LogClosed,
    PenstockError,
    ProtocolError,
)
from penstock.limits import DEFAULT_LIMITS
from penstock.message import Message
from penstock.wire import words
from penstock.wire.conversation import BrokerEnd, ClientEnd, State
from penstock.wire.failures import Failed, error_of, failed
from penstock.wire.packets import Kind
from penstock.wire.runs import OFFSETS_MAX, from_runs, to_runs
from penstock.wire.words import decoded, encoded, reply_of, request_of

OFFSETS = st.sets(st.integers(0, 2**62), max_size=40) | st.sets(st.integers(0, 60), max_size=40)


@given(OFFSETS)
def test_sets_of_offsets_go_there_and_back(offsets: set[int]) -> None:
    assert from_runs(to_runs(BitMap64(offsets))) == BitMap64(offsets)


@pytest.mark.parametrize(
    "runs",
    [[1], [-1, 2], [5, 0], [5, 3, 6, 1], [9, 1, 3, 1], [0, OFFSETS_MAX + 1], [2**63 - 1, 1], [1, 2, 3], [2**70, 1]],
)
def test_runs_that_are_none_are_refused(runs: list[int]) -> None:
    with pytest.raises(ProtocolError):
        from_runs(runs)


MESSAGE = Message(b"v", b"k", (("a", b"b"),), 5, 6, 7, 1)
REQUESTS = [
    requests.CreateTopic("t", 3, {"retention_us": 5}),
    requests.ListTopics(),
    requests.Seek("g", "t", None, 5, None, None),
    requests.Replay("t", "g", None, None, {0: (1, 2)}, True, False, {}),
    requests.CreateSchedule("s", "t", "* * * * *", "UTC", MESSAGE),
    requests.Redrive("t", requests.Where(group="g", key=b"k"), True, 2.5),
    requests.ReleaseKey("g", "t", None, 0),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request_: type(request_).__name__)
def test_requests_arrive_as_they_were(request_: requests.Request[object]) -> None:
    assert request_of(encoded(request_)) == request_


def test_every_request_can_be_sent_and_answered() -> None:
    kinds = [kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, requests.Request)]
    for kind in kinds:
        if kind is not requests.Request:
            assert kind in words._REPLIES, kind
            # Its reply is a type that can be decoded: made of what is known here.
            msgspec.msgpack.Decoder(words._REPLIES[kind], dec_hook=words._from_wire)


def test_replies_arrive_as_they_were() -> None:
    state = [requests.StateAt(0, 1, 2, BitMap64([1, 2, 9]), BitMap64(), BitMap64([5]))]
    assert reply_of(requests.GetStateAt("g", "t", 1), encoded(state)) == state
    scheduled = [requests.Scheduled("t:0:1", 5, MESSAGE)]
    assert reply_of(requests.ListScheduled("t", 5), encoded(scheduled)) == scheduled
    assert reply_of(requests.DeleteTopic("t"), encoded(None)) is None


@pytest.mark.parametrize(
    "answer", [Ack(), Nack("no", 5), Nack("no"), Reject("bad"), Release(), Extend(None), Extend(9)]
)
def test_answers_arrive_as_they_were(answer: Answer) -> None:
    word = words.Answered("g", "t", 0, 1, [1, 2], answer)
    assert decoded(encoded(word), words.Answered) == word


@given(st.binary(max_size=60))
def test_headers_that_are_none_are_refused(header: bytes) -> None:
    for kind in (words.Hello, words.Poll, words.Answered, words.Delivered):
        try:
            decoded(header, kind)
        except PenstockError as error:
            assert isinstance(error, ProtocolError)
    try:
        request_of(header)
    except PenstockError as error:
        assert isinstance(error, ProtocolError)


@pytest.mark.parametrize("wrong", [5, "x", ["a"], [None], {"a": 1}])
def test_a_set_of_offsets_that_is_none_is_refused(wrong: object) -> None:
    state = {"partition": 0, "floor": 0, "end_offset": 0, "unacknowledged": wrong, "leased": [], "dead": []}
    with pytest.raises(ProtocolError):
        reply_of(requests.GetStateAt("g", "t", 1), encoded([state]))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decoded(b"\x91" * 100_000, words.Join)


def kinds_of(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in kinds_of(below))]


def test_every_error_arrives_as_what_it_was() -> None:
    for kind in kinds_of(PenstockError):
        if kind.__module__ == errors.__name__:
            error = kind("a sentence", limit=5, name="x")
            came = error_of(decoded(encoded(failed(error)), Failed))
            if issubclass(kind, Fatal | LogClosed):
                # Of the broker's process, not of this one: for whoever asked it, a broker that is gone.
                assert isinstance(came, ConnectionLost)
                assert (came.in_doubt, came.details) == (True, {"code": kind.code})
                continue
            assert (type(came), came.message, came.details) == (kind, "a sentence", {"limit": 5, "name": "x"})


def test_an_error_of_a_later_version_keeps_its_code() -> None:
    came = error_of(Failed("from_the_future", "a sentence", {"a": 1}))
    assert isinstance(came, BrokerError)
    assert came.details == {"a": 1, "code": "from_the_future"}


def test_both_ends_understand_each_other() -> None:
    client, broker = ClientEnd(), BrokerEnd(DEFAULT_LIMITS)
    (packet,) = broker.receive(client.hello("me", "secret"))
    assert broker.greeted(packet) == words.Hello((1,), "me", "secret")
    (packet,) = client.receive(broker.welcome("b", 5, 6))
    assert client.welcomed(packet).known_limits() == DEFAULT_LIMITS
    correlation, head = client.request(Kind.LEAVE, words.Leave("g", "c"))
    (packet,) = broker.receive(head)
    assert decoded(packet.header, words.Leave) == words.Leave("g", "c")
    (packet,) = client.receive(broker.reply(correlation, None))
    assert packet.correlation == correlation
    (packet,) = client.receive(broker.goodbye("stopping", "bye"))
    assert packet.kind is Kind.GOODBYE
    assert client.state is State.CLOSED
    assert list(client.receive(broker.ping(1))) == []


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HELLO])
def test_nothing_but_a_hello_comes_first(kind: Kind) -> None:
    with pytest.raises(ProtocolError, match=kind.name):
        list(BrokerEnd(DEFAULT_LIMITS).receive(ClientEnd().follow_up(kind, 1, None)))


def test_a_stranger_may_not_send_much() -> None:
    with pytest.raises(errors.PacketTooLarge):
        list(BrokerEnd(DEFAULT_LIMITS).receive(ClientEnd().hello("x" * 5_000, None)))


def test_a_hello_of_other_versions_is_refused() -> None:
    broker = BrokerEnd(DEFAULT_LIMITS)
    (packet,) = broker.receive(ClientEnd().follow_up(Kind.HELLO, 0, words.Hello((7, 8))))
    with pytest.raises(errors.VersionMismatch, match=r"\[7, 8\]"):
        broker.greeted(packet)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (requests.CreateTopic("t", "3", {}), "partitions is a whole number, not text"),  # type: ignore[arg-type]
        (requests.CreateTopic(None, 1, {}), "name is text, not None"),  # type: ignore[arg-type]
        (requests.GetTrace(b"t:0:0"), "id is text, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_a_request_with_a_field_of_another_kind_is_refused_in_words_about_it(request_: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        words.checked(request_)


def test_a_topic_of_an_older_broker_has_no_id() -> None:
    told = {"name": "orders", "partitions": [], "settings": {}, "created_us": 1, "scheduled": 0}
    info = reply_of(requests.DescribeTopic("orders"), msgspec.msgpack.encode(told))
    assert (info.name, info.id) == ("orders", "")


def test_a_client_that_does_not_know_acks_means_all_of_them() -> None:
    assert decoded(msgspec.msgpack.encode(["t", 3]), words.PublishFrame) == words.PublishFrame("t", 3, "all")
    assert msgspec.msgpack.decode(encoded(words.PublishFrame("t", 3, "leader"))) == ["t", 3, "leader"]


def test_a_broker_that_does_not_know_acks_takes_what_it_knows() -> None:
    class PublishFrame(words.Word, frozen=True):
        topic: str
        partition: int

    assert decoded(encoded(words.PublishFrame("t", 3, "leader")), PublishFrame) == PublishFrame("t", 3)
