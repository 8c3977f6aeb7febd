"""Producer ids: one principal can't publish in the name of another's producer, nor keep its messages out."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.batch import Batch
from penstock.broker.producers import ProducerShares
from penstock.client.identified import Identity
from penstock.errors import SequenceTooOld
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.server.access_file import add_key
from penstock.server.keys import make
from security.doors import Doors, knock


def access_of(path: Path, *principals: str) -> tuple[Path, list[str]]:
    file, keys = path / "access.yaml", []
    for principal in principals:
        key, kept = make(principal)
        add_key(file, kept)
        keys.append(key)
    return file, keys


def batch_of(*values: bytes) -> Batch:
    return Batch.from_messages([Message(value, timestamp=1) for value in values], 1)


def frame_of(producer: Producer, *values: bytes) -> Frame:
    return Frame.of(batch_of(*values), producer=producer)


def test_a_principal_that_uses_the_id_of_anothers_producer_keeps_none_of_its_messages_out(tmp_path: Path) -> None:
    file, (victim_key, thief_key) = access_of(tmp_path, "victim", "thief")

    async def work(doors: Doors) -> None:
        async with doors.client(victim_key) as victim, doors.client(thief_key) as thief:
            await victim.create_topic("t", 1)
            publish, steal = victim._transport.publish_frame, thief._transport.publish_frame
            await publish("t", 0, frame_of(Producer(7, 0, 0), b"victim 0"))
            seen = (await thief._transport.read("t", 0, 0, 1, 1 << 20)).frames[0].producer
            # As the victim chose it, and as it is stored.
            for id in (7, seen.id):
                await steal("t", 0, frame_of(Producer(id, 0, 1), b"thief"))
            await publish("t", 0, frame_of(Producer(7, 0, 1), b"victim 1"))
            values = [message.value async for message in victim.reader("t")]
            assert values == [b"victim 0", b"thief", b"thief", b"victim 1"]

    knock(tmp_path / "data", work, access=file)


def test_other_messages_under_the_same_sequence_number_are_refused_also_after_a_restart(tmp_path: Path) -> None:
    async def publish(doors: Doors) -> None:
        async with doors.client() as client:
            if "t" not in [topic.name for topic in await client.topics()]:
                await client.create_topic("t", 1)
            first = await client._transport.publish_frame("t", 0, frame_of(Producer(7, 0, 0), b"a", b"b"))
            again = await client._transport.publish_frame("t", 0, frame_of(Producer(7, 0, 0), b"a", b"b"))
            assert (first.offset, again.offset) == (0, 0)
            with pytest.raises(SequenceTooOld):
                await client._transport.publish_frame("t", 0, frame_of(Producer(7, 0, 0), b"a", b"c"))
            assert [message.value async for message in client.reader("t")] == [b"a", b"b"]

    for _ in range(2):
        knock(tmp_path / "data", publish)


def test_work_under_an_identity_finds_what_it_has_stored_with_a_key_too(tmp_path: Path) -> None:
    file, (key,) = access_of(tmp_path, "spark")

    async def work(doors: Doors) -> None:
        async with doors.client(key) as client:
            await client.create_topic("t", 1)
            for _ in range(2):
                async with client.identified("t", Identity(9)) as writer:
                    await writer.put(0, batch_of(b"a", b"b"))
                    await writer.finish()
                    assert [place.messages for place in await writer.places(0)] == [2]
            assert [message.value async for message in client.reader("t")] == [b"a", b"b"]

    knock(tmp_path / "data", work, access=file)


def test_a_flood_of_producers_makes_no_retry_of_another_principal_be_stored_twice(tmp_path: Path) -> None:
    file, (victim_key, flood_key) = access_of(tmp_path, "victim", "flood")

    async def work(doors: Doors) -> None:
        shares = doors.site.broker.directories._producers = ProducerShares(total_max=20, share_max=10)
        async with doors.client(victim_key) as victim, doors.client(flood_key) as flood:
            await victim.create_topic("t", 2)
            sent = frame_of(Producer(1, 0, 0), b"victim")
            stored = await victim._transport.publish_frame("t", 0, sent)
            for id in range(1, 30):
                for partition in (0, 1):
                    await flood._transport.publish_frame("t", partition, frame_of(Producer(id, 0, 0), b"flood"))
                    assert shares.total <= 11
            again = await victim._transport.publish_frame("t", 0, sent)
            assert again.offset == stored.offset

    knock(tmp_path / "data", work, access=file)
