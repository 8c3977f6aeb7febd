"""penstock group: what groups there are, where they are, and how to move them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import Bundle, bundled
from penstock.cli.given import flags_given, maybe_past_given, offset_given, past_given, settings_given
from penstock.cli.options import FromTime, GroupName, OutputOption, Settings, Topic, ToTime, Yes
from penstock.cli.output import Column, Output, confirm, note, print_answer, print_one, print_rows
from penstock.cli.shown import bytes_json, counted, flat, known, ranges, shown_bytes, shown_text, shown_time, time_json
from penstock.client.settings import group_settings
from penstock.clock import SystemClock
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.client.requests import GroupInfo, ParkedKey, StateAt

app = typer.Typer(
    help="Make, list, show, set, delete, move and replay groups.", no_args_is_help=True, rich_markup_mode=None
)

Start = Annotated[
    str | None, typer.Option("--start", metavar="earliest|latest", help="Where the group begins in a topic.")
]
OfPartition = Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")]

_RANGE = re.compile(r"([0-9]{1,30}):([0-9]{1,30})-([0-9]{1,30})")
_COLUMNS = (
    Column("group"),
    Column("topics"),
    Column("lag", is_number=True),
    Column("members", is_number=True),
    Column("ordering", rank=1),
    Column("created", rank=2),
)
_LAG_COLUMNS = (Column("topic"), Column("partition", is_number=True), Column("lag", is_number=True), Column("member"))
_PARKED_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("key"),
    Column("message"),
    Column("since", rank=1),
    Column("reason"),
)
_STATE_COLUMNS = (
    Column("partition", is_number=True),
    Column("floor", is_number=True),
    Column("end offset", is_number=True),
    Column("unacknowledged", is_number=True),
    Column("leased", is_number=True),
    Column("dead", is_number=True),
)


@dataclass(frozen=True)
class Wanted(Bundle):
    """Settings: some have flags of their own."""

    visibility: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a consumer may keep a message.")
    ] = None
    max_retries: Annotated[int | None, typer.Option(metavar="N", help="Tries after the first one.")] = None
    ordering: Annotated[str | None, typer.Option(metavar="none|key|partition", help="What keeps its order.")] = None
    on_poison: Annotated[
        str | None, typer.Option(metavar="park|skip|block", help="What a message given up does to its key.")
    ] = None
    settings: Settings = None

    def given(self, **more: Any) -> dict[str, Any]:
        """With more flags, if there are any."""
        flags = {name: value for name, value in asdict(self).items() if name != "settings"}
        return settings_given(self.settings, flags_given(**more, **flags), group_settings)


@app.command("create")
@bundled
def create(
    broker: Broker,
    name: GroupName,
    *,
    start: Start = None,
    wanted: Wanted,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a group. A consumer makes its group by itself; if it is there already, it must have these settings."""
    settings = wanted.given(start=start)
    with broker.open() as q:
        info = q.create_group(name, **settings)
    _print_group(info, output)


@app.command("list")
@bundled
def list_groups(broker: Broker, output: OutputOption = Output.TABLE) -> None:
    """What groups there are, with their lag."""
    with broker.open() as q:
        groups = q.groups(partial=True)
    print_rows(output, groups, group_json, _COLUMNS, _cells, "there are no groups")


@app.command("show")
@bundled
def show(broker: Broker, name: GroupName, output: OutputOption = Output.TABLE) -> None:
    """A group with its lag, its members and settings."""
    with broker.open() as q:
        info = q.group(name, partial=True)
    _print_group(info, output)


@app.command("set")
@bundled
def set_group(broker: Broker, name: GroupName, wanted: Wanted, output: OutputOption = Output.TABLE) -> None:
    """Change those settings that are named."""
    settings = wanted.given()
    with broker.open() as q:
        info = q.change_group(name, **settings)
    _print_group(info, output)


@app.command("delete")
@bundled
def delete(broker: Broker, name: GroupName, yes: Yes = False, output: OutputOption = Output.TABLE) -> None:
    """Delete a group with everything it knows of what it has done. The messages stay."""
    with broker.open() as q:
        q.group(name, partial=True)
        confirm(f"Delete {name} and what it has done?", yes)
        q.delete_group(name)
    print_answer(output, {"deleted": name}, f"deleted {name}")


@app.command("seek")
@bundled
def seek(
    broker: Broker,
    name: GroupName,
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, a time, how long ago (10m), or an offset.")
    ],
    partition: OfPartition = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a group in a topic. What it has leased is let go."""
    where = offset_given(to)
    time = past_given("--to", to) if isinstance(where, str) else None
    with broker.open() as q:
        if isinstance(time, int):
            q.seek(name, topic, time=time, partition=partition)
        else:
            q.seek(name, topic, where, partition=partition)
        info = q.group(name, partial=True)
    lag = info.lags_of(topic) if topic in info.lag else []
    answer = {"group": name, "topic": topic, "to": to, "lag": lag}
    left = known(counted(sum(each or 0 for each in lag), "message"), None in lag)
    print_answer(output, answer, f"{name} is at {to} in {topic}, with {left} to do")


@app.command("parked")
@bundled
def parked(broker: Broker, name: GroupName, output: OutputOption = Output.TABLE) -> None:
    """Keys that wait because a message of theirs was given up."""
    from penstock.client.requests import not_known

    with broker.open() as q:
        before = q.group(name, partial=True)
        keys = q.parked_keys(name, partial=True)
        # Somebody may lead one by now that nobody did a moment ago.
        for each, numbers in not_known(before, q.group(name, partial=True)).items():
            note(f"nobody leads {counted(len(numbers), 'partition')} of {each}: what is parked there is not known")
    print_rows(output, keys, _parked_json, _PARKED_COLUMNS, _parked_cells, f"no key of {name} is parked")


@app.command("release")
@bundled
def release(
    broker: Broker,
    name: GroupName,
    topic: Topic,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="A parked key; none for whole partitions.")] = None,
    partition: OfPartition = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a parked key go on, with what comes after the message that was given up."""
    with broker.open() as q:
        count = q.release_key(name, topic, key, partition=partition)
    what = "everything" if key is None else f"key {key}"
    told = f"released {what} in {counted(count, 'partition')} of {topic}"
    print_answer(output, {"released": count}, told, is_bad_news=not count)


