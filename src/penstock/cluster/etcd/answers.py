"""etcd's JSON, and its errors as ours.

Numbers of 64 bits come as strings, bytes as base64, and what is zero or empty is left out: msgspec takes all of that.
Errors have changed their shape over the versions, so only the code and the words are taken from them:

    {"error": "etcdserver: ...", "message": "etcdserver: ...", "code": 5}            3.4, 3.5
    {"code": 5, "message": "etcdserver: ...", "details": []}                         3.6
    {"error": {"grpc_code": 5, "http_code": 404, "message": "etcdserver: ..."}}      within a stream, 3.4
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from penstock.cluster.etcd.http import AnswerLost, Reply
from penstock.decoding import from_json
from penstock.errors import (
    EtcdRefused,
    EtcdRequestTooLarge,
    EtcdUnavailable,
    PenstockError,
    SessionLost,
    WatchBehind,
)


class Header(Struct, frozen=True):
    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0


class Answer(Struct):
    header: Header = Header()


class KeyValue(Struct):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0
    create_revision: int = 0


class StatusAnswer(Answer):
    version: str = ""
    leader: int = 0
    errors: list[str] = []


class RangeAnswer(Answer):
    kvs: list[KeyValue] = []
    more: bool = False


class RangePart(Struct):
    kvs: list[KeyValue] = []


class Part(Struct):
    response_range: RangePart | None = None


class TxnAnswer(Answer):
    succeeded: bool = False
    responses: list[Part] = []


class GrantAnswer(Answer):
    ID: int = 0
    TTL: int = 0


class KeepAnswer(Struct):
    result: GrantAnswer


class TokenAnswer(Answer):
    token: str = ""


class Event(Struct):
    type: str = "PUT"
    kv: KeyValue = msgspec.field(default_factory=KeyValue)


class WatchResult(Answer):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    fragment: bool = False
    events: list[Event] = []


class WatchAnswer(Struct):
    result: WatchResult | None = None
    error: dict[str, Any] | None = None


class Fault(NamedTuple):
    """What etcd said instead of an answer."""

    grpc_code: int
    words: str

    @property
    def is_of_the_token(self) -> bool:
        """Nothing was done, and with a new token it may be."""
        return self.grpc_code == 16 or any(sign in self.words for sign in _OF_THE_TOKEN)

    @property
    def is_of_size(self) -> bool:
        """gRPC takes 4 MiB by default, and so may a gateway: then the answer is lost on its way out."""
        return "received message larger than max" in self.words

    @property
    def is_certain(self) -> bool:
        """The request was looked at and not carried out. Otherwise nobody knows."""
        return self.grpc_code in _CERTAIN and not self.is_of_size

    def error(self, where: str) -> PenstockError:
        """For one that is certain."""
        details = {"etcd": self.words, "grpc_code": self.grpc_code, "member": where}
        if "request is too large" in self.words or "too many operations in txn" in self.words:
            return EtcdRequestTooLarge(f"etcd at {where} does not take so much at once: {self.words}", **details)
        if "requested lease not found" in self.words:
            return SessionLost("the session that a key was to be bound to has run out; nothing was changed", **details)
        if "required revision has been compacted" in self.words:
            return WatchBehind(f"etcd at {where} has forgotten that revision: {self.words}", **details)
        if "too many requests" in self.words:
            return EtcdUnavailable(f"etcd at {where} has too much to do: {self.words}", **details)
        if "user name is empty" in self.words:
            return EtcdRefused(f"etcd at {where} asks for a user and a password, and none are set", **details)
        if "database space exceeded" in self.words:
            return EtcdRefused(
                f"etcd at {where} has no room left: compact and defragment it, then disarm its alarm", **details
            )
        return EtcdRefused(f"etcd at {where} refuses: {self.words}", **details)


_OF_THE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")
# InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition, OutOfRange,
# Unimplemented, Unauthenticated. What is left (Unavailable, DeadlineExceeded, Unknown …) may come after etcd's members
# were asked to agree, and then they may.
_CERTAIN = frozenset({3, 5, 6, 7, 8, 9, 11, 12, 16})
_UNKNOWN = 2
_BY_STATUS = {400: 3, 401: 16, 403: 7, 404: 12, 405: 12}
_WORDS_MAX = 300

T = TypeVar("T")


def decode(body: bytes, kind: type[T]) -> T:
    try:
        return from_json(body, kind, strict=False)
    except msgspec.DecodeError as error:
        raise AnswerLost(f"what came is not an answer of etcd ({error})") from error


def encode(request: dict[str, Any]) -> bytes:
    """Bytes as base64. Numbers that may have 64 bits are to be strings."""
    return msgspec.json.encode(request)


def fault_of(reply: Reply) -> Fault:
    """Of an answer whose status is not 200."""
    try:
        said = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("code"), int):
        return fault_in(said)
    words = reply.body[:_WORDS_MAX].decode("utf-8", "replace").strip() or "nothing"
    return Fault(_BY_STATUS.get(reply.status, _UNKNOWN), f"HTTP {reply.status}: {words}")


def fault_in(said: dict[str, Any]) -> Fault:
    code = said.get("code", said.get("grpc_code", _UNKNOWN))
    words = said.get("message") or said.get("error") or "no reason given"
    return Fault(code if isinstance(code, int) else _UNKNOWN, str(words)[:_WORDS_MAX])
