"""Spans to a collector, as OTLP over HTTP. The only module that knows OpenTelemetry, which is an extra.

Its exporter tries again by itself what a collector did not take. Meanwhile spans wait in a queue with an end; behind it
they are dropped. Headers, certificates, compression and timeouts come from OTEL_EXPORTER_OTLP_… as everywhere.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from threading import Condition, Thread
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import penstock
from penstock.server.metrics import Counts
from penstock.server.telemetry_spans import Span

log = logging.getLogger("penstock.telemetry")

QUEUE_MAX = 20_000
_BATCH_MAX = 512
_CLOSE_S = 3.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_PATH = "/v1/traces"


class OtlpSink:
    """Has a thread of its own, so that a collector that hangs holds up nobody."""

    def __init__(
        self, exporter: SpanExporter, service_name: str, counts: Counts, *, queue_max: int = QUEUE_MAX
    ) -> None:
        self._exporter = exporter
        self._counts = counts
        self._queue_max = queue_max
        self._resource = Resource.create({"service.name": service_name, "service.version": penstock.__version__})
        self._scope = InstrumentationScope("penstock", penstock.__version__)
        self._waiting: deque[Span] = deque()
        self._changed = Condition()
        self._is_closing = False
        # A daemon: if a collector hangs, the process need not.
        self._thread = Thread(target=self._work, name="penstock-otlp", daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, endpoint: str, service_name: str, counts: Counts) -> OtlpSink:
        return cls(OTLPSpanExporter(endpoint=traces_of(endpoint)), service_name, counts)

    def offer(self, spans: Sequence[Span]) -> None:
        with self._changed:
            room = self._queue_max - len(self._waiting)
            self._waiting.extend(spans[:room])
            self._changed.notify()
        self._counts.span("dropped", max(len(spans) - room, 0))

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)
        # Ends the waiting of an exporter that would try again.
        self._exporter.shutdown()
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        self._counts.span("dropped", left)

    def _work(self) -> None:
        while batch := self._next():
            is_told = False
            try:
                exported = self._exporter.export([self._readable(span) for span in batch])
                is_told = exported is SpanExportResult.SUCCESS
            except Exception:
                log.exception("%d spans could not be told", len(batch))
            self._counts.span("exported" if is_told else "failed", len(batch))

    def _next(self) -> list[Span]:
        """Nothing when it is over."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_MAX))]

    def _readable(self, span: Span) -> ReadableSpan:
        parent = None
        if span.parent is not None:
            parent = SpanContext(span.trace, span.parent, is_remote=span.is_parent_remote, trace_flags=_SAMPLED)
        return ReadableSpan(
            name=span.name,
            context=SpanContext(span.trace, span.id, is_remote=False, trace_flags=_SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.CONSUMER if span.is_delivery else SpanKind.PRODUCER,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_us * 1_000,
            end_time=span.end_us * 1_000,
            instrumentation_scope=self._scope,
        )


def traces_of(endpoint: str) -> str:
    """As OTEL_EXPORTER_OTLP_ENDPOINT: the address of the collector, to which the path of traces is added."""
    return endpoint if urlsplit(endpoint).path.endswith(_PATH) else endpoint.rstrip("/") + _PATH
