"""How many single messages a second come in by HTTP, and how many by a gRPC stream?

A broker process on this machine and a client process, over TCP; messages of 100 B, six partitions; each on disk before
it is answered:

    HTTP            16 connections, each sends a message and waits for its answer. The client writes bytes that were
                    made before, on uvloop, so that it is the broker that is measured; GET /health shows how many
                    requests a second there are with nothing to be done
    gRPC            one PublishStream, requests of 100 messages each, made and sent without waiting for the answers;
                    beside it the same with one message a request
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import cast

import grpc
import uvloop

import harness
import penstock
from harness import Figure, Run, info
from penstock.server.grpc import penstock_pb2 as pb
from serving import DOORS, PARTITIONS, broker, values

CONNECTIONS = 16
TOPIC = "t"


# --- HTTP ---------------------------------------------------------------------------------------------------


class Asking(asyncio.Protocol):
    """One connection: a request, its answer, the next one, as long as `next_request` has one."""

    def __init__(self, next_request: Callable[[], bytes | None]) -> None:
        self._next_request = next_request
        self._answer = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        request = self._next_request()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if found and len(body) == _length(head):
            if not head.startswith(b"HTTP/1.1 2"):
                self.over.set_exception(RuntimeError(self._answer.decode()))
                self._transport.close()
                return
            self._answer = b""
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    assert found is not None, head
    return int(found[1])


async def _ask_all(port: int, requests: Sequence[bytes]) -> float:
    left = iter(requests)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    asking = [
        await loop.create_connection(lambda: Asking(partial(next, left, None)), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*[protocol.over for _, protocol in asking])
    return (time.perf_counter() - started) / len(requests)


def ask_all(port: int, requests: Sequence[bytes]) -> float:
    """Seconds for each."""
    return uvloop.run(_ask_all(port, requests))


def publish_request(value: bytes) -> bytes:
    body = b'{"text": "%b"}' % value
    return (
        b"POST /v1/topics/%b/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (TOPIC.encode(), len(body), body)
    )


# --- gRPC ---------------------------------------------------------------------------------------------------


def publish_stream(port: int, some: Sequence[bytes], in_request: int) -> float:
    """Seconds for each message."""

    def requests() -> Iterator[pb.PublishBatchRequest]:
        for at in range(0, len(some), in_request):
            messages = [pb.NewMessage(value=value) for value in some[at : at + in_request]]
            yield pb.PublishBatchRequest(topic=TOPIC, messages=messages)

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        call = channel.stream_stream(
            "/penstock.v1.Publisher/PublishStream",
            request_serializer=pb.PublishBatchRequest.SerializeToString,
            response_deserializer=pb.PublishBatchReply.FromString,
        )
        started = time.perf_counter()
        stored = 0
        for reply in call(requests()):
            assert not reply.HasField("failure"), reply.failure
            stored += len(reply.offsets)
        spent = time.perf_counter() - started
    assert stored == len(some)
    return spent / len(some)


def measure(run: Run) -> Iterator[Figure]:
    some = values(run.pick(100_000, 1_000))
    few = some[: run.pick(2_000, 200)]
    publishing = [publish_request(value) for value in some[: run.pick(10_000, 200)]]
    healthy = [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"] * len(publishing)
    with broker(run, DOORS) as running:
        with penstock.connect(running.address) as q:
            q.create_topic(TOPIC, partitions=PARTITIONS)
        contenders: dict[str, harness.Contender] = {
            "http": partial(ask_all, running.ports["http"], publishing),
            "health": partial(ask_all, running.ports["http"], healthy),
            "grpc": partial(publish_stream, running.ports["grpc"], some, 100),
            "grpc singly": partial(publish_stream, running.ports["grpc"], few, 1),
        }
        taken = harness.interleave(run.rounds, contenders)
    rates = {name: 1 / median(spent) for name, spent in taken.items()}
    yield harness.at_least("HTTP publish, 16 connections", rates["http"], "messages/s", 8_000)
    yield info("HTTP GET /health, 16 connections", rates["health"], "requests/s")
    yield harness.at_least("gRPC PublishStream, 100 a request", rates["grpc"], "messages/s", 50_000)
    yield info("gRPC PublishStream, one a request", rates["grpc singly"], "messages/s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
