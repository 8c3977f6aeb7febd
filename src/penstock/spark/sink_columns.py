"""The columns that can be written, and of which types. Looked at on the driver, before any row is written."""

from __future__ import annotations

from pyspark.sql import types as t

from penstock.errors import InvalidInput

_TEXT_OR_BYTES = (t.BinaryType, t.StringType)
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_DURATION = (t.StringType, t.DayTimeIntervalType)
_ALLOWED: dict[str, tuple[type[t.DataType], ...]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "topic": (t.StringType,),
    "partition": _WHOLE,
    "headers": (t.ArrayType, t.MapType),
    "priority": (t.StringType, *_WHOLE),
    "timestamp": (t.TimestampType,),
    "delay": _DURATION,
    "deliver_at": (t.TimestampType,),
    "ttl": _DURATION,
    "expires_at": (t.TimestampType,),
}
_TOLD = {
    "value": "binary or string",
    "key": "binary or string",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>> or map<string,binary> (or string in place of binary)",
    "priority": 'string ("high", "normal" or "low") or int (1, 0 or -1)',
    "timestamp": "timestamp",
    "delay": 'string, as in "30s", or interval day to second',
    "deliver_at": "timestamp",
    "ttl": 'string, as in "30s", or interval day to second',
    "expires_at": "timestamp",
}
# What a table has that was read with format("penstock"), and that the broker gives to messages itself.
_GIVEN = ("id", "offset", "append_time")


def columns_of(schema: t.StructType, *, has_topic: bool) -> tuple[str, ...]:
    """Their names as we know them, in their order; InvalidInput if a row of them could not be a message.

    Case does not matter, as in Spark itself.
    """
    names = tuple(field.name.lower() for field in schema.fields)
    for field, name in zip(schema.fields, names, strict=True):
        _check(field, name)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"there are two columns named {twice}", column=twice)
    if "value" not in names:
        raise InvalidInput(f"there is no column value ({_TOLD['value']}): every message has one", column="value")
    if "topic" not in names and not has_topic:
        raise InvalidInput("where to? Set the option topic, or have a column topic (string)", column="topic")
    for one, other in (("delay", "deliver_at"), ("ttl", "expires_at")):
        if one in names and other in names:
            raise InvalidInput(f"there are columns {one} and {other}: a message has one of them, not both", column=one)
    return names


def _check(field: t.StructField, name: str) -> None:
    if name not in _ALLOWED:
        why = "the broker gives that itself" if name in _GIVEN else f"there may be {', '.join(_ALLOWED)}"
        raise InvalidInput(
            f"column {field.name} is nothing a message has: {why}; select the columns to be written, as in "
            'df.select("key", "value")',
            column=field.name,
        )
    kind = field.dataType
    if not isinstance(kind, _ALLOWED[name]) or (name == "headers" and not _holds_headers(kind)):
        raise InvalidInput(f"column {field.name} is {_TOLD[name]}, not {kind.simpleString()}", column=field.name)


def _holds_headers(kind: t.DataType) -> bool:
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, _TEXT_OR_BYTES)
    pair = kind.elementType
    if not isinstance(pair, t.StructType) or pair.fieldNames() != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, t.StringType) and isinstance(pair["value"].dataType, _TEXT_OR_BYTES)
