"""The page of the benchmarks tells what was measured, what misses, and what is not there. The figures are made up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
IMAGE_BYTES_MAX = 150_000
SETTING = {"machine": "2 cores, ext4", "hardware": "a processor, 8 GiB", "versions": {"Python": "3.11", "redis": "8.0"}}
SIZES = ("1", "100", "1,000")
SCRIPTS = ("publish", "throughput", "latency", "append", "read", "encode", "doors", "delays")
# They run as all benchmarks do, but are over at once.
MISSES = '''"""Is it small?"""
import harness

def measure(run):
    harness.say("Kafka: skipped, it needs a cluster")
    yield harness.at_most("size", 30.0, "kB", 20)

harness.main(__doc__, measure, rounds=1)
'''
BREAKS = MISSES.replace("    yield", "    yield harness.info('first', 1.0, 's')\n    1 / 0\n    yield")


def figure(name: str, value: float, unit: str, target: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def published(who: str, first: float) -> list[dict[str, Any]]:
    return [
        figure(f"publish {size} a batch, {clients}, fsync: {who}", first * (number + 1), "messages/s")
        for number, size in enumerate(SIZES)
        for clients in ("1 client", "8 clients")
    ]


THROUGHPUT = [
    figure("send", 635.0, "k messages/s", ">= 600", True),
    figure("iterate", 280.0, "k messages/s", ">= 300", False),
    figure("send / Redis Streams, fsync always", 5.2, "×", ">= 5", True),
    figure("iterate / Redis Streams, fsync always", 4.1, "×", ">= 5", False),
    figure("Redis Streams, fsync always: publish", 120.0, "k messages/s"),
    figure("Redis Streams, fsync always: ack of each", 68.0, "k messages/s"),
]
LATENCY = [
    figure("publish one, p50", 354.0, "µs"),
    figure("TCP round trip, p50", 46.0, "µs"),
    figure("pushed at 10,000/s, linger 3ms, p50", 4.0, "ms"),
    figure("pushed at 10,000/s, linger 3ms, p99", 9.0, "ms", "<= 10", True),
]
PUBLISH = [
    *published("penstock", 3_000.0),
    *published("Redis Streams", 2_000.0),
    figure("publish 100 a batch, 1 client, fsync: penstock / Redis Streams", 4.2, "×", ">= 5", False),
]
# As older ones were written, which do not tell whether they are of a quick run.
OLD = {"script": "read", "machine": "2 cores", "figures": [figure("read of frames", 7_777.0, "MiB/s")]}


def keep(directory: Path, script: str, figures: list[dict[str, Any]], **more: Any) -> None:
    result = {
        "script": script,
        "question": f"How good is {script}?\n\nIt is asked\nevery day.\n\n    a way     another",
        "setting": SETTING,
        "is_quick": False,
        "exit_code": 3 if any(one["holds"] is False for one in figures) else 0,
        "said": [],
        "figures": figures,
    }
    (directory / f"{script}.json").write_text(json.dumps({**result, **more}))


def report(*arguments: str, scripts: Sequence[str] = SCRIPTS, before: str = "") -> subprocess.CompletedProcess[str]:
    """As if there were only these scripts; `before` is Python that is run first."""
    lines = (
        "import runpy, sys",
        f"sys.path.insert(0, {str(BENCHMARKS)!r})",
        before,
        "import run",
        f"run.SCRIPTS = {tuple(scripts)!r}",
        f"runpy.run_path({str(BENCHMARKS / 'report.py')!r}, run_name='__main__')",
    )
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


class Reported(NamedTuple):
    printed: str
    page: str
    html: str
    docs: Path
    results: Path


def reported(results: Path, docs: Path, before: str = "") -> Reported:
    done = report("--results", str(results), "--docs", str(docs), before=before)
    assert done.returncode == 0, done.stderr
    return Reported(
        done.stdout + done.stderr,
        (docs / "benchmarks.md").read_text(),
        (results / "report.html").read_text(),
        docs,
        results,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    root = tmp_path_factory.mktemp("report")
    results = root / "results"
    results.mkdir()
    keep(results, "publish", PUBLISH)
    keep(
        results,
        "throughput",
        THROUGHPUT,
        said=["Redis Streams: redis-server 7.0", "Kafka: skipped, it needs a cluster"],
    )
    keep(results, "latency", LATENCY)
    keep(results, "append", [figure("append", 4_444.0, "MiB/s")], is_quick=True)
    keep(results, "doors", [figure("HTTP publish", 9_000.0, "messages/s")], exit_code=1)
    # Which has no place on a logarithmic axis.
    keep(results, "delays", [figure("p99 lateness by a virtual clock", 0.0, "ms", "<= 20", True)])
    (results / "read.json").write_text(json.dumps(OLD))
    return reported(results, root / "docs")


def section(page: str, heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


# --- the page -----------------------------------------------------------------------------------------------


def test_every_figure_stands_in_a_table_with_its_target_and_whether_it_holds(made: Reported) -> None:
    assert "| send | 635 k messages/s | ≥ 600 | yes |" in made.page
    assert "| Redis Streams, fsync always: publish | 120 k messages/s |  |  |" in made.page
    assert "| pushed at 10,000/s, linger 3ms, p99 | 9.00 ms | ≤ 10 | yes |" in made.page


def test_a_figure_that_misses_is_told_at_the_top_and_in_its_table(made: Reported) -> None:
    top = section(made.page, "What holds, and what does not")
    assert "7 of them have a target: 4 hold, **3 do not**" in top
    assert "| `throughput` | iterate | 280 k messages/s | ≥ 300 | **NO** |" in top
    assert "| iterate | 280 k messages/s | ≥ 300 | **NO** |" in section(made.page, "How good is throughput?")
    assert made.html.count('<tr class="miss">') == 3 + 2
    assert "a target does not hold: publish, throughput" in made.printed


def test_batches_of_several_sizes_are_columns_of_one_table(made: Reported) -> None:
    question = section(made.page, "How good is publish?")
    assert "| 1 client, fsync: messages/s, by messages a batch | 1 | 100 | 1,000 |" in question
    assert "| penstock | 3 k | 6 k | 9 k |" in question
    assert "| Redis Streams | **4.2, misses 5** |" in question
    assert '<td class="n bad"><strong>4.2, misses 5</strong></td>' in made.html


def test_what_a_script_asks_and_says_stands_beside_its_figures_with_its_command(made: Reported) -> None:
    question = section(made.page, "How good is throughput?")
    assert "It is asked every day." in question
    assert "```text\na way     another\n```" in question
    assert "```sh\n.venv/bin/python benchmarks/throughput.py\n```" in question
    assert "- Redis Streams: redis-server 7.0" in question
    assert "a processor, 8 GiB; 2 cores, ext4. Python 3.11, redis 8.0." in made.page


def test_the_page_says_when_another_is_the_better_choice(made: Reported) -> None:
    told = section(made.page, "When another is the better choice")
    for peer in ("Redis", "NATS", "RabbitMQ", "Kafka", "queue.Queue", "Celery", "SQS"):
        assert peer in told


# --- what is not there --------------------------------------------------------------------------------------


def test_a_script_without_results_loses_its_table_and_is_named(made: Reported) -> None:
    [line] = [line for line in made.page.splitlines() if "No results yet" in line]
    assert "`encode`" in line
    assert "`latency`" not in line
    assert "encode: no results yet" in made.printed


def test_figures_of_a_quick_run_or_of_an_older_form_are_no_figures(made: Reported) -> None:
    assert "4,444" not in made.page
    assert "7,777" not in made.page
    assert "append: no results yet" in made.printed
    assert "only a quick run" in made.printed
    assert "read: no results yet" in made.printed
    assert "of an older form" in made.printed


def test_the_page_that_is_only_looked_at_shows_a_quick_run_and_says_that_it_means_nothing(made: Reported) -> None:
    assert "4,444" in made.html
    assert "of a quick run, on little data: the figures mean nothing" in made.html


def test_a_script_that_broke_down_is_told_with_what_it_had_found(made: Reported) -> None:
    assert "**The script broke down** (exit code 1)" in section(made.page, "How good is doors?")
    assert "9,000 messages/s" in made.page
    assert "the script broke down: doors" in made.printed


def test_a_peer_that_was_skipped_is_named_at_the_top(made: Reported) -> None:
    assert "- Not measured: Kafka: skipped, it needs a cluster" in section(made.page, "What holds, and what does not")


def test_scripts_without_results_are_run_if_that_is_asked_for(tmp_path: Path) -> None:
    results, docs, scripts = tmp_path / "results", tmp_path / "docs", tmp_path / "scripts"
    for path in (results, scripts):
        path.mkdir()
    keep(results, "latency", LATENCY)
    for name, text in (("misses", MISSES), ("breaks", BREAKS)):
        path = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\nimport harness"
        (scripts / f"{name}.py").write_text(text.replace("import harness", path, 1))

    done = report(
        *("--run-missing", "--results", str(results), "--docs", str(docs), "--dir", str(tmp_path / "data")),
        scripts=("latency", "misses", "breaks"),
        before=f"import pathlib, run; run.HERE = pathlib.Path({str(scripts)!r})",
    )

    assert done.returncode == 0, done.stderr
    assert "a target does not hold: misses\nthe script broke down: breaks\n" in done.stderr
    kept = {name: json.loads((results / f"{name}.json").read_text()) for name in ("misses", "breaks")}
    assert kept["misses"]["question"] == "Is it small?"
    assert kept["misses"]["said"] == ["Kafka: skipped, it needs a cluster"]
    assert kept["misses"]["is_quick"] is False
    assert [kept[name]["exit_code"] for name in kept] == [3, 1]
    assert [one["name"] for one in kept["breaks"]["figures"]] == ["first"]
    assert "cores" in kept["breaks"]["setting"]["machine"]
    assert set(kept["breaks"]["setting"]["versions"]) >= {"Python", "penstock", "pyarrow"}
    page = (docs / "benchmarks.md").read_text()
    assert "| size | 30.0 kB | ≤ 20 | **NO** |" in page
    assert "| first | 1.00 s |  |  |" in page


def test_without_results_nothing_is_written(tmp_path: Path) -> None:
    done = report("--results", str(tmp_path / "none"), "--docs", str(tmp_path / "docs"))

    assert done.returncode == 1
    assert "run `make bench` first" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- plots --------------------------------------------------------------------------------------------------


def test_each_picture_of_the_page_is_there_and_small_and_no_other(made: Reported) -> None:
    linked = re.findall(r"!\[.+\]\(benchmarks/(.+)\)", made.page)
    assert {"publish.png", "publish-beside-others.png", "throughput.png", "beside-others.png"} <= set(linked)
    assert {"publish-one.png", "latency.png", "delays.png"} <= set(linked)
    assert "ring.png" not in linked
    assert sorted(linked) == sorted(os.listdir(made.docs / "benchmarks"))
    for name in linked:
        image = (made.docs / "benchmarks" / name).read_bytes()
        assert image.startswith(b"\x89PNG")
        assert len(image) < IMAGE_BYTES_MAX
        assert (made.results / name).exists()


def test_the_same_figures_are_the_same_page_again_without_pictures_of_earlier_runs(
    made: Reported, tmp_path: Path
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "gone.png").write_bytes(b"")

    again = reported(made.results, tmp_path)

    assert again.page == made.page
    assert again.html == made.html
    assert sorted(os.listdir(tmp_path / "benchmarks")) == sorted(os.listdir(made.docs / "benchmarks"))
    for image in (made.docs / "benchmarks").iterdir():
        assert (tmp_path / "benchmarks" / image.name).read_bytes() == image.read_bytes()


def test_a_plot_that_none_of_the_figures_of_its_script_fits_is_named(made: Reported) -> None:
    assert "- No figures for the plot “Publish one and wait, in the same round" in made.page


def test_without_matplotlib_there_are_tables_and_a_line_that_says_so(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    keep(results, "throughput", THROUGHPUT)

    found = reported(results, tmp_path, before="sys.modules['matplotlib'] = None")

    assert "No plots: matplotlib is not installed" in found.page
    assert "| send | 635 k messages/s | ≥ 600 | yes |" in found.page
    assert "](benchmarks/" not in found.page
    assert "<svg" not in found.html


# --- one file -----------------------------------------------------------------------------------------------


class Parts(HTMLParser):
    """What refers to something, and by what name it could be referred to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(['\"]?([^)'\"]+)", value or "")
            if name == "id":
                self.ids.append(value or "")


def test_the_html_page_needs_nothing_from_anywhere_else(made: Reported) -> None:
    parts = Parts(made.html)

    assert not {"script", "link", "iframe", "img", "object"} & set(parts.tags)
    assert "@import" not in made.html
    assert parts.references
    assert {reference[:1] for reference in parts.references} == {"#"}
    assert {reference[1:] for reference in parts.references} <= set(parts.ids)
    assert len(set(parts.ids)) == len(parts.ids)


def test_the_html_page_has_the_plots_in_it_and_follows_light_and_dark(made: Reported) -> None:
    drawings = re.findall(r"<svg.*?</svg>", made.html, re.DOTALL)
    assert len(drawings) == len(list(made.results.glob("*.png")))
    assert "prefers-color-scheme: dark" in made.html
    for drawing in drawings:
        texts = [
            "".join(one.itertext()) for one in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
        ]
        assert texts
        assert "var(--ink)" in drawing
        assert "#0102" not in drawing
    assert "280 k, misses 300 k" in made.html
