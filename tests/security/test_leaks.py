"""What a client is told of what is not its own: nothing."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from penstock.client.requests import DescribeGroup
from penstock.errors import Forbidden, InvalidName, PenstockError, StorageError
from penstock.server.access_file import add_key
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.http import receipts
from penstock.server.keys import make
from penstock.server.receipts import Place, key_of, written
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
        {"operations": ["consume"], "groups": ["g", "other"]},
        {"operations": ["consume", "publish"], "topics": ["mine"]},
    )
    authorization = f"Bearer {key}"
    kept: dict[str, Any] = {}

    async def ask(doors: Doors, path: str, **body: Any) -> httpx.Response:
        return await doors.web.post(path, json=body, headers={"authorization": authorization})

    async def ack(doors: Doors, group: str, receipt: bytes) -> list[tuple[int, str, str]]:
        """Over HTTP and gRPC: how many were acknowledged, and otherwise why not."""
        text = urlsafe_b64encode(receipt).rstrip(b"=").decode()
        web = (await ask(doors, f"/v1/groups/{group}/ack", receipts=[text])).json()
        rpc = await doors.stub.Ack(
            pb.AckRequest(group=group, receipts=[receipt]), metadata=[("authorization", authorization)]
        )
        failures = [(web["done"], one["code"], one["message"].replace(text[:50], "")) for one in web["failed"]]
        return failures + [(rpc.done, one.failure.code, one.failure.message) for one in rpc.failed]

    async def forge(doors: Doors) -> None:
        for name in ("mine", "secret"):
            await doors.site.broker.create_topic(name, 1)
        await doors.site.broker.ensure_group("other")
        for _ in range(2):
            (await ask(doors, "/v1/topics/mine/publish", text="x")).raise_for_status()
        texts = []
        for _ in range(2):
            polled = await ask(doors, "/v1/groups/g/poll", topics=["mine"], consumer="one", max=1, wait="5s")
            texts.append(polled.raise_for_status().json()["messages"][0]["receipt"])
        genuine = key_of(doors.site.broker.secret, "g")
        own, other = [receipts.read(text, genuine) for text in texts]
        # The number of a lease says nothing about the next one.
        assert abs(own.lease - other.lease) > 1 << 32
        # What comes after the MAC of a genuine receipt, under keys that a client can make up.
        places = [own, *[own._replace(topic=topic) for topic in ("secret", "missing")], other._replace(lease=own.lease)]
        forged = [written(place, made_up) for place in places for made_up in (b"", key_of("", "g"))]
        outcomes = [await ack(doors, "g", receipt) for receipt in forged]
        # Nor is that of one group good for another.
        outcomes.append(await ack(doors, "other", written(own, genuine)))
        assert all(outcome == outcomes[0] for outcome in outcomes)
        assert [(done, code) for done, code, _ in outcomes[0]] == [(0, "invalid_receipt")] * 2
        kept["receipts"] = texts

    async def go_on(doors: Doors) -> None:
        """Receipts survive a restart."""
        assert (await ask(doors, "/v1/groups/g/ack", receipts=kept["receipts"])).json()["done"] == 2

    for work in (forge, go_on):
        knock(tmp_path / "data", work, access=file)


def test_partial_results_do_not_tell_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(doors: Doors) -> None:
        secret = str(tmp_path / "data" / "partition" / "7.log")

        async def fail(*arguments: object, **options: object) -> None:
            raise StorageError(f"{secret}: Input/output error", file=secret)

        await doors.site.broker.create_topic("t", 1)
        await doors.site.broker.ensure_group("g")
        key = key_of(doors.site.broker.secret, "g")
        receipt = Place("t", 0, 1, 0)
        told = []
        for name in ("publish", "publish_frame", "answer"):
            monkeypatch.setattr(doors.site, name, fail)
        batch = await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [{"text": "a"}]})
        told.append(batch.text)
        acked = await doors.web.post("/v1/groups/g/ack", json={"receipts": [receipts.written(receipt, key)]})
        told.append(acked.text)
        told.append(str(await doors.stub.Ack(pb.AckRequest(group="g", receipts=[written(receipt, key)]))))
        stream = doors.stub.PublishStream()
        await stream.write(pb.PublishBatchRequest(topic="t", messages=[pb.NewMessage(value=b"x")]))
        told.append(str(await stream.read()))
        stream.cancel()
        for text in told:
            assert "7.log" in text
            assert str(tmp_path) not in text

    knock(tmp_path / "data", work)
