"""Logs that copy each other, by a dice: what they have under an offset is the same, whatever each did with its own.

Replay one seed: pytest tests/storage/test_replicas.py --seed N
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import replicas as replicas_module
from penstock.storage.replicated import remove_others
from replicas import Replicas, rows_by_offset

SEEDS = 60
STEPS = 120


def run_seed(seed: int, seen: Counter[str]) -> None:
    replicas = Replicas(seed, compacts=seed % 2 == 0)
    replicas.elect()
    try:
        for _ in range(STEPS):
            replicas.step()
            if replicas.random.random() < 0.1:
                for log in replicas.logs:
                    replicas.check(log)
        replicas.check_same()
        # Also after all of them were killed: nothing is only in memory.
        before = [(rows_by_offset(log), log.lineage, log.end_offset) for log in replicas.logs]
        for number, disk in enumerate(replicas.disks):
            replicas.disks[number] = disk.after_power_loss(replicas.random)
            replicas.logs[number] = replicas.open(number)
        assert before == [(rows_by_offset(log), log.lineage, log.end_offset) for log in replicas.logs]
        replicas.elect()
        replicas.append()
        replicas.check_same()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}\nreplay: pytest {__file__} --seed {seed}") from error
    seen.update(replicas.counts)


def test_replicas_have_the_same_under_every_offset(request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    for seed in range(int(SEEDS * scale)) if only is None else [only]:
        run_seed(seed, seen)
    print(dict(seen))
    assert only is not None or set(Replicas.STEPS) == set(seen)


@pytest.mark.parametrize(
    ("removes", "says"),
    [
        (lambda log, first, until, stays, **_: True, "removed by the leader"),
        (
            lambda log, first, until, stays, **options: remove_others(
                log, first, until, lambda offsets: offsets < 0, **options
            ),
            "lost",
        ),
    ],
    ids=["too little", "too much"],
)
def test_a_build_that_removes_something_else_than_its_leader_is_caught(
    monkeypatch: pytest.MonkeyPatch, removes: Callable[..., bool], says: str
) -> None:
    run_seed(2, Counter())
    monkeypatch.setattr(replicas_module, "remove_others", removes)
    with pytest.raises(AssertionError, match=says):
        run_seed(2, Counter())