@app.command("replay")
@bundled
def replay(
    broker: Broker,
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The name of the new group.")],
    from_time: FromTime = None,
    to_time: ToTime = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", metavar="P:FIRST-LAST", help="Those of a partition, with LAST; may be repeated."),
    ] = None,
    delays: Annotated[bool, typer.Option("--delays", help="Hold messages back as long as they were then.")] = False,
    lanes: Annotated[
        bool, typer.Option("--lanes", help="Those of a higher priority first, as they came then.")
    ] = False,
    settings: Settings = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """A new group that gets the messages of a time, or of offsets, and nothing else. Other groups do not notice."""
    stretch = _ranges_given(offsets)
    with broker.open() as q:
        count = q.replay(
            topic,
            name,
            from_time=maybe_past_given("--from-time", from_time),
            to_time=maybe_past_given("--to-time", to_time),
            offsets=stretch,
            **settings_given(settings, {"delays": delays, "lanes": lanes}, group_settings),
        )
    answer = {"group": name, "topic": topic, "messages": count}
    print_answer(output, answer, f"{name} gets {counted(count, 'message')} of {topic}", is_bad_news=not count)


def _ranges_given(texts: list[str] | None) -> dict[int, tuple[int, int]] | None:
    found = {}
    for text in texts or ():
        match = _RANGE.fullmatch(text)
        if match is None:
            raise InvalidInput(f"--offsets are partition:first-last, as in 0:10-19, not {text!r}", argument="--offsets")
        found[int(match[1])] = (int(match[2]), int(match[3]) + 1)
    return found or None


@app.command("state-at")
@bundled
def state_at(
    broker: Broker,
    name: GroupName,
    topic: Topic,
    time: Annotated[str, typer.Argument(metavar="TIME", help="RFC 3339, or how long ago, as in 10m.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """What a group had not acknowledged at some time."""
    with broker.open() as q:
        states = q.state_at(name, topic, past_given("TIME", time))
    print_rows(output, states, _state_json, _STATE_COLUMNS, _state_cells, f"{name} had not started in {topic} by then")


# --- how they look ------------------------------------------------------------------------------------------


def group_json(info: GroupInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "created": time_json(info.created_us),
        "lag": {topic: info.lags_of(topic) for topic in info.lag},
        "lag_total": _lag(info),
        "unknown_partitions": info.unknown,
        "members": {
            name: [{"topic": topic, "partition": partition} for topic, partition in places]
            for name, places in info.members.items()
        },
        "settings": info.settings,
    }


def _lag(info: GroupInfo) -> int:
    return sum(sum(each) for each in info.lag.values())


def _cells(info: GroupInfo) -> list[str]:
    return [
        info.name,
        ", ".join(info.lag) or "-",
        known(str(_lag(info)), bool(info.unknown)),
        str(len(info.members)),
        str(info.settings.get("ordering", "-")),
        shown_time(info.created_us, SystemClock().now_us()),
    ]


def _print_group(info: GroupInfo, output: Output) -> None:
    fields = [
        ("group", info.name),
        ("created", shown_time(info.created_us, SystemClock().now_us())),
        ("lag", known(str(_lag(info)), bool(info.unknown))),
        ("members", ", ".join(sorted(info.members)) or "-"),
        *flat(info.settings),
    ]
    print_one(output, group_json(info), fields=fields, columns=_LAG_COLUMNS, rows=_lag_rows(info))


def _lag_rows(info: GroupInfo) -> list[list[str]]:
    """Whose a partition is; in a group whose assignment is shared it is everybody's."""
    rows = []
    for topic in info.lag:
        for partition, lag in enumerate(info.lags_of(topic)):
            owners = sorted(name for name, places in info.members.items() if (topic, partition) in places)
            rows.append([topic, str(partition), "?" if lag is None else str(lag), ", ".join(owners) or "-"])
    return rows


def _parked_json(parked: ParkedKey) -> dict[str, Any]:
    return {
        "topic": parked.topic,
        "partition": parked.partition,
        "key": bytes_json(parked.key),
        "id": f"{parked.topic}:{parked.partition}:{parked.offset}",
        "since": time_json(parked.since_us),
        "reason": parked.reason,
    }


def _parked_cells(parked: ParkedKey) -> list[str]:
    return [
        parked.topic,
        str(parked.partition),
        shown_bytes(parked.key, "(all keys)"),
        f"{parked.topic}:{parked.partition}:{parked.offset}",
        shown_time(parked.since_us, SystemClock().now_us()),
        shown_text(parked.reason),
    ]


def _state_json(state: StateAt) -> dict[str, Any]:
    return {
        "partition": state.partition,
        "floor": state.floor,
        "end_offset": state.end_offset,
        "unacknowledged": ranges(state.unacknowledged),
        "leased": ranges(state.leased),
        "dead": ranges(state.dead),
    }


def _state_cells(state: StateAt) -> list[str]:
    sets = (state.unacknowledged, state.leased, state.dead)
    return [str(state.partition), str(state.floor), str(state.end_offset), *(str(len(each)) for each in sets)]
