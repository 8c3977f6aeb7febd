"""The door itself: health, reflection, keys, certificates, errors, and what is made from the proto."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from grpc_served import Served, failure, listed, pb, polled, publish, serve, served, stub_of, topic
from penstock import errors
from penstock.errors import InvalidSetting, PenstockError
from penstock.server.gate import Gate
from penstock.server.grpc import door, failures, tls
from penstock.server.grpc.door import GrpcDoor
from penstock.server.grpc.table import SERVICES
from penstock.server.keys import make

ROOT = Path(__file__).parents[2]
# Of nobody but this test, for localhost, until 2126.
PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgv4f/N3s9sEkAkE0s
NIZYrHJlYKwnWWn9bdY0zELaWHShRANCAAQEAMCoHeTSlegHlSxMzrhElISstnOg
kUEstvoOsJYway1a2dsm616ITFaPZAiJ0gtDKR/qia+FM6Dn67mo9eY8
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUH1o2BqhSRYuudEne5HpamE+XM5wwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTE0NDIzM1oYDzIxMjYxMDIy
MTQ0MjMzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQEAMCoHeTSlegHlSxMzrhElISstnOgkUEstvoOsJYway1a2dsm616I
TFaPZAiJ0gtDKR/qia+FM6Dn67mo9eY8o28wbTAdBgNVHQ4EFgQUPSTWQ/kMKCzI
2/PjT7obZdAsCUAwHwYDVR0jBBgwFoAUPSTWQ/kMKCzI2/PjT7obZdAsCUAwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgFGZK0r6LoUgk6YbCOKwm70YHlP0gDTEb/KiCoXmAOAcCIQDw
7aQLhVlAeHt8RFb+qhC6LMbg+vz5byKBdHLNqXTDsA==
-----END CERTIFICATE-----
"""


# --- what is made from the proto ----------------------------------------------------------------------------


def test_the_code_that_is_committed_is_what_the_proto_makes(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'proto')!r}); import generate, pathlib; "
    program += f"generate.generate(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True)
    for name in ("penstock_pb2.py", "penstock_pb2.pyi"):
        committed = ROOT / "src" / "penstock" / "server" / "grpc" / name
        assert committed.read_text() == (tmp_path / name).read_text(), f"run {ROOT / 'proto' / 'generate.py'}"


def test_every_service_of_the_proto_is_answered() -> None:
    assert SERVICES.keys() == set(pb.DESCRIPTOR.services_by_name)


_STRANGER = """
import sys, grpc, penstock_pb2 as pb, penstock_pb2_grpc as stubs
with grpc.insecure_channel(sys.argv[1]) as channel:
    stubs.TopicsStub(channel).CreateTopic(pb.CreateTopicRequest(name="t", partitions=1))
    messages = [pb.NewMessage(value=b"%d" % number) for number in range(100)]
    batches = [pb.PublishBatchRequest(topic="t", messages=messages)] * 3
    replies = stubs.PublisherStub(channel).PublishStream(iter(batches))
    assert [reply.offsets[0] for reply in replies] == [0, 100, 200]
    consumer = stubs.ConsumerStub(channel)
    polled = consumer.Poll(pb.PollRequest(group="g", consumer="c", topics=["t"], max_messages=300))
    reply = consumer.Ack(pb.AckRequest(group="g", receipts=[one.receipt for one in polled.messages]))
    assert (reply.done, len(reply.failed)) == (300, 0), reply
"""


def test_a_client_that_has_nothing_but_the_proto_gets_along(tmp_path: Path) -> None:
    folder = ROOT / "proto" / "penstock" / "v1"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--grpc_python_out={tmp_path}", "penstock.proto"], check=True)
    (tmp_path / "stranger.py").write_text(_STRANGER)

    async def work(here: Served, q: Any) -> None:
        stranger = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "stranger.py"), here.address)
        assert await stranger.wait() == 0

    serve(tmp_path, work)


# --- health and reflection ----------------------------------------------------------------------------------


