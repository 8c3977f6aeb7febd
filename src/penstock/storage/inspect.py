"""Looks at the directory of a log and reports what is there and what is wrong. Reads only, takes no lock.

Whether something is damage or what a crash may leave is decided by the functions recovery itself asks. Recovery
stops at the first damage; this goes on behind it (`walk.py`), so that all of it is known before anybody acts on it.

The log may be in use meanwhile. If files changed while it looked and something seems wrong, it looks again, but walks
only those segments again that are not the same any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from penstock.codec import CODECS
from penstock.errors import DecompressionRefused, LogCorrupt, StorageError
from penstock.frame import Frame
from penstock.storage import manifest as manifests
from penstock.storage import mark as marks
from penstock.storage.files import File, Files
from penstock.storage.index import OFFSETS_MAGIC, TIMES_MAGIC, Coverage, SparseIndex
from penstock.storage.manifest import Manifest, read_manifest
from penstock.storage.mark import read_mark
from penstock.storage.recovery import (
    below,
    check_belongs,
    gap,
    is_rewrite,
    missing_by_index,
    missing_segments,
    orphaned_indexes,
    read_header,
    replaced,
    segment_bases,
    synced_but_gone,
    synced_size,
    was_cut_short,
)
from penstock.storage.report import Finding, FrameReport, Kind, MessageReport, Report, Role, SegmentReport, State
from penstock.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    content_end,
    index_name,
    log_name,
    time_index_name,
)
from penstock.storage.walk import Piece, walk

# A segment with more damaged places than this is beyond being read place by place.
FINDINGS_PER_SEGMENT_MAX = 1_000
_LOOKS_MAX = 10

Progress = Callable[[int], None]


def inspect(
    files: Files, *, verify: bool = True, only: int | None = None, progress: Progress = lambda _: None
) -> Report | None:
    """None when there is no log here. Without `verify`, frames' bodies are not read.

    With `only`, just the segment with that base offset is walked and reported. `progress` is told of bytes walked.
    """
    walked: dict[SegmentHeader, _Walked] = {}
    report = None
    for _ in range(_LOOKS_MAX):
        heads = _heads(files)
        report = _survey(files, verify)
        if report is None:
            break
        if only is not None:
            report.findings = [finding for finding in report.findings if finding.file == log_name(only)]
        is_complete = _walk_chain(files, report, heads, walked, only, progress)
        _find_missing_by_index(files, report)
        if (is_complete and report.is_healthy) or _heads(files) == heads:
            break
    if report is not None and only is not None:
        report.segments = [segment for segment in report.segments if segment.base_offset == only]
    return report


def frames(
    files: Files, *, only: int | None = None, from_offset: int = 0, verify: bool = True
) -> Iterator[FrameReport]:
    """From the one that holds `from_offset` on; places that hold none are in between. `only` as for `inspect`."""
    report = _survey(files, verify)
    if report is None:
        return
    listed = report.chain if only is None else [s for s in report.segments if s.base_offset == only]
    for place, following in zip(listed, [*(place.base_offset for place in listed), None][1:], strict=True):
        if following is not None and following <= from_offset:
            continue
        try:
            file = files.open(place.name, "read")
            for piece in walk(_segment(place, file), file, verify=verify, is_active=place.role is Role.ACTIVE):
                if piece.next_offset is None or piece.next_offset > from_offset:
                    yield FrameReport(place.name, piece, verify)
        except StorageError:
            # Removed since, or it can't be read, which `inspect` reports.
            continue


def messages(frame: Frame) -> Iterator[MessageReport]:
    """The messages of a frame from `frames`, verified; InvalidFrame if they can't be decoded all the same."""
    if frame.codec not in CODECS.values():
        raise DecompressionRefused(f"codec {frame.codec} is unknown")
    batch = frame.batch()
    rows = zip(frame.offsets(batch).tolist(), frame.append_times(batch).tolist(), batch.messages(), strict=True)
    for offset, append_time, message in rows:
        yield MessageReport(offset, append_time, message)


def _heads(files: Files) -> dict[str, bytes]:
    """The manifest, the mark and the headers of segments: no change to a log but an append leaves all of them alone."""
    heads = {}
    for name in files.names():
        try:
            file = files.open(name, "read")
            heads[name] = file.read_at(0, SEGMENT_HEADER_BYTES)
            file.close()
        except StorageError:
            heads[name] = b""
    return heads


