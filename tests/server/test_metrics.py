"""What is told to Prometheus is true, and in its format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import TopicNotFound
from penstock.server.metrics import BOUNDS, Family, Histogram, Sample, of_broker, of_doors, rendered
from served import Served, serve

_LINE = re.compile(r'^[a-z_]+(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? -?[0-9.e+]+$')


def value(text: str, name: str, **labels: str) -> float:
    """Of the one sample with this name and at least these labels."""
    found = [
        line
        for line in text.splitlines()
        if re.match(rf"{name}[{{ ]", line) and all(f'{label}="{given}"' in line for label, given in labels.items())
    ]
    (line,) = found
    return float(line.rpartition(" ")[2])


def test_what_happened_is_counted(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        async with here.client() as q:
            await q.create_topic("orders", partitions=1)
            for number in range(5):
                await q.publish("orders", b"%d" % number, delay="1h" if number == 4 else None)
            consumer = q.consumer("w", "orders", ordering="key")
            first, second, third, _ = await consumer.poll(10)
            await first.ack()
            await second.nack("1h")
            await third.reject("bad")
            with pytest.raises(TopicNotFound):
                await q.topic("nowhere")
            text = rendered([*of_doors(here.door.counts), *of_broker(here.site.broker)])
            assert value(text, "penstock_connections", door="native") == 1
            assert value(text, "penstock_requests_total", request="publish", outcome="ok") == 5
            assert value(text, "penstock_requests_total", request="call", outcome="topic_not_found") == 1
            assert value(text, "penstock_request_seconds_count", request="publish") == 5
            assert value(text, "penstock_request_seconds_bucket", request="publish", le="+Inf") == 5
            assert value(text, "penstock_messages_published_total", topic="orders", partition="0") == 5
            assert value(text, "penstock_scheduled", topic="orders") == 1
            assert value(text, "penstock_stored_bytes", topic="orders") > 500
            assert value(text, "penstock_group_lag", group="w", topic="orders") == 3
            assert value(text, "penstock_group_in_flight", group="w", topic="orders") == 1
            assert value(text, "penstock_group_waiting", group="w", topic="orders") == 1
            assert value(text, "penstock_group_members", group="w") == 1
            await consumer.close()
            for line in text.splitlines():
                assert line.startswith("# ") or _LINE.match(line), line

    serve(tmp_path, work)


def test_labels_are_escaped() -> None:
    family = Family("x", "gauge", "Help.", [Sample({"a": 'q"\\\n'}, 1.5), Sample({}, 2)])
    assert rendered([family]) == '# HELP x Help.\n# TYPE x gauge\nx{a="q\\"\\\\\\n"} 1.5\nx 2\n'


def test_a_histogram_counts_each_in_its_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, 1_000.0):
        histogram.add(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[-1] == 1
