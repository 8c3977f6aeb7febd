"""How many entries a request has, found before it is decoded: an entry of two bytes takes a hundred in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.errors import ProtocolError
from penstock.limits import KIB, MIB

# A smaller request is decoded within a millisecond, whatever is in it.
SMALL_BYTES = 64 * KIB
# Of each list in a request: messages of a batch, receipts, ids. More is refused in any case, by what has read them.
ENTRIES_MAX = 10_000
# Of a list in an entry, which are headers; and fields of all entries that may have so many, together.
_INNER_MAX, _FIELDS_MAX = 100, 250_000
# In so much, bytes that may begin an entry are counted faster than fields; so few are no harm.
_COUNTED_BYTES, _MARKS_MAX = 2 * MIB, 50_000
# A request and its entries have other fields, too.
_MORE = 100

_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)


class _Kind(NamedTuple):
    """Of a message: the first bytes of entries of its lists, and by number the messages in it that have lists."""

    marks: bytes
    inner: dict[int, tuple[_Kind, bool]]


def entries_check(kind: Descriptor) -> Callable[[bytes], None]:
    """ProtocolError for data with a list that is too long."""
    found = _kind(kind)
    marks = _marks(found)

    def check(data: bytes) -> None:
        if len(data) <= SMALL_BYTES:
            return
        if len(data) > _COUNTED_BYTES or _count(data, marks, 0, len(data)) > _MARKS_MAX:
            _check(found, data, 0, len(data), ENTRIES_MAX + _MORE, [_FIELDS_MAX])

    return check


def _kind(kind: Descriptor) -> _Kind:
    inner = {
        field.number: (_kind(field.message_type), field.is_repeated)
        for field in kind.fields
        if field.message_type is not None and any(_has_entries(each) for each in field.message_type.fields)
    }
    tags = {field.number << 3 | _LENGTH for field in kind.fields if _has_entries(field)}
    # A tag may be written with more bytes than it needs: then the first has its highest bit set.
    return _Kind(bytes({tag & 0x7F for tag in tags} | {tag & 0x7F | 0x80 for tag in tags}), inner)


def _marks(kind: _Kind) -> bytes:
    return bytes({*kind.marks}.union(*(_marks(inner) for inner, _ in kind.inner.values())))


def _count(data: bytes, marks: bytes, at: int, end: int) -> int:
    return sum([data.count(mark, at, end) for mark in marks])


def _has_entries(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) or field.message_type is not None


def _check(kind: _Kind, data: bytes, at: int, end: int, fields_max: int, left: list[int]) -> None:
    """What makes no sense is left to the decoder."""
    inner, count = kind.inner, 0
    while at < end:
        count += 1
        if count > fields_max:
            raise ProtocolError(f"the request has a list of more than {ENTRIES_MAX} entries, or too many fields")
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at, end)
        wire_type = tag & 7
        if wire_type == _LENGTH:
            size, at = (data[at], at + 1) if at < end and data[at] < 0x80 else _varint(data, at, end)
            if size > 2 * _INNER_MAX and (found := inner.get(tag >> 3)) is not None:
                most = _INNER_MAX + _MORE if found[1] else fields_max
                _check(found[0], data, at, min(at + size, end), most, left)
            at += size
        elif wire_type == _VARINT:
            _, at = _varint(data, at, end)
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
        elif wire_type not in (_GROUP, _GROUP_END):
            # Groups, which no field is for, are looked into.
            return
    left[0] -= count
    if left[0] < 0:
        raise ProtocolError(f"the request has more than {_FIELDS_MAX} fields and headers: send smaller batches")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
