"""What can be set on a topic and on a group, in the words users have for it, to and from those the broker has.

    visibility="30s"                                    visibility_us=30_000_000
    backoff={"initial": "1s", "max": "10m"}             backoff_initial_us=…, backoff_max_us=…
    retention={"hours": 24, "bytes": None}              retention_age_us=…, retention_bytes=None

A setting that does not exist, or is written wrongly, is refused here. Ranges are the broker's to know; what it says of
them is put into the users' words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.clock import TIME_MAX_US
from penstock.durations import duration_text, duration_us
from penstock.errors import InvalidInput, InvalidSetting, SettingsConflict

_HOUR_US = 3_600_000_000


def _as_it_is(value: Any) -> Any:
    return value


class _Setting(NamedTuple):
    """`field` is the broker's name for it; `read` and `show` lead there and back."""

    field: str
    read: Callable[[str, Any], Any]
    show: Callable[[Any], Any] = _as_it_is


def _duration(field: str) -> _Setting:
    def read(name: str, value: Any) -> int:
        try:
            return duration_us(value)
        except InvalidInput as error:
            raise InvalidSetting(f"{name}: {error.message}", setting=name) from error

    return _Setting(field, read, duration_text)


def _one_of(field: str, *choices: str) -> _Setting:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            allowed = ", ".join(choices[:-1]) + " or " + choices[-1]
            raise InvalidSetting(f"{name} is {allowed}, not {value!r}", setting=name)
        return value

    return _Setting(field, read)


def _typed(field: str, kind: type | tuple[type, ...], called: str) -> _Setting:
    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidSetting(f"{name} is {called}, not {value!r}", setting=name)
        return value

    return _Setting(field, read)


def _read_hours(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 100_000_000:
        raise InvalidSetting(f"{name} is a number of hours, or None for no bound, not {value!r}", setting=name)
    return round(value * _HOUR_US)


def _show_hours(age_us: int | None) -> float | int | None:
    if age_us is None:
        return None
    return age_us // _HOUR_US if age_us % _HOUR_US == 0 else age_us / _HOUR_US


GROUP: Mapping[str, _Setting] = {
    "start": _one_of("start", "earliest", "latest"),
    "visibility": _duration("visibility_us"),
    "max_retries": _typed("max_retries", int, "a whole number"),
    "backoff.initial": _duration("backoff_initial_us"),
    "backoff.factor": _typed("backoff_factor", (int, float), "a number"),
    "backoff.max": _duration("backoff_max_us"),
    "backoff.jitter": _typed("backoff_jitter", (int, float), "a number"),
    "ordering": _one_of("ordering", "none", "key", "partition"),
    "on_poison": _one_of("on_poison", "park", "skip", "block"),
    "assignment": _one_of("assignment", "sticky", "shared"),
    "lanes": _one_of("lanes", "strict", "weighted", "none"),
    "max_in_flight": _typed("max_in_flight", int, "a whole number"),
    "session": _duration("session_us"),
}
TOPIC: Mapping[str, _Setting] = {
    "retention.hours": _Setting("retention_age_us", _read_hours, _show_hours),
    "retention.bytes": _typed("retention_bytes", (int, type(None)), "a number of bytes, or None for no bound"),
    "cleanup": _one_of("cleanup", "delete", "compact"),
    "tombstone_age": _duration("tombstone_age_us"),
    "max_delay": _duration("max_delay_us"),
    "dead_letters": _typed("dead_letters", bool, "True or False"),
    "archive": _one_of("archive", "none", "required"),
    "durability": _one_of("durability", "fsync", "interval"),
    "sync_interval": _duration("sync_interval_us"),
    "replicas": _typed("replicas", (int, type(None)), "a whole number, or None for the default"),
    "min_isr": _typed("min_isr", (int, type(None)), "a whole number, or None for the default"),
}


def group_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return _read(given, GROUP, "group")


def topic_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return _read(given, TOPIC, "topic")


def show_group(settings: Mapping[str, Any]) -> dict[str, Any]:
    return _show(settings, GROUP)


def show_topic(settings: Mapping[str, Any]) -> dict[str, Any]:
    return _show(settings, TOPIC)


@contextmanager
def in_users_words() -> Iterator[None]:
    """What the broker says of its settings, said of the users'."""
    try:
        yield
    except InvalidSetting as error:
        field = error.details.get("setting")
        for name, setting in [*GROUP.items(), *TOPIC.items()]:
            if setting.field == field:
                raise InvalidSetting(_in_users_words(name, setting, error), setting=name) from error
        raise
    except SettingsConflict as error:
        raise _conflict_in_users_words(error) from error


def _in_users_words(name: str, setting: _Setting, error: InvalidSetting) -> str:
    if "given" not in error.details:
        return error.message.replace(setting.field, name)
    lowest, highest, given = (setting.show(error.details[each]) for each in ("lowest", "highest", "given"))
    # The end of time is no bound that anybody wants to hear of.
    bounds = f"at least {lowest}" if error.details["highest"] == TIME_MAX_US else f"{lowest} to {highest}"
    return f"{name} is {bounds}, not {given}"


def _conflict_in_users_words(error: SettingsConflict) -> SettingsConflict:
    names = {setting.field: (name, setting.show) for name, setting in GROUP.items()}
    different = {}
    for field, (has, wanted) in error.details["different"].items():
        name, show = names.get(field, (field, _as_it_is))
        different[name] = [show(has), show(wanted)]
    group = error.details["group"]
    told = "; ".join(f"{name} is {has}, not {wanted}" for name, (has, wanted) in different.items())
    return SettingsConflict(
        f"group {group} has other settings: {told}. Leave them out, or change the group: penstock group set {group}",
        group=group,
        different=different,
    )


def _read(given: Mapping[str, Any], known: Mapping[str, _Setting], kind: str) -> dict[str, Any]:
    settings = {}
    for name, value in _flattened(given, known):
        if name not in known:
            raise InvalidSetting(
                f"there is no {kind} setting {name!r}; there are {', '.join(sorted(known))}", setting=name
            )
        settings[known[name].field] = known[name].read(name, value)
    return settings


def _flattened(given: Mapping[str, Any], known: Mapping[str, _Setting]) -> Iterator[tuple[str, Any]]:
    """{"backoff": {"initial": …}} as "backoff.initial"; None for all of a group of settings is None for each."""
    for name, value in given.items():
        inner = [other for other in known if other.startswith(f"{name}.")]
        if not inner:
            yield name, value
        elif value is None:
            yield from ((other, None) for other in inner)
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            words = ", ".join(other.partition(".")[2] for other in inner)
            raise InvalidSetting(f"{name} has parts ({words}) and is written as a mapping, not {value!r}", setting=name)


def _show(settings: Mapping[str, Any], known: Mapping[str, _Setting]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, setting in known.items():
        if setting.field in settings:
            value = setting.show(settings[setting.field])
            outer, _, inner = name.partition(".")
            if inner:
                shown.setdefault(outer, {})[inner] = value
            else:
                shown[name] = value
    return shown
