"""A short form of benchmarks/hostile.py: whatever hostile connections do, clients with a key get in and are served."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import grpc
import httpx
import yaml

from grpc_served import stub_of
from penstock.aio import connect
from penstock.limits import KIB, MIB
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.keys import make
from security.serving import Serving, serving

ATTACKERS = Path(__file__).parents[2] / "benchmarks" / "hostile_clients.py"
CONNECTIONS = 96
STRANGERS_MAX = 24
# The preface of HTTP/2, and settings that change nothing.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def _access(path: Path) -> tuple[Path, str, str]:
    """With a key that may do everything, and one that may do nothing."""
    (key, kept), (useless, hostile) = make("client"), make("hostile")
    keys = [{"id": one.id, "principal": one.principal, "hash": one.hash} for one in (kept, hostile)]
    every = {"principals": ["client"], "operations": ["publish", "consume", "read", "describe", "admin"]}
    rules = [{**every, "topics": ["*"]}, {**every, "groups": ["*"], "operations": ["consume", "describe", "admin"]}]
    file = path / "access.yaml"
    file.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    return file, key, useless


def _resident(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("the server is gone")


def _descriptors(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def _attacked(here: Serving, key: str) -> Iterator[None]:
    ports = [str(_port(address)) for address in (here.native, here.http, here.grpc)]
    command = [sys.executable, str(ATTACKERS), *ports, str(CONNECTIONS), key]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "began\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _served(here: Serving, key: str) -> None:
    """A new connection to each listener, and what one does with it."""
    bearer = f"Bearer {key}"
    async with await connect(f"penstock://{here.native}", key=key) as q:
        await q.publish("t", b"x")
        async with q.consumer("g", "t") as consumer:
            (message,) = await consumer.poll(1, wait="30s")
            await message.ack()
    async with httpx.AsyncClient(base_url=f"http://{here.http}", headers={"authorization": bearer}, timeout=60) as web:
        reply = await web.post("/v1/topics/u/publish", json={"text": "x"})
        assert reply.status_code == 200, reply.text
    for attempt in range(10):
        try:
            await _publish_by_grpc(here.grpc, bearer)
            return
        except grpc.aio.AioRpcError as error:
            # Until its key has arrived it is one of the strangers, of which the oldest makes way.
            if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt == 9:
                raise


async def _publish_by_grpc(address: str, bearer: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        asked = pb.PublishRequest(topic="u", message=pb.NewMessage(value=b"x"))
        await stub_of(channel).Publish(asked, metadata=[("authorization", bearer)], wait_for_ready=True, timeout=60)


def test_clients_with_a_key_are_served_beside_hostile_connections(tmp_path: Path) -> None:
    file, key, useless = _access(tmp_path)

    async def work(here: Serving) -> None:
        async with await connect(f"penstock://{here.native}", key=key) as q:
            await q.create_topic("t", partitions=1)
            await q.create_topic("u", partitions=1)
        await _served(here, key)
        before, open_before = _resident(here.process.pid), _descriptors(here.process.pid)
        with _attacked(here, useless):
            for _ in range(5):
                await _served(here, key)
                assert _resident(here.process.pid) - before < 200 * MIB
                # Those with a key stay; those without are few, but for what comes between two looks at gRPC's.
                assert _descriptors(here.process.pid) - open_before < 2 * CONNECTIONS
        while not any("strangers_max" in line for line in here.log):
            await asyncio.sleep(0.01)
        assert len([line for line in here.log if "strangers_max" in line]) < 20

    with serving(tmp_path / "data", "--access", str(file), "--limits", f"strangers_max={STRANGERS_MAX}") as here:
        asyncio.run(work(here))


def test_grpc_connections_leave_descriptors_to_other_listeners_and_to_files(tmp_path: Path) -> None:
    """More connections than there are descriptors: some are closed, which is logged, and the broker goes on."""
    file, key, _ = _access(tmp_path)
    descriptors = 256

    async def work(here: Serving) -> None:
        async with await connect(f"penstock://{here.native}", key=key) as q, AsyncExitStack() as stack:
            await q.create_topic("t", partitions=20)
            await q.create_topic("u", partitions=1)
            for _ in range(descriptors + 50):
                _, writer = await asyncio.open_connection("127.0.0.1", _port(here.grpc))
                stack.callback(writer.close)
                writer.write(HTTP2)
                assert _descriptors(here.process.pid) < descriptors - 32
            for partition in range(20):
                await q.publish("t", b"x", partition=partition)
            while not any("strangers_max" in line for line in here.log):
                await asyncio.sleep(0.01)
            await _served(here, key)

    with serving(tmp_path / "data", "--access", str(file), descriptors=descriptors) as here:
        asyncio.run(work(here))
