"""`penstock log inspect`, as somebody at a terminal, a pipe or a program meets it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.support import PENSTOCK, Run
from penstock.cli.output import Column, console, print_table
from penstock.codec import ZSTD
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.files import DiskFiles
from support import fill, frame_of, open_log


def healthy_log(path: Path) -> Path:
    log = open_log(DiskFiles(path))
    fill(log, 40)
    log.close()
    return path


def damaged_log(path: Path) -> Path:
    """In the header of offset 1 and in the body of offset 20."""
    healthy_log(path)
    flip(path / f"{0:020d}.log", 64 + 224 + 20)
    flip(path / f"{18:020d}.log", 64 + 224 * 2 + 100)
    return path


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


# --- exit codes and errors ----------------------------------------------------------------------------------


def test_a_healthy_log_exits_with_0(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", healthy_log(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{tmp_path}: healthy\n")
    assert "40 messages in 40 frames and 3 segments" in ran.out


def test_a_damaged_log_exits_with_1_and_names_every_place(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", damaged_log(tmp_path))
    assert ran.code == 1
    assert ran.out.startswith(f"{tmp_path}: damaged, 2 places\n")
    assert "00000000000000000000.log at byte 288, offset 1: the header does not match its checksum" in ran.out
    assert "00000000000000000018.log at byte 512, offset 20: the body does not match its checksum" in ran.out


def test_a_torn_tail_exits_with_0_and_is_told(tmp_path: Path, run: Run) -> None:
    log = open_log(DiskFiles(tmp_path / "running"))
    fill(log, 5)
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    log.close()
    with (tmp_path / "killed" / f"{0:020d}.log").open("r+b") as file:
        file.seek(1184)
        file.write(b"PNS\x01torn")
    ran = run("log", "inspect", tmp_path / "killed")
    assert ran.code == 0
    assert "healthy (see below: torn tail)" in ran.out
    assert "at byte 1184, offset 5: the last 8 bytes" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such directory"),
        (["file"], "file: not a directory"),
        (["empty"], "empty: no log here or below"),
        (["log", "--segment", "7"], "log: no segment starts at offset 7"),
        (["log", "--from", "3"], "--from says where a list starts: it needs --frames or --messages"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line_on_stderr(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    healthy_log(Path("log"))
    Path("empty").mkdir()
    Path("file").touch()
    ran = run("log", "inspect", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {message} [invalid_input]\n")


@pytest.mark.parametrize("arguments", [["--nonsense"], ["log", "inspect"], ["log", "inspect", ".", "--limit", "0"]])
def test_options_that_are_not_understood_exit_with_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "error: " in ran.err
    assert "Traceback" not in ran.err


# --- which logs ---------------------------------------------------------------------------------------------


def test_every_log_below_a_directory_is_reported_in_order(tmp_path: Path, run: Run) -> None:
    healthy_log(tmp_path / "a" / "messages")
    damaged_log(tmp_path / "b" / "deep" / "down")
    healthy_log(tmp_path / "c")
    (tmp_path / "c" / "manifest").unlink()
    (tmp_path / "notes").mkdir()
    ran = run("log", "inspect", tmp_path)
    verdicts = re.findall(rf"^{tmp_path}/(.*): (healthy|damaged)", ran.out, re.MULTILINE)
    assert verdicts == [("a/messages", "healthy"), ("b/deep/down", "damaged"), ("c", "damaged")]
    assert ran.out.endswith("3 logs: 1 healthy, 2 damaged\n")
    assert ran.code == 1


def test_one_segment_can_be_chosen(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", damaged_log(tmp_path), "--segment", 18, "--output", "json")
    assert [segment["base_offset"] for segment in ran.log["segments"]] == [18]
    assert [finding["offset"] for finding in ran.log["findings"]] == [20]
    assert run("log", "inspect", tmp_path, "--segment", 36).code == 0


def test_without_verification_only_headers_are_checked(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", damaged_log(tmp_path), "--no-verify", "--frames")
    assert "headers only, not the bodies" in ran.out
    assert "damaged, 1 place\n" in ran.out
    assert "unchecked" in ran.out


# --- JSON ---------------------------------------------------------------------------------------------------


def test_json_is_one_object_with_everything_in_it(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", damaged_log(tmp_path), "--output", "json")
    assert ran.code == 1
    assert set(ran.json) == {"healthy", "logs"}
    assert not ran.json["healthy"]
    log = ran.log
    assert set(log) == {
        "directory",
        "healthy",
        "verified",
        "log_id",
        "start_offset",
        "end_offset",
        "manifest",
        "mark",
        "segments",
        "findings",
    }
    assert log["directory"] == str(tmp_path)
    assert (log["start_offset"], log["end_offset"], log["manifest"]) == (0, 40, "ok")
    assert log["mark"] == {"state": "ok", "synced": {"base_offset": 36, "position": 960, "next_offset": 40}}
    assert log["segments"][0] == {
        "name": "00000000000000000000.log",
        "role": "sealed",
        "log_id": log["log_id"],
        "base_offset": 0,
        "end_offset": 18,
        "bytes": 4096,
        "frames": 17,
        "messages": 17,
        "first_append_time": "2023-11-14T22:13:20.000000Z",
        "last_append_time": "2023-11-14T22:13:20.000000Z",
        "min_timestamp": "1970-01-01T00:00:00.001000Z",
        "max_timestamp": "1970-01-01T00:00:00.001000Z",
        "generation": 0,
        "compacted": False,
        "codecs": ["none"],
        "index": "ok",
    }
    assert log["findings"][0] == {
        "kind": "damage",
        "file": "00000000000000000000.log",
        "position": 288,
        "offset": 1,
        "sentence": "00000000000000000000.log at byte 288, offset 1: the header does not match its checksum "
        "(224 bytes; readable again at byte 512, offset 2)",
    }


def test_json_lists_say_where_to_go_on(tmp_path: Path, run: Run) -> None:
    healthy_log(tmp_path)
    command = ["log", "inspect", tmp_path, "--frames", "--messages", "--output", "json"]
    log = run(*command, "--from", 17, "--limit", 3).log
    assert [frame["base_offset"] for frame in log["frames"]] == [17, 18, 19]
    assert [message["offset"] for message in log["messages"]] == [17, 18, 19]
    assert (log["frames_go_on_at"], log["messages_go_on_at"]) == (20, 20)
    log = run(*command, "--from", 37).log
    assert [message["offset"] for message in log["messages"]] == [37, 38, 39]
    assert (log["frames_go_on_at"], log["messages_go_on_at"]) == (None, None)


def test_messages_are_text_where_they_can_be_and_base64_where_not(tmp_path: Path, run: Run) -> None:
    log = open_log(DiskFiles(tmp_path))
    rows = [
        Message("grüße\n".encode(), key=b"k", headers=(("trace", b"abc"),), priority=-1, expires_at=1_000_000),
        Message(b"\x00\xff", key=None),
        Message(None, key=b"gone"),
        Message(b"x" * 5_000),
    ]
    log.append([Frame.of_message(row, now_us=1) for row in rows])
    log.append([frame_of(*[b"packed"] * 40, codec=ZSTD)])
    log.close()
    one, two, three, four, five, *_ = run("log", "inspect", tmp_path, "--messages", "--output", "json").log["messages"]
    assert one["value"] == {"bytes": 8, "shortened": False, "text": "grüße\n"}
    assert one["headers"] == [{"name": "trace", "value": {"bytes": 3, "shortened": False, "text": "abc"}}]
    assert (one["priority"], one["expires_at"]) == ("low", "1970-01-01T00:00:01.000000Z")
    assert two["value"] == {"bytes": 2, "shortened": False, "base64": "AP8="}
    assert (two["key"], three["value"]) == (None, None)
    assert (four["value"]["bytes"], four["value"]["shortened"], len(four["value"]["text"])) == (5_000, True, 1_000)
    assert five["value"]["text"] == "packed"
    table = run("log", "inspect", tmp_path, "--messages").out
    assert re.search(r"^ +0  k +grüße\\n +2023-", table, re.MULTILINE)
    assert re.search(r"^ +1  - +0x00ff +2023-", table, re.MULTILINE)
    assert re.search(r"^ +2  gone +\(null\) +2023-", table, re.MULTILINE)
    assert f"{'x' * 40}… (5000 bytes)" in table


def test_messages_that_cannot_be_read_are_told_with_their_offset(tmp_path: Path, run: Run) -> None:
    damaged_log(tmp_path)
    command = ["log", "inspect", tmp_path, "--messages", "--no-verify"]
    messages = run(*command, "--output", "json").log["messages"]
    assert len(messages) == 40
    assert [message["offset"] for message in messages if "error" in message] == [1, 20]
    assert len(re.findall("not readable", run(*command).out)) == 2


# --- tables -------------------------------------------------------------------------------------------------


def test_a_pipe_gets_one_line_a_row_and_no_colours(tmp_path: Path, run: Run) -> None:
    ran = run("log", "inspect", damaged_log(tmp_path), "--frames", "--messages")
    assert "\x1b" not in ran.out
    assert len(re.findall(r"^ +\d+ +224 .* (?:ok|bad) ", ran.out, re.MULTILINE)) == 40
    assert "too narrow" not in ran.out


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    ran = run("log", "inspect", damaged_log(Path("log")), "--frames", "--messages")
    assert max(map(len, ran.out.splitlines())) <= width
    assert re.search(r"^ +18 +36 +17 .*4096", ran.out, re.MULTILINE) or re.search(
        r"^end offset +36$", ran.out, re.MULTILINE
    )
    # What is shortened says so.
    flat = " ".join(ran.out.split())
    assert flat.count("…") == len(re.findall(r"… \(\d+ bytes\)", flat))


def test_a_narrow_table_loses_its_least_important_columns_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (Column("name"), Column("size", is_number=True), Column("comment", rank=2), Column("owner", rank=1))
    rows = [["a" * 10, "12", "c" * 30, "o" * 10], ["b", "3456", "", "root"]]
    monkeypatch.setenv("COLUMNS", "40")
    print_table(console(), columns, rows)
    assert capsys.readouterr().out.splitlines() == [
        "name        size  owner     ",
        "aaaaaaaaaa    12  oooooooooo",
        "b           3456  root      ",
        "(too narrow for: comment)",
    ]


def test_a_table_too_narrow_for_what_matters_becomes_a_block_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "15")
    print_table(console(), (Column("name"), Column("size", is_number=True)), [["a" * 8, "123456"], ["b", "1"]])
    assert capsys.readouterr().out.splitlines() == ["name  aaaaaaaa", "size  123456", "", "name  b", "size  1"]


# --- the console script -------------------------------------------------------------------------------------


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)


def test_the_console_script_inspects_a_log_that_another_process_has_open(tmp_path: Path) -> None:
    log = open_log(DiskFiles(tmp_path))
    fill(log, 40)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    ran = penstock("log", "inspect", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "healthy" in ran.stdout
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    log.append([frame_of(b"still ours")])
    log.close()


def test_the_console_script_exits_with_1_on_damage_and_2_without_a_log(tmp_path: Path) -> None:
    assert penstock("log", "inspect", damaged_log(tmp_path / "log"), "--output", "json").returncode == 1
    ran = penstock("log", "inspect", tmp_path / "nowhere")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: {tmp_path / 'nowhere'}: no such directory [invalid_input]\n"


def test_a_reader_that_stops_early_is_no_damage(tmp_path: Path) -> None:
    healthy_log(tmp_path)
    command = f"{PENSTOCK} log inspect {tmp_path} --messages --frames; echo $? >&2"
    ran = subprocess.run(["bash", "-c", f"( {command} ) | true"], capture_output=True, text=True, check=False)
    assert ran.stderr.strip() in ("0", "141")


def test_version_and_help_are_tidy(run: Run) -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", run("--version").out)
    ran = run("--help")
    assert ran.code == 0
    assert re.search(r"^  log +Look at the files of a log, without a broker\.$", ran.out, re.MULTILINE)
    ran = run("log", "inspect", "--help")
    assert max(map(len, ran.out.splitlines())) <= 80
    for option in ("--frames", "--messages", "--segment", "--from", "--limit", "--output", "--no-verify"):
        assert option in ran.out
