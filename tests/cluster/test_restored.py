"""An etcd that was set back to a backup: no copy is deleted or cut off because of records that are too old."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from etcd_support import run
from lone_node import LoneNode
from penstock.cluster.core.events import RecordSeen
from penstock.cluster.core.record import Member, PartitionRecord, decode, encode, generation_of
from penstock.cluster.etcd.store import Put
from penstock.cluster.hosted import Hosted
from penstock.cluster.levels import TOMBSTONES
from penstock.cluster.restored import Seen, read_seen
from penstock.errors import EtcdReplaced, InvalidInput, LogCorrupt, NotFound

PARTITION = "ab" * 16


def record_of(lone: LoneNode) -> PartitionRecord:
    key = lone.node.keys.partition(PARTITION)
    return decode(lone.etcd.read(key).items[key].value)


async def start(lone: LoneNode) -> None:
    await lone.open()
    await lone.join()
    await lone.until(lambda: lone.node.levels.finalized >= TOMBSTONES)


async def host(lone: LoneNode) -> Hosted:
    """A partition that this node leads, and has begun its epoch of."""
    lone.put(PARTITION)
    await lone.until(lambda: PARTITION in lone.node.hosted)
    hosted = lone.node.hosted[PARTITION]
    await lone.until(lambda: hosted.replica.site.last_epoch == hosted.epoch > 0)
    return hosted


async def lead_on(lone: LoneNode) -> Hosted:
    """At the next epoch, as another process."""
    epoch = record_of(lone).epoch + 1
    await lone.close()
    await start(lone)
    hosted = lone.node.hosted[PARTITION]
    await lone.until(lambda: hosted.replica.site.last_epoch == epoch)
    return hosted


def elsewhere(record: PartitionRecord) -> PartitionRecord:
    return replace(record, replicas=("b",), isr=(Member("b", "db"),), leader="b", incarnation="b1")


async def restart(lone: LoneNode) -> None:
    await lone.close()
    await lone.open()


def test_a_copy_of_a_later_epoch_than_a_restored_record_is_kept() -> None:
    """As it was found: moved here after the backup, and elsewhere by the backup."""

    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        backup = lone.etcd.backup()
        key = lone.node.keys.partition(PARTITION)
        moved = backup.items[key]._replace(value=encode(elsewhere(record_of(lone))))
        await lead_on(lone)
        await lone.close()
        lone.etcd.restore(backup._replace(items={**backup.items, key: moved}))
        await lone.open()
        assert lone.copies == [PARTITION]
        assert lone.node.kept[PARTITION].epoch == 2
        assert "set back" in lone.node.kept[PARTITION].why
        # As long as nobody decides.
        await restart(lone)
        assert (lone.copies, list(lone.node.kept)) == ([PARTITION], [PARTITION])
        await lone.close()

    run(main)


def test_epochs_of_a_restored_etcd_are_never_those_that_were_used_before() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        backup = lone.etcd.backup()
        await lead_on(lone)
        await lone.close()
        lone.etcd.restore(backup)
        await lone.open()
        fenced = record_of(lone)
        assert (fenced.leader, fenced.incarnation, generation_of(fenced.epoch)) == (None, "", 1)
        # Once: a node that was down meanwhile has nothing more to do.
        await restart(lone)
        assert record_of(lone) == fenced
        # Nor does it count on where etcd was before.
        assert read_seen(lone._files) == Seen(lone.etcd.revision, 1)
        await lone.close()
        lone.etcd.restore(backup)
        await lone.open()
        assert generation_of(record_of(lone).epoch) == 2
        await lone.close()

    run(main)


def test_a_node_that_stopped_because_etcd_was_replaced_begins_a_generation_whatever_the_revision_is() -> None:
    """A backup can be restored at a revision beyond all that a node has seen, and another node may start first."""

    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        backup = lone.etcd.backup()
        key = lone.node.keys.partition(PARTITION)
        hosted = await lead_on(lone)
        lone.node.broke(EtcdReplaced("etcd was set back"))
        later = replace(elsewhere(record_of(lone)), epoch=hosted.epoch + 1)
        revision = lone.etcd.revision + 1000
        await lone.close()
        moved = backup.items[key]._replace(value=encode(later), revision=revision)
        lone.etcd.restore(backup._replace(items={**backup.items, key: moved}, revision=revision))
        await lone.open()
        assert lone.node.restored.generation == 1
        assert (lone.copies, list(lone.node.kept)) == ([PARTITION], [PARTITION])
        # Once.
        await restart(lone)
        assert lone.node.restored.generation == 1
        await lone.close()

    run(main)


def test_without_the_inventory_a_copy_of_a_later_epoch_than_its_record_is_kept() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        backup = lone.etcd.backup()
        key = lone.node.keys.partition(PARTITION)
        moved = backup.items[key]._replace(value=encode(elsewhere(record_of(lone))))
        await lead_on(lone)
        await lone.close()
        lone._files.remove("copies")
        lone.etcd.restore(backup._replace(items={**backup.items, key: moved}))
        await lone.open()
        assert (lone.copies, list(lone.node.kept)) == ([PARTITION], [PARTITION])
        await lone.close()

    run(main)


def test_a_copy_that_is_newer_than_its_record_tells_that_etcd_was_set_back_whatever_its_revision_is() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        before = record_of(lone)
        await lead_on(lone)
        await lone.close()
        lone.put(PARTITION, before)
        await lone.open()
        assert generation_of(record_of(lone).epoch) == 1
        await lone.join()
        await lone.until(lambda: record_of(lone).leader == "a")
        # The only one that is in sync leads, with all that it has.
        hosted = lone.node.hosted[PARTITION]
        await lone.until(lambda: hosted.replica.site.last_epoch == record_of(lone).epoch)
        assert (hosted.quarantined, lone.node.kept) == ("", {})
        await lone.close()

    run(main)


def test_a_running_replica_rests_while_the_record_is_older_than_it_is() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        before = record_of(lone)
        hosted = await lead_on(lone)
        revision = lone.node.partitions.get(PARTITION).revision  # type: ignore[union-attr]
        hosted.step(RecordSeen(revision + 1, before))
        assert (hosted.is_leader, hosted.is_shown) == (False, False)
        assert "it is of epoch 2, and the record in etcd of epoch 1" in hosted.quarantined
        assert lone.copies == [PARTITION]
        await lone.close()

    run(main)


def test_fencing_that_was_interrupted_is_gone_on_with_though_etcd_has_come_past_what_was_seen() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        other = "cd" * 16
        lone.put(other)
        await lone.until(lambda: other in lone.node.hosted)
        backup = lone.etcd.backup()
        await lone.close()
        lone.etcd.restore(backup)
        # Another node has fenced one of two partitions, and died; etcd is ahead of all that this node has seen.
        lone.put(PARTITION, record_of(lone).fenced(1))
        for _ in range(20):
            lone.etcd.commit({}, [Put(lone.node.keys.prefix + "noise", b"{}")], [])
        await lone.open()
        key = lone.node.keys.partition(other)
        assert generation_of(decode(lone.etcd.read(key).items[key].value).epoch) == 1
        assert lone.node.restored.generation == 1
        await lone.close()

    run(main)


def test_a_node_whose_partitions_are_not_mounted_stays_in_sync_and_stops() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        await lone.close()
        lone.put(PARTITION, replace(record_of(lone).fenced(1), isr=record_of(lone).isr))
        before = record_of(lone)
        lone.node.queue.directories.remove(PARTITION)
        with pytest.raises(LogCorrupt, match="not there any more"):
            await lone.open()
        assert record_of(lone).isr == before.isr

    run(main)


def test_a_node_is_not_in_sync_with_what_it_has_deleted_since_the_backup() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        backup = lone.etcd.backup()
        lone.put(PARTITION, elsewhere(record_of(lone)))
        await lone.until(lambda: not lone.copies)
        await lone.close()
        lone.etcd.restore(backup)
        await start(lone)
        # Nobody is elected: an empty copy would be.
        assert (record_of(lone).isr, record_of(lone).leader) == ((), None)
        await lone.close()

    run(main)


def test_a_node_leaves_the_isr_also_if_another_one_changes_the_record_at_the_same_time() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        key, commit, raced = lone.node.keys.partition(PARTITION), lone.etcd.commit, []
        lone.put(PARTITION, replace(record_of(lone), isr=(*record_of(lone).isr, Member("b", "db"))))
        backup = lone.etcd.backup()
        lone.put(PARTITION, elsewhere(record_of(lone)))
        await lone.until(lambda: not lone.copies)
        await lone.close()
        lone.etcd.restore(backup)

        def commit_later(guards: Any, puts: Any, deletes: Any) -> Any:
            if key in guards and not raced and [m.node for m in decode(puts[0].value).isr] == ["b"]:
                raced.append(key)
                own = tuple(member for member in record_of(lone).isr if member.node != "b")
                commit({}, [Put(key, encode(replace(record_of(lone), isr=own)))], [])
            return commit(guards, puts, deletes)

        lone.etcd.commit = commit_later  # type: ignore[method-assign]
        await lone.open()
        assert raced
        assert record_of(lone).isr == ()
        await lone.close()

    run(main)


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_copy_is_deleted_with_its_topic_and_kept_if_etcd_has_forgotten_it(is_running: bool, is_deleted: bool) -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        if not is_running:
            await lone.close()
        (lone.delete if is_deleted else lone.forget)(PARTITION)
        if is_running:
            await lone.until(lambda: PARTITION not in lone.node.hosted and not lone.node._dropping)
        else:
            await lone.open()
        assert lone.copies == ([] if is_deleted else [PARTITION])
        assert list(lone.node.kept) == lone.copies
        await lone.close()

    run(main)


def test_without_tombstones_of_all_nodes_a_running_node_believes_a_deletion() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        lone.etcd.commit({}, [], [lone.node.keys.level])
        lone.node.levels.raise_level = _nothing  # type: ignore[method-assign]
        await lone.until(lambda: lone.node.levels.finalized < TOMBSTONES)
        lone.forget(PARTITION)
        await lone.until(lambda: not lone.copies)
        await lone.close()

    async def _nothing() -> None:
        pass

    run(main)


def test_an_operator_discards_what_is_quarantined_and_nothing_else() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        with pytest.raises(NotFound, match="no quarantined copy"):
            await lone.node.discard(PARTITION)
        lone.forget(PARTITION)
        await lone.until(lambda: PARTITION in lone.node.kept)
        await lone.node.discard(PARTITION)
        assert (lone.copies, lone.node.kept) == ([], {})
        # One that is to be here is made anew, and only if nobody counts on it.
        hosted = await host(lone)
        hosted.replica.is_quarantined = True
        with pytest.raises(InvalidInput, match="counts on this copy"):
            await lone.node.discard(PARTITION)
        lone.put(PARTITION, replace(elsewhere(record_of(lone)), replicas=("b", "a")))
        await lone.until(lambda: hosted.record is not None and hosted.record.leader == "b")
        await lone.node.discard(PARTITION)
        await lone.until(lambda: PARTITION in lone.node.hosted)
        assert lone.node.hosted[PARTITION].replica.site.ends == (0, 0)
        await lone.close()

    run(main)


def test_a_copy_that_is_wanted_again_while_it_is_discarded_is_opened_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        hosted = await host(lone)
        lone.put(PARTITION, replace(elsewhere(record_of(lone)), replicas=("b", "a")))
        await lone.until(lambda: hosted.record is not None and hosted.record.leader == "b")
        hosted.replica.is_quarantined = True
        steps: list[str] = []
        closing, wanted = hosted.close, asyncio.Event()

        async def close() -> None:
            wanted.set()
            # As long as it takes until the record has changed again.
            await lone.until(lambda: revision != lone.node.partitions.get(PARTITION).revision)  # type: ignore[union-attr]
            await asyncio.sleep(0)
            await closing()
            steps.append("closed")

        opened = lone.node._open_copy

        def open_copy(identity: str) -> Any:
            steps.append("opened")
            return opened(identity)

        monkeypatch.setattr(hosted, "close", close)
        monkeypatch.setattr(lone.node, "_open_copy", open_copy)
        placed = lone.node.partitions.get(PARTITION)
        assert placed is not None
        revision = placed.revision
        discarding = asyncio.create_task(lone.node.discard(PARTITION))
        await wanted.wait()
        lone.put(PARTITION, replace(record_of(lone), min_isr=1, replicas=("b", "a", "c")))
        await discarding
        await lone.until(lambda: PARTITION in lone.node.hosted)
        assert steps == ["closed", "opened"]
        assert lone.broken.empty()
        await lone.close()

    run(main)


@pytest.mark.parametrize("is_being_removed", [False, True])
def test_a_copy_that_can_not_be_opened_is_kept_unless_its_removal_had_begun(is_being_removed: bool) -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        await host(lone)
        if is_being_removed:
            lone.node._inventory.remove(PARTITION)
        await lone.close()
        lone.delete(PARTITION)
        manifest = f"partitions/{PARTITION}/messages/manifest"
        directory = lone._files.directory("partitions").directory(PARTITION).directory("messages")
        file = directory.open("manifest", "write")
        file.write_at(0, b"damaged")
        file.close()
        await lone.open()
        left = [] if is_being_removed else [PARTITION]
        assert (lone.copies, list(lone.node.kept)) == (left, left), manifest
        assert is_being_removed or "it can't be opened" in lone.node.kept[PARTITION].why
        await lone.close()

    run(main)


def test_a_copy_that_is_moved_away_while_a_node_starts_is_not_quarantined() -> None:
    async def main() -> None:
        lone = LoneNode()
        await start(lone)
        hosted = await host(lone)
        may_close, close = asyncio.Event(), hosted.close

        async def closing() -> None:
            await may_close.wait()
            await close()

        hosted.close = closing  # type: ignore[method-assign]
        lone.put(PARTITION, elsewhere(record_of(lone)))
        await lone.until(lambda: PARTITION in lone.node._dropping)
        dropping = lone.node._dropping[PARTITION]
        await lone.node._sweep()
        assert lone.node.kept == {}
        may_close.set()
        await dropping
        assert lone.copies == []
        await lone.close()

    run(main)