# --- which files there are ----------------------------------------------------------------------------------


def _survey(files: Files, verify: bool) -> Report | None:
    """The report without what only a walk can tell."""
    bases = segment_bases(files)
    if not bases and not {manifests.NAME, marks.NAME} & set(files.names()):
        return None
    report = Report(is_verified=verify)
    manifest = _read_manifest(files, report)
    report.log_id = manifest.log_id if manifest else _log_id_of_most(files, bases)
    report.start_offset = manifest.start_offset if manifest else None
    # Ahead of the segments: those of a log in use may be further than the mark, never behind it.
    _read_mark(files, report)
    bases = segment_bases(files)
    report.segments = [_place(files, report, base, is_last=base == bases[-1]) for base in bases]
    _find_leftovers(files, report)
    chain = report.chain
    if chain and chain[-1].role is Role.SEALED:
        chain[-1].role = Role.ACTIVE
    start_offset = report.start_offset if report.start_offset is not None else bases[0] if bases else 0
    for damage in missing_segments([_header(place) for place in chain], start_offset, report.synced):
        _add_damage(report, damage)
    return report


def _read_manifest(files: Files, report: Report) -> Manifest | None:
    try:
        manifest = read_manifest(files)
    except StorageError as error:
        report.manifest = State.DAMAGED
        _add(report, Kind.DAMAGE, manifests.NAME, error.message, position=0)
        return None
    if manifest is None:
        report.manifest = State.MISSING
        _add(report, Kind.DAMAGE, manifests.NAME, "the manifest is missing, but the log is there", position=0)
    return manifest


def _log_id_of_most(files: Files, bases: list[int]) -> bytes | None:
    ids: Counter[bytes] = Counter()
    for base in bases:
        try:
            ids[read_header(files, base).log_id] += 1
        except StorageError:
            continue
    return ids.most_common(1)[0][0] if ids else None


def _read_mark(files: Files, report: Report) -> None:
    try:
        report.synced = read_mark(files, report.log_id) if report.log_id else None
    except StorageError as error:
        _add(report, Kind.DAMAGE, marks.NAME, error.message, position=0)
    if report.synced is not None:
        return
    if marks.NAME in files.names():
        report.mark = State.DAMAGED
        _add(report, Kind.REBUILT, marks.NAME, "the mark is damaged, or belongs to another log", position=0)
    else:
        report.mark = State.MISSING
        if segment_bases(files):
            _add(report, Kind.REBUILT, marks.NAME, "the mark is missing", position=0)


def _place(files: Files, report: Report, base: int, *, is_last: bool) -> SegmentReport:
    place = SegmentReport(base, Role.SEALED, None, 0, report.log_id or b"")
    try:
        file = files.open(place.name, "read")
        place.size = file.size()
        file.close()
        place.header = read_header(files, base)
        place.log_id = place.header.log_id
        if report.log_id is not None:
            check_belongs(place.header, base, report.log_id)
    except LogCorrupt as damage:
        if place.header is not None:
            place.role = Role.FOREIGN
        elif is_last and was_cut_short(place.size, base, report.synced):
            place.role = Role.LEFTOVER
            _add(report, Kind.LEFTOVER, place.name, f"{place.name}: its creation was cut short", 0, base)
            return place
        _add_damage(report, damage)
    except StorageError as error:
        place.role = Role.FOREIGN
        _add(report, Kind.DAMAGE, place.name, error.message, 0, base)
    return place


def _find_leftovers(files: Files, report: Report) -> None:
    headers = [_header(place) for place in report.chain]
    gone = replaced(headers)
    old = below([header for header in headers if header not in gone], report.start_offset or 0)
    why = {header.base_offset: "replaced by a rewritten segment" for header in gone}
    why |= {header.base_offset: f"below the start offset {report.start_offset}" for header in old}
    for place in report.chain:
        if place.base_offset in why:
            place.role = Role.LEFTOVER
            sentence = f"{place.name}: {why[place.base_offset]}"
            _add(report, Kind.LEFTOVER, place.name, sentence, offset=place.base_offset)
    for name in files.names():
        if is_rewrite(name):
            _add(report, Kind.LEFTOVER, name, f"{name}: a rewrite that was not finished")
    for name in orphaned_indexes(files, [segment.base_offset for segment in report.segments]):
        _add(report, Kind.LEFTOVER, name, f"{name}: an index without its segment", offset=int(name.partition(".")[0]))


