"""A node that is started while etcd is away, and one that can't go on."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trustme

from etcd_support import Pretender, needs_etcd, opened, status
from etcd_support import run as run_on_a_loop
from penstock.cluster.etcd.process import EtcdProcess
from penstock.cluster.keys import Keys
from penstock.errors import EtcdUnavailable, EtcdVersionRefused, Fatal
from penstock.net.singles import Singles
from penstock.server import server as server_module
from penstock.server.config import Address, Config
from penstock.server.forwarding import forwarding as forwarding_module
from penstock.server.server import Ready, Server


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    process = EtcdProcess(tmp_path / "etcd")
    process.start()
    yield process
    process.kill()


def server(directory: Path, etcd: str) -> Server:
    native = Address("127.0.0.1", 0)
    return Server(Config(data=str(directory / "a"), native=native, http=None, grpc=None, cluster=etcd, node_id="a"))


class Running:
    def __init__(self, made: Server) -> None:
        self.server = made
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.waits = asyncio.Event()
        wait = made._wait_for_etcd

        async def waiting(error: EtcdUnavailable) -> None:
            self.waits.set()
            await wait(error)

        made._wait_for_etcd = waiting  # type: ignore[method-assign, assignment]
        self.task = asyncio.create_task(made.run(self.ready.set_result))


@needs_etcd
def test_a_node_that_is_started_while_etcd_is_away_joins_when_it_is_back(
    tmp_path: Path, etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "ETCD_S", 0.01)
    etcd.kill()

    async def main() -> None:
        running = Running(server(tmp_path, etcd.address))
        await running.waits.wait()
        await asyncio.to_thread(etcd.start)
        await running.ready
        running.server.stop()
        await running.task

    with caplog.at_level(logging.WARNING, "penstock"):
        run_on_a_loop(main)
    assert f"waiting for etcd: etcd does not answer ({etcd.address}: " in caplog.text


def test_a_node_that_waits_for_etcd_can_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        # Nobody listens there.
        running = Running(server(tmp_path, "http://127.0.0.1:1"))
        await running.waits.wait()
        running.server.stop()
        await running.task
        assert not running.ready.done()
        # The data directory is free again.
        running = Running(server(tmp_path, "http://127.0.0.1:1"))
        await running.waits.wait()
        running.server.stop()
        await running.task

    run_on_a_loop(main)


def test_an_etcd_whose_version_is_refused_is_not_waited_for(tmp_path: Path) -> None:
    there = Pretender(lambda path, body: status("3.5.2"))

    async def main() -> None:
        running = Running(server(tmp_path, there.address))
        with pytest.raises(EtcdVersionRefused, match="can corrupt its data"):
            await running.task
        assert not running.waits.is_set()

    run_on_a_loop(main)
    there.close()


def test_an_etcd_whose_certificate_is_not_trusted_is_not_waited_for(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as there:
            port = there.sockets[0].getsockname()[1]
            running = Running(server(tmp_path, f"https://127.0.0.1:{port}"))
            with pytest.raises(EtcdUnavailable, match="certificate is not trusted"):
                await running.task
            assert not running.waits.is_set()

    run_on_a_loop(main)


@needs_etcd
def test_a_node_that_can_not_go_on_ends_its_session_before_anything_else(
    tmp_path: Path, etcd: EtcdProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        running = Running(server(tmp_path, etcd.address))
        await running.ready
        async with opened(etcd.address) as store:

            async def brokers() -> list[str]:
                return list((await store.get(Keys().brokers)).items)

            def slow(close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
                async def closed() -> None:
                    while await brokers():
                        await asyncio.sleep(0)
                    await close()

                return closed

            assert await brokers()
            for door in running.server._doors:
                door.close = slow(door.close)  # type: ignore[method-assign, assignment]
            running.server._broke(Fatal("the disk is gone"))
            with pytest.raises(Fatal, match="the disk is gone"):
                await running.task

    run_on_a_loop(main)
    assert "were not answered" not in caplog.text


@needs_etcd
def test_a_node_stops_though_a_forwarded_publish_finds_no_leader(
    tmp_path: Path, etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "_UNSENT_S", 0.01)
    close, began = Singles.close, list[Singles]()

    async def hang_once(singles: Singles, timeout_s: float = 0) -> None:
        if not began:
            began.append(singles)
            await asyncio.Event().wait()
        await close(singles, timeout_s)

    monkeypatch.setattr(Singles, "close", hang_once)

    async def main() -> None:
        running = Running(server(tmp_path, etcd.address))
        await running.ready
        running.server.stop()
        await running.task
        assert began

    run_on_a_loop(main)
