"""What is being leased while its partition is handed over to another node reaches whoever asked for it."""

from __future__ import annotations

import asyncio

import pytest

from broker_files import Inline
from led_broker import Leading, SharedCatalog, leading, run_led, until
from penstock.broker.partition import Partition
from penstock.client.answers import Answer, Nack, Reject
from penstock.client.transport import Delivery
from penstock.errors import LeadershipLost
from penstock.limits import Limits
from penstock.local.transport import LocalTransport
from penstock.message import Message


def door_of(led: Leading) -> LocalTransport:
    return LocalTransport(led.broker, led.catalog.clock, Inline(), Inline(), Limits(), None)


async def polling(door: LocalTransport, led: Leading, partition: Partition) -> asyncio.Task[list[Delivery]]:
    """Of three messages; until the lease is written and others do not have it."""
    for number in range(3):
        await door.publish("t", Message(str(number).encode()), 0)
    await door.join("g", "c", ["t"], {})
    led.away.add(partition)

    async def poll() -> list[Delivery]:
        return list(await door.poll("g", "c", ["t"], count=10, bytes_max=1 << 20, wait_us=0))

    before = partition.deliveries.end_offset
    task = asyncio.create_task(poll())
    await until(lambda: partition.deliveries.end_offset > before)
    assert not task.done()
    return task


def test_a_lease_that_others_know_of_is_told_though_its_partition_is_being_handed_over() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        door = door_of(led)
        task = await polling(door, led, partition)

        led.broker.replicated.hide(led.broker.topic("t"), 0)
        led.come_back(partition)

        (delivery,) = await task
        assert list(delivery.receipt.offsets) == [0, 1, 2]
        assert delivery.deadline_us > led.catalog.clock.monotonic_us()

    run_led(work)


def test_whoever_leads_then_takes_the_answer_for_it() -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a, leading(catalog) as b:
            (partition,) = await a.create("t", 1)
            task = await polling(door_of(a), a, partition)
            a.broker.replicated.hide(a.broker.topic("t"), 0)
            a.come_back(partition)
            (delivery,) = await task
            b.broker.follow_catalog()
            await b.lead("t", 0, a.lose("t", 0))

            group = b.broker.group("g", "t")
            receipt = delivery.receipt
            failures = await group.ack_all(receipt.partition, [(receipt.lease, receipt.offsets)])

            assert failures == [None]
            assert group.lag() == [0]

    asyncio.run(main())


def test_one_that_others_may_not_know_of_is_not_told() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        task = await polling(door_of(led), led, partition)
        led.lose("t", 0)
        await asyncio.wait([task])
        assert isinstance(task.exception(), LeadershipLost)

    run_led(work)


@pytest.mark.parametrize("answer", [Nack("again"), Reject("never")], ids=lambda answer: type(answer).__name__)
def test_a_new_leader_takes_every_answer_as_soon_as_it_serves_the_partition(answer: Answer) -> None:
    async def main() -> None:
        catalog = SharedCatalog.new()
        async with asyncio.timeout(30), leading(catalog) as a, leading(catalog) as b:
            (partition,) = await a.create("t", 1)
            task = await polling(door_of(a), a, partition)
            a.come_back(partition)
            (delivery,) = await task
            b.broker.follow_catalog()
            # It knows the group from another partition, and has not looked at those of this one: that is `take_up`,
            # which waits for etcd.
            b.broker.group("g", "t")
            await b.lead("t", 0, a.lose("t", 0))

            await door_of(b).answer("g", delivery.receipt, answer)

            assert b.broker.group("g", "t").lag() == [3 if isinstance(answer, Nack) else 0]

    asyncio.run(main())
