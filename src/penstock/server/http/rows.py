"""Messages as JSON has them, from and to those of the broker."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.client.rows import StoredMessage
from penstock.client.transport import Delivery
from penstock.client.words import Bytes, MessageFields, message_of
from penstock.clock import rfc3339
from penstock.errors import InvalidMessage
from penstock.message import Message
from penstock.server.http import receipts, shapes
from penstock.server.receipts import Place

_INSTEAD = "publish plain text as text, and JSON as json"
_PRIORITIES = {1: "high", 0: "normal", -1: "low"}


# --- in -----------------------------------------------------------------------------------------------------


def content_of(given: shapes.Content) -> bytes | None:
    """The one of the three that is there."""
    text, raw = given.text, given.json
    if (given.value is not UNSET) + (text is not UNSET) + (raw is not UNSET) != 1:
        raise InvalidMessage("a message has one of value (base64, or null), text and json", field="value")
    if given.encoding is not None and given.value is UNSET:
        raise InvalidMessage("encoding goes with value; text and json have none", field="encoding")
    if not isinstance(text, UnsetType):
        return text.encode()
    if not isinstance(raw, UnsetType):
        return _json_of(raw)
    assert not isinstance(given.value, UnsetType)
    return None if given.value is None else _value_of(given.value, is_any=given.encoding is not None)


def _value_of(given: str, *, is_any: bool) -> bytes:
    """Plain text is often base64, too, as "test" is: what is meant as such decodes to text, or says what it is."""
    try:
        value = b64decode(given, validate=True)
    except ValueError as error:
        raise InvalidMessage(f"value is not base64 ({error}); {_INSTEAD}", field="value") from error
    if not is_any and _text(value) is None:
        raise InvalidMessage(
            f'value decodes to bytes that are not UTF-8; {_INSTEAD}, or add "encoding": "base64" if they are meant',
            field="value",
        )
    return value


def _json_of(raw: Raw) -> bytes:
    """As it was written; inside strings nobody has looked yet."""
    content = bytes(raw)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"json is not UTF-8: {error}", field="json") from error
    return content


def key_of(text: str | None, data: bytes | None) -> Bytes | None:
    if text is not None and data is not None:
        raise InvalidMessage("a key is said once: as key, or as key_base64", field="key")
    return data if text is None else text


def message_in(given: shapes.Publish, now_us: int) -> Message:
    fields = fields_of(given)
    for name in ("delay", "deliver_at", "ttl", "expires_at", "timestamp"):
        value: Any = getattr(given, name)
        if value is not None:
            fields[name] = value
    return message_of(content_of(given), now_us, fields)


def fields_of(given: shapes.Content) -> MessageFields:
    """What it has besides its value, without its times."""
    fields: MessageFields = {}
    if given.key is not None or given.key_base64 is not None:
        fields["key"] = key_of(given.key, given.key_base64)
    if given.headers is not None and given.headers_base64 is not None:
        raise InvalidMessage("headers are said once: as headers, or as headers_base64", field="headers")
    if given.headers is not None or given.headers_base64 is not None:
        fields["headers"] = given.headers if given.headers is not None else given.headers_base64
    if given.priority != "normal":
        fields["priority"] = given.priority
    return fields


# --- out ----------------------------------------------------------------------------------------------------


def stored(one: StoredMessage, as_: str | None) -> shapes.Message:
    return shapes.Message(**_shown(one.topic, one.partition, one.offset, one.append_time, one.message, as_))


def received(delivery: Delivery, row: tuple[int, int, Message], as_: str | None, key: bytes) -> shapes.Received:
    (topic, partition, lease, _), (offset, append_time, message) = delivery.receipt, row
    return shapes.Received(
        **_shown(topic, partition, offset, append_time, message, as_),
        attempt=delivery.attempts.get(offset, 1),
        receipt=receipts.written(Place(topic, partition, lease, offset), key),
    )


def _shown(
    topic: str, partition: int, offset: int, append_time: int | None, message: Message, as_: str | None
) -> dict[str, Any]:
    key, key_base64 = key_shown(message.key)
    headers, headers_base64 = _headers_shown(message.headers)
    return {
        "id": f"{topic}:{partition}:{offset}",
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "key": key,
        "key_base64": key_base64,
        **_value_shown(message.value, as_),
        "headers": headers,
        "headers_base64": headers_base64,
        "timestamp": rfc3339(message.timestamp),
        "append_time": UNSET if append_time is None else rfc3339(append_time),
        "priority": _PRIORITIES[message.priority],
        "deliver_at": rfc3339(message.deliver_at) if message.deliver_at else UNSET,
        "expires_at": rfc3339(message.expires_at) if message.expires_at else UNSET,
    }


def to_come(id: str, message: Message, deliver_at: int, as_: str | None) -> shapes.Message:
    """One that waits for its time, which may have been changed since."""
    topic, partition, offset = id.split(":")
    moved = msgspec.structs.replace(message, deliver_at=deliver_at)
    return shapes.Message(**_shown(topic, int(partition), int(offset), None, moved, as_))


def key_shown(key: bytes | None) -> tuple[str | None, bytes | UnsetType]:
    """As text; and as it is, if it is none."""
    if key is None:
        return None, UNSET
    try:
        return key.decode(), UNSET
    except UnicodeDecodeError:
        return None, key


def _headers_shown(
    headers: tuple[tuple[str, bytes], ...],
) -> tuple[dict[str, str], list[tuple[str, bytes]] | UnsetType]:
    shown = {name: text for name, value in headers if (text := _text(value)) is not None}
    return shown, UNSET if len(shown) == len(headers) else list(headers)


def _value_shown(value: bytes | None, as_: str | None) -> dict[str, Any]:
    if value is not None and as_ == "text" and (text := _text(value)) is not None:
        return {"text": text}
    if value is not None and as_ == "json" and (raw := _raw(value)) is not None:
        return {"json": raw}
    is_text = value is None or _text(value) is not None
    return {"value": value} if is_text else {"value": value, "encoding": "base64"}


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _raw(value: bytes) -> Raw | None:
    """JSON in one line, if it is JSON."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Raw(msgspec.json.format(value, indent=-1))
