"""Settings in users' words, to and from those of the broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.client.settings import GROUP, TOPIC, group_settings, show_group, show_topic, topic_settings
from penstock.errors import AlreadyExists, InvalidName, InvalidSetting, SettingsConflict, TopicNotFound
from penstock.testing import VirtualClock, VirtualQueue

SECOND = 1_000_000
HOUR = 3_600 * SECOND


def test_group_settings_are_written_with_durations_as_text() -> None:
    assert group_settings(
        {
            "start": "latest",
            "visibility": "30s",
            "max_retries": 5,
            "backoff": {"initial": "1s", "factor": 2, "max": "10m", "jitter": 0},
            "ordering": "key",
            "on_poison": "skip",
            "assignment": "shared",
            "lanes": "weighted",
            "max_in_flight": 7,
            "session": "45s",
        }
    ) == {
        "start": "latest",
        "visibility_us": 30 * SECOND,
        "max_retries": 5,
        "backoff_initial_us": SECOND,
        "backoff_factor": 2,
        "backoff_max_us": 600 * SECOND,
        "backoff_jitter": 0,
        "ordering": "key",
        "on_poison": "skip",
        "assignment": "shared",
        "lanes": "weighted",
        "max_in_flight": 7,
        "session_us": 45 * SECOND,
    }


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"retention": {"hours": 24}}, {"retention_age_us": 24 * HOUR}),
        ({"retention": {"hours": 0.5, "bytes": 10}}, {"retention_age_us": HOUR // 2, "retention_bytes": 10}),
        ({"retention": None}, {"retention_age_us": None, "retention_bytes": None}),
        ({"retention": {"hours": None}}, {"retention_age_us": None}),
        ({"max_delay": "1d", "cleanup": "compact"}, {"max_delay_us": 24 * HOUR, "cleanup": "compact"}),
        ({"tombstone_age": "1h", "dead_letters": False}, {"tombstone_age_us": HOUR, "dead_letters": False}),
        ({}, {}),
    ],
)
def test_topic_settings_are_written_with_hours_and_bytes(given: dict[str, Any], settings: dict[str, Any]) -> None:
    assert topic_settings(given) == settings


@pytest.mark.parametrize(
    ("read", "given", "setting", "part_of_the_sentence"),
    [
        (
            group_settings,
            {"visibilty": "1s"},
            "visibilty",
            "there is no group setting 'visibilty'; there are assignment",
        ),
        (group_settings, {"retention": {}}, "retention", "there is no group setting 'retention'"),
        (group_settings, {"visibility": 30}, "visibility", "visibility: a duration needs its unit"),
        (group_settings, {"backoff": "1s"}, "backoff", "backoff has parts (initial, factor, max, jitter)"),
        (group_settings, {"backoff": {"first": "1s"}}, "backoff.first", "there is no group setting 'backoff.first'"),
        (group_settings, {"max_retries": "3"}, "max_retries", "max_retries is a whole number, not '3'"),
        (group_settings, {"max_retries": True}, "max_retries", "max_retries is a whole number, not True"),
        (group_settings, {"ordering": "keys"}, "ordering", "ordering is none, key or partition, not 'keys'"),
        (group_settings, {"ordering": ["key"]}, "ordering", "ordering is none, key or partition"),
        (topic_settings, {"retention": {"hours": "24"}}, "retention.hours", "retention.hours is a number of hours"),
        (topic_settings, {"retention": {"hours": 0}}, "retention.hours", "retention.hours is a number of hours"),
        (topic_settings, {"retention": {"hours": float("nan")}}, "retention.hours", "is a number of hours"),
        (topic_settings, {"dead_letters": 1}, "dead_letters", "dead_letters is True or False, not 1"),
        (topic_settings, {"compression": "none"}, "compression", "there is no topic setting 'compression'"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(
    read: Any, given: dict[str, Any], setting: str, part_of_the_sentence: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read(given)
    assert part_of_the_sentence in refused.value.message
    assert refused.value.details["setting"] == setting


def test_the_users_words_cover_every_setting_the_broker_has() -> None:
    # Whether a group is a replay is said by making one.
    assert {setting.field for setting in GROUP.values()} == set(GroupSettings.__struct_fields__) - {"is_replay"}
    assert {setting.field for setting in TOPIC.values()} == set(TopicSettings.__struct_fields__)


@pytest.mark.parametrize(("words", "settings"), [(GROUP, GroupSettings), (TOPIC, TopicSettings)])
def test_the_choices_are_those_the_broker_has(words: Any, settings: Any) -> None:
    for name, hint in get_type_hints(settings).items():
        choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
        for choice in choices:
            (setting,) = [setting for setting in words.values() if setting.field == name]
            assert setting.read(name, choice) == choice


def test_what_is_shown_can_be_written_again() -> None:
    group = msgspec.structs.asdict(GroupSettings())
    del group["is_replay"]
    topic = msgspec.structs.asdict(TopicSettings())
    assert group_settings(show_group(group)) == group
    assert topic_settings(show_topic(topic)) == topic
    assert show_topic({"retention_age_us": 1800 * SECOND}) == {"retention": {"hours": 0.5}}


def test_settings_reach_the_broker_and_come_back(queue: VirtualQueue) -> None:
    info = queue.create_topic("events", 2, retention={"hours": 1}, cleanup="compact", max_delay="1d")
    assert len(info.partitions) == 2
    assert info.settings == {
        "retention": {"hours": 1, "bytes": None},
        "cleanup": "compact",
        "tombstone_age": "1d",
        "max_delay": "1d",
        "dead_letters": True,
        "archive": "none",
        "durability": "fsync",
        "sync_interval": "1s",
        "replicas": None,
        "min_isr": None,
    }
    changed = queue.change_topic("events", durability="interval", sync_interval="250ms")
    assert (changed.settings["durability"], changed.settings["sync_interval"]) == ("interval", "250ms")
    changed = queue.change_topic("events", retention={"bytes": 1 << 20}, partitions=3)
    assert changed.settings["retention"] == {"hours": 1, "bytes": 1 << 20}
    assert len(changed.partitions) == 3
    group = queue.create_group("g", visibility="10s", backoff={"initial": "2s"})
    assert (group.settings["visibility"], group.settings["backoff"]["initial"]) == ("10s", "2s")
    assert queue.change_group("g", max_retries=9).settings["max_retries"] == 9
    assert queue.group("g").settings["visibility"] == "10s"


@pytest.mark.parametrize(
    ("settings", "setting", "sentence"),
    [
        ({"visibility": "0s"}, "visibility", "visibility is 1us to 7d, not 0s"),
        ({"visibility": 0}, "visibility", "visibility is 1us to 7d, not 0s"),
        ({"visibility": "7d1s"}, "visibility", "visibility is 1us to 7d, not 7d1s"),
        ({"session": "0s"}, "session", "session is at least 1us, not 0s"),
        ({"max_in_flight": 0}, "max_in_flight", "max_in_flight is at least 1, not 0"),
        ({"max_retries": -1}, "max_retries", "max_retries is 0 to 1000000, not -1"),
        ({"backoff": {"initial": "10s", "max": "1s"}}, "backoff.max", "backoff.max is at least 10s, not 1s"),
        ({"backoff": {"factor": 0.5}}, "backoff.factor", "backoff.factor is 1 to 100, not 0.5"),
        ({"backoff": {"factor": float("nan")}}, "backoff.factor", "backoff.factor is 1 to 100, not nan"),
        ({"backoff": {"jitter": 1}}, "backoff.jitter", "backoff.jitter is 0 to 0.99, not 1.0"),
    ],
)
def test_ranges_are_told_in_the_users_words(
    queue: VirtualQueue, settings: dict[str, Any], setting: str, sentence: str
) -> None:
    for make in (
        lambda: queue.create_group("g", **settings),
        lambda: queue.consumer("g", "orders", **settings).join(),
        lambda: queue.replay("orders", "g", from_time="2020-01-01T00:00:00Z", **settings),
    ):
        with pytest.raises(InvalidSetting) as refused:
            make()
        assert refused.value.details["setting"] == setting
        assert refused.value.message == sentence
    assert queue.groups() == []


def test_ranges_of_topics_are_told_too(queue: VirtualQueue) -> None:
    for settings, sentence in (
        ({"max_delay": "0s"}, "max_delay is at least 1us, not 0s"),
        ({"tombstone_age": 0}, "tombstone_age is at least 1us, not 0s"),
        ({"retention": {"bytes": 0}}, "retention.bytes is at least 1, not 0"),
        ({"durability": "maybe"}, "durability is fsync or interval, not 'maybe'"),
        ({"durability": None}, "durability is fsync or interval, not None"),
        ({"sync_interval": "soon"}, "sync_interval: a duration is written as"),
        ({"sync_interval": "999us"}, "sync_interval is 1ms to 10m, not 999us"),
        ({"sync_interval": "11m"}, "sync_interval is 1ms to 10m, not 11m"),
        ({"replicas": "3"}, "replicas is a whole number, or None for the default, not '3'"),
        ({"replicas": 0}, "replicas is 1 to 9, not 0"),
        ({"min_isr": True}, "min_isr is a whole number, or None for the default, not True"),
        ({"min_isr": 10}, "min_isr is 1 to 9, not 10"),
        ({"replicas": 1, "min_isr": 2}, "min_isr is at most the number of replicas, 1, not 2"),
    ):
        with pytest.raises(InvalidSetting, match=sentence):
            queue.create_topic("t", **settings)


def test_a_broker_on_its_own_has_no_replicas_to_give(queue: VirtualQueue) -> None:
    for settings in ({"replicas": 3}, {"min_isr": 2}):
        with pytest.raises(InvalidSetting, match="this broker is on its own") as refused:
            queue.create_topic("t", **settings)
        assert refused.value.details["setting"] in settings
    assert queue.create_topic("t", replicas=1, min_isr=1).settings["replicas"] == 1
    with pytest.raises(InvalidSetting, match="this broker is on its own: replicas is 1, not 2"):
        queue.change_topic("t", replicas=2)
    assert queue.change_topic("t", replicas=None).settings["replicas"] is None


def test_the_session_a_consumer_names_is_its_groups_and_not_its_own(queue: VirtualQueue, clock: VirtualClock) -> None:
    queue.consumer("away", "orders", session="1m").join()
    with queue.consumer("g", "orders", name="ann", session="1m"):
        assert queue.group("g").settings["session"] == "1m"
        clock.advance("1h")
        assert queue.group("g").members == {"ann": [("orders", 0)]}
    with pytest.raises(TopicNotFound):
        queue.consumer("other", "nowhere", session="1m").join()
    assert [group.name for group in queue.groups()] == ["away", "g"]


def test_a_first_wait_longer_than_the_longest_by_default_is_a_longest_wait_too(queue: VirtualQueue) -> None:
    settings = {"backoff": {"initial": "1h"}}
    assert queue.create_group("g", **settings).settings["backoff"]["max"] == "1h"
    queue.consumer("g", "orders", **settings).join()
    assert queue.change_group("g", backoff={"initial": "2h"}).settings["backoff"]["max"] == "2h"
    assert queue.change_group("g", backoff={"initial": "1s"}).settings["backoff"]["max"] == "2h"
    assert queue.create_group("other", backoff={"initial": "1m"}).settings["backoff"]["max"] == "10m"


def test_topics_of_dead_letters_are_the_brokers_to_make(queue: VirtualQueue) -> None:
    for settings in ({}, {"dead_letters": False}, {"exist_ok": True}):
        with pytest.raises(InvalidName, match=r"end in \.dlq are for dead letters") as refused:
            queue.create_topic("orders.dlq", 1, **settings)
        assert refused.value.details == {"kind": "topic"}
    queue.publish("orders", b"a")
    queue.consumer("w", "orders").poll()[0].reject("bad")
    assert len(queue.dead_letters.list("orders")) == 1
    assert queue.create_topic("orders.dlq", exist_ok=True).settings["dead_letters"] is False
    with pytest.raises(AlreadyExists):
        queue.create_topic("orders.dlq")
    with pytest.raises(InvalidSetting):
        queue.change_topic("orders.dlq", dead_letters=True)


def test_a_topic_that_can_not_be_is_refused(queue: VirtualQueue) -> None:
    with pytest.raises(AlreadyExists):
        queue.create_topic("orders")
    with pytest.raises(InvalidSetting, match="1 to 1000 partitions"):
        queue.create_topic("many", partitions=0)
    queue.create_topic("wide", 2)
    with pytest.raises(InvalidSetting, match="they can grow, not shrink"):
        queue.change_topic("wide", partitions=1)


def test_the_guide_names_every_setting_there_is() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/settings.md").read_text()
    topics, groups = guide.split("## Groups:")
    for part, words, others in ((topics, TOPIC, {"partitions"}), (groups, GROUP, set[str]())):
        named = set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE))
        assert named == {name.split(".")[0] for name in words} | others


def test_a_conflict_is_told_in_the_users_words(queue: VirtualQueue) -> None:
    queue.create_group("printing", backoff={"max": "1m"})
    for conflict in (
        lambda: queue.create_group("printing", visibility="5m", backoff={"max": "1h30m"}, ordering="key"),
        lambda: queue.consumer("printing", "orders", visibility="5m", backoff={"max": "1h30m"}, ordering="key").poll(),
    ):
        with pytest.raises(SettingsConflict) as refused:
            conflict()
        assert refused.value.message == (
            "group printing has other settings: "
            "visibility is 30s, not 5m; backoff.max is 1m, not 1h30m; ordering is none, not key. "
            "Leave them out, or change the group: penstock group set printing"
        )
        assert refused.value.details == {
            "group": "printing",
            "different": {"visibility": ["30s", "5m"], "backoff.max": ["1m", "1h30m"], "ordering": ["none", "key"]},
        }
