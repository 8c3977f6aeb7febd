"""Three real brokers and a real etcd under faults, judged by the checker of histories.

Replay one seed: python -m tests.chaos SEED, or pytest tests/chaos --seed SEED. Without network namespaces, faults of
the network are left out, and without the right to mount, a disk that is full: seeds mean other faults then.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from chaos.faults import FAULTS, OF_NETWORK, one_way, why_no_small_disk
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


@pytest.fixture(scope="module")
def no_disk() -> str | None:
    """What the machine lacks for a disk that can be filled."""
    return why_no_small_disk()


@needs_etcd
def test_promises_hold_under_faults(seed: int, tmp_path: Path, missing: str | None, no_disk: str | None) -> None:
    replay = f"its history and logs: {tmp_path}\nreplay: python -m tests.chaos {seed}"
    try:
        outcome = run_seed(seed, tmp_path, has_network=missing is None, has_small_disk=no_disk is None)
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


@needs_etcd
def test_a_disk_can_be_filled(no_disk: str | None) -> None:
    if no_disk is not None:
        pytest.skip(f"the runs above were without a disk that is full: {no_disk}")


def planned(*, has_network: bool = True, has_small_disk: bool = True) -> set[str]:
    plans = [Plan.of(seed, has_network=has_network, has_small_disk=has_small_disk) for seed in range(RUNS)]
    return {kind for plan in plans for kind in plan.faults}


def test_the_runs_have_every_fault() -> None:
    assert planned() == set(FAULTS)


def test_the_runs_have_every_fault_that_the_machine_can_make() -> None:
    assert planned(has_network=False) == set(FAULTS) - set(OF_NETWORK)
    assert planned(has_small_disk=False) == set(FAULTS) - {"fill_disk"}
    assert planned(has_network=False, has_small_disk=False) == set(FAULTS) - {*OF_NETWORK, "fill_disk"}


def test_a_disk_that_can_not_be_mounted_is_told_of_instead_of_failing_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    mount.write_text("#!/bin/sh\necho 'must be superuser' >&2\nexit 1\n", encoding="utf-8")
    mount.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_no_small_disk() == "no disk can be mounted: must be superuser"
    mount.unlink()
    assert why_no_small_disk() == "there is no command mount"


def test_what_is_cut_one_way_is_any_of_both_ways_between_nodes_and_etcd() -> None:
    drawn = {one_way("a", ["b", "c"], Random(seed)) for seed in range(100)}
    assert drawn == {pair for other in ("b", "c", "etcd") for pair in (("a", other), (other, "a"))}
