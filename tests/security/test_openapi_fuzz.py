"""Requests made from /openapi.json, sensible ones and others, against a real server: none of them finds a bug in it.

pytest tests/security/test_openapi_fuzz.py --seed N        the same requests again
pytest tests/security/test_openapi_fuzz.py --scale 10      ten times as many
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from security.serving import serving

schemathesis: Any = pytest.importorskip("schemathesis")
requests: Any = pytest.importorskip("requests")
GenerationMode = schemathesis.GenerationMode

REQUESTS = 2_000
# Of one operation in a row: others may have deleted by then what it needs.
IN_A_ROW = 12
EXPECTED = (503, 507)
# What is there, so that not everything is told that it is nowhere.
PARTS = {
    "topic": ["fuzz", "fuzz.dlq"],
    "group": ["fuzzers", "others"],
    "id": ["fuzz:0:0", "fuzz:0:1", "fuzz:0:2", "fuzz.dlq:0:0"],
    "consumer": ["http", "fuzzer"],
    "schedule": ["hourly"],
}
BODIES = {"name": ["fuzz", "fuzzers", "hourly", "new"], "topic": ["fuzz"], "topics": ["fuzz", ["fuzz"]]}
# A topic of a thousand partitions is a thousand directories, and a poll that waits keeps us from the next request.
PARTITIONS_MAX = 3


class Fuzz:
    def __init__(self, url: str, seed: int) -> None:
        self.seed = seed
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._web = requests.Session()
        self._schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self._described = self._web.get(f"{url}/openapi.json", timeout=60).json()["paths"]

    @property
    def count(self) -> int:
        return sum(self.statuses.values())

    def run(self, wanted: int) -> None:
        operations = [found.ok() for found in self._schema.get_all_operations()]
        numbers = iter(range(self.seed, 1 << 62))
        while self.count < wanted:
            for operation in operations:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    if self.count < wanted:
                        self._prepare()
                        self._knock(operation, mode, next(numbers))

    def _prepare(self) -> None:
        """A topic, with a message that waits, one that is leased and one that was given up; a group; a schedule."""
        if self._web.get(f"{self._url}/v1/topics/fuzz", timeout=60).status_code == 200:
            return
        self._post("/v1/topics", {"name": "fuzz", "partitions": 1})
        self._post("/v1/topics/fuzz/publish", {"text": "one"})
        self._post("/v1/topics/fuzz/publish", {"text": "two", "key": "k"})
        self._post("/v1/topics/fuzz/publish", {"text": "later", "delay": "1h"})
        polled = self._post("/v1/groups/fuzzers/poll", {"topics": "fuzz", "max": 1})
        receipts = [message["receipt"] for message in polled.json().get("messages", ())]
        self._post("/v1/groups/fuzzers/reject", {"receipts": receipts})
        self._post("/v1/schedules", {"name": "hourly", "topic": "fuzz", "cron": "@hourly", "text": "x"})

    def _post(self, path: str, body: Any) -> Any:
        return self._web.post(self._url + path, json=body, timeout=60)

    def _knock(self, operation: Any, mode: Any, seed: int) -> None:
        @hypothesis.seed(seed)
        @settings(
            max_examples=IN_A_ROW,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.given(operation.as_strategy(generation_mode=mode), st.randoms(use_true_random=False))
        def knock(case: Any, dice: random.Random) -> None:
            _adapt(case, dice)
            self._ask(case)

        try:
            knock()
        except Unsatisfiable:
            # Nothing can be wrong with what has neither a body nor a parameter.
            pass

    def _ask(self, case: Any) -> None:
        given = case.as_transport_kwargs(base_url=self._url)
        with self._web.request(**given, stream=True, timeout=60) as reply:
            self.statuses[reply.status_code] += 1
            is_stream = reply.headers.get("content-type") == "text/event-stream"
            body = b"" if is_stream else reply.content
        told = f"{case.method} {given['url']} {given}\n→ {reply.status_code} {body[:1000]!r}\nagain: --seed {self.seed}"
        assert reply.status_code < 500 or reply.status_code in EXPECTED, told
        if reply.status_code >= 400:
            assert json.loads(body).keys() == {"code", "message", "details"}, told
        responses = self._described[case.operation.path][case.method.lower()]["responses"]
        assert str(reply.status_code) in responses or reply.status_code in (404, 405, 501), told


def _adapt(case: Any, dice: random.Random) -> None:
    """Every other time to what there is."""
    for name in case.path_parameters or ():
        if name in PARTS and dice.random() < 0.7:
            case.path_parameters[name] = dice.choice(PARTS[name])
    if isinstance(case.body, dict):
        for name, known in BODIES.items():
            if name in case.body and dice.random() < 0.7:
                case.body[name] = dice.choice(known)
        if isinstance(case.body.get("partitions"), int) and case.body["partitions"] > PARTITIONS_MAX:
            case.body["partitions"] = PARTITIONS_MAX
        if case.body.get("wait"):
            case.body["wait"] = dice.choice([0, "1ms", "nonsense", -1])


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, unless another one is wanted."""
    given: int | None = request.config.getoption("--seed")
    return given or 0


@pytest.fixture
def fuzz(tmp_path: Path, seed: int) -> Iterator[Fuzz]:
    with serving(tmp_path / "data", doors=("http",)) as server:
        yield Fuzz(f"http://{server.http}", seed)
        bugs = [line for line in server.log if " error " in line or "Traceback" in line]
        assert not bugs, bugs


def test_whatever_is_asked_is_answered_with_no_failure_but_those_that_pass(fuzz: Fuzz, scale: float) -> None:
    print(f"replay with: pytest {Path(__file__).name} --seed {fuzz.seed}")
    fuzz.run(round(REQUESTS * scale))
    print(dict(fuzz.statuses))
    # It got somewhere: not everything was refused.
    assert sum(number for status, number in fuzz.statuses.items() if status < 300) > fuzz.count / 20
