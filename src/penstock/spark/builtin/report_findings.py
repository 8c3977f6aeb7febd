"""What of a report somebody should look at, in sentences; the gravest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from penstock.spark.builtin import report_words as words
from penstock.spark.builtin.report_tables import Report, Row

# Of messages, and of deliveries.
_REDELIVERED_MAX = 0.05
_LEASES_EXPIRED_MAX = 0.01
_HOT_MAX = 3


class Finding(NamedTuple):
    weight: Literal["grave", "notable"]
    text: str


def findings_in(report: Report) -> list[Finding]:
    found = [finding for row in report.tables["groups"] for finding in _of_group(row)]
    for topic in report.tables["topics"]:
        found += _of_partitions(report, topic)
        found += _of_keys(report, topic)
    return sorted(found, key=lambda finding: finding.weight != "grave")


def _of_group(row: Row) -> Iterator[Finding]:
    who = f"{row['group']} on {row['topic']}"
    if row["gone_unacknowledged"]:
        gone = words.counted(row["gone_unacknowledged"], "message")
        yield Finding("grave", f"{who}: {gone} left the log without being acknowledged.")
    if row["given_up"]:
        share = words.percent(row["given_up"] / row["messages"])
        letters = f"; dead letters: {words.count(row['dead_letters'])}"
        yield Finding("grave", f"{who}: {words.counted(row['given_up'], 'message')} given up ({share}){letters}.")
    if (row["redelivery_rate"] or 0) > _REDELIVERED_MAX:
        many = words.counted(row["redeliveries"], "redelivery").replace("redeliverys", "redeliveries")
        share = words.percent(row["redelivery_rate"])
        yield Finding("notable", f"{who}: {many} ({share} of its messages).")
    if (row["lease_expiry_rate"] or 0) > _LEASES_EXPIRED_MAX:
        share = words.percent(row["lease_expiry_rate"])
        yield Finding(
            "notable",
            f"{who}: {share} of deliveries ran out of time, as if consumers died or visibility were too short.",
        )
    if row["unacknowledged"]:
        open_ = words.counted(row["unacknowledged"], "message")
        since = words.time(row["oldest_unacknowledged"])
        yield Finding("notable", f"{who}: {open_} delivered and not yet acknowledged, the oldest due since {since}.")


def _of_partitions(report: Report, topic: Row) -> Iterator[Finding]:
    hot = [row for row in report.of("partitions", topic["topic"]) if row["is_hot"]]
    for row in sorted(hot, key=lambda row: -row["messages"])[:_HOT_MAX]:
        times = words.digits(row["times_even"])
        yield Finding(
            "notable",
            f"{topic['topic']}: partition {row['partition']} is hot, with {words.percent(row['share'])} "
            f"of the messages, {times} × an even share.",
        )


def _of_keys(report: Report, topic: Row) -> Iterator[Finding]:
    hot = [row for row in report.of("keys", topic["topic"]) if row["is_hot"]]
    for row in hot[:_HOT_MAX]:
        yield Finding(
            "notable",
            f"{topic['topic']}: the key {words.key(row['key'])} is hot: with {words.percent(row['share'])} of the "
            "messages it is more than an even partition holds, and stays in one.",
        )
