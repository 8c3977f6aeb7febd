"""What callers without a key, or without rights, can occupy of the gRPC listener."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from grpc_served import failure, stub_of
from penstock.server.grpc import calls, health, intake
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.keys import make
from security.doors import Doors, knock, until

SERVING = health_pb2.HealthCheckResponse.SERVING
WANTED = health_pb2.HealthCheckRequest()


def _access(path: Path, *rules: dict[str, Any]) -> tuple[Path, list[tuple[str, str]]]:
    """With the metadata of a call that has the only key."""
    key, kept = make("somebody")
    file = path / "access.yaml"
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file.write_text(yaml.safe_dump({"keys": keys, **({"rules": list(rules)} if rules else {})}), encoding="utf-8")
    return file, [("authorization", f"Bearer {key}")]


def _unfinished(channel: grpc.aio.Channel, method: str, **options: Any) -> Any:
    """A call whose request never comes."""
    return channel.stream_unary(method)(**options)


def test_one_more_watch_ends_the_oldest_of_its_connection(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.channel() as channel, doors.channel() as other:
            neighbour = health_pb2_grpc.HealthStub(other).Watch(WANTED)
            assert (await neighbour.read()).status == SERVING
            watches = []
            for _ in range(health.PEER_WATCHES_MAX + 1):
                watches.append(health_pb2_grpc.HealthStub(channel).Watch(WANTED))
                assert (await watches[-1].read()).status == SERVING
            assert await watches[0].code() is StatusCode.RESOURCE_EXHAUSTED
            assert not any(watch.done() for watch in (neighbour, *watches[1:]))

    knock(tmp_path, work)


def test_one_more_watch_of_all_ends_the_oldest_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "WATCHES_MAX", 3)

    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            watches = []
            for _ in range(4):
                channel = await stack.enter_async_context(doors.channel())
                watches.append(health_pb2_grpc.HealthStub(channel).Watch(WANTED))
                assert (await watches[-1].read()).status == SERVING
            assert await watches[0].code() is StatusCode.RESOURCE_EXHAUSTED
            assert not any(watch.done() for watch in watches[1:])

    knock(tmp_path, work)
    assert "health watches" in caplog.text


def test_health_requests_that_do_not_come_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few are read at a time; the others wait, and beyond that they are refused."""
    monkeypatch.setattr(health, "WAITING_MAX", 4)

    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            silent = [_unfinished(channel, "/grpc.health.v1.Health/Check") for _ in range(20)]
            codes = {await call.code() for call in silent}
            assert codes == {StatusCode.DEADLINE_EXCEEDED, StatusCode.RESOURCE_EXHAUSTED}
            assert (await health_pb2_grpc.HealthStub(channel).Check(WANTED)).status == SERVING
        assert doors.grpc._health._waiting == 0

    knock(tmp_path, work)


def test_a_health_request_that_is_none_is_refused(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            call = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert (await failure(call(b"\xff\xff\xff nonsense")))[0] is StatusCode.INVALID_ARGUMENT
            empty = channel.stream_unary("/grpc.health.v1.Health/Check")
            assert (await failure(empty(iter(()))))[0] is StatusCode.INVALID_ARGUMENT

    knock(tmp_path, work)


def test_reflection_needs_a_key_if_there_are_keys(tmp_path: Path) -> None:
    access, metadata = _access(tmp_path)

    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            refused = stub.ServerReflectionInfo()
            assert (await failure(refused.read()))[0] is StatusCode.UNAUTHENTICATED
            asking = stub.ServerReflectionInfo(metadata=metadata)
            await asking.write(asked)
            assert (await asking.read()).list_services_response.service
            await asking.done_writing()

    knock(tmp_path / "data", work, access=access)


@pytest.mark.parametrize(
    "method", ["Publisher/Publish", "Publisher/PublishStream", "Consumer/Poll", "Consumer/Subscribe"]
)
def test_nothing_is_read_of_a_principal_without_the_right(tmp_path: Path, method: str) -> None:
    access, metadata = _access(tmp_path, {"principals": ["*"], "operations": ["describe"], "topics": ["*"]})

    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            call = _unfinished(channel, f"/penstock.v1.{method}", metadata=metadata)
            assert await failure(call) == (StatusCode.PERMISSION_DENIED, "forbidden")

    knock(tmp_path / "data", work, access=access)


def test_one_principal_has_at_most_half_of_all_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLS_MAX", 6)
    access, metadata = _access(tmp_path)

    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            method = "/penstock.v1.Publisher/Publish"
            silent = [_unfinished(channel, method, metadata=metadata) for _ in range(3)]
            await until(lambda: doors.grpc._reception._calls.counts["somebody"] == 3)
            assert await failure(stub_of(channel).ListTopics(pb.ListTopicsRequest(), metadata=metadata)) == (
                StatusCode.RESOURCE_EXHAUSTED,
                "overloaded",
            )
            for call in silent:
                call.cancel()
            await until(lambda: not doors.grpc._reception._calls.counts)
            await stub_of(channel).ListTopics(pb.ListTopicsRequest(), metadata=metadata)

    knock(tmp_path / "data", work, access=access)


def test_slow_requests_of_a_principal_are_few_on_all_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PATIENCE_S", 3_600.0)

    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(doors.channel()) for _ in range(2)]
            slow_max = intake.OTHER_REQUESTS.slow_max
            silent = [
                _unfinished(channel, "/penstock.v1.Topics/GetTopic")
                for channel in channels
                for _ in range(slow_max + 1)
            ]
            # All began lately: those that are one too many fail.
            await until(lambda: sum(call.done() for call in silent) == slow_max + 2)
            codes = {await call.code() for call in silent if call.done()}
            assert codes == {StatusCode.DEADLINE_EXCEEDED}
            await stub_of(channels[0]).ListTopics(pb.ListTopicsRequest())

    knock(tmp_path, work)


def test_the_oldest_slow_request_makes_way_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "PATIENCE_S", 0.0)

    async def work(doors: Doors) -> None:
        async with doors.channel() as channel:
            slow_max = intake.OTHER_REQUESTS.slow_max
            readings = doors.grpc._desk.intake._readings
            silent = []
            for count in range(1, slow_max + 1):
                silent.append(_unfinished(channel, "/penstock.v1.Topics/GetTopic"))
                await until(lambda count=count: any(len(one._slow) == count for one in readings.values()))
            silent.append(_unfinished(channel, "/penstock.v1.Topics/GetTopic"))
            assert await silent[0].code() is StatusCode.DEADLINE_EXCEEDED
            assert not silent[-1].done()

    knock(tmp_path, work)


def test_calls_that_wait_to_be_read_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "QUICK_S", 3_600.0)

    async def work(doors: Doors) -> None:
        async with AsyncExitStack() as stack:
            most = sum(intake.OTHER_REQUESTS)
            channels = [await stack.enter_async_context(doors.channel()) for _ in range(3)]
            silent = [
                _unfinished(channel, "/penstock.v1.Topics/GetTopic") for channel in channels for _ in range(most // 2)
            ]
            await until(lambda: any(call.done() for call in silent))
            over = [call for call in silent if call.done()]
            assert {await call.code() for call in over} == {StatusCode.RESOURCE_EXHAUSTED}
            for call in silent:
                call.cancel()
            await until(lambda: not doors.grpc._desk.intake._readings)

    knock(tmp_path, work)
