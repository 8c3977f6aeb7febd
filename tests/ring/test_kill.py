"""A process with a journal is killed at random moments: what `flush` confirmed holds, to the last job.

Replay one seed: pytest tests/ring/test_kill.py --seed N
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from penstock.ring import Ring
from ring_support import PATIENCE_S

ROUNDS = 4

# Works on its ring as fast as it can, in threads. It says which jobs it is about to acknowledge, and after each flush
# which ones it had put and acknowledged before.
PROGRAM = """
import json, sys, threading
from random import Random
from penstock.ring import Ring

class SmallRing(Ring):
    _journal_options = {"segment_bytes_max": 65536, "compact_bytes_min": 65536}

path, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ring = SmallRing(5_000, journal=path, flush_interval="5ms", max_attempts=1000)
state, saying = threading.Lock(), threading.Lock()
put, acked = first - 1, []

def say(*what):
    with saying:
        sys.stdout.write(json.dumps(what) + "\\n")
        sys.stdout.flush()

def work():
    random = Random(seed)
    while True:
        batch = ring.take(random.choice((1, 10, 300)))
        done = batch.jobs if random.random() < 0.7 else random.sample(batch.jobs, random.randint(0, len(batch)))
        numbers = [job[0] for job in done]
        say("will ack", numbers)
        with state:
            batch.ack(done)
            acked.extend(numbers)
        if len(done) < len(batch):
            batch.retry(delay=random.choice(("0s", "1ms", "10ms")))

def confirm():
    global acked
    while True:
        with state:
            put_before, acked_before, acked = put, acked, []
        ring.flush()
        say("flushed", put_before, acked_before)

threading.Thread(target=work, daemon=True).start()
threading.Thread(target=confirm, daemon=True).start()
random = Random(seed + 1)
while True:
    count = random.choice((1, 1, 20, 500))
    ring.put_many([[put + 1 + n, "x" * random.choice((0, 10, 200))] for n in range(count)])
    with state:
        put += count
"""


@dataclass
class Said:
    """By all processes so far."""

    put: set[int] = field(default_factory=set)
    will_ack: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)


def test_what_a_flush_confirmed_survives_a_kill(tmp_path: Any, request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    for seed in [only] if only is not None else range(max(int(2 * scale), 1)):
        kill_again_and_again(tmp_path / str(seed), seed)


def kill_again_and_again(path: Any, seed: int) -> None:
    random = Random(seed)
    said = Said()
    first = 1
    for round_ in range(ROUNDS):
        run_and_kill(path, first, seed * ROUNDS + round_, random.randint(1, 12), said)
        ring = Ring(1 << 20, journal=path, max_attempts=1000)
        found = {job[0] for job in ring._waiting} | {retry.job[0] for retry in ring._heap}
        place = f"seed {seed}, round {round_}"
        assert not ring.failed(), place
        assert len(ring) == len(found), f"{place}: a job is there twice"
        lost = said.put - said.will_ack - found
        assert not lost, f"{place}: put, flushed, and lost: {sorted(lost)[:5]}"
        back = said.acked & found
        assert not back, f"{place}: acknowledged, flushed, and back: {sorted(back)[:5]}"
        ring.close()
        # What was put and not confirmed is there all the same, or was never heard of.
        said.put |= found
        first = max(found | said.put | said.will_ack, default=0) + 1


def run_and_kill(path: Any, first: int, seed: int, flushes: int, said: Said) -> None:
    """Killed when it has said so often that acknowledgements are flushed; what it says meanwhile counts too."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(first), str(seed)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if not line.endswith("\n"):
                # The kill came in the middle of it.
                break
            what, *told = json.loads(line)
            if what == "will ack":
                said.will_ack |= set(told[0])
                continue
            said.put |= set(range(first, told[0] + 1))
            said.acked |= set(told[1])
            flushes -= bool(told[1])
            if not flushes:
                child.kill()
    assert child.wait(PATIENCE_S) == -signal.SIGKILL, f"it ended by itself, with {child.returncode}"
