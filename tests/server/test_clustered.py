"""Servers that are nodes of a cluster, over a real etcd: TLS between them, and what `replicas` and `min_isr` do."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trustme

import penstock
from cluster_nodes import LocalCluster, found, local_cluster
from etcd_support import etcd_process, needs_etcd, opened, post
from penstock.client.blocking import Client
from penstock.client.cluster_requests import PartitionReport, Reassign
from penstock.clock import SystemClock
from penstock.cluster.keys import Keys
from penstock.cluster.registration import Broker
from penstock.errors import ConnectionLost, EtcdError, InvalidSetting, NotEnoughReplicas
from penstock.net.address import place_of
from penstock.net.connection import Connection
from penstock.server.tls import trusting

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process.address


@contextmanager
def nodes_with_tls(directory: Path, etcd: str) -> Iterator[tuple[LocalCluster, trustme.CA]]:
    """a and b, who trust each other."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    issued = authority.issue_cert("127.0.0.1")
    (directory / "server.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    files = {"tls_cert": str(directory / "server.pem"), "tls_ca": str(directory / "authority.pem")}
    with local_cluster(directory, etcd) as cluster:
        cluster.start("a", "b", **files)
        yield cluster, authority


@contextmanager
def connected(cluster: LocalCluster, tls: ssl.SSLContext) -> Iterator[penstock.Client]:
    with penstock.connect("penstocks://" + cluster.nodes["a"].native, tls=tls) as q:
        yield q


def test_nodes_with_tls_at_their_doors_replicate_to_each_other(tmp_path: Path, etcd: str) -> None:
    with nodes_with_tls(tmp_path, etcd) as (cluster, authority):
        trusted = ssl.create_default_context()
        authority.configure_trust(trusted)
        with connected(cluster, trusted) as q:
            q.create_topic("orders", 2, replicas=2, min_isr=2)
            # Answered only once both have it on disk.
            for partition in (0, 1):
                q.publish("orders", b"paid", partition=partition)
            assert [bytes(message.value) for message in q.reader("orders")] == [b"paid", b"paid"]


def test_a_node_tells_others_of_its_tls_and_they_look_at_its_certificate(tmp_path: Path, etcd: str) -> None:
    with nodes_with_tls(tmp_path, etcd) as (cluster, _):

        async def entries() -> list[Broker]:
            async with opened(etcd) as store:
                found = await store.get(Keys(cluster.name).brokers)
            return [msgspec.json.decode(item.value, type=Broker) for item in found.items.values()]

        async def connect(authorities: str | None) -> None:
            place = place_of(cluster.nodes["b"].native, tls=trusting(authorities))
            await (await Connection.to(place, SystemClock())).close()

        assert [broker.tls for broker in cluster.run(entries())] == [True, True]
        cluster.run(connect(str(tmp_path / "authority.pem")))
        with pytest.raises(ConnectionLost, match="certificate is not trusted"):
            cluster.run(connect(None))


def test_a_node_gets_into_an_etcd_that_wants_a_certificate_and_a_user(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (("etcd", authority.issue_cert("127.0.0.1")), ("us", authority.issue_cert("node"))):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        (tmp_path / f"{name}.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    files = {"etcd_ca": tmp_path / "ca.pem", "etcd_cert": tmp_path / "us.pem", "etcd_key": tmp_path / "us.key"}
    ours = {name: str(path) for name, path in files.items()} | {"etcd_user": "penstock", "etcd_password": "of etcd"}
    tls = ssl.create_default_context(cafile=ours["etcd_ca"])
    tls.load_cert_chain(ours["etcd_cert"], ours["etcd_key"])
    arguments = [f"--cert-file={tmp_path / 'etcd.pem'}", f"--key-file={tmp_path / 'etcd.key'}", "--client-cert-auth"]
    arguments += [f"--trusted-ca-file={tmp_path / 'ca.pem'}", "--bcrypt-cost=4"]
    with etcd_process(tmp_path / "etcd", *arguments, tls=tls) as process:
        for path, request in (
            ("user/add", {"name": "root", "password": "secret"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "penstock", "password": "of etcd"}),
            ("role/add", {"name": "ours"}),
            ("role/grant", {"name": "ours", "perm": {"permType": 2, "key": b"/penstock/", "range_end": b"/penstock0"}}),
            ("user/grant", {"user": "penstock", "role": "ours"}),
            ("enable", {}),
        ):
            assert "error" not in post(process, f"/v3/auth/{path}", request, tls=tls)
        with local_cluster(tmp_path, process.address) as cluster:
            for lacking, error in (
                ({"etcd_ca"}, "its certificate is not trusted"),
                ({"etcd_cert", "etcd_key"}, "CERTIFICATE"),
                ({"etcd_user", "etcd_password"}, "permission denied|asks for a user and a password"),
            ):
                with pytest.raises(EtcdError, match=error):
                    cluster.start("a", **{name: value for name, value in ours.items() if name not in lacking})
            cluster.start("a", "b", **ours)
            with penstock.connect(cluster.address) as q:
                q.create_topic("orders", 2, replicas=2, min_isr=2)
                q.publish("orders", b"paid")
                assert [bytes(message.value) for message in q.reader("orders")] == [b"paid"]


def test_a_file_to_trust_by_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text("nonsense", encoding="utf-8")
    for name in ("authority.pem", "nowhere.pem"):
        with pytest.raises(InvalidSetting, match=rf"{name} can't be used to trust by"):
            trusting(str(tmp_path / name))


def test_min_isr_can_be_changed_and_holds_for_every_partition_at_once(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b") as cluster, penstock.connect(cluster.address) as q:
        q.create_topic("orders", 3, replicas=2)
        cluster.until(lambda report: {each.min_isr for each in report.partitions} == {1})
        info = q.change_topic("orders", min_isr=2)
        assert (info.settings["replicas"], info.settings["min_isr"]) == (2, 2)
        cluster.until(lambda report: {each.min_isr for each in report.partitions} == {2})
        q.publish("orders", b"paid")


def test_replicas_are_not_changed_as_a_setting(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b") as cluster, penstock.connect(cluster.address) as q:
        q.create_topic("orders", 1, replicas=2)
        with pytest.raises(InvalidSetting, match="`penstock cluster reassign orders NODE,NODE…` moves them"):
            q.change_topic("orders", replicas=1)
        assert q.change_topic("orders", replicas=2, retention={"hours": 1}).settings["retention"]["hours"] == 1


def test_settings_that_the_cluster_has_no_nodes_for_are_refused(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b") as cluster, penstock.connect(cluster.address) as q:
        with pytest.raises(InvalidSetting, match="replicas is at most the number of nodes that have joined, 2, not 3"):
            q.create_topic("orders", 1, replicas=3)
        with pytest.raises(InvalidSetting, match="min_isr is at most the number of replicas, 2, not 3"):
            q.create_topic("orders", 1, min_isr=3)
        q.create_topic("orders", 1)
        with pytest.raises(InvalidSetting, match="min_isr is at most the number of replicas, 2, not 3"):
            q.change_topic("orders", min_isr=3)
        assert found(cluster.report(), "orders", 0).min_isr == 1
        cluster.stop("b")
        cluster.until(lambda report: [node.id for node in report.nodes if node.is_alive] == ["a"])
        with pytest.raises(NotEnoughReplicas, match="2 replicas are wanted, and 1 nodes are alive"):
            q.create_topic("more", 1)


def test_dead_letters_are_on_as_many_nodes_as_their_messages(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b", "c") as cluster, penstock.connect(cluster.address) as q:
        q.create_topic("orders", 1, replicas=1)
        letter, source = buried(cluster, q)
        assert (letter.replicas, letter.min_isr, letter.leader) == (source.replicas, 1, source.leader)


def test_dead_letters_are_on_as_many_disks_at_least_as_their_messages(tmp_path: Path, etcd: str) -> None:
    with local_cluster(tmp_path, etcd, "a", "b", "c") as cluster, penstock.connect(cluster.address) as q:
        cluster.create("orders", 2)
        # One of them on fewer nodes than its settings say.
        leader = cluster.partition("orders", 0).leader
        (other, _) = sorted(set("abc") - {leader})
        cluster.call(Reassign("orders", 0, (leader, other)))
        cluster.until(lambda report: len(found(report, "orders", 0).replicas) == 2)
        letter, source = buried(cluster, q)
        assert (set(letter.replicas), letter.min_isr) == ({leader, other}, source.min_isr)
        assert source.min_isr == 2


def buried(cluster: LocalCluster, q: Client) -> tuple[PartitionReport, PartitionReport]:
    """The partition of a message that is given up, and the one of its letter."""
    q.publish("orders", b"poison", partition=0)
    with q.consumer("billing", "orders", max_retries=0) as consumer:
        (message,) = consumer.poll(1, wait="20s")
        message.reject("poison")
    cluster.until(lambda report: any(each.topic == "orders.dlq" for each in report.partitions))
    report = cluster.until(lambda report: found(report, "orders.dlq", 0).end_offset > 1)
    return found(report, "orders.dlq", 0), found(report, "orders", 0)
