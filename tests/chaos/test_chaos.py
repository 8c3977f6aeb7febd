"""Three real brokers and a real etcd under faults, judged by the checker of histories.

Replay one seed: python -m tests.chaos SEED, or pytest tests/chaos --seed SEED. Without network namespaces, faults of
the network are left out, and seeds mean other faults.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.network import why_not
from chaos.runs import Plan, run_seed
from etcd_support import needs_etcd

RUNS = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        only = metafunc.config.getoption("--seed")
        count = max(1, int(RUNS * metafunc.config.getoption("--scale")))
        metafunc.parametrize("seed", range(count) if only is None else [only])


@pytest.fixture(scope="module")
def missing() -> str | None:
    """What the machine lacks for a network that can be cut."""
    return why_not()


@needs_etcd
def test_promises_hold_under_faults(seed: int, tmp_path: Path, missing: str | None) -> None:
    replay = f"its history and logs: {tmp_path}\nreplay: python -m tests.chaos {seed}"
    try:
        outcome = run_seed(seed, tmp_path, has_network=missing is None)
    except Exception as error:
        raise AssertionError(f"seed {seed} did not come to its end: {error!r}\n{replay}") from error
    if outcome.violations:
        told = "\n".join(str(violation) for violation in outcome.violations[:20])
        pytest.fail(f"{outcome}\n{told}\n{replay}")
    # An etcd alone takes 64 MB.
    shutil.rmtree(tmp_path)


@needs_etcd
def test_the_network_can_be_cut(missing: str | None) -> None:
    if missing is not None:
        pytest.skip(f"the runs above were without faults of the network: {missing}")


def test_the_runs_have_every_fault() -> None:
    planned = {kind for seed in range(RUNS) for kind in Plan.of(seed, has_network=True).faults}
    assert planned == set(FAULTS)
