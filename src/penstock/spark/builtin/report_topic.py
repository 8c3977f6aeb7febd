"""What a page says of one topic: how much came when, to which partitions and keys, and how long it took groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.spark.builtin import report_plots as plots
from penstock.spark.builtin import report_words as words
from penstock.spark.builtin.report_markup import Markup, joined, tag
from penstock.spark.builtin.report_parts import SPANS, folded, note, span, span_cells, table
from penstock.spark.builtin.report_tables import Report, Row

_LINES = ("p50", "p90", "p99")


def topic_section(report: Report, topic: Row, number: int) -> Markup:
    name = topic["topic"]
    parts: list[str] = [tag("h2", name)]
    if topic["messages"]:
        parts.append(_facts(topic))
        times = _times(report)
        parts.append(tag("div", _rate(report, name, times), _partitions(report, topic), class_="pair"))
        latencies = [
            _over_time(report, row, times) for row in report.of("groups", name) if row["latency_max_us"] is not None
        ]
        if latencies:
            parts.append(tag("div", *latencies, class_="pair"))
        parts.append(_keys(report, topic))
    else:
        held = f"No messages, in {words.counted(topic['partitions'], 'partition')}."
        parts.append(tag("p", held, class_="card quiet"))
    return tag("section", *parts, id=f"topic-{number}")


def _facts(topic: Row) -> Markup:
    lanes = ((name, topic[name]) for name in ("high", "normal", "low"))
    shares = [f"{words.percent(count / topic['messages'])} {name}" for name, count in lanes if count]
    facts = [
        ("messages", words.count(topic["messages"])),
        ("rate", words.rate(topic["messages_per_s"])),
        ("first", words.time(topic["first"])),
        ("last", words.time(topic["last"])),
        (
            "keys",
            words.count(topic["keys"]) + (f", {words.count(topic['unkeyed'])} without" if topic["unkeyed"] else ""),
        ),
        ("priority", ", ".join(shares) or words.NONE),
        ("delayed", words.count(topic["delayed"])),
        ("partitions", words.count(topic["partitions"])),
        ("on disk", words.size(topic["stored_bytes"])),
    ]
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
    return tag("dl", joined(pairs), class_="card")


def _times(report: Report) -> list[datetime]:
    """The same for all plots: from the first bucket in which there is something, to the last."""
    known = [row["time"] for row in report.tables["times"]]
    step = timedelta(seconds=report.bucket_s)
    count = (max(known) - min(known)) // step + 1 if known else 0
    return [min(known) + index * step for index in range(count)]


def _rate(report: Report, topic: str, times: Sequence[datetime]) -> Markup:
    by_time = {row["time"]: row for row in report.of("times", topic)}
    values = [by_time[at]["messages_per_s"] if at in by_time else 0.0 for at in times]
    plot = plots.lines(
        f"Messages per second of {topic}", times, [plots.Line("messages/s", "rate", values)], words.digits
    )
    rows = [[words.time(row["time"]), words.count(row["messages"]), words.rate(row["messages_per_s"])]
            for row in by_time.values()]  # fmt: skip
    figures = table("Published", ["from", "messages", "rate"], rows)
    return tag(
        "div", tag("h3", "Published"), note("messages per second"), tag("figure", plot), folded(figures), class_="card"
    )


def _over_time(report: Report, group: Row, times: Sequence[datetime]) -> Markup:
    rows = report.of("group_times", group["topic"], group["group"])
    by_time = {row["time"]: row for row in rows}
    series = [
        plots.Line(name, name, [by_time[at][f"latency_{name}_us"] if at in by_time else None for at in times])
        for name in _LINES
    ]
    plot = plots.lines(f"Latency of {group['group']} on {group['topic']}", times, series, span)
    heads = ["from", "acknowledged", *SPANS.values()]
    cells = [[words.time(row["time"]), words.count(row["acknowledged"]), *span_cells(row, "latency")] for row in rows]
    return tag(
        "div",
        tag("h3", f"Latency: {group['group']}"),
        plots.legend(_LINES, _LINES),
        tag("figure", plot),
        folded(table(f"Latency of {group['group']}", heads, cells)),
        class_="card",
    )


def _partitions(report: Report, topic: Row) -> Markup:
    rows = report.of("partitions", topic["topic"])
    bars = [plots.Bar(str(row["partition"]), row["messages"], row["is_hot"]) for row in rows]
    even = topic["messages"] / len(rows)
    plot = plots.columns(f"Messages in each partition of {topic['topic']}", bars, even, words.digits)
    cells = [
        [
            joined([str(row["partition"]), *([" ", tag("span", "hot", class_="tag")] if row["is_hot"] else [])]),
            words.count(row["messages"]),
            words.percent(row["share"]),
            f"{words.digits(row['times_even'])} ×",
            words.size(row["stored_bytes"]),
        ]
        for row in rows
    ]
    figures = table("Partitions", ["partition", "messages", "share", "of even", "on disk"], cells)
    hot = [str(row["partition"]) for row in rows if row["is_hot"]]
    told = f"messages in each; hot: {', '.join(hot)}" if hot else "messages in each; none is hot"
    return tag("div", tag("h3", "Partitions"), note(told), tag("figure", plot), folded(figures), class_="card")


def _keys(report: Report, topic: Row) -> Markup:
    rows = report.of("keys", topic["topic"])
    if not rows:
        return tag("section", tag("h3", "Keys"), tag("p", "No message has a key.", class_="quiet"), class_="card")
    cells = [
        [
            joined(
                [
                    tag("code", words.key(row["key"])),
                    *([" ", tag("span", "hot", class_="tag")] if row["is_hot"] else []),
                ]
            ),
            words.count(row["partition"]),
            words.count(row["messages"]),
            words.percent(row["share"]),
            f"{words.digits(row['times_even'])} ×",
        ]
        for row in rows
    ]
    caption = f"The most frequent of {words.count(topic['keys'])}. Hot: more than an even partition holds."
    heads = ["key", "partition", "messages", "share", "of a partition"]
    return tag("section", tag("h3", "Keys"), table(caption, heads, cells), class_="card")
