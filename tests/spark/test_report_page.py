"""The page of a report: whatever names and keys are, they are text on it. No Spark is involved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from penstock.cli.pipeline_report import print_report
from penstock.spark.builtin import report_words as words
from penstock.spark.builtin.report_page import page_of
from penstock.spark.builtin.report_tables import TABLES, Report, Row, columns_of

NASTY = "</title></style></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&amp;"
MADE = datetime(2026, 1, 14, 15, 0, tzinfo=UTC)
FORBIDDEN = {"script", "img", "iframe", "object", "embed", "link", "form", "base", "foreignobject", "image", "use"}


class Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def row_of(table: str, **values: object) -> Row:
    kinds = {column.split()[0]: column.split()[1] for column in TABLES[table].split(", ")}
    plain = {
        "STRING": NASTY,
        "BIGINT": 1_000,
        "INT": 1,
        "DOUBLE": 0.5,
        "TIMESTAMP": MADE,
        "BOOLEAN": True,
        "BINARY": b"",
    }
    return {name: values.get(name, plain[kinds[name]]) for name in columns_of(table)}


def report_of(**tables: list[Row]) -> Report:
    given = {name: tables.get(name, []) for name in TABLES}
    return Report("penstock://broker:7420", MADE, MADE - timedelta(days=1), None, 60, given)


def full() -> Report:
    keys = [
        row_of("keys", key=key, rank=n + 1)
        for n, key in enumerate((NASTY.encode(), b"\xff\x00<b>", "\u202eoops".encode()))
    ]
    times = [MADE + timedelta(minutes=minute) for minute in (0, 1, 2, 5)]
    return report_of(
        topics=[
            row_of("topics"),
            row_of("topics", topic="empty", messages=0, first=None, last=None, messages_per_s=None),
        ],
        groups=[row_of("groups"), row_of("groups", group="idle", **dict.fromkeys(columns_of("groups")[5:15]))],
        partitions=[row_of("partitions", partition=n, is_hot=n == 1) for n in range(100)],
        keys=keys,
        times=[row_of("times", time=time) for time in times],
        group_times=[row_of("group_times", time=time) for time in times],
    )


def test_names_and_keys_of_any_kind_are_text_on_the_page() -> None:
    seen = Seen(page_of(full()))
    assert not seen.tags & FORBIDDEN
    assert seen.open == []
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name == "src"]
    assert {value for name, value in seen.attributes if name == "href"} == {"#topic-0", "#topic-1"}
    assert NASTY in seen.text
    assert words.key(NASTY.encode()) in seen.text
    assert "0xff003c623e" in seen.text
    assert "\u202e" not in seen.text


def test_nothing_is_fetched_and_nothing_could_be() -> None:
    page = page_of(full())
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_plots_have_titles_descriptions_and_tables() -> None:
    page = page_of(full())
    drawings = page.split("<svg ")[1:]
    assert len(drawings) == 4
    for drawing in drawings:
        assert drawing.split(">", 1)[1].startswith("<title>")
        assert "<desc>" in drawing
    assert page.count("<details>") == len(drawings)
    # Where nothing was acknowledged, lines have a gap.
    assert page.count("<polyline") == 4


NOTHING = report_of(topics=[row_of("topics", topic="t", messages=0)])
UNKEYED = report_of(topics=[row_of("topics", topic="t")], partitions=[row_of("partitions", topic="t")])


@pytest.mark.parametrize(
    ("report", "told"),
    [(NOTHING, ("No messages", "No group", "Nothing")), (UNKEYED, ("No message has a key",))],
)
def test_where_there_is_nothing_the_page_says_so(report: Report, told: tuple[str, ...]) -> None:
    seen = Seen(page_of(report))
    assert all(text in seen.text for text in told)


def test_on_a_terminal_a_report_is_tables_and_what_stands_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_report(
        report_of(topics=[row_of("topics", topic="orders")], groups=[row_of("groups", topic="orders", group="billing")])
    )
    out = capsys.readouterr().out
    assert "billing on orders: 1,000 messages left the log without being acknowledged." in out
    assert "1,000" in out.split("groups")[1]
    assert "no message has a key" in out
    assert all(len(line) <= 120 for line in out.splitlines() if not line.startswith("- "))


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_500, "1.50 ms"),
        (59_900_000, "59.9 s"),
        (90_000_000, "1.50 min"),
        (7_200_000_000, "2 h"),
    ],
)
def test_a_span_has_three_digits_and_its_unit(us: int, shown: str) -> None:
    assert words.span(us) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(None, "–"), (0, "0.0 %"), (0.00001, "< 0.01 %"), (0.005, "0.50 %"), (1, "100.0 %")]
)
def test_a_share_that_is_not_nothing_is_not_shown_as_nothing(share: float | None, shown: str) -> None:
    assert words.percent(share) == shown
