"""A dead letter: a message that was given up, with a header that says by whom, why and after which attempts."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from penstock.broker.delivery import Failure
from penstock.broker.ids import MessageId
from penstock.broker.names import check_name
from penstock.decoding import convert, json_decoder
from penstock.errors import InvalidInput
from penstock.limits import KIB
from penstock.message import Message

HEADER = "penstock-dead-letter"
_OBITUARY_BYTES_MAX = 64 * KIB


class Obituary(msgspec.Struct, frozen=True):
    """What the header of a dead letter says.

    `topic_id`, `epoch` (the leader epoch of the message) and the group's `Origin` tell the message and the group from
    later ones that reuse the topic's name, the offset (after an unclean election) or the group's name. Letters that an
    older build wrote lack them.
    """

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    group: str
    round: int
    reason: str
    attempts: int
    failures: tuple[Failure, ...]
    published_us: int
    priority: Annotated[int, msgspec.Meta(ge=-1, le=1)] = 0
    topic_id: str = ""
    epoch: int = 0
    group_made_us: int = 0
    group_generation: int = 0

    @property
    def identity(self) -> tuple[str, int, int, int]:
        return self.group, self.partition, self.offset, self.round


class DeadLetter(NamedTuple):
    id: MessageId
    obituary: Obituary
    message: Message
    died_us: int
    is_settled: bool


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters are meant: those that fit everything that is given."""

    group: str | None = None
    ids: tuple[str, ...] | None = None
    key: bytes | None = None
    reason_contains: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def fits(self, letter: DeadLetter) -> bool:
        return (
            (self.group is None or letter.obituary.group == self.group)
            and (self.ids is None or str(letter.id) in self.ids or str(original(letter)) in self.ids)
            and (self.key is None or letter.message.key == self.key)
            and (self.reason_contains is None or self.reason_contains in letter.obituary.reason)
            and (self.since_us is None or letter.died_us >= self.since_us)
            and (self.until_us is None or letter.died_us < self.until_us)
        )


def check_where(where: object) -> None:
    if where is None:
        return
    if not isinstance(where, Where):
        raise InvalidInput(f"which ones is told with Where, not {type(where).__name__}")
    try:
        for field in msgspec.structs.fields(where):
            convert(getattr(where, field.name), field.type)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InvalidInput(f"{field.name}: {error}") from error
    if where.key is not None and not isinstance(where.key, bytes):
        raise InvalidInput(f"a key is bytes, not {type(where.key).__name__}")
    if where.group is not None:
        check_name("group", where.group)
    for identity in where.ids or ():
        MessageId.parse(identity)


def original(letter: DeadLetter) -> MessageId:
    """Of the message that was given up."""
    return MessageId(letter.obituary.topic, letter.obituary.partition, letter.obituary.offset)


# --- the header ------------------------------------------------------------------------------------------


_obituaries = json_decoder(Obituary)


def letter_of(message: Message, obituary: Obituary) -> Message:
    """As it is published to the dead-letter topic: with nothing that would delay it there, or make it expire."""
    return Message(message.value, message.key, (*plain_headers(message), (HEADER, _encoded(obituary))))


def obituary_of(letter: Message) -> Obituary | None:
    """None if it is no dead letter."""
    for name, value in letter.headers:
        if name == HEADER:
            try:
                return _obituaries.decode(value)
            except msgspec.DecodeError:
                return None
    return None


def plain_headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    """Those of the message itself."""
    return tuple(header for header in message.headers if header[0] != HEADER)


def _encoded(obituary: Obituary) -> bytes:
    """As much of the story as fits into a header."""
    while len(encoded := msgspec.json.encode(obituary)) > _OBITUARY_BYTES_MAX - KIB:
        if obituary.failures:
            obituary = msgspec.structs.replace(obituary, failures=obituary.failures[1:])
        else:
            obituary = msgspec.structs.replace(obituary, reason=obituary.reason[: len(obituary.reason) // 2])
    return encoded
