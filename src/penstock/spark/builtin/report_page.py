"""A report as a page of HTML: one file, nothing fetched, nothing run. What plots show is in tables beside them."""

from __future__ import annotations

from penstock.spark.builtin import report_plots as plots
from penstock.spark.builtin import report_words as words
from penstock.spark.builtin.report_findings import findings_in
from penstock.spark.builtin.report_markup import Markup, joined, tag
from penstock.spark.builtin.report_parts import SPANS, mark, span, span_cells, table
from penstock.spark.builtin.report_style import STYLE
from penstock.spark.builtin.report_tables import Report
from penstock.spark.builtin.report_topic import topic_section

# Should anything ever get through that is not ours, the browser neither runs nor fetches it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(report: Report) -> str:
    topics = report.tables["topics"]
    named = ", ".join(row["topic"] for row in topics[:3]) + ("…" if len(topics) > 3 else "")
    body = tag(
        "main",
        _header(report),
        _tiles(report),
        _findings(report),
        _latencies(report),
        _groups(report),
        *(topic_section(report, row, number) for number, row in enumerate(topics)),
        tag("footer", _how_made(report)),
    )
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    title, style = tag("title", f"Delivery report: {named}"), tag("style", Markup(STYLE))
    return f'<!doctype html>\n<html lang="en"><head>{head}{title}{style}</head><body>{body}</body></html>\n'


# --- what it is of ------------------------------------------------------------------------------------------------


def _header(report: Report) -> Markup:
    since, until = report.since, report.until
    period = "all messages in the log"
    if since is not None or until is not None:
        start = f" from {words.time(since)}" if since is not None else ""
        end = f" to {words.time(until)}" if until is not None else ""
        period = f"messages appended{start}{end}"
    links = [tag("a", row["topic"], href=f"#topic-{number}") for number, row in enumerate(report.tables["topics"])]
    return tag(
        "header",
        tag("h1", "Delivery report"),
        tag("p", f"{report.url} · {period} · made {words.time(report.made)}"),
        tag("nav", joined(links), aria_label="Topics"),
    )


def _tiles(report: Report) -> Markup:
    groups = report.tables["groups"]
    messages = sum(row["messages"] for row in report.tables["topics"])
    delivered, again = (sum(row[name] for row in groups) for name in ("messages", "redeliveries"))
    dead = sum(row["dead_letters"] for row in groups)
    slowest = max((row["latency_p99_us"] for row in groups if row["latency_p99_us"] is not None), default=None)
    shown = [
        (words.count(messages), "messages", False),
        (words.count(sum(row["acknowledged"] for row in groups)), "acknowledgements", False),
        (words.span(slowest), "p99 of the slowest group", False),
        (words.percent(again / delivered if delivered else None), "redelivered", False),
        (words.count(dead), "dead letters", dead > 0),
        (words.count(sum(row["unacknowledged"] for row in groups)), "unacknowledged", False),
    ]
    tiles = (
        tag("div", tag("b", value), tag("span", name), class_="tile grave" if is_grave else "tile")
        for value, name, is_grave in shown
    )
    return tag("div", joined(tiles), class_="tiles")


def _findings(report: Report) -> Markup:
    found = findings_in(report)
    if not found:
        return tag("section", tag("h3", "What stands out"), tag("p", "Nothing.", class_="quiet"), class_="card")
    items = (tag("li", finding.text, class_=finding.weight) for finding in found)
    return tag("section", tag("h3", "What stands out"), tag("ul", joined(items), class_="findings"), class_="card")


def _how_made(report: Report) -> str:
    return (
        "Latency is from when a message was appended, or due if it was delayed, to its first acknowledgement by a "
        "group. Percentiles are exact for up to 10,000 acknowledgements, and off by at most 0.01 % of ranks for more. "
        f"Over time, a point stands for {words.span(report.bucket_s * 1_000_000)}, by when messages were appended."
    )


# --- groups -------------------------------------------------------------------------------------------------------


def _latencies(report: Report) -> Markup:
    rows = [row for row in report.tables["groups"] if row["latency_max_us"] is not None]
    title = "From publishing to acknowledgement"
    if not rows:
        nothing = tag("p", "Nothing was acknowledged.", class_="quiet")
        return tag("section", tag("h3", title), nothing, class_="card")
    bars = [
        plots.Bars(f"{row['group']} · {row['topic']}", [row[f"latency_{name}_us"] for name in SPANS]) for row in rows
    ]
    plot = plots.log_bars(title, list(SPANS.values()), list(SPANS), bars, span)
    processing = table(
        "Processing: from a delivery to its acknowledgement",
        ["group", "topic", *SPANS.values()],
        [[row["group"], row["topic"], *span_cells(row, "processing")] for row in rows],
        names=2,
    )
    latency = table(
        title,
        ["group", "topic", *SPANS.values()],
        [[row["group"], row["topic"], *span_cells(row, "latency")] for row in rows],
        names=2,
    )
    return tag(
        "section",
        tag("h3", title),
        tag("p", "By group, on a logarithmic scale.", class_="note"),
        plots.legend(list(SPANS.values()), list(SPANS)),
        tag("figure", plot),
        tag("details", tag("summary", "Figures, and processing times"), latency, processing),
        class_="card",
    )


def _groups(report: Report) -> Markup:
    groups = report.tables["groups"]
    if not groups:
        nothing = tag("p", "No group has read these topics.", class_="quiet")
        return tag("section", tag("h3", "Groups"), nothing, class_="card")
    heads = (
        "group",
        "topic",
        "messages",
        "acknowledged",
        "redelivered",
        "nacked",
        "timed out",
        "dead letters",
        "open",
        "lag",
    )
    rows = [
        [
            row["group"],
            row["topic"],
            words.count(row["messages"]),
            words.count(row["acknowledged"]),
            words.percent(row["redelivery_rate"]),
            words.percent(row["nack_rate"]),
            words.percent(row["lease_expiry_rate"]),
            mark(
                f"{words.count(row['dead_letters'])} ({words.percent(row['dead_letter_rate'])})",
                row["dead_letters"] > 0,
            )
            if row["messages"]
            else words.NONE,
            words.count(row["unacknowledged"]),
            words.count(row["lag"]),
        ]
        for row in groups
    ]
    caption = (
        "Redelivered and dead letters are shares of messages, nacked and timed out of deliveries. "
        "Open: delivered and not acknowledged. Lag: not done, now, in the whole topic."
    )
    gone = [row for row in groups if row["gone"]]
    told = ", ".join(f"{row['group']} on {row['topic']} {words.count(row['gone'])}" for row in gone)
    more = [tag("p", f"Counted, but gone from the log, so that their latency is not known: {told}.", class_="note")]
    return tag(
        "section", tag("h3", "Groups"), table(caption, heads, rows, names=2), *(more if gone else []), class_="card"
    )