def _find_missing_by_index(files: Files, report: Report) -> None:
    """Once it is known where the log ends."""
    end_offset = report.chain[-1].end_offset if report.chain else report.start_offset
    if end_offset is None or report.log_id is None:
        return
    for name in orphaned_indexes(files, [segment.base_offset for segment in report.segments]):
        damage = missing_by_index(files, name, report.log_id, end_offset)
        known = {finding.file for finding in report.findings if finding.kind is Kind.DAMAGE}
        if damage is not None and damage.details["file"] not in known:
            _add_damage(report, damage)


def _header(place: SegmentReport) -> SegmentHeader:
    """The header to go by: where its own can't be believed, one that follows from the name and forbids no gaps."""
    if place.header is not None and place.role is not Role.FOREIGN:
        return place.header
    return SegmentHeader(place.log_id, place.base_offset, 0, 1, 0, 0)


def _segment(place: SegmentReport, file: File) -> Segment:
    return Segment(_header(place), file.size(), place.base_offset, 0)


# --- what is in the segments --------------------------------------------------------------------------------


class _Walked(NamedTuple):
    """`covers` is what the segment holds if it is readable to its end, and `synced` what it should hold."""

    place: SegmentReport
    findings: list[Finding]
    covers: Segment | None
    synced: int


def _walk_chain(
    files: Files,
    report: Report,
    heads: dict[str, bytes],
    walked: dict[SegmentHeader, _Walked],
    only: int | None,
    progress: Progress,
) -> bool:
    """False if a segment was replaced or removed since its head was read, and had to be left out."""
    chain = report.chain
    is_complete = True
    for place, following in zip(chain, [*(place.base_offset for place in chain), None][1:], strict=True):
        if only is not None and place.base_offset != only:
            continue
        try:
            known = walked.get(place.header) if place.header and place.role is Role.SEALED else None
            if known is None:
                file = files.open(place.name, "read")
                if file.read_at(0, SEGMENT_HEADER_BYTES) != heads.get(place.name):
                    is_complete = False
                    continue
                known = _walk_segment(files, report, place, file, progress)
        except StorageError as error:
            _add(report, Kind.DAMAGE, place.name, error.message, offset=place.base_offset)
            continue
        if place.header and place.role is Role.SEALED:
            walked[place.header] = known
        report.segments[report.segments.index(place)] = known.place
        report.findings += known.findings
        if known.covers is not None:
            _check_end(report, known.covers, following, known.synced)
    return is_complete


def _walk_segment(files: Files, report: Report, place: SegmentReport, file: File, progress: Progress) -> _Walked:
    segment = _segment(place, file)
    place = replace(place, is_walked=True)
    place.index, coverage, findings = _check_index(files, place, segment)
    # A mark that lags behind may speak of a sealed segment as it was before a rewrite.
    mark = report.synced if place.role is Role.ACTIVE else None
    end, synced, damaged = segment.base_offset, None, 0
    next_offset: int | None = segment.base_offset
    for piece in walk(segment, file, verify=report.is_verified, is_active=place.role is Role.ACTIVE):
        progress(piece.size)
        next_offset = piece.next_offset
        if place.role is Role.ACTIVE and isinstance(piece.damage, LogCorrupt):
            if synced is None:
                synced = synced_size(segment, file, mark, coverage, piece.damage)
            if piece.position >= synced:
                segment.size = content_end(file, piece.position, segment.size)
                findings.append(_torn_tail(segment, piece))
                next_offset = None
                break
        if piece.frame is not None and piece.is_whole:
            place.add(piece.frame)
        if next_offset is not None:
            end = next_offset
        if piece.damage is not None and place.role is not Role.FOREIGN:
            damaged += 1
            if damaged <= FINDINGS_PER_SEGMENT_MAX:
                findings.append(_damage(piece.damage, _extent(piece)))
    if damaged > FINDINGS_PER_SEGMENT_MAX:
        sentence = f"{place.name}: {damaged - FINDINGS_PER_SEGMENT_MAX} more damaged places, not listed"
        findings.append(Finding(Kind.DAMAGE, place.name, None, None, sentence))
    place.size = segment.size
    place.end_offset = segment.next_offset = max(end, segment.header.end_offset)
    is_readable_to_its_end = next_offset is not None and place.header is not None and place.role is not Role.FOREIGN
    claimed = synced_size(segment, file, mark, coverage, None)
    return _Walked(place, findings, segment if is_readable_to_its_end else None, claimed)


