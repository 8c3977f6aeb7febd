"""A real broker process under a client's hands: killed, started again, stopped. The client goes on by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Thread

import pytest

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import ConnectionLost, LeaseError, SequenceGap

MESSAGES = 20_000
KILLS = 4


def consume(q: Client, seen: set[int], acked: set[int], redelivered: list[int]) -> None:
    """Until everything has been acknowledged."""
    # An answer may be lost that was carried out: then the last ones are never known to be acknowledged.
    consumer = q.consumer("workers", "numbers", visibility="2s", until_idle="10s")
    for batch in consumer.batches():
        numbers = [int(message.value or b"") for message in batch.messages()]
        seen.update(numbers)
        redelivered += [number for number in numbers if number in acked]
        try:
            batch.ack()
        except (LeaseError, ConnectionLost):
            # Whether they were acknowledged is not known: they may come again.
            continue
        acked.update(numbers)
        if len(acked) == MESSAGES:
            break
    consumer.close()


def test_nothing_is_lost_or_stored_twice_when_the_broker_is_killed_and_started_again(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, penstock.connect(broker.address) as q:
        q.create_topic("numbers", partitions=1)
        seen, acked, redelivered = set[int](), set[int](), list[int]()
        with penstock.connect(broker.address) as other:
            worker = Thread(target=consume, args=[other, seen, acked, redelivered])
            with q.producer("numbers", linger="1ms", batch_messages=100) as producer:
                worker.start()
                for number in range(MESSAGES):
                    producer.send(b"%d" % number)
                    if number % (MESSAGES // KILLS) == MESSAGES // KILLS // 2:
                        # In the middle of something: some are stored, some on their way, some only here.
                        broker.kill()
                        broker.start()
            worker.join(60)
            assert not worker.is_alive()
        stored = [int(message.value or b"") for message in q.reader("numbers")]
        assert stored == list(range(MESSAGES))
        assert seen == set(range(MESSAGES))
        assert redelivered == []
        assert q.lag("workers") == {"numbers": [0]}


def all_for(q: Client, group: str) -> list[bytes | None]:
    """What the group gets until nothing comes any more, acknowledged."""
    values: list[bytes | None] = []
    with q.consumer(group, "t", name="ann", until_idle="1s") as consumer:
        for batch in consumer.batches():
            values += [message.value for message in batch.messages()]
            batch.ack()
    return values


def test_a_kill_loses_nothing_that_was_told_of_a_topic_that_is_synced_at_an_interval(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, penstock.connect(broker.address) as q:
        # So long that nothing is synced before the kill.
        q.create_topic("t", partitions=1, durability="interval", sync_interval="10m")
        told, ids = [], []
        with q.producer("t") as producer:
            for life in range(2):
                for number in range(200):
                    told.append(b"%d/%d" % (life, number))
                    ids.append(q.publish("t", told[-1]).id)
                batch = [b"%d/batch/%d" % (life, number) for number in range(500)]
                sent = [producer.send(value) for value in batch]
                producer.flush()
                told += batch
                ids += [one.result().id for one in sent]
                assert all_for(q, "g") == told[-700:]
                broker.kill()
                broker.start()
        assert len(set(ids)) == len(ids), "an offset was given out twice"
        assert [(message.id, message.value) for message in q.reader("t")] == list(zip(ids, told, strict=True))
        q.publish("t", b"after")
        assert all_for(q, "g") == [b"after"], "what was acknowledged does not come again, and what is new comes"
        assert q.lag("g") == {"t": [0]}
        assert broker.stop()[0] == 0


def test_what_a_power_loss_takes_from_such_a_topic_is_told_and_hides_nothing_that_comes_later(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, penstock.connect(broker.address) as q:
        q.create_topic("t", partitions=1, durability="interval", sync_interval="10m")
        with q.producer("t") as producer:
            first = [producer.send(b"%d" % number) for number in range(10)]
            producer.flush()
            assert len(all_for(q, "g")) == 10
            broker.stop()
            broker.start()
            producer.send(b"lost")
            producer.flush()
            assert all_for(q, "g") == [b"lost"]
            broker.kill()
            (log,) = (tmp_path / "data").glob("partitions/*/messages/*.log")
            mark = (log.parent / "synced").read_bytes()
            os.truncate(log, int.from_bytes(mark[32:40], "little"))
            broker.start()
            sent = producer.send(b"behind it")
            with pytest.raises(SequenceGap):
                sent.result()
            after = [producer.send(b"new/%d" % number).result().id for number in range(10)]
        assert not set(after) & {*(one.result().id for one in first), "t:0:10"}
        assert [message.value for message in q.reader("t")] == [
            *(b"%d" % number for number in range(10)),
            *(b"new/%d" % number for number in range(10)),
        ]
        assert all_for(q, "g") == [b"new/%d" % number for number in range(10)]
        assert q.lag("g") == {"t": [0]}


def test_a_single_publish_that_was_under_way_is_stored_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, penstock.connect(broker.address) as q:
        q.create_topic("t", partitions=1)
        ids = []
        for number in range(30):
            if number % 10 == 9:
                # It has what comes next in its socket, and does not look at it.
                broker.process.send_signal(signal.SIGSTOP)
                publishing = Thread(target=lambda number=number: ids.append(q.publish("t", b"%d" % number).id))
                publishing.start()
                broker.kill()
                broker.start()
                publishing.join(30)
            else:
                ids.append(q.publish("t", b"%d" % number).id)
        assert ids == [f"t:0:{number}" for number in range(30)]
        assert [message.value for message in q.reader("t")] == [b"%d" % number for number in range(30)]


def test_a_broker_that_is_told_to_stop_says_goodbye_and_ends_well(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        with penstock.connect(broker.address) as q:
            q.create_topic("t")
            sent = q.publish("t", b"x")
            code, said = broker.stop()
            assert code == 0
            assert "stopped" in said
            broker.start()
            assert q.message(sent.id).value == b"x"
        assert broker.stop()[0] == 0


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data"), pytest.raises(AssertionError, match="directory_locked"):
        BrokerProcess(tmp_path / "data", "--http", "none", "--grpc", "none")


def test_no_broker_there_is_told_at_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        broker.kill()
        with pytest.raises(ConnectionLost, match="is a broker running there"):
            penstock.connect(broker.address)
