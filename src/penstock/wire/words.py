"""The headers of packets: what either side can say. MessagePack, as arrays in the order of the fields.

A field may be added at the end, with a default; none is ever taken away or moved. `Call` carries one of the requests of
`penstock.client.requests` as a map with its name under "type", and is answered by the reply that request has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar, Union, get_args

import msgspec
from pyroaring import BitMap64

from penstock.acks import ALL
from penstock.client import cluster_requests, placement, requests
from penstock.client.answers import Answer
from penstock.client.requests import Request, SettingValue
from penstock.decoding import msgpack_decoder
from penstock.errors import InvalidInput, ProtocolError
from penstock.limits import TOLD, Limits
from penstock.wire.failures import Failed
from penstock.wire.runs import from_runs, to_runs

VERSION = 1
# Among the limits of WELCOME: how many leases one ACKS may name. A broker that does not say so knows none.
ACK_LEASES = "ack_leases_max"
R = TypeVar("R")
T = TypeVar("T")


class Word(msgspec.Struct, frozen=True, array_like=True):
    pass


# --- the start and the end ----------------------------------------------------------------------------------


class Hello(Word, frozen=True):
    """The first packet of a client: which versions it speaks, who it is, and its key if the broker wants one."""

    versions: tuple[int, ...]
    client: str = ""
    key: str | None = None


class Welcome(Word, frozen=True):
    """`version` is the one to be spoken. Who says nothing for `silence_us` is taken for dead. `cluster` is the id of
    the one that the broker is a node of; empty if it is on its own. `principal` is the client's, if the broker binds
    producer ids to it."""

    version: int
    broker: str
    now_us: int
    silence_us: int
    limits: dict[str, int]
    cluster: str = ""
    principal: str = ""

    def known_limits(self) -> Limits:
        return Limits(**{name: value for name, value in self.limits.items() if name in TOLD})


class Goodbye(Word, frozen=True):
    """The last packet of either side, and why: one of the codes of docs/reference/wire-protocol.md."""

    code: str
    message: str


class Ping(Word, frozen=True):
    """`now_us` is the sender's clock; answered by the same with the other's."""

    now_us: int


# --- messages on their way ----------------------------------------------------------------------------------


class PublishFrame(Word, frozen=True):
    """The payload is one frame. `acks`: see `penstock.acks`; whoever does not say it means all."""

    topic: str
    partition: int
    acks: str = ALL


class Stored(Word, frozen=True):
    partition: int
    offset: int
    append_time: int
    partitions: int


class OfGroup(Word, frozen=True):
    """The beginning of all requests of consumers."""

    group: str


class Join(Word, frozen=True):
    """The connection stands for the consumer: it is a member as long as that is there. Without `stands`, for a session,
    unless it is heard of again. `owner` is for nodes of a cluster: of the group, if it is new."""

    group: str
    consumer: str
    topics: tuple[str, ...]
    settings: dict[str, SettingValue]
    stands: bool = True
    owner: str = ""


class Leave(Word, frozen=True):
    group: str
    consumer: str


class Poll(Word, frozen=True):
    """Answered by `Delivered`, as soon as there is something, or after `wait_us`. Without `visibility_us`, messages are
    leased for as long as the group says."""

    group: str
    consumer: str
    topics: tuple[str, ...]
    count: int
    bytes_max: int
    wait_us: int
    visibility_us: int | None = None


class Given(Word, frozen=True):
    """Messages leased from one partition: of the next `bytes` of the payload those with these offsets.

    `attempts` are pairs of an offset and how often it was delivered, of those that were delivered before. The lease
    ends `lasts_us` after the broker got the request that this answers, whatever either clock is set to; None from an
    older broker, which tells only the date by its own clock, `deadline_us`.
    """

    topic: str
    partition: int
    lease: int
    runs: list[int]
    bytes: int
    attempts: list[int]
    deadline_us: int
    ordering: str
    on_poison: str
    lanes: str
    lasts_us: int | None = None


class Delivered(Word, frozen=True):
    given: list[Given]


class Subscribe(Word, frozen=True):
    """From now on messages are sent without being asked for, as long as there is credit for them."""

    group: str
    consumer: str
    topics: tuple[str, ...]
    messages: int
    bytes: int


class Credit(Word, frozen=True):
    """That many more may be sent to the subscription whose correlation the packet has."""

    messages: int
    bytes: int


class Answered(Word, frozen=True):
    """What the consumer says of these messages."""

    group: str
    topic: str
    partition: int
    lease: int
    runs: list[int]
    answer: Answer


class Acked(Word, frozen=True):
    """Messages of several leases of one partition, each with its runs, that are done. `again`: as of one."""

    group: str
    topic: str
    partition: int
    leases: list[tuple[int, list[int]]]
    again: bool = False


class NotAcked(Word, frozen=True):
    """Those of them that could not be, by their place among the leases, and why."""

    failures: list[tuple[int, Failed]]


class Read(Word, frozen=True):
    topic: str
    partition: int
    offset: int
    until: int
    bytes_max: int
    columns: tuple[str, ...] | None = None
    epoch: int = 0


class PageOf(Word, frozen=True):
    """The payload is whole frames, one after the other."""

    next_offset: int
    epoch: int = 0


class Cancel(Word, frozen=True):
    """Nobody waits for that request any more. What it leased, if it was too late, must be released."""

    correlation: int


# --- to bytes and back --------------------------------------------------------------------------------------


def _to_wire(value: object) -> object:
    if isinstance(value, BitMap64):
        return to_runs(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be sent")


def _from_wire(kind: type, value: object) -> object:
    if kind is BitMap64 and isinstance(value, list) and all(isinstance(one, int) for one in value):
        # Only in what a broker replies, which may tell of all that a group has not done.
        return from_runs(value, 1 << 62)
    raise TypeError(f"not a {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encoded(word: object) -> bytes:
    """InvalidInput if it has text that is not Unicode, a number that is too large, or an object that is no data."""
    try:
        return _encoder.encode(word)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"text with half of a character in it can't be sent: {error.object[:50]!r}") from error
    except OverflowError as error:
        raise InvalidInput("a whole number must be from -2^63 to 2^64 - 1") from error
    except (TypeError, RecursionError) as error:
        raise InvalidInput(str(error)) from error


def decoded(header: bytes, kind: type[T]) -> T:
    """ProtocolError if it is none."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgpack_decoder(kind, dec_hook=_from_wire)
    try:
        word: T = decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        name = getattr(kind, "__name__", "header")
        raise ProtocolError(f"not a {name}: {error}") from error
    return word


