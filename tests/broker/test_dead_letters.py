"""Messages that a group gives up: where they go, what is told of them, and how they come back."""

from __future__ import annotations

import msgspec
import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import DeadLetter, Where
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.letter import HEADER
from penstock.broker.settings import DAY_US, GroupSettings, make_settings
from penstock.errors import InvalidInput, InvalidName, InvalidSetting, MessageNotFound, TopicNotFound
from penstock.message import Message
from penstock.storage.log import LogSettings
from penstock.testing import MemoryDisk, MemoryFiles

SECOND = 1_000_000
SETTINGS = GroupSettings(max_retries=1, backoff_jitter=0)


async def dying(broker: Broker, *words: bytes, settings: GroupSettings = SETTINGS, reason: str = "boom") -> Group:
    """A group that has given up each of these messages after two attempts."""
    if not any(topic.name == "t" for topic in broker.topics):
        await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t", settings)
    for word in words:
        await broker.topic("t").publish(Message(word, key=b"k-" + word, headers=(("h", b"1"),)))
    await exhaust(broker, group, reason)
    return group


async def exhaust(broker: Broker, group: Group, reason: str = "boom") -> None:
    for consumer in ("first", "second"):
        clock_of(broker).advance_us(SECOND)
        for receipt, _ in await group.lease(consumer, 100):
            await group.nack(receipt, reason=f"{reason} {consumer}")
        clock_of(broker).advance_us(SECOND)
    await broker.settle()


def letters(broker: Broker, **where: object) -> list[DeadLetter]:
    return list(broker.dead_letters.letters("t", Where(**where)))  # type: ignore[arg-type]


def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_story() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"bad")
        (letter,) = letters(broker)
        obituary = letter.obituary
        assert (obituary.topic, obituary.partition, obituary.offset, obituary.group) == ("t", 0, 0, "g")
        assert (letter.message.value, letter.message.key, letter.message.headers) == (
            b"bad",
            b"k-bad",
            (("h", b"1"),),
        )
        assert (obituary.reason, obituary.attempts, obituary.round) == ("boom second", 2, 1)
        assert [(f.attempt, f.consumer, f.reason) for f in obituary.failures] == [
            (1, "first", "boom first"),
            (2, "second", "boom second"),
        ]
        assert all(f.leased_us <= f.failed_us for f in obituary.failures)
        assert (group.lag(), await group.lease("c", 10)) == ([0], [])
        assert broker.dead_letters.letter(letter.id) == letter
        assert (await broker.why(MessageId("t", 0, 0), "g")).code == "dead_lettered"

    run(work)


def test_a_lease_that_ran_out_too_often_is_one_too() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", SETTINGS)
        await topic.publish(Message(b"slow"))
        for _ in range(2):
            assert values(await group.lease("c", 1)) == [b"slow"]
            clock_of(broker).advance_us(60 * SECOND)
            await broker.tick()
            clock_of(broker).advance_us(60 * SECOND)
        await broker.settle()
        (letter,) = letters(broker)
        assert [f.reason for f in letter.obituary.failures] == ["the lease ran out"] * 2

    run(work)


def test_a_rejected_message_is_one_at_once() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", SETTINGS)
        await topic.publish(Message(b"bad"))
        (handed,) = await group.lease("c", 1)
        await group.reject(handed.receipt, "can't be parsed")
        await broker.settle()
        (letter,) = letters(broker)
        assert (letter.obituary.reason, letter.obituary.attempts) == ("can't be parsed", 1)

    run(work)


def test_groups_have_dead_letters_of_their_own() -> None:
    async def work(broker: Broker) -> None:
        await dying(broker, b"bad")
        other = await group_on(broker, "other", "t", SETTINGS)
        assert values(await other.lease("c", 1)) == [b"bad"]
        assert [letter.obituary.group for letter in letters(broker)] == ["g"]
        assert letters(broker, group="other") == []

    run(work)


def test_a_redriven_message_comes_again_in_its_place_with_its_attempts_forgotten() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"a", b"b")
        await broker.topic("t").publish(Message(b"c"))
        done = await broker.dead_letters.redrive("t", Where(ids=("t:0:0",)))
        assert ([str(i) for i in done.in_place], done.copied, done.refused) == (["t.dlq:0:0"], [], [])
        handed = await group.lease("x", 10)
        assert values(handed) == [b"a", b"c"]
        assert [group.attempt(handed[0].receipt, o) for o in (0, 2)] == [1, 1]
        assert handed[0].receipt.offsets.min() == 0
        assert [letter.message.value for letter in letters(broker)] == [b"b"]
        await ack_all(group, handed)
        group.topic.partitions[0].groups.state("g").check()

    run(work)


