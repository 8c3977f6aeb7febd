"""/metrics: for Prometheus, with what HTTP itself was asked."""

from __future__ import annotations

from typing import Any


def test_metrics_tell_what_was_asked_and_what_there_is(serve: Any) -> None:
    async def work(here: Any) -> None:
        await here.ok("POST", "/v1/topics/t/publish", {"text": "x"})
        await here.fails("POST", "/v1/topics/nowhere/publish", {"text": "x"})
        await here.ok("GET", "/v1/topics/t")
        reply = await here.http.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        publish = 'penstock_requests_total{door="http",request="POST /v1/topics/{topic}/publish"'
        lines = reply.text.splitlines()
        assert f'{publish},outcome="ok"}} 1' in lines
        assert f'{publish},outcome="topic_not_found"}} 1' in lines
        assert 'penstock_requests_total{door="http",request="GET /v1/topics/{topic}",outcome="ok"} 1' in lines
        assert 'penstock_messages_published_total{topic="t",partition="0"} 1' in lines
        assert (await here.http.post("/metrics")).status_code == 405

    serve(work)
