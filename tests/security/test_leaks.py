"""What a client is told of what is not its own: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from penstock.client.requests import DescribeGroup
from penstock.errors import Forbidden, InvalidName, PenstockError, StorageError
from penstock.server.access_file import add_key
from penstock.server.http import receipts
from penstock.server.keys import make
from security.doors import Doors, knock


def access_of(path: Path, *rules: dict[str, Any]) -> tuple[Path, str]:
    file = path / "access.yaml"
    everybody = {"principals": ["*"]}
    file.write_text(yaml.safe_dump({"rules": [{**everybody, **rule} for rule in rules]}), encoding="utf-8")
    key, kept = make("somebody")
    add_key(file, kept)
    return file, key


def test_the_lag_of_a_topic_is_told_to_those_who_may_know_of_the_topic(tmp_path: Path) -> None:
    file, key = access_of(
        tmp_path,
        {"operations": ["describe", "consume"], "groups": ["*"]},
        {"operations": ["consume"], "topics": ["mine"]},
    )

    async def work(doors: Doors) -> None:
        for name in ("mine", "secret"):
            await doors.site.broker.create_topic(name, 1)
        await doors.site.broker.ensure_group("g")
        async with doors.client(key) as client:
            await client._transport.call(DescribeGroup("g", {"mine": (0,)}))
            with pytest.raises(Forbidden):
                await client._transport.call(DescribeGroup("g", {"secret": (0,)}))

    knock(tmp_path / "data", work, access=file)


def test_only_the_broker_publishes_to_a_dead_letter_topic(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.client() as client:
            await client.create_topic("t", 1)
            await client.publish("t", b"bad")
            (message,) = await client.consumer("g", "t").poll(wait="5s")
            await message.reject("bad")
            assert len(await client.dead_letters.list("t")) == 1
            with pytest.raises(InvalidName, match="only the broker"):
                await client.publish("t.dlq", b"forged")
            with pytest.raises(InvalidName, match="only the broker"):
                await client.schedules.create("s", "t.dlq", "* * * * *", b"forged")
        answer = await doors.web.post("/v1/topics/t.dlq/publish", json={"text": "forged"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
        assert doors.state()["ends"]["t.dlq"] == [1]

    knock(tmp_path / "data", work)


def test_errors_of_the_disk_do_not_tell_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(doors: Doors) -> None:
        secret = str(tmp_path / "data" / "partition" / "7.log")

        def fail(*arguments: object, **options: object) -> None:
            raise StorageError(f"{secret}: Input/output error", file=secret)

        await doors.site.broker.create_topic("t", 1)
        monkeypatch.setattr(doors.site.broker, "topic", fail)
        async with doors.client() as client:
            with pytest.raises(PenstockError) as failure:
                await client._transport.read("t", 0, 0, 1, 1000)
        web = (await doors.web.get("/v1/topics/t")).text
        monkeypatch.undo()
        for told in (str(failure.value), str(failure.value.details), web):
            assert "7.log" in told
            assert str(tmp_path) not in told

    knock(tmp_path / "data", work)


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("evil.example.com", False),
        ("evil.example.com:8080", False),
        ("127.0.0.1.nip.io:8080", False),
        ("localhost:8080", True),
        ("penstock:8080", True),
        ("10.0.0.5:8080", True),
        ("[::1]:8080", True),
        ("penstock.default.svc:8080", True),
    ],
)
def test_a_broker_without_keys_does_not_answer_to_names_that_a_page_can_have(
    tmp_path: Path, host: str, is_answered: bool
) -> None:
    async def work(doors: Doors) -> None:
        answer = await doors.web.post("/v1/topics", json={"name": "t", "partitions": 1}, headers={"host": host})
        assert answer.is_success == is_answered, answer.text
        assert bool(doors.state()["topics"]) == is_answered

    knock(tmp_path / "data", work)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"origin": "null"},
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async def work(doors: Doors) -> None:
        answer = await doors.web.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=headers)
        assert answer.status_code == 403
        assert doors.state()["topics"] == []

    knock(tmp_path / "data", work)


def test_no_get_changes_anything(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        async with doors.client() as client:
            await client.publish("t", b"1")
        before = doors.state()
        description = (await doors.web.get("/openapi.json")).json()
        for path, methods in description["paths"].items():
            if "get" in methods:
                url = path.format(topic="t", group="g", id="t:0:0", name="n", consumer="c", partition=0)
                await doors.web.get(url, params={"topics": "t", "topic": "t", "group": "g", "consumer": "c"})
        assert (await doors.web.get("/v1/groups/g/stream", params={"topics": "t"})).status_code == 405
        assert doors.state() == before

    knock(tmp_path / "data", work)


def test_a_forged_receipt_answers_for_no_message_and_reveals_no_topic(tmp_path: Path) -> None:
    file, key = access_of(
        tmp_path,
        {"operations": ["consume"], "groups": ["g"]},
        {"operations": ["consume", "publish"], "topics": ["mine"]},
    )

    async def work(doors: Doors) -> None:
        for name in ("mine", "secret"):
            await doors.site.broker.create_topic(name, 1)
        authorization = {"authorization": f"Bearer {key}"}

        async def ask(path: str, **body: Any) -> httpx.Response:
            return await doors.web.post(path, json=body, headers=authorization)

        for _ in range(2):
            (await ask("/v1/topics/mine/publish", text="x")).raise_for_status()
        given = []
        for _ in range(2):
            polled = await ask("/v1/groups/g/poll", topics=["mine"], consumer="one", max=1, wait="5s")
            given.append(receipts.read(polled.raise_for_status().json()["messages"][0]["receipt"]))
        own, other = given
        # The number of a lease says nothing about the next one.
        assert abs(own.lease - other.lease) > 1 << 32
        for lease in (own.lease, own.lease + 1, own.lease - 1, 0):
            forged = receipts.written(other._replace(lease=lease))
            assert (await ask("/v1/groups/g/ack", receipts=[forged])).json()["done"] == 0
        told = []
        for topic in ("secret", "missing"):
            answer = await ask("/v1/groups/g/ack", receipts=[receipts.written(own._replace(topic=topic))])
            told.append((answer.status_code, answer.text.replace(topic, "TOPIC")))
        assert told[0] == told[1]
        assert told[0][0] == 403
        genuine = [receipts.written(place) for place in given]
        assert (await ask("/v1/groups/g/ack", receipts=genuine)).json()["done"] == 2

    knock(tmp_path / "data", work, access=file)