def test_health_is_told_of_all_and_of_each_service(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        async with here.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "penstock.v1.Publisher", "penstock.v1.Consumer"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
            unknown = health.Check(health_pb2.HealthCheckRequest(service="nobody"))
            assert await failure(unknown) == (StatusCode.NOT_FOUND, None)
            watching = health.Watch(health_pb2.HealthCheckRequest(service=""))
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            closing = asyncio.ensure_future(here.door.close())
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watching.cancel()
            await closing

    serve(tmp_path, work)


def test_a_client_can_ask_what_there_is(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        async with here.channel() as channel:
            asking = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            await asking.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {one.name for one in (await asking.read()).list_services_response.service}
            assert names >= {f"penstock.v1.{name}" for name in SERVICES} | {"grpc.health.v1.Health"}
            symbol = "penstock.v1.Publisher"
            await asking.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            (content,) = (await asking.read()).file_descriptor_response.file_descriptor_proto
            assert FileDescriptorProto.FromString(content).name == "penstock/v1/penstock.proto"
            await asking.done_writing()

    serve(tmp_path, work)


# --- errors -------------------------------------------------------------------------------------------------


def _kinds(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _kinds(below))]


def test_every_error_has_a_status_code_of_its_kind() -> None:
    for kind in _kinds(PenstockError):
        assert failures.code_of(kind) is not StatusCode.OK
    assert failures.code_of(errors.TopicNotFound) is StatusCode.NOT_FOUND
    assert failures.code_of(errors.SyncFailed) is StatusCode.UNAVAILABLE
    # Whoever tries again by the status alone must not try these.
    passing = {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.ABORTED}
    for kind in _kinds(PenstockError):
        if kind.retriable:
            assert failures.code_of(kind) in passing


def test_an_error_is_told_with_its_code_its_sentence_and_its_details(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        call = q.GetTopic(pb.GetTopicRequest(name="nowhere"))
        assert await failure(call) == (StatusCode.NOT_FOUND, "topic_not_found")
        assert await call.details() == 'topic "nowhere" does not exist. Create it: penstock topic create nowhere'
        assert dict(await call.trailing_metadata())["penstock-details"] == '{"topic": "nowhere"}'

    serve(tmp_path, work)


def test_what_is_too_long_to_be_told_is_cut() -> None:
    error = errors.InvalidInput("x" * 5_000, much="y" * 10_000)
    assert len(failures.sentence_of(error)) < 1_100
    assert failures.metadata_of(error) == [("penstock-code", "invalid_input")]
    odd = errors.InvalidInput("odd", name="\u00fc\n", what=object)
    assert dict(failures.metadata_of(odd))["penstock-details"].isascii()


# --- keys ---------------------------------------------------------------------------------------------------


def test_keys_are_asked_for_and_rules_hold_for_every_call(tmp_path: Path) -> None:
    boss_key, boss = make("boss")
    worker_key, worker = make("worker")
    told = [{"id": key.id, "principal": key.principal, "hash": key.hash} for key in (boss, worker)]
    everything = ["publish", "consume", "read", "describe", "admin"]
    rules = [
        {"principals": ["boss"], "operations": everything, "topics": ["*"], "groups": ["*"], "broker": True},
        {"principals": ["worker"], "operations": ["consume"], "topics": ["t"], "groups": ["g"]},
    ]
    access = tmp_path / "access.yaml"
    access.write_text(yaml.safe_dump({"keys": told, "rules": rules}))

    async def work(here: Served, q: Any) -> None:
        as_boss, as_worker = [(("authorization", f"Bearer {key}"),) for key in (boss_key, worker_key)]
        nobody = StatusCode.UNAUTHENTICATED, "unauthenticated"
        for metadata in ((), (("authorization", "Bearer pk_x_y"),), (("authorization", f"Basic {boss_key}"),)):
            assert await failure(q.ListTopics(pb.ListTopicsRequest(), metadata=metadata)) == nobody
            assert await failure(listed(q.Subscribe(metadata=metadata))) == nobody
        await q.CreateTopic(pb.CreateTopicRequest(name="t", partitions=1), metadata=as_boss)
        message = pb.PublishRequest(topic="t", message=pb.NewMessage(value=b"x"))
        await q.Publish(message, metadata=as_boss)
        forbidden = StatusCode.PERMISSION_DENIED, "forbidden"
        assert await failure(q.Publish(message, metadata=as_worker)) == forbidden
        # Neither is told whether that is there.
        for name in ("t", "nowhere"):
            batch = pb.PublishBatchRequest(topic=name, messages=[pb.NewMessage()])
            assert await failure(q.PublishBatch(batch, metadata=as_worker)) == forbidden
        assert await failure(q.Poll(polled("other"), metadata=as_worker)) == forbidden
        (one,) = (await q.Poll(polled(), metadata=as_worker)).messages
        ack = pb.AckRequest(group="g", receipts=[one.receipt])
        assert (await q.Ack(ack, metadata=as_worker)).done == 1
        assert not (await q.ListTopics(pb.ListTopicsRequest(), metadata=as_worker)).topics

    serve(tmp_path, work, access=access)


# --- the port -----------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            second = GrpcDoor(here.site, Gate(here.site, None))
            with pytest.raises(OSError, match="in use"):
                await second.open("127.0.0.1", other.getsockname()[1])
            await second.close()
        assert len((await topic(q)).partitions) == 1

    serve(tmp_path, work)


def test_with_a_certificate_it_speaks_tls_and_takes_up_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "both.pem"
    file.write_text(PEM)
    certificate = PEM[PEM.index("-----BEGIN CERTIFICATE") :].encode()

    async def work(here: Served, q: Any) -> None:
        async def ask(port: int) -> None:
            trusted = grpc.ssl_channel_credentials(certificate)
            alone = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(f"localhost:{port}", trusted, options=alone) as channel:
                await stub_of(channel).ListTopics(pb.ListTopicsRequest())

        safe = GrpcDoor(here.site, Gate(here.site, None))
        port = await safe.open("127.0.0.1", 0, tls.credentials(str(file), None))
        await ask(port)
        file.write_text("# anew\n" + PEM)
        await ask(port)
        file.write_text("nothing that could be used")
        await ask(port)
        await safe.close()

    serve(tmp_path, work)


def test_a_certificate_that_can_t_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    for name in ("bad.pem", "missing.pem"):
        with pytest.raises(InvalidSetting):
            tls.credentials(str(tmp_path / name), None)


def test_a_stopping_door_answers_what_it_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        store, asked, go_on = here.site.publish_frame, asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await store(*arguments)

        monkeypatch.setattr(here.site, "publish_frame", slowly)
        publishing = asyncio.ensure_future(publish(q, "t", b"x"))
        await asked.wait()
        closing = asyncio.ensure_future(here.door.close())
        while not here.door._desk.is_over:
            await asyncio.sleep(0)
        go_on.set()
        assert await publishing == ["t:0:0"]
        await closing

    serve(tmp_path, work)


def test_what_is_compressed_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    async def work(here: Served, q: Any) -> None:
        await topic(q)
        request = pb.PublishRequest(topic="t", message=pb.NewMessage(value=bytes(1_000)))
        packed = q.Publish(request, compression=grpc.Compression.Gzip)
        assert await failure(packed) == (StatusCode.UNIMPLEMENTED, None)
        assert (await q.Publish(request)).offset == 0

    serve(tmp_path, work)


def test_no_more_calls_are_taken_than_may_be_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CALLS_MAX", 2)

    async def work(here: Served, q: Any) -> None:
        await here.site.broker.create_topic("t", 1)
        polls = [q.Poll(polled(consumer=name, wait_us=20_000_000)) for name in ("one", "two")]
        while not all(here.door._desk.members.has("g", name) for name in ("one", "two")):
            await asyncio.sleep(0)
        assert await failure(q.ListTopics(pb.ListTopicsRequest())) == (StatusCode.RESOURCE_EXHAUSTED, None)
        for poll in polls:
            poll.cancel()

    serve(tmp_path, work)


def test_members_that_wait_are_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_ROUND_S", 0.01)

    async def work(here: Served, q: Any) -> None:
        await topic(q)
        stream = q.Subscribe()
        # Without credit it never asks for anything by itself.
        settings = pb.GroupSettings(session_us=60_000_000)
        wanted = pb.Subscription(group="g", consumer="c", topics=["t"], settings=settings)
        await stream.write(pb.SubscribeRequest(subscribe=wanted))
        assert (await stream.read()).HasField("subscribed")
        members = here.site.broker.consumers.of("g")
        first = members.next_due()
        assert first is not None
        # When its session would end is later and later.
        while (members.next_due() or 0) < first + 100_000:
            await asyncio.sleep(0)
        assert members.names() == ["c"]
        stream.cancel()

    serve(tmp_path, work)


def test_it_runs_on_uvloop_as_well(tmp_path: Path) -> None:

    async def run() -> None:
        async with asyncio.timeout(30), served(tmp_path) as here, here.channel() as channel:
            q = stub_of(channel)
            await topic(q)
            await publish(q, "t", b"1")
            (one,) = (await q.Poll(polled(wait_us=5_000_000))).messages
            assert one.message.value == b"1"

    uvloop.run(run())
