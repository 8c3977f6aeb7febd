"""The lives of messages as traces: told to a real collector, or to a sink that keeps them."""

from __future__ import annotations

import asyncio
import builtins
import gc
import gzip
import re
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyroaring import BitMap64

import penstock.aio
from broker_support import ack_all
from led_broker import Leading, run_led
from penstock.broker.group import Receipt
from penstock.client.client import Client
from penstock.clock import SystemClock
from penstock.errors import InvalidSetting
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.server import telemetry, telemetry_otlp, telemetry_spans
from penstock.server.config import Address, Config, load
from penstock.server.metrics import Counts
from penstock.server.server import Ready, Server
from penstock.server.telemetry import Telemetry
from penstock.server.telemetry_otlp import OtlpSink, traces_of
from penstock.server.telemetry_spans import Sample, Span
from penstock.storage.files import DiskFiles

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def offer(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def close(self) -> None:
        pass

    @property
    def lives(self) -> list[Span]:
        return [span for span in self.spans if not span.is_delivery]

    @property
    def deliveries(self) -> list[Span]:
        return sorted((span for span in self.spans if span.is_delivery), key=lambda span: span.start_us)


class Watched:
    def __init__(self, q: Client, site: LocalTransport, telemetry: Telemetry, kept: Kept, counts: Counts) -> None:
        self.q = q
        self.site = site
        self.telemetry = telemetry
        self.kept = kept
        self.counts = counts

    async def rounds(self, count: int = 2) -> None:
        """The first one sees that a message is done, the second one that nobody else has it."""
        for _ in range(count):
            for record in self.site.broker.topics:
                for partition in self.site.broker.topic(record.name).partitions:
                    await partition.groups.flushed()
            await self.telemetry.round()


def watch(path: Path, work: Callable[[Watched], Awaitable[None]], *, ratio: float = 1.0) -> None:
    async def run() -> None:
        site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock())
        async with Client(site, place="here") as q:
            kept, counts = Kept(), Counts()
            telemetry = Telemetry(site.broker, kept, counts, sample_ratio=ratio)
            await telemetry.start(round_s=None)
            await work(Watched(q, site, telemetry, kept, counts))
            await telemetry.close()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await run()

    asyncio.run(bounded())