def test_a_dry_run_only_tells_and_a_filter_picks() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"a", reason="network")
        await dying(broker, b"b", reason="schema")
        assert len(letters(broker)) == 2
        done = await broker.dead_letters.redrive("t", Where(reason_contains="network"), dry_run=True)
        assert len(done.in_place) == 1
        assert (len(letters(broker)), await group.lease("x", 10)) == (2, [])
        for where, expected in (
            (Where(key=b"k-b"), [b"b"]),
            (Where(group="g", reason_contains="network"), [b"a"]),
            (Where(since_us=clock_of(broker).now_us() + 1), []),
            (Where(until_us=clock_of(broker).now_us() + 1), [b"a", b"b"]),
            (Where(ids=("t.dlq:0:1",)), [b"b"]),
        ):
            assert [one.message.value for one in broker.dead_letters.letters("t", where)] == expected

    run(work)


def test_a_rate_spreads_them_over_time() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"a", b"b", b"c", b"d")
        await broker.dead_letters.redrive("t", rate=2)
        got = []
        for _ in range(4):
            got.append(values(await group.lease("x", 10)))
            clock_of(broker).advance_us(SECOND // 2)
        assert got == [[b"a"], [b"b"], [b"c"], [b"d"]]
        for wrong in (0, -1, "fast", 1e9, float("nan")):
            with pytest.raises(InvalidInput):
                await broker.dead_letters.redrive("t", rate=wrong)  # type: ignore[arg-type]

    run(work)


def test_what_dies_again_and_again_is_refused_in_the_end() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"bad")
        for number in (1, 2, 3):
            (letter,) = letters(broker)
            assert letter.obituary.round == number
            assert len((await broker.dead_letters.redrive("t")).in_place) == 1
            await exhaust(broker, group)
        done = await broker.dead_letters.redrive("t")
        assert (done.in_place, len(done.refused), len(letters(broker))) == ([], 1, 1)
        assert len((await broker.dead_letters.redrive("t", redrives_max=10)).in_place) == 1

    run(work)


def test_a_message_that_retention_has_deleted_is_published_again() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, make_settings(retention_age_us=DAY_US))
        group = await dying(broker, b"bad")
        for _ in range(200):
            await broker.topic("t").publish(Message(b"x" * 100))
        clock_of(broker).advance_us(2 * DAY_US)
        await broker.maintain()
        await broker.topic("t").publish(Message(b"new"))
        done = await broker.dead_letters.redrive("t")
        assert (done.in_place, len(done.copied)) == ([], 1)
        assert values(await group.lease("x", 10)) == [b"new", b"bad"]
        assert letters(broker) == []

    run(work, log_settings=LogSettings(segment_bytes_max=8192))


def test_a_message_that_was_redriven_in_place_stays_until_it_is_done() -> None:
    """Its letter is settled, so retention must not take the message before anybody has it."""

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, make_settings(retention_age_us=DAY_US))
        group = await dying(broker, b"bad")
        for _ in range(200):
            await topic.publish(Message(b"x" * 100))
        assert len((await broker.dead_letters.redrive("t")).in_place) == 1
        clock_of(broker).advance_us(2 * DAY_US)
        await broker.maintain()
        (handed,) = await group.lease("x", 1)
        assert values([handed]) == [b"bad"]
        await group.ack(handed.receipt)
        await broker.maintain()
        log = topic.partition(0).messages
        assert log.start_offset > 0

    run(work, log_settings=LogSettings(segment_bytes_max=8192))


def test_discarded_letters_are_not_shown_any_more() -> None:
    async def work(broker: Broker) -> None:
        await dying(broker, b"a", b"b")
        assert await broker.dead_letters.discard("t", Where(key=b"k-a")) == 1
        assert [letter.message.value for letter in letters(broker)] == [b"b"]
        both = broker.dead_letters.letters("t", with_settled=True)
        assert [(letter.message.value, letter.is_settled) for letter in both] == [(b"a", True), (b"b", False)]

    run(work)


def test_letters_and_what_became_of_them_survive_a_restart() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        await dying(broker, b"a", b"b", b"c")
        await broker.dead_letters.redrive("t", Where(key=b"k-a"))

    async def after(broker: Broker) -> None:
        assert [letter.message.value for letter in letters(broker)] == [b"b", b"c"]
        clock_of(broker).advance_us(100 * SECOND)
        assert values(await broker.group("g", "t").lease("x", 10)) == [b"a"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_letters_stay_until_they_are_settled_and_then_go_by_the_retention_of_their_topic() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"1", b"2", b"3")
        await exhaust(broker, group)
        (first, *_) = letters(broker)
        assert await broker.dead_letters.discard("t", Where(ids=(str(first.id),))) == 1
        for _ in range(20):
            clock_of(broker).advance("1d")
            await broker.maintain()
        graves = broker.topic("t.dlq").partition(0).messages
        assert [letter.message.value for letter in letters(broker)] == [b"2", b"3"]
        assert await broker.dead_letters.discard("t") == 2
        clock_of(broker).advance("8d")
        await broker.maintain()
        assert graves.start_offset == graves.end_offset == 3

    run(work)


