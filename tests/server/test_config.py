"""The configuration: defaults, a file, the environment, flags; the later one wins, and nonsense is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidSetting
from penstock.server.config import Address, Config, load


def test_the_later_one_wins_and_each_tells_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("data: from-file\nnative: 127.0.0.1:1\nhttp: none\nlog_level: debug\n", encoding="utf-8")
    environment = {"PENSTOCK_NATIVE": "127.0.0.1:2", "PENSTOCK_LOG_LEVEL": "error", "PENSTOCK_SERVER": "x", "HOME": "/"}
    config, values = load(file, environment, {"native": "[::1]:3"})
    assert config == Config(data="from-file", native=Address("::1", 3), http=None, log_level="error")
    sources = {value.name: value.source for value in values}
    assert sources["data"] == sources["http"] == str(file)
    assert (sources["native"], sources["log_level"]) == ("--native", "PENSTOCK_LOG_LEVEL")
    assert sources["log_format"] == "default"


def test_where_the_archive_is_may_be_a_section_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("archive: {dir: /archive}\n", encoding="utf-8")
    assert load(file, {}, {})[0].archive_dir == "/archive"
    assert load(file, {"PENSTOCK_ARCHIVE_DIR": "s3://bucket/archive"}, {})[0].archive_dir == "s3://bucket/archive"
    file.write_text("archive: /archive\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="archive has dir, not '/archive'"):
        load(file, {}, {})


def test_nothing_given_is_the_loopback() -> None:
    config, _ = load(None, {}, {})
    assert config == Config()
    assert config.native is not None
    assert config.native.is_loopback


@pytest.mark.parametrize("address", ["0.0.0.0:7420", "[::]:7420", "192.168.0.1:1", "example.org:1"])
def test_a_door_for_others_needs_keys_or_a_word(address: str) -> None:
    with pytest.raises(InvalidSetting, match="everybody who reaches it may do everything"):
        load(None, {}, {"native": address})
    assert load(None, {}, {"native": address, "insecure": True})[0].insecure
    assert load(None, {}, {"native": address, "access": "keys.yaml"})[0].access == "keys.yaml"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"native": "7420"}, "native is host:port or none"),
        ({"native": "host:99999"}, "native is host:port or none"),
        ({"native": ":7420"}, "native is host:port or none"),
        ({"native": "::1:7420"}, "native is host:port or none"),
        ({"http": "none", "native": "none", "grpc": "none"}, "all doors are shut"),
        ({"log_format": "xml"}, "log_format is text or json"),
        ({"log_level": "loud"}, "log_level is debug"),
        ({"insecure": "maybe"}, "insecure is true or false"),
        ({"data": ""}, "data is a directory"),
        ({"access": 5}, "access is a file"),
        ({"archive_dir": ""}, "archive_dir is a directory or a URI"),
        ({"archive_dir": "s3://KEY:SECRET@bucket/archive"}, "has a secret in it.*AWS_ACCESS_KEY_ID"),
        ({"archive_dir": "abfs://box@account/archive?client_secret=SECRET"}, r"archive_dir \(abfs://…\) has a secret"),
        ({"tls_key": "x"}, "tls_key without tls_cert"),
        ({"node_id": "a"}, "node_id is for a node of a cluster, and no cluster is named"),
        ({"tls_ca": "x"}, "tls_ca is for a node of a cluster"),
        ({"rack": "r1"}, "rack is for a node of a cluster"),
        ({"cluster": "http://etcd:2379"}, "a node of a cluster has a name of its own: --node-id"),
        ({"cluster": "http://etcd:2379", "node_id": "a", "native": "none"}, "reach each other at their native doors"),
        ({"cluster": "http://root:SECRET@etcd:2379", "node_id": "a"}, "no user and password in it"),
        ({"session_ttl": "1500ms"}, "session_ttl is 2s to 600s, in whole seconds"),
        ({"session_ttl": "1s"}, "session_ttl is 2s to 600s, in whole seconds"),
        ({"session_ttl": "soon"}, "session_ttl: a duration is written as"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told) as raised:
        load(None, {}, flags)
    assert "SECRET@" not in raised.value.message
    assert "=SECRET" not in raised.value.message


def test_a_password_that_is_no_text_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("cluster: http://etcd:2379\nnode_id: a\netcd_password: 271828\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="etcd_password is a text") as raised:
        load(tmp_path / "c.yaml", {}, {})
    assert "271828" not in raised.value.message


def test_a_node_of_a_cluster_is_told_where_etcd_is_and_who_it_is() -> None:
    environment = {"PENSTOCK_CLUSTER": "https://one:2379,https://two:2379", "PENSTOCK_ETCD_PASSWORD": "secret"}
    config, _ = load(None, environment, {"node_id": "a", "rack": "r1", "session_ttl": "1m", "tls_ca": "ca.pem"})
    assert (config.cluster, config.node_id) == (environment["PENSTOCK_CLUSTER"], "a")
    assert (config.rack, config.session_ttl, config.tls_ca, config.etcd_password) == ("r1", 60, "ca.pem", "secret")


@pytest.mark.parametrize(
    ("content", "told"),
    [("nativ: x", "no setting 'nativ'"), ("- a", "names and values"), ("{", "is not YAML"), ("5: 6", "no setting 5")],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "c.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InvalidSetting, match=told):
        load(tmp_path / "c.yaml", {}, {})
    with pytest.raises(InvalidSetting, match="can't be read"):
        load(tmp_path / "nowhere.yaml", {}, {})
