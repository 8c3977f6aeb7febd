"""Who may read the wall clock, and why: anybody may set it, so it decides no duration, no time-out and no identity.

Whatever lasts is counted with `monotonic_us`, or by the event loop. A module that is not listed here reads no wall
clock; one that has a reason to is added with that reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
# What users run, and see: dates of their own machine. Clocks for tests.
FREE = ("cli", "spark", "testing")

DATES = {
    "archive/archive.py": "manifests say when they were written",
    "archive/compaction.py": "files are older than the grace by the dates of a storage that others write to, too",
    "broker/catalog.py": "when topics and groups were created, to be shown",
    "broker/dead_letters.py": "dates of dead letters and of their copies",
    "broker/deliveries.py": "delayed messages are due by date",
    "broker/group.py": "a replay that repeats delays: dates of events, each beside that of its decision",
    "broker/partition.py": "retention by age; when frames were committed",
    "broker/scheduled.py": "delayed messages are due by date",
    "broker/schedules.py": "cron",
    "broker/timers.py": "delayed messages are due by date; looked at every second, since the clock may be set",
    "broker/topic.py": "the longest delay that a due date may be away",
    "clock.py": "this is it",
    "cluster/beginnings.py": "a group begins at messages that are not older than it, with an allowance for skew",
    "cluster/catalog.py": "when a topic was deleted, in its tombstone",
    "cluster/consumers.py": "see beginnings",
    "local/transport.py": "a port's `now_us`",
    "net/link.py": "the first guess at the broker's clock",
    "ring/jobs.py": "dates of failed jobs; due dates for a restart, in memory they wait by `steady`",
    "ring/journal.py": "timestamps of records",
    "ring/recovery.py": "due dates of a life before",
    "ring/ring.py": "see jobs",
    "server/audit.py": "when an action took place",
    "server/gate.py": "keys expire by date",
    "server/http/about.py": "shown",
    "server/http/desk.py": "shown",
    "storage/commit.py": "timestamps of messages",
    "storage/log.py": "append times; a segment's age in days",
}
PASSED_ON = {
    "client/blocking.py",
    "client/identified.py",
    "net/routing/transport.py",
    "server/forwarding/forwarding.py",
    "server/forwarding/way.py",
    "server/guard.py",
}
BROKERS = {
    "client/client.py": "timestamps, due and expiry dates of messages",
    "client/identified.py": "whether a batch was appended before it was sent; compared with what is stored if in doubt",
    "client/later.py": "due dates",
    "client/producer.py": "timestamps, due and expiry dates of messages",
    "client/sender.py": "timestamps of messages",
    "net/connection.py": "told to the other end",
    "net/express.py": "told to the other end",
    "net/remote.py": "the date that an older broker tells instead of how long a lease lasts",
    "server/grpc/consuming.py": "the deadline as a date, to be shown",
    "server/grpc/later.py": "due dates",
    "server/grpc/publishing.py": "timestamps, due and expiry dates of messages",
    "server/http/topics.py": "timestamps, due and expiry dates of messages",
    "server/session.py": "told to the other end; the deadline as a date, for older clients",
}
# `now_us` of these is the time since the machine was booted (`BootTime`), or is handed to them as such.
BOOT_TIME = {
    "cluster/controller.py",
    "cluster/etcd/session.py",
    "cluster/etcd/view.py",
    "cluster/feeding.py",
    "cluster/hosted.py",
    "cluster/node.py",
    "cluster/throttle.py",
    "cluster/unclaimed.py",
}


def reads_wall_clock(module: Path) -> bool:
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="now_us" | "_now_us" | "time_ns" | "utcnow" | "today"):
                return True
            case ast.Attribute(value=ast.Name(id="time"), attr="time"):
                return True
            case ast.Attribute(value=ast.Name(id="datetime"), attr="now"):
                return True
            case ast.Name(id="now_us" | "time_ns"):
                return True
    return False


def test_the_wall_clock_is_read_only_where_there_is_a_reason() -> None:
    found = {
        str(module.relative_to(SOURCE))
        for module in SOURCE.rglob("*.py")
        if module.relative_to(SOURCE).parts[0] not in FREE and reads_wall_clock(module)
    }
    known = DATES.keys() | PASSED_ON | BROKERS.keys() | BOOT_TIME
    assert found - known == set(), "count durations with monotonic_us; or say here why a date is needed"
    assert known - found == set(), "listed, and does not read it"
