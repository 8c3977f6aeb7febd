"""A real broker process under a client's hands: killed, started again, stopped. The client goes on by itself."""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Thread

import pytest

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import ConnectionLost, LeaseError

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
