"""Bytes that are almost right: decoders end with typed errors, hang nowhere, and a log is what it was before.

By Hypothesis, from what is right with something changed; and by libFuzzer (atheris), which is led by what the code does
with them: 20 s for packets and 20 s for frames in every run, at the same time, and `--scale 3` for a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.batch import Batch
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.wire import words
from penstock.wire.packets import Kind
from security.decoders import GOOD, TARGETS, good_frames
from security.doors import Doors, knock
from security.hostile import resealed

SECONDS = 20
EXAMPLES = 1_500
RARELY = settings(deadline=10_000, suppress_health_check=list(HealthCheck))


@st.composite
def almost(draw: st.DrawFn, target: str) -> bytes:
    """Something good, with some bytes changed, left out, put in or doubled."""
    data = bytearray(draw(st.sampled_from(sorted(GOOD[target]()))))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "double", "number"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0, 1, 127, 128, 254, 255]))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=20))
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 100))]
            case "number":
                number = draw(st.sampled_from([0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 24]))
                data[at : at + 4] = number.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_almost_right_ends_with_a_typed_error(target: str, scale: float) -> None:
    @settings(RARELY, max_examples=round(EXAMPLES * scale))
    @given(almost(target))
    @example(b"")
    def read(data: bytes) -> None:
        TARGETS[target](data)

    read()


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_right_is_taken(target: str) -> None:
    for data in GOOD[target]():
        TARGETS[target](data)
    assert all(Frame.accept(data).count for data in good_frames())


def test_frames_that_are_almost_right_change_nothing_behind_the_door(tmp_path: Path, scale: float) -> None:
    """Sent to a real port: what is refused is not in the log, and what is taken can be read again."""
    sent: list[bytes] = []

    @settings(RARELY, max_examples=round(300 * scale), database=None)
    @given(almost("frames"))
    def collect(data: bytes) -> None:
        sent.extend((data, resealed(data)) if len(data) >= 36 else (data,))

    collect()

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        log = doors.site.broker.topic("t").partitions[0].messages
        async with doors.connection() as connection:
            for data in sent:
                end = log.end_offset
                try:
                    reply = await connection.request(Kind.PUBLISH, words.PublishFrame("t", 0), [data])
                except PenstockError as error:
                    assert error.code != "internal_error"
                    assert log.end_offset == end
                else:
                    assert words.decoded(reply.header, words.Stored).offset <= end
        async with doors.client() as q:
            assert len([message async for message in q.reader("t")]) == log.end_offset

    knock(tmp_path, work)


def test_a_fuzzer_finds_no_way_to_another_end(tmp_path: Path, scale: float) -> None:
    pytest.importorskip("atheris", reason="there is no atheris for this Python")
    running = {}
    for target in ("packets", "frames"):
        folder = tmp_path / target
        folder.mkdir()
        for number, data in enumerate(GOOD[target]()):
            (folder / f"good-{number}").write_bytes(data)
        options = [f"-max_total_time={round(SECONDS * scale)}", "-timeout=10", "-max_len=4096", "-rss_limit_mb=2048"]
        options += ["-seed=1", "-verbosity=1", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/{target}-"]
        command = [sys.executable, str(Path(__file__).with_name("fuzzing.py")), target, str(folder), *options]
        running[target] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for target, process in running.items():
        said, _ = process.communicate(timeout=SECONDS * scale + 120)
        found = {path.name: path.read_bytes().hex() for path in tmp_path.glob(f"{target}-*")}
        again = f"again: python {Path(__file__).with_name('fuzzing.py')} {target} FILE, with these bytes: {found}"
        assert process.returncode == 0, f"{said[-5_000:]}\n{again}"
        runs = re.search(r"number_of_executed_units: (\d+)", said)
        assert runs is not None, said[-2_000:]
        print(f"{target}: {runs[1]} inputs")
        assert int(runs[1]) > 1_000


def test_a_frame_that_is_accepted_is_one_that_can_be_made() -> None:
    """What the decoder lets through is what the encoder writes: a log holds nothing that nobody could have sent."""
    for data in good_frames():
        frame = Frame.accept(data)
        again = Frame.of(Batch.from_messages(list(frame.batch().messages()), now_us=1))
        assert list(again.batch().messages()) == list(frame.batch().messages())