def test_what_clients_publish_to_a_dead_letter_topic_goes_by_its_retention() -> None:
    async def work(broker: Broker) -> None:
        await exhaust(broker, await dying(broker, b"dead"))
        graves = broker.topic("t.dlq").partition(0)
        for number in range(20):
            await broker.topic("t.dlq").publish(Message(b"%d" % number, headers=((HEADER, b"none"),)))
        for _ in range(9):
            clock_of(broker).advance("1d")
            await broker.maintain()
        left = BitMap64(range(graves.messages.start_offset, graves.messages.end_offset))
        assert [stored.message.value for stored in graves.reading.messages(left)] == [b"dead"]
        assert [letter.message.value for letter in letters(broker)] == [b"dead"]

    run(work)


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_a_message_that_is_deleted_before_it_is_rejected_leaves_a_letter_that_is_not_redriven(cleanup: str) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, make_settings(cleanup=cleanup))
        group = await group_on(broker, "g", "t", SETTINGS)
        await topic.publish(Message(b"1", b"k"))
        ((receipt, _),) = await group.lease("c", 1, visibility_us=20 * SECOND)
        await topic.publish(Message(b"2", b"k"))
        topic.partition(0).messages.roll()
        if cleanup == "delete":
            topic.partition(0).messages.delete_prefix(1)
        await broker.maintain()
        await group.reject(receipt, "bad")
        await broker.settle()
        (letter,) = letters(broker)
        assert (letter.message.value, letter.obituary.reason) == (None, "bad")
        assert await broker.dead_letters.redrive("t") == ([], [], [letter.id], [])
        assert topic.partition(0).messages.end_offset == 2
        assert await broker.dead_letters.discard("t") == 1

    run(work)


def test_letters_of_a_deleted_topic_go_by_the_retention_of_their_own() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"1")
        await exhaust(broker, group)
        await broker.delete_topic("t")
        clock_of(broker).advance("8d")
        await broker.maintain()
        graves = broker.topic("t.dlq").partition(0).messages
        assert graves.start_offset == graves.end_offset == 1

    run(work)


@pytest.mark.parametrize("forged", [{"partition": -1}, {"partition": 1 << 40}, {"offset": -1}, {"offset": 1 << 70}])
def test_a_forged_letter_does_not_keep_others_from_being_redriven(forged: dict[str, int]) -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"1")
        await exhaust(broker, group)
        (letter,) = letters(broker)
        story = {**msgspec.to_builtins(letter.obituary), **forged}
        header = ("penstock-dead-letter", msgspec.json.encode(story))
        await broker.topic("t.dlq").publish(Message(b"forged", headers=(header,)))
        assert await broker.dead_letters.redrive("t") == ([letter.id], [], [], [])

    run(work)


def test_a_topic_may_do_without_them() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, make_settings(dead_letters=False))
        group = await dying(broker, b"bad")
        assert [topic.name for topic in broker.topics] == ["t"]
        assert (letters(broker), group.lag()) == ([], [0])
        assert (await broker.why(MessageId("t", 0, 0), "g")).code == "given_up"

    run(work)


def test_what_dies_in_a_dead_letter_topic_stays_there() -> None:
    async def work(broker: Broker) -> None:
        await dying(broker, b"bad")
        group = await group_on(broker, "repair", "t.dlq", SETTINGS)
        await exhaust(broker, group)
        assert [topic.name for topic in broker.topics] == ["t", "t.dlq"]
        assert len(letters(broker)) == 1
        with pytest.raises(InvalidSetting):
            await broker.create_topic("x.dlq", 1, make_settings(dead_letters=True))
        with pytest.raises(InvalidName):
            await broker.create_topic("x" * 198, 1)

    run(work)


def test_a_topic_that_grew_has_a_place_for_every_dead_letter() -> None:
    async def work(broker: Broker) -> None:
        group = await dying(broker, b"bad")
        await broker.change_topic("t", partitions=3)
        await broker.topic("t").publish(Message(b"worse"), 2)
        await exhaust(broker, group)
        assert [(one.id.partition, one.message.value) for one in letters(broker)] == [(0, b"bad"), (2, b"worse")]

    run(work)


def test_asking_for_what_is_not_there() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish(Message(b"alive"))
        assert letters(broker) == []
        with pytest.raises(TopicNotFound):
            list(broker.dead_letters.letters("missing"))
        with pytest.raises(MessageNotFound):
            broker.dead_letters.letter(MessageId("t", 0, 0))

    run(work)
