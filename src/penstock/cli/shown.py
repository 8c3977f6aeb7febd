"""How bytes, times and sizes look: short and in one line in a table, whole and exact in JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.clock import rfc3339
from penstock.limits import KIB, MIB
from penstock.message import Message, Priority

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from penstock.client.rows import StoredMessage

GIB = 1024 * MIB
TEXT_CHARACTERS_MAX = 40

_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
# From large to small, for times that need no more than their largest unit.
_AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def known(text: str, is_part: bool) -> str:
    """What is known of something of which a part is not: nobody leads a partition of it."""
    return f"{text} + ?" if is_part else text


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def shown_size(size: int) -> str:
    if size < KIB:
        return counted(size, "byte")
    if size < MIB:
        return f"{size / KIB:.1f} KiB"
    return f"{size / MIB:.1f} MiB" if size < GIB else f"{size / GIB:.1f} GiB"


def shown_lag(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def shown_rate(each_second: float) -> str:
    return f"{each_second:,.0f}" if each_second >= 10 or not each_second else f"{each_second:.1f}"


# --- times --------------------------------------------------------------------------------------------------


def shown_time(time_us: int | None, now_us: int) -> str:
    """To the second, and how far from now."""
    if not time_us:
        return "-"
    return f"{rfc3339(time_us)[:19]}Z ({_distance(time_us - now_us)})"


def _distance(us: int) -> str:
    seconds = abs(us) // 1_000_000
    for size, unit in _AGES:
        if seconds >= size:
            return f"in {seconds // size}{unit}" if us > 0 else f"{seconds // size}{unit} ago"
    return "now"


def time_json(time_us: int | None) -> str | None:
    """0 is what a message has that has no such time."""
    return rfc3339(time_us) if time_us else None


def shown_span(us: int) -> str:
    """How long something took, with three digits or so."""
    if us < 1_000:
        return f"{us} µs"
    if us < 1_000_000:
        return f"{us / 1_000:.1f} ms"
    return f"{us / 1_000_000:.2f} s" if us < 60_000_000 else f"{us // 60_000_000}m {us // 1_000_000 % 60}s"


# --- bytes --------------------------------------------------------------------------------------------------


def text_of(data: bytes) -> str | None:
    """As text, if it is text that can be shown."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.translate(_ESCAPES).isprintable() else None


def shown_bytes(data: bytes | None, null: str = "-") -> str:
    """In one line, and cut if it is long, which is told then."""
    if data is None:
        return null
    text = text_of(data)
    shown = text.translate(_ESCAPES) if text is not None else "0x" + data[:TEXT_CHARACTERS_MAX].hex()
    if len(shown) <= TEXT_CHARACTERS_MAX:
        return shown
    return f"{shown[:TEXT_CHARACTERS_MAX]}… ({len(data)} bytes)"


def shown_text(text: str | None) -> str:
    """What others wrote, in one line of a table: a reason, for one."""
    return "-" if not text else shown_bytes(text.encode("utf-8", "backslashreplace"))


def for_terminal(data: bytes) -> str:
    """All of it, but nothing that a terminal would take for a command."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def bytes_json(data: bytes | None) -> str | dict[str, str] | None:
    """Text, or {"base64": …} if it is not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# --- messages -----------------------------------------------------------------------------------------------


def headers_json(headers: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
    """By name; a name that comes several times has a list."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(bytes_json(value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def shown_headers(headers: Iterable[tuple[str, bytes]]) -> str:
    return ", ".join(f"{name}={shown_bytes(value)}" for name, value in headers) or "-"


def message_json(message: Message) -> dict[str, Any]:
    return {
        "timestamp": time_json(message.timestamp),
        "key": bytes_json(message.key),
        "value": bytes_json(message.value),
        "headers": headers_json(message.headers),
        "priority": Priority(message.priority).name.lower(),
        "deliver_at": time_json(message.deliver_at),
        "expires_at": time_json(message.expires_at),
    }


def stored_json(stored: StoredMessage) -> dict[str, Any]:
    """What `publish --json-lines` takes, and where it is."""
    return {
        "id": stored.id,
        "topic": stored.topic,
        "partition": stored.partition,
        "offset": stored.offset,
        "append_time": time_json(stored.append_time),
        **message_json(stored.message),
    }


# --- others -------------------------------------------------------------------------------------------------


def shown_setting(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def flat(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """As --set takes them: {"backoff": {"initial": "1s"}} is backoff.initial."""
    found = []
    for name, value in settings.items():
        parts = value.items() if isinstance(value, Mapping) else None
        found += [(name, value)] if parts is None else [(f"{name}.{part}", each) for part, each in parts]
    return [(name, shown_setting(value)) for name, value in found]


def ranges(offsets: BitMap64) -> list[list[int]]:
    """The first and the last of each run."""
    from penstock.wire.runs import to_runs

    runs = to_runs(offsets)
    return [[first, first + count - 1] for first, count in zip(runs[::2], runs[1::2], strict=True)]
