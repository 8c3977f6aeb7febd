"""One etcd for all; each test has a cluster of its own in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_nodes import LocalCluster, local_cluster
from etcd_support import etcd_process


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process.address


@pytest.fixture
def cluster(tmp_path: Path, etcd: str) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, etcd, "a", "b", "c") as found:
        yield found
