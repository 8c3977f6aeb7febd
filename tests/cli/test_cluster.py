"""penstock cluster …: against three real nodes, over a real etcd."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from cli.support import PENSTOCK, Run
from cluster_nodes import LocalCluster, found, local_cluster
from etcd_support import etcd_process
from penstock.cli import cluster as cluster_commands
from penstock.cli.cluster_view import hot_partitions, progress_of
from penstock.client.cluster_requests import ClusterReport, FollowerReport, PartitionReport


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process.address


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, etcd: str) -> Iterator[LocalCluster]:
    """For what is only looked at, or put back."""
    with local_cluster(tmp_path_factory.mktemp("nodes"), etcd, "a", "b", "c") as cluster:
        cluster.create("orders", 3)
        yield cluster


@pytest.fixture
def nodes(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setenv("PENSTOCK_SERVER", shared.address)
    return shared


@pytest.fixture
def own(tmp_path: Path, etcd: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, etcd, "a", "b", "c") as cluster:
        monkeypatch.setenv("PENSTOCK_SERVER", cluster.address)
        yield cluster


# --- looking ------------------------------------------------------------------------------------------------


def test_status_says_that_all_is_well(run: Run, nodes: LocalCluster) -> None:
    told = run.ok("cluster", "status")
    assert "all is well" in told.out
    answer = run.ok("cluster", "status", "-o", "json").json
    assert answer["is_well"] is True
    assert answer["nodes"] == ["a", "b", "c"]
    assert (answer["topics"], answer["partitions"]) == (1, 3)
    assert answer["leaderless"] == answer["under_replicated"] == answer["under_min_isr"] == answer["moving"] == []


def test_nodes_and_partitions_are_listed(run: Run, nodes: LocalCluster) -> None:
    rows = run.ok("cluster", "nodes", "-o", "json").rows
    assert [(row["id"], row["leaders"], row["replicas"]) for row in rows] == [("a", 1, 3), ("b", 1, 3), ("c", 1, 3)]
    assert all(row["is_alive"] and row["disk"] and row["since"] for row in rows)
    assert run.ok("cluster", "nodes").lines[1].split()[:4] == ["a", "alive", "1", "3"]
    rows = run.ok("cluster", "partitions", "orders", "-o", "json").rows
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert all(len(row["in_sync"]) == 3 and row["min_isr"] == 2 for row in rows)
    assert all({each["node"] for each in row["followers"]} == {"a", "b", "c"} - {row["leader"]} for row in rows)
    assert len(run.ok("cluster", "partitions").lines) == 4
    assert "[topic_not_found]" in run("cluster", "partitions", "nothing").err


def test_a_broker_on_its_own_is_no_cluster(run: Run, server: str) -> None:
    told = run("cluster", "status")
    assert told.code == 2
    assert "in no cluster" in told.err


def test_nobody_there_is_told_in_a_line(run: Run) -> None:
    told = run("cluster", "status", "--server", "penstock://127.0.0.1:1")
    assert (told.code, told.err.count("\n")) == (2, 1)


def test_topics_and_groups_are_told_of_though_nobody_leads_a_partition(run: Run, own: LocalCluster) -> None:
    own.create("orders", 3, replicas=1)
    with penstock.connect(own.address) as q, q.consumer("billing", "orders") as consumer:
        consumer.join()
        for number in range(3):
            q.publish("orders", "x", partition=number)
    lost = own.partition("orders", 1).leader
    own.stop(lost)
    own.until(lambda report: not found(report, "orders", 1).leader)
    here = ("--server", own.address)
    assert run.ok("topic", "list", *here).lines[1].split()[:5] == ["orders", "3", "2", "+", "?"]
    assert run.ok("topic", "list", *here, "-o", "json").rows[0]["unknown_partitions"] == [1]
    assert run.ok("topic", "show", "orders", *here).lines[-2].split() == ["1", "?", "?", "?", "?"]
    assert run.ok("group", "list", *here).lines[1].split()[:5] == ["billing", "orders", "2", "+", "?"]
    shown = run.ok("group", "show", "billing", *here)
    assert [line.split()[:3] for line in shown.lines[-3:]] == [["orders", str(n), "1?1"[n]] for n in range(3)]
    assert run.ok("group", "show", "billing", *here, "-o", "json").json["lag"] == {"orders": [1, None, 1]}
    assert "2 + ?" in run.ok("top", "--once", *here).out
    told = run("topic", "delete", "orders", *here, "--yes")
    assert told.code == 0


def test_a_move_that_leaves_no_node_to_spare_is_warned_of(run: Run, own: LocalCluster) -> None:
    own.create("orders", 1)
    told = run.ok("cluster", "reassign", "orders:0", "a,b", "--wait", "--server", own.address)
    assert "orders:0 will have 2 replicas, and its min_isr is 2: while one of those nodes is away" in told.err
    told = run.ok("cluster", "reassign", "orders:0", "a,b,c", "--wait", "--server", own.address)
    assert "min_isr" not in told.err


def test_a_node_that_is_gone_is_bad_news(run: Run, own: LocalCluster) -> None:
    own.create("orders", 2)
    own.stop("c")
    own.until(lambda report: [node.id for node in report.nodes if not node.is_alive] == ["c"])
    told = run("cluster", "status", "--server", own.address, "-o", "json")
    assert told.code == 1
    assert told.json["gone"] == ["c"]
    assert told.json["under_replicated"] == ["orders:0", "orders:1"]
    told = run("cluster", "status", "--server", own.address)
    assert told.code == 1
    assert "something is wrong" in told.out
    rows = run.ok("cluster", "nodes", "--server", own.address, "-o", "json").rows
    assert [row["is_alive"] for row in rows] == [True, True, False]


# --- hot ----------------------------------------------------------------------------------------------------


def survey(*ends: int) -> ClusterReport:
    partitions = [
        PartitionReport("t", number, f"id{number}", "a", 1, ("a",), ("a",), 1, start_offset=0, end_offset=end)
        for number, end in enumerate(ends)
    ]
    return ClusterReport("id", "a", 1, "a", (), 1, tuple(partitions))


@pytest.mark.parametrize(
    ("ends", "hot"),
    [
        ((0, 0, 0, 0), []),
        ((10, 10, 10, 10), []),
        ((30, 0, 0), [0]),
        ((29, 1, 0), []),
        ((9, 0, 0), []),
        ((1, 1, 100, 1), [2]),
        ((-1, 0, 40, 0), [2]),
        ((100,), []),
        ((100, 0), []),
    ],
)
def test_a_partition_with_three_times_the_average_is_hot(ends: tuple[int, ...], hot: list[int]) -> None:
    found = hot_partitions(survey(*[0] * len(ends)), survey(*ends), 2.0)
    assert [each.partition for each in found] == hot
    assert [each.rate for each in found] == [ends[number] / 2 for number in hot]


def test_hot_partitions_are_bad_news_and_none_is_not(run: Run, nodes: LocalCluster) -> None:
    told = run.ok("cluster", "hot", "--over", "1ms")
    assert told.out == ""
    assert "hot" in told.err
    assert "[invalid_input]" in run("cluster", "hot", "--over", "soon").err


def test_a_hot_partition_is_shown_with_its_leader_and_rates(
    run: Run, nodes: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(nodes.address) as q:

        def meanwhile(for_s: float) -> None:
            assert for_s == 5
            for _ in range(30):
                q.publish("orders", "x", partition=1)

        monkeypatch.setattr(cluster_commands, "time", SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic))
        told = run("cluster", "hot", "orders", "-o", "json")
        assert told.code == 1
        (row,) = told.rows
        assert (row["topic"], row["partition"]) == ("orders", 1)
        assert row["leader"] == nodes.partition("orders", 1).leader
        assert row["rate"] == pytest.approx(3 * row["average"])
        assert row["average"] > 0
        told = run("cluster", "hot")
    assert (told.code, told.err) == (1, "")
    head, line = told.lines
    assert re.split("  +", head.strip()) == ["topic", "partition", "leader", "messages/s", "topic's average"]
    assert line.split()[:3] == ["orders", "1", row["leader"]]


# --- changes ------------------------------------------------------------------------------------------------


def test_a_leader_is_elected_by_name_and_by_preference(run: Run, nodes: LocalCluster) -> None:
    (row, *_) = run.ok("cluster", "partitions", "orders", "-o", "json").rows
    other = row["replicas"][1]
    answer = run.ok("cluster", "elect", "orders:0", "--node", other, "-o", "json").json
    assert answer == {
        "elected": [{"topic": "orders", "partition": 0, "from": row["leader"], "to": other}],
        "is_done": True,
    }
    nodes.until(lambda report: found(report, "orders", 0).leader == other)
    assert f"{other}" in run.ok("cluster", "elect").out
    nodes.until(lambda report: found(report, "orders", 0).leader == row["replicas"][0])
    assert "lead already" in run.ok("cluster", "elect", "orders").out


def places(nodes: LocalCluster) -> list[object]:
    """Where things are; not how far followers are."""
    return [(one.id, one.leader, one.epoch, one.replicas, one.target) for one in nodes.report().partitions]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("elect", "orders:0", "--node", "x"), "node_not_found"),
        (("elect", "orders:9"), "partition_not_found"),
        (("elect", "nothing"), "topic_not_found"),
        (("elect", "orders:"), "invalid_input"),
        (("elect", "--node", "a"), "invalid_input"),
        (("elect", "orders:0", "--unclean"), "invalid_input"),
        (("elect", "orders:0", "--unclean", "--yes"), "invalid_input"),
        (("elect", "orders", "--unclean", "--yes"), "invalid_input"),
        (("elect", "--unclean", "--yes"), "invalid_input"),
        (("reassign", "orders:0"), "invalid_input"),
        (("reassign", "orders:0", "a,b", "--cancel"), "invalid_input"),
        (("reassign", "orders:0", "--cancel", "--throttle", "1MB"), "invalid_input"),
        (("reassign", "orders:0", "--cancel"), "invalid_input"),
        (("reassign", "orders:0", "a,,b"), "invalid_input"),
        (("reassign", "orders:0", "a,a"), "invalid_input"),
        (("reassign", "orders:0", "a"), "invalid_input"),
        (("reassign", "orders:0", "a,x"), "node_not_found"),
        (("reassign", "orders:-1", "a,b"), "invalid_input"),
        (("reassign", "orders:0", "a,b", "--throttle", "fast"), "invalid_input"),
        (("reassign", "orders:0", "a,b", "--throttle", "1"), "invalid_input"),
        (("rebalance", "--throttle", "1KB"), "invalid_input"),
        (("rebalance", "--timeout", "later"), "invalid_input"),
        (("drain", "x"), "node_not_found"),
        (("drain", "a/b"), "invalid_setting"),
        (("drain", "a", "--undo"), "invalid_input"),
        (("drain", "a", "--undo", "--move"), "invalid_input"),
        (("drain", "a", "--move"), "not_enough_replicas"),
    ],
)
def test_what_can_not_be_done_is_refused_in_a_line_and_nothing_is_changed(
    run: Run, nodes: LocalCluster, arguments: tuple[str, ...], code: str
) -> None:
    before = places(nodes)
    told = run("cluster", *arguments)
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert f"[{code}]" in told.err
    assert places(nodes) == before
    assert not any(node.is_draining for node in nodes.report().nodes)


def test_partitions_are_moved_and_the_new_node_gets_its_share(run: Run, own: LocalCluster) -> None:
    own.create("orders", 4, replicas=2)
    assert "spread evenly" in run.ok("cluster", "rebalance").out
    own.start("d")
    plan = run.ok("cluster", "rebalance", "--dry-run", "-o", "json").json
    assert plan["is_dry"]
    assert len(plan["moves"]) >= 2
    done = run.ok("cluster", "rebalance", "-o", "json").json
    assert (done["moves"], done["is_done"]) == (plan["moves"], True)
    own.until(lambda report: [node.replicas for node in report.nodes] == [2, 2, 2, 2])
    own.until(lambda report: all(each.leader == each.replicas[0] for each in report.partitions))
    (old, _) = own.partition("orders", 0).replicas
    (new, *_) = set("abcd") - set(own.partition("orders", 0).replicas)
    told = run.ok("cluster", "reassign", "orders:0", f"{new},{old}", "--wait")
    assert told.lines[1].split()[-1] == f"{new},{old}"
    own.until(lambda report: found(report, "orders", 0).replicas == (new, old))
    assert "nothing to move" in run.ok("cluster", "reassign", "orders:0", f"{new},{old}").out


def test_a_move_that_takes_long_is_shown_and_can_be_called_off(run: Run, own: LocalCluster) -> None:
    own.create("orders", 1, replicas=1)
    (only,) = own.partition("orders", 0).replicas
    (other, *_) = set("abc") - {only}
    with penstock.connect(own.address) as q:
        for _ in range(20):
            q.publish("orders", bytes(200_000))
    told = run("cluster", "reassign", "orders:0", f"{only},{other}", "--throttle", "64KiB", "--timeout", "1ms")
    assert told.code == 1
    assert "not done yet" in told.err
    told = run.ok("cluster", "status")
    assert "orders:0" in told.out
    assert "64.0 KiB/s at most" in told.out
    (moving,) = run.ok("cluster", "status", "-o", "json").json["moving"]
    assert moving["progress"] < 1
    assert run.ok("cluster", "reassign", "orders:0", "--cancel", "--wait").code == 0
    own.until(lambda report: found(report, "orders", 0).replicas == (only,))


def test_a_node_is_drained_and_taken_back(run: Run, own: LocalCluster) -> None:
    own.create("orders", 3)
    assert "b leads nothing" in run.ok("cluster", "drain", "b").out
    own.until(lambda report: not any(each.leader == "b" for each in report.partitions))
    assert "draining: b" in run.ok("cluster", "status").out
    assert "alive, draining" in run.ok("cluster", "nodes").out
    run.ok("cluster", "drain", "c")
    told = run("cluster", "drain", "a")
    assert told.code != 0
    assert "there is no other node that is alive and not being drained" in told.err
    run.ok("cluster", "drain", "c", "--undo")
    assert "b may lead again" in run.ok("cluster", "drain", "b", "--undo").out
    own.start("d")
    answer = run.ok("cluster", "drain", "c", "--move", "-o", "json").json
    assert answer["is_done"]
    assert [move["partition"] for move in answer["moves"]] == [0, 1, 2]
    own.until(lambda report: all(sorted(each.replicas) == ["a", "b", "d"] for each in report.partitions))


@pytest.mark.parametrize("where", ["orders:0", "orders", None])
def test_an_unclean_election_needs_both_flags_and_says_what_is_lost(
    run: Run, own: LocalCluster, where: str | None
) -> None:
    own.create("orders", 1, replicas=2, min_isr=1)
    leader, follower = own.partition("orders", 0).replicas
    own.stop(follower)
    with penstock.connect(own.address) as q:
        q.publish("orders", "only the leader has it")
    own.stop(leader)
    own.start(follower)
    own.until(lambda report: not found(report, "orders", 0).leader)
    told = run("cluster", "status", "--server", own.address)
    assert f"orders:0 (waits for {leader})" in told.out
    told = run("cluster", "partitions", "orders", "--server", own.address)
    assert f"waits for {leader}" in told.out
    asked = "cluster", "elect", *([] if where is None else [where]), "--unclean", "--server", own.address
    told = run(*asked)
    assert told.code == 2
    assert "is lost for good" in told.err
    assert "--yes" in told.err
    assert own.partition("orders", 0).leader == ""
    told = run.ok(*asked, "--yes")
    assert "is lost for good" in told.err
    own.until(lambda report: found(report, "orders", 0).leader == follower)


def test_of_all_that_nobody_leads_those_are_left_of_which_nobody_has_a_copy(run: Run, own: LocalCluster) -> None:
    own.create("orders", 1, replicas=2, min_isr=1)
    own.create("bills", 3, replicas=1)
    leader, follower = own.partition("orders", 0).replicas
    (gone,) = [each.number for each in own.report().partitions if each.replicas == (leader,)]
    own.stop(follower)
    with penstock.connect(own.address) as q:
        q.publish("orders", "only the leader has it")
    own.stop(leader)
    own.start(follower)
    own.until(lambda report: any(node.id == follower and node.is_alive for node in report.nodes))
    asked = "cluster", "elect", "--unclean", "--yes", "--server", own.address
    told = run(*asked, "-o", "json")
    assert told.code == 1
    answer = told.json
    assert "is lost for good" in answer["elected"][0].pop("loses")
    assert answer == {
        "elected": [
            {
                "topic": "orders",
                "partition": 0,
                "from": None,
                "to": follower,
                "end_offset": 1,
                "groups_set_back": {},
            }
        ],
        "is_done": False,
    }
    assert f"not done yet: nobody leads 1: bills:{gone}" in told.err
    told = run(*asked)
    assert told.code == 2
    assert f"no node with a copy of partition {gone} of bills is alive; those that have one: {leader}" in told.err


def test_who_follows_a_topic_is_told_what_an_unclean_election_gave_up(own: LocalCluster) -> None:
    own.create("orders", 1, replicas=2, min_isr=1)
    leader, follower = own.partition("orders", 0).replicas
    with penstock.connect(own.address) as q:
        q.publish("orders", "both have it")
        own.until(lambda report: all(not each.messages_behind for each in found(report, "orders", 0).followers))
        command = [str(PENSTOCK), "read", "orders", "--follow", "--server", own.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "both have it\n"
            own.stop(follower)
            q.publish("orders", "only the leader has it")
            assert process.stdout.readline() == "only the leader has it\n"
            process.send_signal(signal.SIGSTOP)
            own.lead_without_all("orders", leader, follower)
            with penstock.connect(own.address) as another:
                for number in range(5):
                    another.publish("orders", str(number))
            process.send_signal(signal.SIGCONT)
            assert process.stdout.read() == ""
            assert "[log_truncated]" in process.stderr.read()
            assert process.wait(60) == 2


# --- how it looks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_sync", "followers", "progress"),
    [
        (("a",), (FollowerReport("b", 25, 0),), 0.75),
        (("a",), (FollowerReport("b"),), 0.0),
        (("a", "b"), (FollowerReport("b", 25, 0),), 1.0),
        (("a",), (FollowerReport("b", 10_000, 0),), 0.0),
    ],
)
def test_a_move_is_as_far_as_the_replica_that_lacks_most(
    in_sync: tuple[str, ...], followers: tuple[FollowerReport, ...], progress: float
) -> None:
    partition = PartitionReport("t", 0, "id", "a", 1, ("a",), in_sync, 1, ("a", "b"), followers, 100, 200)
    assert progress_of(partition) == progress


def test_a_quarantined_copy_is_shown_until_it_is_discarded(run: Run, own: LocalCluster, tmp_path: Path) -> None:
    own.create("orders", 1)
    partitions = tmp_path / "a" / "partitions"
    identity = "ab" * 16
    own.stop("a")
    # As if etcd had forgotten it.
    shutil.copytree(next(partitions.iterdir()), partitions / identity)
    own.start("a")
    server = "--server", own.address
    own.until(lambda report: bool(report.quarantined) and not report.silent)
    told = run("cluster", "status", *server)
    assert (told.code, f"{identity} on a" in told.out) == (1, True)
    (copy,) = run("cluster", "status", *server, "-o", "json").json["quarantined"]
    assert (copy["node"], copy["id"], copy["topic"], "set back" in copy["why"]) == ("a", identity, "", True)
    told = run("cluster", "discard", "b", identity, *server)
    assert (told.code, "no quarantined copy" in told.err) == (2, True)
    told = run("cluster", "discard", "a", identity, *server)
    assert (told.code, "--yes" in told.err, (partitions / identity).exists()) == (2, True, True)
    told = run.ok("cluster", "discard", "a", identity, "--yes", *server)
    assert "deleted offsets 0 to" in told.out
    assert not (partitions / identity).exists()
    answer = run("cluster", "status", *server, "-o", "json").json
    assert (answer["quarantined"], answer["level"]) == ([], 2)