def test_a_message_is_one_trace_with_a_span_for_each_delivery(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        sent = await here.q.publish("orders", b"x")
        async with here.q.consumer("billing", "orders", name="ann") as consumer:
            (first,) = await consumer.poll(1)
            await first.nack(0, reason="not now")
            (second,) = await consumer.poll(1)
            await here.rounds()
            assert not here.kept.lives
            await second.ack()
            await here.rounds()
        (life,) = here.kept.lives
        nacked, acknowledged = here.kept.deliveries
        assert life.name == "message orders"
        assert life.parent is None
        assert life.attributes["messaging.message.id"] == str(sent.id)
        assert life.attributes["penstock.outcome"] == "acknowledged"
        assert life.error is None
        for number, one in enumerate((nacked, acknowledged), start=1):
            assert one.name == "process orders"
            assert (one.trace, one.parent) == (life.trace, life.id)
            assert one.attributes["messaging.consumer.group.name"] == "billing"
            assert one.attributes["messaging.client.id"] == "ann"
            assert one.attributes["penstock.attempt"] == number
            assert life.start_us <= one.start_us <= one.end_us <= life.end_us
        assert nacked.attributes["penstock.outcome"] == "nacked"
        assert nacked.attributes["penstock.reason"] == nacked.error == "not now"
        assert acknowledged.attributes["penstock.outcome"] == "acknowledged"
        assert acknowledged.end_us == life.end_us
        assert len({life.id, nacked.id, acknowledged.id}) == 3

    watch(tmp_path, work)


def test_a_dead_letter_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.publish("orders", b"x")
        async with here.q.consumer("billing", "orders") as consumer:
            (message,) = await consumer.poll(1)
            await message.reject("broken")
            await here.rounds()
        (life,) = [life for life in here.kept.lives if life.name == "message orders"]
        (delivery,) = here.kept.deliveries
        assert life.attributes["penstock.outcome"] == delivery.attributes["penstock.outcome"] == "dead_lettered"
        assert life.error == delivery.error == "broken"

    watch(tmp_path, work)


def test_the_publisher_s_span_is_the_parent(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.publish("orders", b"wanted", headers={"traceparent": PARENT})
        await here.q.publish("orders", b"not wanted", headers={"traceparent": PARENT[:-1] + "0"})
        await here.q.publish("orders", b"nonsense", headers={"Traceparent": PARENT[:-5]})
        async with here.q.consumer("billing", "orders") as consumer:
            for message in await consumer.poll(3):
                await message.ack()
            await here.rounds()
        wanted, nonsense = sorted(here.kept.lives, key=lambda life: str(life.attributes["messaging.message.id"]))
        assert f"{wanted.trace:032x}" == PARENT[3:35]
        assert (wanted.parent, wanted.is_parent_remote) == (int(PARENT[36:52], 16), True)
        assert nonsense.parent is None
        assert nonsense.attributes["messaging.message.id"] == "orders:0:2"
        delivery = here.kept.deliveries[0]
        assert (delivery.trace, delivery.parent) == (wanted.trace, wanted.id)

    watch(tmp_path, work)


def test_the_life_of_a_message_is_told_once_when_the_last_group_that_has_it_is_done(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        async with (
            here.q.consumer("fast", "orders") as fast,
            here.q.consumer("slow", "orders") as slow,
            here.q.consumer("late", "orders") as late,
        ):
            await here.q.publish("orders", b"x")
            (one,) = await fast.poll(1)
            (two,) = await slow.poll(1)
            await one.ack()
            await here.rounds(4)
            assert not here.kept.lives
            await two.ack()
            await here.rounds()
            (life,) = here.kept.lives
            assert life.end_us == here.kept.deliveries[-1].end_us
            (three,) = await late.poll(1)
            await three.ack()
            await here.rounds()
        assert len(here.kept.lives) == 1
        assert {delivery.parent for delivery in here.kept.deliveries} == {life.id}
        assert len(here.kept.deliveries) == 3

    watch(tmp_path, work)


def test_what_was_under_way_at_a_restart_is_told_by_the_next_process(tmp_path: Path) -> None:
    before = Kept()

    async def first(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.publish("orders", b"x")
        consumer = here.q.consumer("billing", "orders", name="ann")
        (message,) = await consumer.poll(1)
        await message.nack(0)
        await consumer.poll(1)
        await here.rounds()
        before.offer(here.kept.spans)

    async def then(here: Watched) -> None:
        group = here.site.broker.group("billing", "orders")
        ((identity, lease),) = here.site.broker.topic("orders").partition(0).groups.state("billing").leases.items()
        await group.ack(Receipt(0, identity, lease.offsets.copy()))
        await here.rounds()
        (life,) = here.kept.lives
        (delivery,) = here.kept.deliveries
        assert delivery.attributes["penstock.attempt"] == 2
        assert delivery.attributes["messaging.client.id"] == "ann"
        (earlier,) = before.spans
        assert (earlier.trace, earlier.parent) == (life.trace, life.id)

    watch(tmp_path, first)
    watch(tmp_path, then)


def test_a_message_that_expired_or_was_cancelled_has_a_life_too(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        later = await here.q.publish("orders", b"x", delay="1h")
        await here.q.publish("orders", b"x", ttl="1us")
        await here.q.scheduled.cancel(later.id)
        async with here.q.consumer("billing", "orders") as consumer:
            assert not await consumer.poll(1, wait=0)
            await here.rounds()
        outcomes = {str(life.attributes["messaging.message.id"]): life for life in here.kept.lives}
        assert outcomes["orders:0:0"].attributes["penstock.outcome"] == "cancelled"
        assert int(outcomes["orders:0:0"].attributes["penstock.deliver_at_us"]) > outcomes["orders:0:0"].start_us
        assert outcomes["orders:0:1"].attributes["penstock.outcome"] == "expired"

    watch(tmp_path, work)


def test_a_lease_that_ran_out_or_was_let_go_ends_its_span(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.publish("orders", b"x")
        group = await here.site.broker.ensure_group("billing")
        on_topic = here.site.broker.group(group.name, "orders")
        assert await on_topic.lease("ann", 1, visibility_us=1)
        while not (again := await on_topic.lease("bob", 1)):
            await here.site.broker.tick()
        await on_topic.release(again[0].receipt)
        assert await on_topic.lease("bob", 1)
        await on_topic.seek("latest")
        await here.rounds()
        told = [(d.attributes["penstock.outcome"], d.attributes["penstock.attempt"]) for d in here.kept.deliveries]
        assert told == [("lease_expired", 1), ("given_back", 2), ("let_go", 2)]

    watch(tmp_path, work)


def test_a_topic_that_is_deleted_and_made_again_has_other_traces(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        for _ in range(2):
            await here.q.create_topic("orders", partitions=1)
            await here.q.publish("orders", b"x")
            async with here.q.consumer("billing", "orders") as consumer:
                (message,) = await consumer.poll(1)
                await message.ack()
                await here.rounds()
            await here.q.delete_topic("orders")
            await here.rounds()
        one, other = here.kept.lives
        assert one.trace != other.trace

    watch(tmp_path, work)


def test_a_sample_is_one_of_every_so_many_whatever_set_they_come_in() -> None:
    sample = Sample(100, "some-partition")
    chosen = sample.of(BitMap64(range(100_000)))
    assert [offset // 100 for offset in chosen] == list(range(1_000))
    # In no rhythm: each place within a hundred is as likely as any other.
    assert len({offset % 100 for offset in chosen}) > 90
    assert sample.of(BitMap64(chosen)) == chosen
    assert sample.of(BitMap64([chosen[0], chosen[-1]])) == [chosen[0], chosen[-1]]
    assert sample.of(BitMap64(range(50_000))) + sample.of(BitMap64(range(50_000, 100_000))) == chosen
    assert Sample(100, "another-partition").of(BitMap64(range(100_000))) != chosen
    assert Sample(1, "some-partition").of(BitMap64([3, 5])) == [3, 5]
    assert sample.of(BitMap64()) == []


def test_groups_are_not_asked_for_one_message_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked on the event loop keeps everybody waiting."""
    asked = 0

    class Counting(BitMap64):
        def __contains__(self, offset: int) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(offset)

    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        for _ in range(100):
            await here.q.publish("orders", b"x")
        async with here.q.consumer("billing", "orders") as consumer:
            messages = await consumer.poll(100)
            # The first one is not done: the others are above the floor.
            for message in messages[1:-2]:
                await message.ack()
            await messages[-2].reject("broken")
            state = here.site.broker.topic("orders").partition(0).groups.state("billing")
            await here.rounds(1)
            monkeypatch.setattr(state, "done", Counting(state.done))
            monkeypatch.setattr(state, "unseen", Counting(state.unseen))
            await here.rounds(1)
            assert asked == 0
            assert len([life for life in here.kept.lives if life.name == "message orders"]) == 98
            assert [life.error for life in here.kept.lives if life.error] == ["broken"]

    watch(tmp_path, work)


def test_only_the_sample_is_told(tmp_path: Path) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        for _ in range(40):
            await here.q.publish("orders", b"x")
        async with here.q.consumer("billing", "orders") as consumer:
            for message in await consumer.poll(40):
                await message.ack()
            await here.rounds()
        assert len(here.kept.lives) == len(here.kept.deliveries) == 4

    watch(tmp_path, work, ratio=0.1)


def test_more_than_may_be_under_way_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_spans, "UNDER_WAY_MAX", 3)

    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.create_topic("more", partitions=1)
        for topic, count in (("orders", 3), ("more", 4)):
            for _ in range(count):
                await here.q.publish(topic, b"x")
            async with here.q.consumer("billing", topic) as consumer:
                for message in await consumer.poll(10):
                    await message.ack()
            await here.rounds()
        assert {life.attributes["messaging.destination.name"] for life in here.kept.lives} == {"orders"}
        assert here.counts.spans["dropped"] == 4

    watch(tmp_path, work)


def test_nothing_is_lost_or_told_twice_whenever_rounds_come(tmp_path: Path) -> None:
    kept = Kept()

    async def run() -> None:
        site = await LocalTransport.open(partial(DiskFiles, tmp_path), clock=SystemClock())
        async with asyncio.timeout(30), Client(site, place="here") as q:
            telemetry = Telemetry(site.broker, kept, Counts(), sample_ratio=1.0)
            # One after the other, while everything is under way.
            await telemetry.start(round_s=0)
            await q.create_topic("orders", partitions=2)
            async with q.consumer("billing", "orders") as one, q.consumer("shipping", "orders") as other:
                for _ in range(50):
                    await q.publish("orders", b"x")
                    for consumer in (one, other):
                        for message in await consumer.poll(1, wait="5s"):
                            await message.ack()
            await telemetry.close()

    asyncio.run(run())
    assert len({life.id for life in kept.lives}) == len(kept.lives) == 50
    assert len({delivery.id for delivery in kept.deliveries}) == len(kept.deliveries) == 100


def test_what_can_t_be_read_ends_the_traces_and_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(here: Watched) -> None:
        await here.q.create_topic("orders", partitions=1)
        await here.q.publish("orders", b"x")
        async with here.q.consumer("billing", "orders") as consumer:
            (message,) = await consumer.poll(1)
            await message.ack()

            def fail(*given: object) -> None:
                raise RuntimeError("a bug")

            with monkeypatch.context() as patched:
                patched.setattr(telemetry_spans, "unpack", fail)
                await here.rounds()
            await here.q.publish("orders", b"y")
            (message,) = await consumer.poll(1)
            await message.ack()
            await here.q.create_topic("others", partitions=1)
            await here.q.publish("others", b"z")
            async with here.q.consumer("billing", "others") as other:
                (message,) = await other.poll(1)
                await message.ack()
            await here.rounds()
        (life,) = here.kept.lives
        assert life.name == "message others"

    watch(tmp_path, work)
    assert len([record for record in caplog.records if "not told any more" in record.message]) == 1


# --- to a collector -----------------------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """An OTLP receiver that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.add(self.path)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


def run_server(config: Config, work: Callable[[Ready], Awaitable[None]]) -> None:
    async def run() -> None:
        ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        server = Server(config)
        running = asyncio.create_task(server.run(ready.set_result))
        try:
            await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                await work(ready.result())
        finally:
            server.stop()
            await running

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await run()

    asyncio.run(bounded())


def config(path: Path, endpoint: str | None) -> Config:
    return Config(
        data=str(path / "data"),
        native=Address("127.0.0.1", 0),
        http=Address("127.0.0.1", 0),
        grpc=None,
        telemetry_endpoint=endpoint,
        telemetry_sample_ratio=1.0,
        telemetry_service_name="shop-broker",
    )


async def one_message(ready: Ready) -> None:
    async with penstock.aio.connect(f"penstock://{ready.native}") as q:
        await q.create_topic("orders", partitions=1)
        await q.publish("orders", b"x", headers={"traceparent": PARENT})
        async with q.consumer("billing", "orders", name="ann") as consumer:
            (message,) = await consumer.poll(1)
            await message.ack()


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is offered is sent before the end, however long that takes."""
    monkeypatch.setattr(telemetry_otlp, "_CLOSE_S", 30.0)


@pytest.mark.usefixtures("_patient")
def test_a_server_tells_a_collector_over_otlp(tmp_path: Path) -> None:
    with collector() as there:
        run_server(config(tmp_path, there.url), one_message)
    assert there.paths == {"/v1/traces"}
    (resource,) = {request.resource_spans[0].resource.SerializeToString() for request in there.requests}
    assert b"shop-broker" in resource
    by_name = {span.name: span for span in there.spans}
    life, delivery = by_name["message orders"], by_name["process orders"]
    assert len(there.spans) == 2
    assert life.trace_id.hex() == delivery.trace_id.hex() == PARENT[3:35]
    assert life.parent_span_id.hex() == PARENT[36:52]
    assert delivery.parent_span_id == life.span_id
    assert (life.kind, delivery.kind) == (life.SPAN_KIND_PRODUCER, life.SPAN_KIND_CONSUMER)
    told = {one.key: one.value.string_value or one.value.int_value for one in delivery.attributes}
    assert told["messaging.consumer.group.name"] == "billing"
    assert told["penstock.attempt"] == 1
    assert life.start_time_unix_nano <= delivery.start_time_unix_nano <= delivery.end_time_unix_nano


def test_a_collector_that_is_not_there_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collector() as gone:
        url = gone.url
    run_server(config(tmp_path, url), one_message)


def test_without_the_extra_a_server_with_an_endpoint_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "penstock.server.telemetry_otlp":
            raise ModuleNotFoundError("No module named 'opentelemetry'")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidSetting, match=r"pip install -e '\.\[otel\]' -c constraints\.txt") as raised:
        telemetry.sink("http://127.0.0.1:4318", "penstock", Counts())
    assert raised.value.details["setting"] == "telemetry_endpoint"
    with pytest.raises(InvalidSetting):
        run_server(config(tmp_path, "http://127.0.0.1:4318"), one_message)
    assert not (tmp_path / "data").exists()


# --- the sink -----------------------------------------------------------------------------------------------


def spans(count: int) -> list[Span]:
    return [Span("message t", False, 1, number + 1, None, False, 0, 1, {}) for number in range(count)]


class Stuck(SpanExporter):
    """Takes what it is given when it is let."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_go_on = threading.Event()
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        self.may_go_on.wait(60)
        self.taken += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.may_go_on.set()


class Failing(InMemorySpanExporter):
    def __init__(self, how: Exception | None) -> None:
        super().__init__()
        self._how = how

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._how is not None:
            raise self._how
        return SpanExportResult.FAILURE


@pytest.mark.usefixtures("_patient")
def test_what_a_slow_collector_does_not_take_is_dropped_and_counted() -> None:
    stuck, counts = Stuck(), Counts()
    sink = OtlpSink(stuck, "s", counts, queue_max=10)
    sink.offer(spans(1))
    assert stuck.began.wait(60)
    sink.offer(spans(25))
    assert counts.spans["dropped"] == 15
    stuck.may_go_on.set()
    sink.close()
    assert stuck.taken == counts.spans["exported"] == 11


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("how", [None, OSError("no route")])
def test_what_a_collector_refuses_is_counted_as_failed(how: Exception | None) -> None:
    counts = Counts()
    sink = OtlpSink(Failing(how), "s", counts)
    sink.offer(spans(600))
    sink.close()
    assert counts.spans == {"failed": 600, "dropped": 0}


def test_spans_are_those_of_opentelemetry() -> None:
    memory = InMemorySpanExporter()
    sink = OtlpSink(memory, "shop-broker", Counts())
    sink.offer([Span("process t", True, 5, 6, 7, True, 10, 20, {"penstock.attempt": 2}, "broken")])
    sink.close()
    (span,) = memory.get_finished_spans()
    assert (span.start_time, span.end_time) == (10_000, 20_000)
    assert span.parent is not None
    assert span.parent.is_remote
    assert span.status.description == "broken"
    assert span.resource.attributes["service.name"] == "shop-broker"
    assert span.attributes == {"penstock.attempt": 2}


def test_a_configuration_has_telemetry_as_a_section_or_by_name(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("telemetry: {endpoint: 'http://c:4318', sample_ratio: 0.5}\ntelemetry_service_name: x\n")
    loaded, _ = load(file, {"PENSTOCK_TELEMETRY_SAMPLE_RATIO": "1"}, {})
    assert (loaded.telemetry_endpoint, loaded.telemetry_service_name) == ("http://c:4318", "x")
    assert loaded.telemetry_sample_ratio == 1.0
    assert load(file, {}, {"telemetry_endpoint": "none"})[0].telemetry_endpoint is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("telemetry: yes", "telemetry has endpoint"),
        ("telemetry: {colour: red}", "no setting 'telemetry_colour'"),
        ("telemetry: {endpoint: 'collector:4318'}", "telemetry_endpoint is http://"),
        ("telemetry: {endpoint: 'http://[c'}", "telemetry_endpoint is http://"),
        ("telemetry: {endpoint: 7}", "telemetry_endpoint is http://"),
        ("telemetry: {sample_ratio: 0}", "more than 0 and at most 1"),
        ("telemetry: {sample_ratio: 1.5}", "more than 0 and at most 1"),
        ("telemetry: {sample_ratio: .nan}", "more than 0 and at most 1"),
        ("telemetry: {sample_ratio: many}", "more than 0 and at most 1"),
        ("telemetry: {sample_ratio: true}", "more than 0 and at most 1"),
        ("telemetry: {service_name: ''}", "telemetry_service_name is a name"),
    ],
)
def test_telemetry_that_makes_no_sense_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidSetting, match=re.escape(says)):
        load(file, {}, {})


def test_the_path_of_traces_is_added_to_an_endpoint() -> None:
    assert traces_of("http://c:4318") == traces_of("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_of("https://c/otlp") == "https://c/otlp/v1/traces"
    assert traces_of("https://c/otlp/v1/traces") == "https://c/otlp/v1/traces"


def test_a_partition_that_was_lost_is_let_go_and_told_again_once_it_is_led_again() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        kept = Kept()
        telemetry = Telemetry(led.broker, kept, Counts(), sample_ratio=1)
        await telemetry.start(round_s=None)
        await led.broker.create_group("g")

        async def one_message() -> int:
            group = led.broker.group("g", "t")
            await led.broker.topic("t").publish(Message(b"x"), 0)
            await ack_all(group, await group.lease("c", 1))
            await telemetry.round()
            await telemetry.round()
            return len(kept.lives)

        assert await one_message() == 1
        lost = weakref.ref(led.broker.topic("t").partition(0))
        logs = led.lose("t", 0)
        await telemetry.round()
        # The thread that read it may still be on its way out.
        while lost() is not None:
            gc.collect()
            await asyncio.sleep(0)
        (await led.lead("t", 0, logs)).epoch = 2
        await telemetry.round()
        assert await one_message() == 2
        await telemetry.close()

    run_led(work)
