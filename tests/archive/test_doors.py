"""The archive through HTTP and the command line: a topic whose beginning was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker_process import broker_process
from cli.support import Run
from penstock.archive import Archive, write_files
from penstock.client.client import Client
from penstock.clock import SystemClock
from penstock.local.transport import LocalTransport
from penstock.server.gate import Gate
from penstock.server.http.door import HttpDoor
from penstock.storage.files import DiskFiles

# Everything is too old at once.
AT_ONCE = {"hours": 1e-9}


@asynccontextmanager
async def _site(tmp_path: Path, archive_dir: str | None) -> AsyncIterator[LocalTransport]:
    site = await LocalTransport.open(
        partial(DiskFiles, tmp_path / "data"), clock=SystemClock(), is_kept=False, archive_dir=archive_dir
    )
    try:
        yield site
    finally:
        await site.close()


async def _prepared(site: LocalTransport, tmp_path: Path) -> None:
    """orders, with messages 0 to 4 archived and deleted, and 5 to 9 in the log."""
    client = Client(site)
    info = await client.create_topic("orders", 1, retention=AT_ONCE, archive="required")
    for number in range(5):
        await client.publish("orders", f"order {number}")
    batches = [batch async for batch in client.reader("orders").batches()]
    where = {"topic": "orders", "topic_id": info.id, "partition": 0, "first_offset": 0, "end_offset": 5}
    archive = Archive.open(tmp_path / "archive", create=True)
    archive.commit("w", 0, write_files(tmp_path / "archive", batches, **where))  # type: ignore[arg-type]
    await client.archived("orders", archive.covered(info.id), topic_id=info.id)
    await site.broker.maintain()
    for number in range(5, 10):
        await client.publish("orders", f"order {number}")
    assert (await client.topic("orders")).partitions[0].start_offset == 5
    client._is_closed = True


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    async def prepare() -> None:
        async with _site(tmp_path, None) as site:
            await _prepared(site, tmp_path)

    asyncio.run(prepare())
    return tmp_path


def _http(tmp_path: Path, archive_dir: str | None, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), _site(tmp_path, archive_dir) as site:
            door = HttpDoor(site, Gate(site, None))
            port = await door.open("127.0.0.1", 0)
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
                    await work(http)
            finally:
                await door.close()

    asyncio.run(run())


def test_pages_of_http_go_over_the_boundary(prepared: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        url = "/v1/topics/orders/messages?include_deleted=true&as=text&from_time=2020-01-01T00:00:00Z"
        whole = (await http.get(url)).json()
        assert [message["text"] for message in whole["messages"]] == [f"order {number}" for number in range(10)]
        found: list[Any] = []
        page = (await http.get(f"{url}&partition=0&limit=3")).json()
        while page["messages"]:
            found += page["messages"]
            at = f"offset={page['next_offset']}&partition=0&limit=3&include_deleted=true&as=text"
            page = (await http.get(f"/v1/topics/orders/messages?{at}")).json()
        assert found == whole["messages"]
        assert page["next_offset"] == 10
        live = (await http.get("/v1/topics/orders/messages?as=text")).json()
        assert found[5:] == live["messages"]

    _http(prepared, str(prepared / "archive"), work)


def test_http_says_when_there_is_no_archive_or_it_has_not_everything(prepared: Path) -> None:
    url = "/v1/topics/orders/messages?include_deleted=true&partition=0&offset=0"

    async def without(http: httpx.AsyncClient) -> None:
        reply = await http.get("/v1/topics/nothing/messages?include_deleted=true")
        assert reply.json()["code"] == "topic_not_found"
        reply = await http.get(url)
        assert (reply.status_code, reply.json()["code"]) == (404, "archive_not_found")
        assert "archive_dir" in reply.json()["message"]
        reply = await http.get("/v1/topics/orders/messages?partition=0&offset=0")
        assert (reply.status_code, reply.json()["code"]) == (400, "offset_out_of_range")

    async def empty(http: httpx.AsyncClient) -> None:
        reply = await http.get(url)
        assert (reply.status_code, reply.json()["code"]) == (404, "messages_missing")
        assert reply.json()["details"] == {"topic": "orders", "partition": 0, "first": 0, "end": 5}

    _http(prepared, None, without)
    Archive.open(prepared / "empty", create=True)
    _http(prepared, str(prepared / "empty"), empty)


def test_http_takes_word_of_what_is_archived(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        made = (await http.post("/v1/topics", json={"name": "t", "partitions": 1, "archive": "required"})).json()
        assert made["settings"]["archive"] == "required"
        for _ in range(3):
            await http.post("/v1/topics/t/publish", json={"text": "x"})
        metrics = (await http.get("/metrics")).text
        assert 'penstock_not_archived{topic="t",partition="0"} 3' in metrics
        told = await http.post("/v1/topics/t/archived", json={"offsets": {"0": 2}, "topic_id": made["id"]})
        assert told.json()["partitions"][0]["archived"] == 2
        again = (await http.get("/v1/topics/t")).json()
        assert again["partitions"][0]["archived"] == 2
        for body, code in (
            ({"offsets": {"0": 4}}, "offset_out_of_range"),
            ({"offsets": {"0": 1}, "topic_id": "another"}, "archive_conflict"),
            ({"offsets": {"1": 0}}, "partition_not_found"),
            ({"offsets": {"zero": 1}}, "invalid_input"),
        ):
            assert (await http.post("/v1/topics/t/archived", json=body)).json()["code"] == code

    _http(tmp_path, None, work)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("COLUMNS", "PENSTOCK_SERVER", "PENSTOCK_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Run(capsys)


def test_consume_from_a_snapshot_with_what_was_deleted(prepared: Path, run: Run) -> None:
    where = ("--data", prepared / "data", "--archive", prepared / "archive")
    orders = [f"order {number}" for number in range(10)]
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    assert run("consume", "orders", "--from-snapshot", yesterday, "--include-deleted", *where).lines == orders
    assert run("consume", "orders", "--from-snapshot", f"{yesterday}T12:30:00Z", *where).lines == orders
    assert run("read", "orders", "--from-time", "1h", *where).lines == orders
    assert run("read", "orders", "--from-offset", "3", "--limit", "4", *where).lines == orders[3:7]
    assert run("read", "orders", "--from-time", "1h", "--data", prepared / "data").lines == orders[5:]
    file = prepared / "orders.parquet"
    assert run("read", "orders", *where, "--output", "parquet", "--file", file).err.startswith("10 messages in")


def test_consume_says_what_is_missing_and_what_to_do(prepared: Path, run: Run) -> None:
    data = ("--data", prepared / "data")
    refused = run("consume", "orders", "--from-snapshot", "2026-01-01", *data)
    assert refused.code == 2
    assert "offsets 0 to 5 of orders partition 0 are missing" in refused.err
    assert "--include-deleted reads them from there" in refused.err
    refused = run("consume", "orders", "--from-snapshot", "2026-01-01", "--include-deleted", *data)
    assert "the broker does not say where its archive is" in refused.err
    assert "--archive DIR" in refused.err
    refused = run("consume", "orders", "--from-snapshot", "2026-01-01", "--archive", prepared / "nowhere", *data)
    assert "[archive_not_found]" in refused.err
    for wrong in (
        ("--group", "g", "--include-deleted"),
        ("--group", "g", "--from-snapshot", "2026-01-01"),
        ("--from-time", "1h", "--from-snapshot", "2026-01-01"),
        ("--from-snapshot", "2026-13-01"),
        ("--from-snapshot", "yesterday"),
    ):
        refused = run("consume", "orders", *wrong, *data)
        assert (refused.code, "[invalid_input]" in refused.err) == (2, True), wrong


def test_an_archive_is_shown_and_kept_tidy(prepared: Path, run: Run) -> None:
    where = prepared / "archive"
    (row,) = run("archive", "show", where, "-o", "json").rows
    assert (row["topic"], row["first_offset"], row["end_offset"], row["messages"], row["files"]) == (
        "orders",
        0,
        5,
        5,
        1,
    )
    archive = Archive.open(where)
    lost = {"topic": "orders", "topic_id": row["topic_id"], "partition": 0, "first_offset": 9, "end_offset": 10}
    archive.commit("w", 1, write_files(where, [], **lost), allow_gaps=True)  # type: ignore[arg-type]
    shown = run("archive", "show", where).lines
    assert [line.split()[:5] for line in shown[1:]] == [["orders", "0", "0", "5", "5"], ["orders", "0", "9", "10", "0"]]
    assert run("archive", "compact", where).out == "2 files instead of 2\n"
    (where / "topic=orders" / "left.parquet").touch()
    assert run("archive", "vacuum", where).out == "removed 0 files\n"
    assert run("archive", "vacuum", where, "--grace", "0s", "-o", "json").json == {
        "removed": ["topic=orders/left.parquet"]
    }
    assert run("archive", "show", prepared).err.endswith("[archive_not_found]\n")


def test_a_server_leads_to_its_archive(prepared: Path, run: Run) -> None:
    with broker_process(prepared / "data", "--archive-dir", str(prepared / "archive")) as broker:
        server = ("--server", broker.address)
        consumed = run("consume", "orders", "--from-snapshot", "2026-01-01", "--include-deleted", *server)
        assert consumed.lines == [f"order {number}" for number in range(10)]
        table = run("topic", "show", "orders", *server).out
        assert "not archived" in table
        assert [
            part["archived"] for part in run("topic", "show", "orders", "-o", "json", *server).json["partitions"]
        ] == [5]
        run("topic", "set", "orders", "--archive", "none", *server)
        assert "not archived" not in run("topic", "show", "orders", *server).out