def _requests() -> list[type[Request[Any]]]:
    found = [*vars(requests).values(), *vars(placement).values(), *vars(cluster_requests).values()]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, Request) and one is not Request]
    return list(dict.fromkeys(kinds))


def _reply_of(request: type[Request[Any]]) -> Any:
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    (reply,) = get_args(base)
    return NoneType if reply is None else reply


_REPLIES: dict[type[Request[Any]], Any] = {request: _reply_of(request) for request in _requests()}
_ANY_REQUEST: Any = Union[tuple(_REPLIES)]  # noqa: UP007 - made of a list


def checked(request: Request[R]) -> Request[R]:
    """The request as a broker gets it. InvalidInput if a field is not of its kind, in words about what was given."""
    try:
        return decoded(encoded(request), type(request))
    except ProtocolError as error:
        found = re.search(r"[Ee]xpected `([^`]*)`, got `([^`]*)` - at `\$\.?([^`]*)`", error.message)
        if found is None:
            raise InvalidInput(error.message) from error
        expected, got, field = found.groups()
        wanted = " or ".join(_NAMES.get(kind, kind) for kind in expected.split(" | ") if kind != "null")
        raise InvalidInput(f"{field} is {wanted}, not {_NAMES.get(got, got)}", argument=field) from error


# Of kinds, for people.
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bytes": "bytes",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class Head(msgspec.Struct, frozen=True):
    """What a request is, and what it is about. Its other fields are skipped without being decoded."""

    type: str = ""
    name: str = ""
    topic: str = ""
    group: str = ""
    id: str = ""


def head_of(header: bytes) -> Head:
    return decoded(header, Head)


def request_of(header: bytes) -> Request[Any]:
    request: Request[Any] = decoded(header, _ANY_REQUEST)
    return request


def reply_of(request: Request[R], header: bytes) -> R:
    reply: R = decoded(header, _REPLIES[type(request)])
    return reply
