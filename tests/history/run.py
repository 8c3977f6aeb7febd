"""Whether the run was worth anything: the faults happened, clients were at work, and all was well again in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from history import violation as v
from history.entries import Entry, of
from history.violation import Violation

HEALED_US_MAX = 30_000_000


def check_run(entries: Sequence[Entry], *, sends_min: int, acks_min: int) -> Iterator[Violation]:
    yield from _faults(entries)
    sent = sum(1 for _ in of(entries, "send", "ok"))
    acked = sum(1 for _ in of(entries, "ack", "ok"))
    if sent < sends_min or acked < acks_min:
        yield Violation(v.NO_LOAD, f"{sent} sent and {acked} acknowledged, of at least {sends_min} and {acks_min}")
    for death in of(entries, "death"):
        if not death.get("is_expected"):
            yield Violation(v.DIED, f"{death['process']}, with {death['code']}")
    yield from _healed(entries)


def _faults(entries: Sequence[Entry]) -> Iterator[Violation]:
    evidence = {(end["process"], end["fault"]): end.get("evidence") for end in of(entries, "fault", "ok")}
    planned = list(of(entries, "fault", "invoke"))
    if not planned:
        yield Violation(v.NO_FAULT, "none was planned")
    for fault in planned:
        if not evidence.get((fault["process"], fault["fault"])):
            yield Violation(v.NO_FAULT, f"{fault['fault']}, {fault['process']}")


def _healed(entries: Sequence[Entry]) -> Iterator[Violation]:
    settled = {entry["what"]: entry["took_us"] for entry in of(entries, "settled", "ok")}
    for what in ("writable", "drained", "in sync"):
        took_us = settled.get(what)
        if took_us is None:
            yield Violation(v.NOT_HEALED, f"never {what}")
        elif what == "writable" and took_us > HEALED_US_MAX:
            yield Violation(v.NOT_HEALED, f"{what} only after {took_us / 1e6:.1f} s")
