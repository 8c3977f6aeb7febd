"""What driver and tasks of a mirror do, with real brokers and without Spark: what is refused, and repetition."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import (
    DataLost,
    InvalidInput,
    InvalidMessage,
    InvalidSetting,
    MirrorConflict,
    ProducerFenced,
    TopicNotFound,
)
from penstock.spark.builtin.mirror import Batches, check
from penstock.spark.builtin.mirror_groups import moves, translate
from penstock.spark.builtin.mirror_table import TABLE, Course, Table, Way
from penstock.spark.builtin.mirror_task import Errand, Route, mirror_task
from penstock.spark.connecting import Connecting
from spark.mirrors import messages, mirror_of, offsets, run_here


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("other")) as process:
        yield process


@pytest.fixture
def far(other: BrokerProcess) -> Iterator[Client]:
    with penstock.connect(other.address) as client:
        yield client


def rows(some: list[int], value: bytes = b"%d") -> pa.RecordBatch:
    """With these offsets, and values that tell them."""
    named = {"topic": pa.array(["source"] * len(some)), "partition": pa.array([0] * len(some), pa.int32())}
    values = pa.array([value % each if b"%" in value else value for each in some])
    return pa.RecordBatch.from_pydict({**named, "offset": pa.array(some), "value": values})


def errand_to(other: BrokerProcess, topic: str, batch: int = 3) -> Errand:
    route = Route(topic, "an-id", 10**15, {0: (0, 0)})
    return Errand(Connecting(other.address), "a-mirror", batch, {"source": route}, frozenset({"left"}), "none")


def unrolled(told: pa.RecordBatch) -> dict[int, int]:
    """Runs as single messages."""
    found = {}
    for run in told.to_pylist():
        found |= {run["source"] + each: run["target"] + each for each in range(run["messages"])}
    return found


def test_a_task_that_is_done_again_stores_nothing_and_finds_where_everything_is(
    far: Client, other: BrokerProcess
) -> None:
    far.create_topic("again", 1)
    given = [3, 4, 6, 7, 8, 12, 13, 14, 15, 16]

    def one_by_one() -> Iterator[pa.RecordBatch]:
        """Each in a frame of its own: more than the broker remembers. In the middle, somebody else publishes."""
        for number, offset in enumerate(given):
            yield rows([offset])
            give_up = time.monotonic() + 30
            while far.topic("again").partitions[0].end_offset < number + 1 + (number > 4):
                assert time.monotonic() < give_up
            if number == 4:
                far.publish("again", "of somebody else")

    (first,) = mirror_task(errand_to(other, "again"), one_by_one())
    (second,) = mirror_task(errand_to(other, "again"), [rows(given)])
    there = offsets(far, "again")
    assert len(there) == 11
    assert unrolled(first) == unrolled(second) == {offset: there[b"%d" % offset] for offset in given}
    # The next batch has begun: what is left of this one can't write any more.
    (third,) = mirror_task(errand_to(other, "again", 4), [rows([17])])
    assert unrolled(third) == {17: 11}
    with pytest.raises(ProducerFenced, match="the checkpoint is older than what the mirror has written"):
        list(mirror_task(errand_to(other, "again"), [rows([*given, 17])]))
    # What is known to be mirrored is not looked at.
    errand = errand_to(other, "again", 5)
    errand = errand._replace(routes={"source": errand.routes["source"]._replace(ends={0: (15, 10)})})
    (fourth,) = mirror_task(errand, [rows(given[:8]), rows([15, 18])])
    assert unrolled(fourth) == {15: 12, 18: 13}


@pytest.mark.parametrize("left", [[8, 9, 10], [1, 4, 8, 10], [6, 7, 9], [0, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_task_that_is_done_again_after_its_source_was_compacted_stores_what_is_missing(
    far: Client, other: BrokerProcess, left: list[int]
) -> None:
    """0 to 7 are stored when it is killed. When it is run again, only `left` is there to be read."""
    name = f"again-{'-'.join(map(str, left))}"
    far.create_topic(name, 1)
    list(mirror_task(errand_to(other, name), [rows([0, 1, 2]), rows([3, 4, 5, 6, 7])]))
    want = [*range(8), *(offset for offset in left if offset > 7)]
    for tables in ([rows(left)], [rows([offset]) for offset in left]):
        (told,) = mirror_task(errand_to(other, name), tables)
        there = offsets(far, name)
        assert list(there) == [b"%d" % offset for offset in want]
        assert unrolled(told) == {offset: there[b"%d" % offset] for offset in left}


def test_a_task_refuses_what_the_target_can_not_take_with_its_offset(far: Client, other: BrokerProcess) -> None:
    far.create_topic("strict", 1, max_delay="1s")
    late = rows([41]).append_column("deliver_at", pa.array([4 * 10**15], pa.timestamp("us", "UTC")))
    errand = errand_to(other, "strict")
    errand = errand._replace(routes={"source": errand.routes["source"]._replace(max_delay_us=10**6)})
    with pytest.raises(InvalidMessage, match=r"strict can't take the message at offset 41 of partition 0: it is to be"):
        list(mirror_task(errand, [late]))
    with pytest.raises(DataLost, match="the topic source was deleted"):
        list(mirror_task(errand._replace(routes={}), [rows([1])]))
    assert list(mirror_task(errand._replace(skipped=frozenset({"source"})), [rows([1])])) == []
    assert messages(far, "strict") == {0: []}


def test_what_can_not_be_mirrored_is_refused_before_anything_is_written(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess
) -> None:
    q.create_topic("wide", 3)
    far.create_topic("wide", 2)
    with pytest.raises(MirrorConflict, match=r"wide at the target has 2 partitions, and wide has 3: .*--partitions 3"):
        check(mirror_of(broker, other, "wide"))
    with pytest.raises(TopicNotFound, match=r"there is no topic x\.wide at the target, and --no-create"):
        check(mirror_of(broker, other, "wide", prefix="x.", creates=False))
    with pytest.raises(TopicNotFound, match="missing"):
        check(mirror_of(broker, other, "missing"))
    with pytest.raises(MirrorConflict, match="wide would be mirrored to itself"):
        check(mirror_of(broker, broker, "wide"))
    with pytest.raises(InvalidSetting, match="one of them"):
        check(mirror_of(broker, other))
    with pytest.raises(InvalidSetting, match="not a regular expression"):
        check(mirror_of(broker, other, pattern="shop["))
    with pytest.raises(
        TopicNotFound, match=rf"in the topic {TABLE} at the target, which is not there, and --no-create"
    ):
        Batches(mirror_of(broker, other, "wide", creates=False))
    check(mirror_of(broker, other, "wide", prefix="x."))
    assert [each.name for each in far.topics() if each.name in ("x.wide", TABLE)] == []


def test_a_mirror_does_not_go_on_where_it_would_double_or_leave_out(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess
) -> None:
    q.create_topic("alone", 1)
    q.publish("alone", "1")
    mirror = mirror_of(broker, other, "alone", prefix="p.")
    run_here(q, mirror, "first")
    # Spark has not heard of it, and the broker has forgotten it, if its identity were another.
    run_here(q, mirror, "first")
    run_here(q, mirror, "first", batch=7)
    assert messages(far, "p.alone") == messages(q, "alone")
    with pytest.raises(MirrorConflict, match="from a mirror with another checkpoint"):
        Batches(mirror).ready("second", 0)
    with pytest.raises(MirrorConflict, match=r"with the prefix 'p\.', not 'r\.'"):
        Batches(mirror_of(broker, other, "alone", prefix="r.")).ready("first", 1)
    with pytest.raises(MirrorConflict, match="knows nothing of: it went elsewhere"):
        Batches(mirror_of(broker, broker, "alone", prefix="p.")).ready("first", 1)
    q.change_topic("alone", 2)
    with pytest.raises(MirrorConflict, match=r"p\.alone at the target has 1 partitions"):
        Batches(mirror._replace(creates=False)).ready("first", 1)
    assert Batches(mirror).ready("first", 1).targets["alone"].partitions[1].end_offset == 0
    far.delete_topic("p.alone")
    far.create_topic("p.alone", 2)
    with pytest.raises(MirrorConflict, match=r"p\.alone at the target, .*, was deleted, or made again"):
        Batches(mirror).ready("first", 1)


def test_a_topic_that_would_come_straight_back_is_refused(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess
) -> None:
    q.create_topic("round", 1)
    q.publish("round", "1")
    run_here(q, mirror_of(broker, other, "round"), "there")
    with pytest.raises(
        MirrorConflict, match="round is mirrored from round at the target: messages would go in a circl"
    ):
        check(mirror_of(other, broker, "round"))
    check(mirror_of(other, broker, "round", prefix="back."))


def test_of_two_mirrors_that_begin_at_once_and_would_go_in_a_circle_one_is_refused(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess
) -> None:
    here, there = q.create_topic("both", 1), far.create_topic("both", 1)
    mirror = mirror_of(broker, other, pattern="both")
    batches = Batches(mirror)
    batches.ready("there", 0)
    # The other one has looked before, and writes its course after that.
    Batches(mirror_of(other, broker, pattern="nothing"))
    Table(q).put_courses({Way("both", here.id, there.id, 0): Course("both", "back", 0)})
    with pytest.raises(MirrorConflict, match="circle"):
        batches.ready("there", 0)
    assert [pair.name for pair in Batches(mirror_of(other, broker, pattern="both")).ready("new", 0).pairs.pairs] == []


def test_two_mirrors_of_one_topic_are_told_apart(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess
) -> None:
    q.create_topic("same", 1)
    q.publish("same", "1")
    with q.consumer("readers", "same") as consumer:
        consumer.poll(1, wait="5s")[0].ack()
    far.create_topic("y.same", 1)
    far.publish("y.same", "was there")
    for prefix in ("x.", "y."):
        run_here(q, mirror_of(broker, other, "same", prefix=prefix), f"to {prefix}")
    with pytest.raises(InvalidInput, match=r"several mirrors of a topic same are there: x\.same .*, y\.same "):
        translate(far, "same", 0, 0)
    with pytest.raises(InvalidInput, match="several mirrors"):
        moves(q, far, "readers")
    assert translate(far, "same", 0, 0, prefix="y.")[3:] == ("y.same", 1, True, False)
    assert [each.to for each in moves(q, far, "readers", prefix="y.")] == [2]


def test_the_table_cuts_its_runs_into_parts_and_forgets_what_the_target_has_deleted(
    q: Client, far: Client, broker: BrokerProcess, other: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.builtin.mirror_table.PART_RUNS", 2)
    q.create_topic("cut", 1)
    mirror = mirror_of(broker, other, "cut")
    batches = Batches(mirror)
    ready = batches.ready("cut", 0)
    (told,) = mirror_task(ready.errand, [rows([1, 3, 5, 7, 9]).set_column(0, "topic", pa.array(["cut"] * 5))])
    batches.told(ready, pa.Table.from_batches([told]))
    table = Table(far)
    table.look()
    ((way, course),) = table.ways(target="cut")
    assert [len(part) for part in course.parts] == [2, 2, 1]
    assert [course.translate(offset) for offset in range(12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    table.grow({way: []}, {way: 3})
    again = Table(far)
    again.look()
    assert [len(part) for part in again.courses[way].parts] == [0, 2, 1]
    assert [again.courses[way].translate(offset) for offset in range(12)] == [2, 2, 2, 2, 2, 2, 3, 3, 4, 4, 5, 5]
