from __future__ import annotations

import pytest

from penstock.cluster.etcd.versions import check
from penstock.errors import EtcdVersionRefused


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.5", "3.5.0-rc.1"])
def test_versions_that_can_corrupt_data_are_refused(version: str) -> None:
    with pytest.raises(EtcdVersionRefused, match=r"at here can corrupt its data: use 3\.5\.28 or later") as caught:
        check(version, "here")
    assert caught.value.details == {"version": version}
    assert not caught.value.retriable


@pytest.mark.parametrize("version", ["3.3.27", "3.0.0", "2.3.8"])
def test_versions_before_3_4_are_refused(version: str) -> None:
    with pytest.raises(EtcdVersionRefused, match="is too old"):
        check(version, "here")


@pytest.mark.parametrize("version", ["", "three", "3.5", "v3.5.30", "x" * 1_000])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(EtcdVersionRefused, match="none of etcd's") as caught:
        check(version, "here")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("version", "warning"),
    [
        ("3.4.0", "etcd 3.4.0 at here is for development and tests only: use 3.5.28 or later"),
        ("3.4.23", "etcd 3.4.23 at here is for development and tests only: use 3.5.28 or later"),
        ("3.5.6", "etcd 3.5.6 at here lacks fixes: use 3.5.28 or later"),
        ("3.5.27", "etcd 3.5.27 at here lacks fixes: use 3.5.28 or later"),
        ("3.5.28", None),
        ("3.6.0", None),
        ("4.0.0", None),
    ],
)
def test_versions_that_lack_fixes_are_used_with_a_warning(version: str, warning: str | None) -> None:
    assert check(version, "here") == warning
