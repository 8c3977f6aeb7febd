"""Three real brokers and a real etcd under faults, judged by the checker of histories.

Replay one seed: python -m tests.chaos SEED, or pytest tests/chaos --seed SEED. Faults that a machine can't make are
left out (network namespaces, the right to mount, faketime): seeds mean other faults then.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from chaos.faults import EXCLUSIVE, FAULTS, LONG, OF_NETWORK, OF_SLOW_DISK, impossible, one_way
from chaos.mounts import why_no_slow_disk, why_no_small_disk
from chaos.runs import STORMS, Plan, run_seed
from etcd_support import needs_etcd

RUNS = 21


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        only = metafunc.config.getoption("--seed")
        count = max(1, int(RUNS * metafunc.config.getoption("--scale")))
        metafunc.parametrize("seed", range(count) if only is None else [only])


@pytest.fixture(scope="module")
def left_out() -> dict[str, str]:
    return impossible()


@needs_etcd
def test_promises_hold_under_faults(seed: int, tmp_path: Path, left_out: dict[str, str]) -> None:
    replay = f"its history and logs: {tmp_path}\nreplay: python -m tests.chaos {seed}"
    try:
        outcome = run_seed(seed, tmp_path, left_out=left_out)
    except Exception as error:
        raise AssertionError(f"seed {seed} did not come to its end: {error!r}\n{replay}") from error
    if outcome.violations:
        told = "\n".join(str(violation) for violation in outcome.violations[:20])
        pytest.fail(f"{outcome}\n{told}\n{replay}")
    # An etcd alone takes 64 MB.
    shutil.rmtree(tmp_path)


@needs_etcd
@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_the_machine_can_make_every_fault(kind: str, left_out: dict[str, str]) -> None:
    if kind in left_out:
        pytest.skip(f"the runs above were without {kind}: {left_out[kind]}")


@pytest.mark.parametrize(
    "left_out", [(), OF_NETWORK, OF_SLOW_DISK, ("fill_disk",), ("step_clock",), (*OF_NETWORK, "fill_disk")]
)
def test_the_runs_have_every_fault_that_the_machine_can_make(left_out: tuple[str, ...]) -> None:
    planned = {kind for seed in range(RUNS) for kind in Plan.of(seed, left_out).faults}
    assert planned == set(FAULTS) - set(LONG) - set(left_out)


def test_40_storms_have_every_fault_and_each_kind_among_others() -> None:
    plans = [Plan.of(seed, seconds=60) for seed in range(STORMS, STORMS + 40)]
    assert {kind for plan in plans for kind in plan.faults} == set(FAULTS)
    assert all(len(set(plan.faults)) > 4 for plan in plans)
    assert all(sum(kind in EXCLUSIVE for kind in plan.faults) <= 1 for plan in plans)
    assert sum(kind in EXCLUSIVE for plan in plans for kind in plan.faults) >= 5


def test_a_longer_storm_has_more_faults_over_a_longer_time() -> None:
    short, long = Plan.of(STORMS, seconds=20), Plan.of(STORMS, seconds=120)
    assert len(long.faults) > len(short.faults)
    assert long.within_s > short.within_s


def test_a_disk_that_can_not_be_mounted_is_reported_instead_of_failing_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    mount.write_text("#!/bin/sh\necho 'must be superuser' >&2\nexit 1\n", encoding="utf-8")
    mount.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_no_small_disk() == "no disk can be mounted: must be superuser"
    mount.unlink()
    assert why_no_small_disk() == "there is no command mount"
    assert why_no_slow_disk() == "there is no command mkfs.ext4"


def test_what_is_cut_one_way_is_any_of_both_ways_between_nodes_and_etcd() -> None:
    drawn = {one_way("a", ["b", "c"], Random(seed)) for seed in range(100)}
    assert drawn == {pair for other in ("b", "c", "etcd") for pair in (("a", other), (other, "a"))}
