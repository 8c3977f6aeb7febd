"""docs/reference/on-disk-format.md and the code describe the same bytes."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from penstock import frame as frame_module
from penstock.batch import Batch
from penstock.broker.letter import HEADER, Obituary
from penstock.frame import Frame, Producer, head_seed, look, payload, stamp
from penstock.message import Message
from penstock.storage import epochs, index, manifest, mark, reset, segment
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.testing import ManualClock

PAGE = (Path(__file__).parent.parent / "docs/reference/on-disk-format.md").read_text()
LOG_ID = bytes(range(16))
APPENDED_AT = 1_767_225_600_000_000
PRODUCER = Producer(id=42, epoch=3, sequence=10)
SEGMENT = "00000000000000000000"

_HEX_LINE = re.compile(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}(.*))?$")
_TABLE_ROW = re.compile(r"^\| (\d+) \| (\d+) \|")
_DOCSTRING_ROW = re.compile(r"^ +(\d+) {1,6}(\d+) {2,}\S")


def section(title: str) -> str:
    """The text from a heading to the next heading of its level or above."""
    level = title.split()[0]
    start = PAGE.index(f"\n{title}\n") + len(title) + 2
    following = re.search(rf"^#{{1,{len(level)}}} ", PAGE[start:], re.MULTILINE)
    return PAGE[start : start + following.start()] if following else PAGE[start:]


def dump(title: str) -> tuple[bytes, dict[str, int]]:
    """The bytes of a hex dump, and the values that its annotations state, each compared with its own bytes."""
    data, stated, name, start = b"", {}, "", 0
    block = re.search(r"```hexdump\n(.*?)```", section(title), re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        match = _HEX_LINE.match(line)
        assert match is not None, line
        assert int(match[1], 16) == len(data), f"position of: {line}"
        if match[3]:
            name, start = match[3], len(data)
        data += bytes.fromhex(match[2])
        if " = " in name:
            field, value = name.split(" = ")
            assert int.from_bytes(data[start:], "little", signed=True) == int(value), line
            stated[field] = int(value)
        if name in ("gap", "zero"):
            assert not any(data[start:]), line
    return data, stated


def documented_rows() -> list[dict[str, object]]:
    block = re.search(r"```json\n(.*?)```", section("## Worked example"), re.DOTALL)
    assert block is not None
    rows: list[dict[str, object]] = json.loads(block[1])
    return rows


def documented_messages() -> list[Message]:
    return [
        Message(
            value=None if row["value"] is None else row["value"].encode(),
            key=None if row["key"] is None else row["key"].encode(),
            headers=tuple((name, value.encode()) for name, value in row["headers"]),
            timestamp=row["timestamp"],
            deliver_at=row["deliver_at"],
            expires_at=row["expires_at"],
            priority=row["priority"],
        )
        for row in documented_rows()
    ]


def test_the_documented_frame_decodes_to_the_documented_messages() -> None:
    data, stated = dump("### The frame")
    frame = Frame(memoryview(data))
    assert stated == {
        "base offset": frame.base_offset,
        "append time": frame.append_time,
        "leader epoch": frame.leader_epoch,
        "synced": look(frame.data, 0, head_seed(LOG_ID)).synced,
        "body length": frame.body_length,
        "raw length": frame.raw_length,
        "count": frame.count,
        "span": frame.span,
        "flags": frame.flags,
        "codec": frame.codec,
        "minimum timestamp": frame.timestamps[0],
        "maximum timestamp": frame.timestamps[1],
        "producer id": frame.producer.id,
        "sequence": frame.producer.sequence,
        "producer epoch": frame.producer.epoch,
        "rows": frame.count,
        "columns": int.from_bytes(data[92:96], "little"),
    }
    batch = frame.batch()
    assert list(batch.messages()) == documented_messages()
    assert frame.offsets(batch).tolist() == [row["offset"] for row in documented_rows()]


def test_the_documented_messages_encode_to_the_documented_frame() -> None:
    data, stated = dump("### The frame")
    frame = Frame.of(Batch.from_messages(documented_messages(), APPENDED_AT), producer=PRODUCER)
    head = stamp(frame, 0, APPENDED_AT, leader_epoch=5, synced=stated["synced"], seed=head_seed(LOG_ID))
    assert head + payload(frame) == data


def test_a_frame_on_its_way_to_a_log_has_zeros_where_the_log_stamps_it() -> None:
    data, _ = dump("### The frame")
    frame = Frame.of(Batch.from_messages(documented_messages(), APPENDED_AT), producer=PRODUCER)
    assert frame.data[:4] == data[:4]
    assert not any(frame.data[4:32])
    assert frame.data[32:] == data[32:]


def test_a_log_writes_the_documented_files(tmp_path: Path) -> None:
    log = Log.open(DiskFiles(tmp_path), clock=ManualClock(APPENDED_AT), new_log_id=lambda: LOG_ID)
    batch = Batch.from_messages(documented_messages(), APPENDED_AT)
    log.append([Frame.of(batch, producer=PRODUCER)], leader_epoch=5)
    log.close()
    expected = {
        f"{SEGMENT}.log": dump(f"### `{SEGMENT}.log`, the header")[0] + dump("### The frame")[0],
        f"{SEGMENT}.index": dump(f"### `{SEGMENT}.index`")[0],
        f"{SEGMENT}.timeindex": dump(f"### `{SEGMENT}.timeindex`")[0],
        "manifest": dump("### `manifest`")[0],
        "manifest.new": bytes(48),
        "synced": dump("### `synced`")[0],
        "epochs": dump("### `epochs`")[0],
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == expected


@pytest.mark.parametrize(
    ("title", "module"),
    [
        ("## Frame", frame_module),
        ("## Segment: `<base>.log`", segment),
        ("## Index: `<base>.index` and `<base>.timeindex`", index),
        ("## Manifest: `manifest`", manifest),
        ("## Mark: `synced`", mark),
        ("## Epochs: `epochs`", epochs),
        ("## Reset: `reset`", reset),
    ],
)
def test_the_layout_tables_have_the_fields_the_docstrings_draw(title: str, module: ModuleType) -> None:
    rows = [match for line in section(title).splitlines() if (match := _TABLE_ROW.match(line))]
    documented = [(int(row[1]), int(row[2])) for row in rows]
    drawn_lines = [match for line in (module.__doc__ or "").splitlines() if (match := _DOCSTRING_ROW.match(line))]
    drawn = [(int(row[1]), int(row[2])) for row in drawn_lines]
    assert documented == drawn
    assert all(at + size == following for (at, size), (following, _) in itertools.pairwise(documented))


def test_the_header_of_a_dead_letter_has_the_documented_fields() -> None:
    text = section("## Dead letters")
    assert f"`{HEADER}`" in text
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(Obituary.__struct_fields__)
