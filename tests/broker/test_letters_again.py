"""Exactly one dead letter for each message that is given up: whatever is deleted, full, refused or long meanwhile."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from pyroaring import BitMap64

from broker_files import PathFiles, hold_messages, run_inline, turns
from broker_support import clock_of, group_on, values
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import DeadLetter, DeadLetters, Where
from penstock.broker.group import Group, Receipt
from penstock.broker.letter import HEADER
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.broker.topic import Topic
from penstock.errors import DiskFull, InvalidInput, InvalidName, InvalidSetting, Overloaded
from penstock.message import Message
from penstock.testing import Fault, MemoryDisk, MemoryFiles
from support import frame_of

SECOND, DAY = 1_000_000, 86_400_000_000
SETTINGS = GroupSettings(max_retries=2, backoff_initial_us=0, backoff_max_us=0, backoff_jitter=0)


async def group_with(broker: Broker, *words: bytes, settings: GroupSettings = SETTINGS) -> Group:
    """A group on a topic of one partition, whose dead-letter topic is there already."""
    topic = await broker.create_topic("t", 1)
    await broker.create_topic("t.dlq", 1)
    for word in words:
        await topic.publish(Message(word))
    return await group_on(broker, "g", "t", settings)


async def lease_one(group: Group, count: int = 1) -> Receipt:
    (handed,) = await group.lease("c", count)
    return handed.receipt


def letters(broker: Broker) -> list[DeadLetter]:
    return list(broker.dead_letters.letters("t", with_settled=True))


def words_of(broker: Broker) -> list[bytes | None]:
    return [letter.message.value for letter in letters(broker)]


def dying(group: Group) -> list[int]:
    """What is given up and has no letter yet."""
    return list(group.topic.partition(0).groups.state(group.name).dying)


# --- deleted meanwhile -----------------------------------------------------------------------------------


def test_a_group_may_be_deleted_while_its_dead_letter_is_on_its_way() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        executor = hold_messages(broker, broker.topic("t.dlq").partition(0))
        await group.reject(receipt, "bad")
        await turns()
        assert executor.is_holding
        await broker.delete_group("g")
        executor.go_on()
        await broker.settle()
        assert broker.failure is None
        await broker.tick()
        killed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        assert words_of(broker) == [b"bad"]

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(killed[0]))


def test_the_letter_of_a_group_that_was_made_anew_is_redriven_as_a_copy() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        await group.reject(await lease_one(group), "bad")
        await broker.settle()
        await broker.delete_group("g")
        new = await group_on(broker, "g", "t", SETTINGS.changed(start="latest"))
        await new.start()
        done = await broker.dead_letters.redrive("t")
        assert ([str(one) for one in done.copied], done.in_place, done.already) == (["t.dlq:0:0"], [], [])
        assert values(await new.lease("c", 10)) == [b"bad"]

    run_inline(work)


async def give_up(group: Group, *words: bytes) -> None:
    for word in words:
        await group.topic.publish(Message(word))
    await group.reject(await lease_one(group, len(words) or 1), "bad")


def test_letters_of_a_deleted_topic_are_redriven_as_copies_to_the_topic_that_has_its_name() -> None:
    async def work(broker: Broker) -> None:
        await give_up(await group_with(broker), b"old")
        await broker.settle()
        await broker.delete_topic("t")
        clock_of(broker).advance_us(SECOND)
        topic = await broker.create_topic("t", 1)
        group = broker.group("g", "t")
        await give_up(group, b"new")
        await broker.settle()
        assert words_of(broker) == [b"old", b"new"]
        done = await broker.dead_letters.redrive("t")
        assert [str(one) for one in done.in_place] == ["t.dlq:0:1"]
        assert [str(one) for one in done.copied] == ["t.dlq:0:0"]
        assert values(await group.lease("c", 10)) == [b"new", b"old"]
        assert [one.value for one in copies_in(topic, 0, since=1)] == [b"old"]

    run_inline(work)


def test_the_letter_of_a_deleted_group_is_redriven_as_a_copy_though_a_new_group_gave_up_the_same_message() -> None:
    async def work(broker: Broker) -> None:
        await give_up(await group_with(broker), b"bad")
        await broker.settle()
        await broker.delete_group("g")
        clock_of(broker).advance_us(SECOND)
        group = await group_on(broker, "g", "t", SETTINGS)
        await give_up(group)
        await broker.settle()
        done = await broker.dead_letters.redrive("t")
        assert [str(one) for one in done.in_place] == ["t.dlq:0:1"]
        assert [str(one) for one in done.copied] == ["t.dlq:0:0"]
        assert values(await group.lease("c", 10)) == [b"bad", b"bad"]

    run_inline(work)


def test_a_group_that_is_created_again_while_letters_are_written_gets_letters_of_its_own() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        executor = hold_messages(broker, broker.topic("t.dlq").partition(0))
        await group.reject(receipt, "by the first group")
        await turns()
        assert executor.is_holding
        await broker.delete_group("g")
        clock_of(broker).advance_us(SECOND)
        again = await group_on(broker, "g", "t", SETTINGS)
        await again.reject(await lease_one(again), "by the second group")
        executor.go_on()
        await broker.settle()
        assert dying(again) == []
        assert [one.obituary.reason for one in letters(broker)] == ["by the first group", "by the second group"]

    run_inline(work)


async def strip_identity(broker: Broker) -> None:
    """The dead-letter topic as an older build would have left it: without ids, epochs and creation times."""
    old = letters(broker)
    await broker.delete_topic("t.dlq")
    graves = await broker.create_topic("t.dlq", 1)
    for letter in old:
        obituary = msgspec.structs.asdict(letter.obituary)
        for field in ("topic_id", "epoch", "group_made_us", "group_generation"):
            del obituary[field]
        header = (HEADER, msgspec.json.encode(obituary))
        await graves.publish(Message(letter.message.value, letter.message.key, (*letter.message.headers, header)))


@pytest.mark.parametrize("recreated", ["nothing", "topic", "group"])
def test_letters_of_an_older_build_are_redriven_in_place_only_if_their_message_and_group_are_proven(
    recreated: str,
) -> None:
    async def work(broker: Broker) -> None:
        await give_up(await group_with(broker), b"old")
        await broker.settle()
        await strip_identity(broker)
        clock_of(broker).advance_us(SECOND)
        if recreated == "topic":
            await broker.delete_topic("t")
            await broker.create_topic("t", 1)
            await give_up(broker.group("g", "t"), b"new")
        elif recreated == "group":
            await broker.delete_group("g")
            await give_up(await group_on(broker, "g", "t", SETTINGS))
        await broker.settle()
        old = letters(broker)[0]
        assert (old.obituary.topic_id, old.message.value) == ("", b"old")
        done = await broker.dead_letters.redrive("t", Where(ids=(str(old.id),)))
        is_copied = recreated != "nothing"
        assert (done.in_place, done.copied) == (([], [old.id]) if is_copied else ([old.id], []))
        assert values(await broker.group("g", "t").lease("c", 10)) == [b"old"]

    run_inline(work)


def test_letters_of_an_older_build_can_be_discarded() -> None:
    async def work(broker: Broker) -> None:
        await give_up(await group_with(broker), b"old")
        await broker.settle()
        await strip_identity(broker)
        assert await broker.dead_letters.discard("t") == 1
        assert list(broker.dead_letters.letters("t")) == []

    run_inline(work)


def test_a_letter_that_an_older_build_wrote_ahead_of_a_crash_is_not_written_again() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        executor = hold_messages(broker, broker.topic("t.dlq").partition(0))
        await group.reject(receipt, "bad")
        await turns()
        # As if the process had died before it wrote down where the letter is.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeadLetters, "_write_down", _fail)
            executor.go_on()
            await turns()
        await strip_identity(broker)
        assert dying(group) == [0]
        await broker.tick()
        await broker.settle()
        assert (words_of(broker), dying(group)) == ([b"bad"], [])

    run_inline(work)


async def _fail(*_: object) -> None:
    raise Overloaded("not now")


def test_one_letter_though_the_dead_letter_topic_was_made_anew_ahead_of_a_crash() -> None:
    """It counts its offsets anew then: what was written down of where to look for the letter is of no use."""
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []
    full: list[str] = []

    def before_each(kind: str, path: str) -> Fault | None:
        if kind in ("write", "write_at") and any(place in path for place in full):
            return Fault(DiskFull("no space left"))
        return None

    async def before(broker: Broker) -> None:
        group = await group_with(broker, b"1", b"2", b"3")
        (deliveries,) = [f"{identity}/deliveries/" for identity in group.topic.record.partitions]
        await group.reject(await lease_one(group, 2), "bad")
        await broker.settle()
        (graves,) = broker.topic("t.dlq").record.partitions
        full.append(f"{graves}/messages/")
        await group.reject(await lease_one(group), "bad")
        await broker.settle()
        assert dying(group) == [2]
        await broker.delete_topic("t.dlq")
        # The letter is written, and the row that says so is not.
        full[:] = [deliveries]
        await broker.tick()
        await broker.settle()
        killed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        await broker.settle()
        assert dying(broker.group("g", "t")) == []
        assert words_of(broker) == [b"3"]

    run_inline(before, PathFiles(MemoryFiles(disk), before_each))
    run_inline(after, MemoryFiles(killed[0]))


# --- refused meanwhile -----------------------------------------------------------------------------------


def test_a_letter_is_looked_for_from_where_the_dead_letter_topic_surely_reaches() -> None:
    """A power loss may take what was only appended; the letter is then before it."""

    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        (graves,) = broker.topic("t.dlq").partitions
        graves.messages.append([frame_of(b"1", b"2", b"3")])
        executor = hold_messages(broker, graves)
        await group.reject(receipt, "bad")
        assert group.topic.partition(0).groups.state("g").dying[0].since == 0
        executor.go_on()

    run_inline(work)


def test_one_letter_though_the_row_that_says_it_is_there_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        executor = hold_messages(broker, broker.topic("t.dlq").partition(0))
        await group.reject(receipt, "bad")
        await turns()
        with monkeypatch.context() as patch:

            def refuse(item: object) -> None:
                raise Overloaded("too much is waiting")

            patch.setattr(group.topic.partition(0).groups._ledger.journal, "write", refuse)
            executor.go_on()
            await broker.settle()
        assert (words_of(broker), dying(group)) == ([b"bad"], [0])
        await broker.tick()
        await broker.settle()
        assert (words_of(broker), dying(group)) == ([b"bad"], [])

    run_inline(work)


# --- copies ----------------------------------------------------------------------------------------------


async def letters_of_nobody(broker: Broker, *messages: Message, settings: TopicSettings | None = None) -> Topic:
    """Dead letters of a group that is gone, so that there is nobody to bring them back to. The last one died first."""
    topic = await broker.create_topic("t", 2, settings)
    group = await group_on(broker, "g", "t", SETTINGS.changed(lanes="none"))
    for message in messages:
        await topic.publish(message, 0)
    receipt = await lease_one(group, len(messages))
    for offset in reversed(receipt.offsets):
        await group.reject(receipt._replace(offsets=BitMap64([offset])), "bad")
        await broker.settle()
    await broker.delete_group("g")
    return topic


def copies_in(topic: Topic, partition: int, since: int) -> list[Message]:
    end = topic.partition(partition).messages.end_offset
    return [one.message for one in topic.partition(partition).reading.messages(BitMap64(range(since, end)))]


def test_a_copy_is_what_the_message_was_without_its_time_to_live() -> None:
    async def work(broker: Broker) -> None:
        now = clock_of(broker).now_us()
        topic = await letters_of_nobody(
            broker,
            Message(b"1", headers=(("h", b"x"), ("h", b"y")), priority=1, expires_at=now + 1_000_000),
            Message(b"2", priority=-1),
            Message(b"3", timestamp=now - 5),
        )
        assert [letter.message.priority for letter in letters(broker)] == [0, -1, 1]
        clock_of(broker).advance_us(2_000_000)
        new = await group_on(broker, "new", "t", SETTINGS.changed(start="latest", lanes="none"))
        await new.start()
        assert len((await broker.dead_letters.redrive("t")).copied) == 3
        first, second, third = copies_in(topic, 0, since=3)
        assert (first.value, first.key, first.headers) == (b"1", None, (("h", b"x"), ("h", b"y")))
        assert (first.priority, first.expires_at, first.deliver_at) == (1, 0, 0)
        assert [(one.value, one.priority) for one in (second, third)] == [(b"2", -1), (b"3", 0)]
        assert values(await new.lease("c", 10)) == [b"1", b"2", b"3"]

    run_inline(work)


def test_copies_come_in_the_order_of_their_messages_and_go_where_their_keys_belong() -> None:
    async def work(broker: Broker) -> None:
        keys = [b"k%d" % number for number in range(8)]
        topic = await letters_of_nobody(broker, *(Message(key, key) for key in keys))
        await broker.dead_letters.redrive("t")
        for partition, since in ((0, 8), (1, 0)):
            expected = [key for key in keys if topic.choose(key) == partition]
            assert [one.value for one in copies_in(topic, partition, since)] == expected

    run_inline(work)


def test_two_who_redrive_at_the_same_time_make_one_copy() -> None:
    async def work(broker: Broker) -> None:
        topic = await letters_of_nobody(broker, Message(b"1"), Message(b"2"))
        done = await asyncio.gather(*(broker.dead_letters.redrive("t") for _ in range(3)))
        assert [len(one.copied) for one in done] == [2, 0, 0]
        assert [one.value for one in copies_in(topic, 0, since=2)] == [b"1", b"2"]

    run_inline(work)


async def copies_got_in_the_end(broker: Broker) -> list[bytes | None]:
    """By somebody who redrives once more, long after retention has deleted the first copy."""
    clock_of(broker).advance_us(2 * DAY)
    await broker.settle()
    await broker.maintain()
    assert broker.topic("t").partition(0).messages.start_offset == 2
    await broker.dead_letters.redrive("t")
    return [one.value for one in copies_in(broker.topic("t"), 0, since=2)]


def test_a_redrive_that_was_given_up_settles_the_letter_of_the_copy_that_was_on_its_way() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await letters_of_nobody(broker, Message(b"1"), settings=TopicSettings(retention_age_us=DAY))
        executor = hold_messages(broker, topic.partition(0))
        redriving = asyncio.create_task(broker.dead_letters.redrive("t"))
        await turns()
        assert executor.is_holding
        redriving.cancel()
        await turns()
        executor.go_on()
        await turns()
        assert [one.value for one in copies_in(topic, 0, since=1)] == [b"1"]
        assert list(broker.dead_letters.letters("t")) == []
        assert await copies_got_in_the_end(broker) == []

    async def after(broker: Broker) -> None:
        assert await copies_got_in_the_end(broker) == []

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


def test_a_copy_is_not_deleted_before_its_letter_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()

    async def refuse(*args: object) -> None:
        raise Overloaded("too much is waiting")

    async def before(broker: Broker) -> None:
        topic = await letters_of_nobody(broker, Message(b"1"), settings=TopicSettings(retention_age_us=DAY))
        with monkeypatch.context() as patch:
            patch.setattr(broker.dead_letters, "_settle", refuse)
            with pytest.raises(Overloaded):
                await broker.dead_letters.redrive("t")
        assert [one.value for one in copies_in(topic, 0, since=1)] == [b"1"]
        clock_of(broker).advance_us(2 * DAY)
        await broker.maintain()
        assert topic.partition(0).messages.start_offset == 2
        assert list(broker.dead_letters.letters("t")) == []

    async def after(broker: Broker) -> None:
        assert await copies_got_in_the_end(broker) == []

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_rate_at_which_copies_would_wait_too_long_is_refused_before_the_first(dry_run: bool) -> None:
    async def work(broker: Broker) -> None:
        messages = [Message(b"%d" % number) for number in range(3)]
        topic = await letters_of_nobody(broker, *messages, settings=TopicSettings(max_delay_us=SECOND))
        with pytest.raises(InvalidInput, match="1s"):
            await broker.dead_letters.redrive("t", rate=1, dry_run=dry_run)
        assert copies_in(topic, 0, since=3) == []
        assert len(list(broker.dead_letters.letters("t"))) == 3
        assert len((await broker.dead_letters.redrive("t", rate=2)).copied) == 3

    run_inline(work)


def test_a_rate_is_not_bound_by_the_longest_delay_where_nothing_is_copied() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(max_delay_us=SECOND))
        group = await group_on(broker, "g", "t", SETTINGS)
        for _ in range(3):
            await topic.publish(Message(b"x"))
        await group.reject(await lease_one(group, 3), "bad")
        await broker.settle()
        assert len((await broker.dead_letters.redrive("t", rate=1)).in_place) == 3

    run_inline(work)


def test_what_was_to_be_copied_to_a_topic_that_is_gone_is_copied_to_the_one_of_its_name() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        topic = await letters_of_nobody(broker, Message(b"1"))
        executor = hold_messages(broker, topic.partition(0))
        redriving = asyncio.create_task(broker.dead_letters.redrive("t"))
        await turns()
        assert executor.is_holding
        killed.append(disk.after_kill())
        executor.go_on()
        await redriving

    async def after(broker: Broker) -> None:
        await broker.delete_topic("t")
        topic = await broker.create_topic("t", 1)
        assert len((await broker.dead_letters.redrive("t")).copied) == 1
        assert [one.value for one in copies_in(topic, 0, since=0)] == [b"1"]
        assert len((await broker.dead_letters.redrive("t")).copied) == 0

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(killed[0]))


# --- what can be a letter --------------------------------------------------------------------------------


def test_a_message_with_many_long_reasons_gets_its_letter_and_holds_up_no_other() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"long", b"short", settings=SETTINGS.changed(max_retries=20))
        for _ in range(21):
            await group.nack(await lease_one(group), reason="\x1b" * 1000)
        await group.reject(await lease_one(group), "short")
        await broker.settle()
        assert (words_of(broker), dying(group)) == ([b"long", b"short"], [])
        long, short = (letter.obituary for letter in letters(broker))
        assert (long.attempts, long.failures[-1].attempt, short.reason) == (21, 21, "short")

    run_inline(work)


@pytest.mark.parametrize(("name", "error"), [("x" * 199, InvalidName), ("x.dlq", InvalidSetting)])
def test_dead_letters_can_not_be_switched_on_where_they_have_nowhere_to_go(name: str, error: type[Exception]) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic(name, 1, TopicSettings(dead_letters=False))
        with pytest.raises(error):
            await broker.change_topic(name, settings=TopicSettings(dead_letters=True))
        assert not topic.settings.dead_letters

    run_inline(work)


def test_what_dies_again_before_its_letter_is_written_down_has_that_one_letter() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, b"bad")
        receipt = await lease_one(group)
        executor = hold_messages(broker, broker.topic("t.dlq").partition(0))
        await group.reject(receipt, "first death")
        await turns()
        await group.seek("earliest")
        await group.reject(await lease_one(group), "second death")
        executor.go_on()
        await broker.settle()
        await broker.tick()
        await broker.settle()
        assert (words_of(broker), dying(group)) == ([b"bad"], [])

    run_inline(work)