def _check_end(report: Report, segment: Segment, following: int | None, synced: int) -> None:
    """Whether a segment that is readable to its end may end there."""
    if synced > segment.size:
        _add_damage(report, synced_but_gone(segment, segment.size, segment.next_offset, synced))
        return
    damage = None if following is None else gap(segment, following)
    if damage is not None:
        _add_damage(report, damage)


def _extent(piece: Piece) -> str:
    if piece.frame is not None and piece.is_whole:
        return ""
    if piece.frame is not None:
        return f" ({piece.size} bytes; offsets {piece.frame.base_offset} to {piece.frame.next_offset - 1})"
    if piece.next_offset is None:
        return f" (nothing readable in the {piece.size} bytes to the end of the file)"
    return f" ({piece.size} bytes; readable again at byte {piece.position + piece.size}, offset {piece.next_offset})"


def _torn_tail(segment: Segment, piece: Piece) -> Finding:
    sentence = (
        f"{segment.name} at byte {piece.position}, offset {piece.offset}: "
        f"the last {segment.size - piece.position} bytes were being written when the log stopped, and never synced"
    )
    return Finding(Kind.TORN_TAIL, segment.name, piece.position, piece.offset, sentence)


def _check_index(files: Files, place: SegmentReport, segment: Segment) -> tuple[State, Coverage | None, list[Finding]]:
    """The state of the two indexes, the worse one, and what they say of the segment if they agree."""
    header = segment.header
    ours = (header.log_id, header.base_offset, header.generation, segment.size)
    names = (index_name(header.base_offset), time_index_name(header.base_offset))
    states, coverages = [], []
    for name, magic in zip(names, (OFFSETS_MAGIC, TIMES_MAGIC), strict=True):
        state, coverage = _read_index(files, name, magic)
        states.append(State.STALE if coverage is not None and coverage[:4] != ours else state)
        coverages.append(coverage)
    if states == [State.OK, State.OK] and coverages[0] != coverages[1]:
        states = [State.STALE, State.STALE]
    # That of the active segment is written when the log is closed: until then it is missing or old.
    usual = (State.OK, State.MISSING, State.STALE) if place.role is Role.ACTIVE else (State.OK,)
    findings = [
        Finding(Kind.REBUILT, name, None, place.base_offset, f"{name} is {state}")
        for name, state in zip(names, states, strict=True)
        if state not in usual and place.header is not None and place.role is not Role.FOREIGN
    ]
    worst = next(s for s in (State.DAMAGED, State.MISSING, State.STALE, State.OK) if s in states)
    return worst, coverages[0] if coverages[0] == coverages[1] else None, findings


def _read_index(files: Files, name: str, magic: bytes) -> tuple[State, Coverage | None]:
    if name not in files.names():
        return State.MISSING, None
    try:
        file = files.open(name, "read")
        decoded = SparseIndex.decode(magic, file.read_at(0, file.size()))
    except StorageError:
        return State.DAMAGED, None
    return (State.DAMAGED, None) if decoded is None else (State.OK, decoded[1])


# --- findings -----------------------------------------------------------------------------------------------


def _add(
    report: Report, kind: Kind, file: str, sentence: str, position: int | None = None, offset: int | None = None
) -> None:
    report.findings.append(Finding(kind, file, position, offset, sentence))


def _add_damage(report: Report, damage: StorageError) -> None:
    report.findings.append(_damage(damage))


def _damage(damage: StorageError, more: str = "") -> Finding:
    details = damage.details
    return Finding(Kind.DAMAGE, details["file"], details["position"], details.get("offset"), damage.message + more)
