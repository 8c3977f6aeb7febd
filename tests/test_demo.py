"""`penstock demo`, as a process: it ends well by itself, claims what it should, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from cli.support import Run
from penstock.cli.demo import chapters
from penstock.cli.demo.shop import Shop
from penstock.cli.demo.telling import NotSo, Telling

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-W", "error", "-c", "from penstock.cli import main; main()", "demo"]
CLAIMS = (
    "24 orders are on disk, and billing has done each of them once",
    "Analytics comes later, and gets the same 24",
    "Anna keeps two of hers, and Ben has the others",
    "Those of one customer were done in the order they came",
    "They overtake 175 others: all but 2 that the till had in its hands already",
    "Ann pays, and hers is called off",
    "All 600 orders are in the log, each of them once",
    "The stock has got his cancellation, and nothing else",
    "Both of Eve's orders are done, in their order",
    "No dead letter is left",
    "It gets the 600 orders around the kill once more, in Arrow batches",
    "Nobody else has noticed, and nobody has anything left to do",
    "Told to stop, the broker ends well",
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def environment(temporary: Path) -> dict[str, str]:
    # A setting for another broker, which would be refused, and a terminal that is not there.
    told = {**os.environ, "TMPDIR": str(temporary), "PENSTOCK_ACCESS": "no such file"}
    told.pop("COLUMNS", None)
    return told


def brokers(printed: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\bprocess (\d+)", printed)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, env=environment(temporary), capture_output=True, text=True, timeout=180, check=False)


def test_the_demo_ends_well_by_itself(demo: subprocess.CompletedProcess[str]) -> None:
    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_demo_claims(demo: subprocess.CompletedProcess[str], claim: str) -> None:
    assert f"✓ {claim}\n" in demo.stdout


def test_the_demo_is_plain_text_into_a_pipe(demo: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in demo.stdout
    titles = re.findall(r"^(\d+)\. \S", demo.stdout, re.MULTILINE)
    assert titles == [str(number) for number in range(1, 12)]
    assert len(re.findall(r"http://127\.0\.0\.1:\d+/", demo.stdout)) >= 2


def test_the_demo_shows_a_trace_from_the_first_failure_to_the_happy_end(
    demo: subprocess.CompletedProcess[str],
) -> None:
    whats = re.findall(r"^ *\+[\d.]+ \S+ +([A-Z_]+) +billing", demo.stdout, re.MULTILINE)
    assert whats[:5] == ["DELIVERED", "NACKED", "REDELIVERED", "NACKED", "REDELIVERED"]
    assert whats[5:] == ["EXHAUSTED", "DEAD_LETTERED", "REDRIVEN", "DELIVERED", "ACKNOWLEDGED"]


def test_the_demo_prints_what_the_readme_shows(demo: subprocess.CompletedProcess[str]) -> None:
    """Numbers may differ: processes are killed at moments nobody chose."""
    match = re.search(
        r"^```sh\nmake demo\n```$.*?^```text\n(.*?)^```$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert match is not None
    printed = iter(re.sub(r"\d+", "#", demo.stdout).splitlines())
    for line in re.sub(r"\d+", "#", match[1]).splitlines():
        start = line.removesuffix("…")
        assert any(p == line or (start != line and p.startswith(start)) for p in printed), f"not printed: {line}"


def test_the_demo_leaves_nothing_behind(demo: subprocess.CompletedProcess[str], temporary: Path) -> None:
    assert list(temporary.iterdir()) == []
    first, second = brokers(demo.stdout)
    assert not is_running(first)
    assert not is_running(second)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_whoever_ends_the_demo_ends_its_broker(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with subprocess.Popen(COMMAND, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("2. "):
                process.send_signal(number)
        assert process.wait(60) == code
    pids = brokers(printed)
    assert pids
    assert not any(map(is_running, pids))
    assert list(tmp_path.iterdir()) == []


def test_the_broker_can_be_kept_to_look_at_the_dashboard(tmp_path: Path) -> None:
    # Without the story, which takes its time.
    code = "from penstock.cli.demo import chapters; chapters.tell_all = lambda shop: print(shop.server.dashboard)"
    command = [sys.executable, "-W", "error", "-c", f"{code}; from penstock.cli import main; main()", "demo", "--keep"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        dashboard = process.stdout.readline().strip()
        assert process.stdout.readline().startswith("The broker goes on, at penstock://")
        with urlopen(dashboard, timeout=30) as page:
            assert b"<title>" in page.read()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert rest.startswith("✓ Told to stop, the broker ends well\n")
    assert list(tmp_path.iterdir()) == []


def test_a_sentence_that_ctrl_c_comes_into_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(io.StringIO):
        def flush(self) -> None:
            signal.raise_signal(signal.SIGINT)

    printed = Interrupting()
    monkeypatch.setattr(sys, "stdout", printed)
    telling = Telling()
    before = signal.getsignal(signal.SIGINT)
    telling.say_until_interrupted("The shop is open.")
    monkeypatch.setattr(Interrupting, "flush", io.StringIO.flush)
    telling.say("It is closed.")
    assert printed.getvalue() == "The shop is open.\nIt is closed.\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_claim_that_does_not_hold_is_told_and_ends_the_demo(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = []

    def tell(shop: Shop) -> None:
        pids.append(shop.server.pid)
        shop.tell.check(True, "The sun shines")
        shop.tell.check(False, "Nobody is late", "Bob", 3)

    monkeypatch.setattr(chapters, "tell_all", tell)
    ran = run("demo")
    assert (ran.code, ran.lines) == (1, ["✓ The sun shines", "✗ NOT SO: Nobody is late", "  found: Bob", "  found: 3"])
    assert not is_running(*pids)


def test_a_broker_that_does_not_start_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.demo.server._PENSTOCK", (sys.executable, "-c", "raise SystemExit('no room')"))
    ran = run("demo")
    assert (ran.code, ran.lines) == (1, ["✗ NOT SO: the broker starts", "  found: no room"])


def test_what_does_not_come_about_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.demo.telling.PATIENCE_S", 0.0)
    from penstock.cli.demo.telling import until

    with pytest.raises(NotSo, match="the moon is full") as raised:
        until(lambda: "half", lambda moon: moon == "full", "the moon is full")
    assert raised.value.found == ("half",)
